//! GPT-NeoX (`GPTNeoXForCausalLM`, also Pythia): rotary embeddings over a part of each head, halves paired.
//!
//! Attention and feed-forward network are parallel or sequential, each after its own LayerNorm. Queries, keys and
//! values come from one map that stores them head by head.

use super::fields::{activation, head_dim, named};
use super::rope::{Defaults, frequencies};
use super::{Family, Head, Shape};
use crate::blocks::{Activation, Attention, Gate, LayerPlan, Linear, Mlp, Norm, NormKind, Order, Rotary, root_scale};
use crate::checkpoint::Config;
use crate::error::ConfigError;

#[derive(Debug)]
struct GptNeoX {
    shape: Shape,
    /// Width of the feed-forward network.
    inner: u32,
    activation: Activation,
    epsilon: f32,
    rotary: Rotary,
    parallel: bool,
    /// Whether the attention's maps have biases.
    bias: bool,
    tied: bool,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let hidden = config.dimension(&["hidden_size"])?;
    let heads = config.dimension(&["num_attention_heads"])?;
    let head_dim = head_dim(named("hidden_size", hidden), named("num_attention_heads", heads))?;
    let defaults = Defaults { theta: 10_000.0, fraction: 0.25 };
    Ok(Box::new(GptNeoX {
        shape: Shape {
            layers: config.dimension(&["num_hidden_layers"])?,
            heads,
            kv_heads: heads,
            head_dim,
            hidden,
            positions: config.dimension(&["max_position_embeddings"])?,
            window: None,
            vocab: config.dimension(&["vocab_size"])?,
        },
        inner: config.dimension(&["intermediate_size"])?,
        activation: activation(config, "hidden_act", "gelu")?,
        epsilon: config.positive_or("layer_norm_eps", 1e-5)?,
        rotary: Rotary { frequencies: frequencies(config, head_dim, defaults)?, interleaved: false },
        parallel: config.flag_or("use_parallel_residual", true)?,
        bias: config.flag_or("attention_bias", true)?,
        tied: config.flag_or("tie_word_embeddings", false)?,
    }))
}

impl GptNeoX {
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, hidden: self.shape.hidden, epsilon: self.epsilon }
    }
}

impl Family for GptNeoX {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["gpt_neox.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "embed_in.weight"
    }

    fn rotary(&self) -> Option<&Rotary> {
        Some(&self.rotary)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let name = |part: &str| format!("layers.{index}.{part}");
        let second_norm = "post_attention_layernorm";
        let qkv = Linear::new(name("attention.query_key_value"), hidden, 3 * hidden);
        LayerPlan {
            scope: name(""),
            norm: self.norm(),
            first_norm: "input_layernorm",
            order: if self.parallel { Order::Parallel(second_norm) } else { Order::Sequential(second_norm) },
            attention: Attention {
                heads,
                kv_heads,
                head_dim,
                scale: root_scale(head_dim),
                qkv: qkv.bias(self.bias).interleaved(3, heads, head_dim),
                out: Linear::new(name("attention.dense"), hidden, hidden).bias(self.bias),
            },
            mlp: Mlp {
                up: Linear::new(name("mlp.dense_h_to_4h"), hidden, self.inner),
                gate: Gate::None,
                activation: self.activation,
                down: Linear::new(name("mlp.dense_4h_to_h"), self.inner, hidden),
            },
        }
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        Some((self.norm(), "final_layer_norm"))
    }

    fn head(&self) -> Head {
        Head { matrix: (!self.tied).then_some("embed_out.weight"), bias: None }
    }
}
