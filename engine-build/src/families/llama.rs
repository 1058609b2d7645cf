//! Llama (`LlamaForCausalLM`) and the families that differ from it by a flag: Mistral and Qwen2. RMSNorm, rotary
//! embeddings over whole heads, a gated feed-forward network, keys and values that groups of heads share.

use super::fields::{activation, head_dim, head_groups, heads_width, named};
use super::rope::{Defaults, frequencies};
use super::{Family, Head, Shape};
use crate::blocks::{Activation, Attention, Gate, LayerPlan, Linear, Mlp, Norm, NormKind, Order, Rotary, root_scale};
use crate::checkpoint::Config;
use crate::error::ConfigError;

#[derive(Debug)]
struct Llama {
    shape: Shape,
    /// Width of the feed-forward network.
    inner: u32,
    activation: Activation,
    epsilon: f32,
    rotary: Rotary,
    bias: Biases,
    tied: bool,
}

/// Which maps have biases.
#[derive(Clone, Copy, Debug)]
struct Biases {
    qkv: bool,
    attention_out: bool,
    mlp: bool,
}

/// The differences between the families of this file.
struct Difference {
    /// Heads of keys and values where the configuration does not say; without this, as many as of queries.
    kv_heads: Option<u32>,
    bias: Biases,
    /// Number of positions that attention looks back; all if absent.
    window: Option<u32>,
}

/// Reads Llama's `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let attention = config.flag_or("attention_bias", false)?;
    let bias = Biases { qkv: attention, attention_out: attention, mlp: config.flag_or("mlp_bias", false)? };
    read_with(config, &Difference { kv_heads: None, bias, window: None })
}

/// Reads the configuration of a Mistral model.
pub(super) fn read_mistral(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let bias = Biases { qkv: false, attention_out: false, mlp: false };
    read_with(config, &Difference { kv_heads: Some(8), bias, window: config.dimension_opt("sliding_window")? })
}

/// Reads the configuration of a Qwen2 model.
pub(super) fn read_qwen2(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let bias = Biases { qkv: true, attention_out: false, mlp: false };
    let windowed = config.flag_or("use_sliding_window", false)?;
    let window = if windowed { config.dimension_opt("sliding_window")? } else { None };
    read_with(config, &Difference { kv_heads: Some(32), bias, window })
}

fn read_with(config: &Config, difference: &Difference) -> Result<Box<dyn Family>, ConfigError> {
    let hidden = config.dimension(&["hidden_size"])?;
    let heads = config.dimension(&["num_attention_heads"])?;
    let kv_heads = config.dimension_opt("num_key_value_heads")?.or(difference.kv_heads).unwrap_or(heads);
    head_groups(named("num_attention_heads", heads), named("num_key_value_heads", kv_heads))?;
    let head_dim = match config.dimension_opt("head_dim")? {
        Some(size) => size,
        None => head_dim(named("hidden_size", hidden), named("num_attention_heads", heads))?,
    };
    heads_width(heads, head_dim)?;
    let defaults = Defaults { theta: 10_000.0, fraction: 1.0 };
    Ok(Box::new(Llama {
        shape: Shape {
            layers: config.dimension(&["num_hidden_layers"])?,
            heads,
            kv_heads,
            head_dim,
            hidden,
            positions: config.dimension(&["max_position_embeddings"])?,
            window: difference.window,
            vocab: config.dimension(&["vocab_size"])?,
        },
        inner: config.dimension(&["intermediate_size"])?,
        activation: activation(config, "hidden_act", "silu")?,
        epsilon: config.positive_or("rms_norm_eps", 1e-6)?,
        rotary: Rotary { frequencies: frequencies(config, head_dim, defaults)?, interleaved: false },
        bias: difference.bias,
        tied: config.flag_or("tie_word_embeddings", false)?,
    }))
}

impl Llama {
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Rms, hidden: self.shape.hidden, epsilon: self.epsilon }
    }
}

impl Family for Llama {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["model.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "embed_tokens.weight"
    }

    fn rotary(&self) -> Option<&Rotary> {
        Some(&self.rotary)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let name = |part: &str| format!("layers.{index}.{part}");
        let qkv = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
        let qkv = qkv.map(|(part, to)| (name(&format!("self_attn.{part}")), to));
        let map = |part: &str| (name(&format!("mlp.{part}")), self.inner);
        let (up, gate) = if self.bias.mlp {
            (Linear::stacked([map("up_proj")], hidden), Gate::Own(Linear::stacked([map("gate_proj")], hidden)))
        } else {
            let both = Linear::stacked([map("gate_proj"), map("up_proj")], hidden).bias(false);
            (both, Gate::First { inner: self.inner })
        };
        LayerPlan {
            scope: name(""),
            norm: self.norm(),
            first_norm: "input_layernorm",
            order: Order::Sequential("post_attention_layernorm"),
            attention: Attention {
                heads,
                kv_heads,
                head_dim,
                scale: root_scale(head_dim),
                qkv: Linear::stacked(qkv, hidden).bias(self.bias.qkv),
                out: Linear::new(name("self_attn.o_proj"), queries, hidden).bias(self.bias.attention_out),
            },
            mlp: Mlp {
                up,
                gate,
                activation: self.activation,
                down: Linear::new(name("mlp.down_proj"), self.inner, hidden).bias(self.bias.mlp),
            },
        }
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        Some((self.norm(), "norm"))
    }

    fn head(&self) -> Head {
        Head { matrix: (!self.tied).then_some("lm_head.weight"), bias: None }
    }
}
