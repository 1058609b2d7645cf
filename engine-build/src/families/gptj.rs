//! GPT-J (`GPTJForCausalLM`): rotary embeddings over a part of each head, neighbours paired; attention and feed-forward
//! network side by side behind one LayerNorm; no biases in attention; a head with a bias.

use super::fields::{activation, head_dim};
use super::rope::plain_frequencies;
use super::{Family, Head, Shape};
use crate::blocks::{
    Activation, Attention, Builder, Gate, LayerPlan, Linear, Mlp, Norm, NormKind, Order, Rotary, root_scale,
};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

/// The base of the angles, which no configuration changes.
const THETA: f64 = 10_000.0;

#[derive(Debug)]
struct GptJ {
    shape: Shape,
    /// Width of the feed-forward network.
    inner: u32,
    activation: Activation,
    epsilon: f32,
    rotary: Rotary,
    tied: bool,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let hidden = config.dimension(&["n_embd", "hidden_size"])?;
    let heads = config.dimension(&["n_head", "num_attention_heads"])?;
    let head_dim = head_dim(("n_embd", hidden), ("n_head", heads))?;
    let rotated = config.dimension_opt("rotary_dim")?.unwrap_or(64);
    Ok(Box::new(GptJ {
        shape: Shape {
            layers: config.dimension(&["n_layer", "num_hidden_layers"])?,
            heads,
            kv_heads: heads,
            head_dim,
            hidden,
            positions: config.dimension(&["n_positions", "max_position_embeddings"])?,
            window: None,
            vocab: config.dimension(&["vocab_size"])?,
        },
        inner: config.dimension_opt("n_inner")?.unwrap_or(4 * hidden),
        activation: activation(config, "activation_function", "gelu_new")?,
        epsilon: config.positive_or("layer_norm_epsilon", 1e-5)?,
        rotary: Rotary { frequencies: plain_frequencies(rotated, head_dim, THETA)?, interleaved: true },
        tied: config.flag_or("tie_word_embeddings", false)?,
    }))
}

impl GptJ {
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, hidden: self.shape.hidden, epsilon: self.epsilon }
    }
}

impl Family for GptJ {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["transformer.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "wte.weight"
    }

    fn rotary(&self) -> Option<&Rotary> {
        Some(&self.rotary)
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let name = |part: &str| format!("h.{index}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| (name(&format!("attn.{part}")), hidden));
        LayerPlan {
            scope: name(""),
            norm: self.norm(),
            first_norm: "ln_1",
            order: Order::ParallelShared,
            attention: Attention {
                heads,
                kv_heads,
                head_dim,
                scale: root_scale(head_dim),
                qkv: Linear::stacked(qkv, hidden).bias(false),
                out: Linear::new(name("attn.out_proj"), hidden, hidden).bias(false),
            },
            mlp: Mlp {
                up: Linear::new(name("mlp.fc_in"), hidden, self.inner),
                gate: Gate::None,
                activation: self.activation,
                down: Linear::new(name("mlp.fc_out"), self.inner, hidden),
            },
        }
    }

    fn end(&self, builder: &mut Builder, x: &Value) -> Result<Value, WeightsError> {
        builder.norm(&self.norm(), "ln_f", x)
    }

    fn head(&self) -> Head {
        Head { matrix: (!self.tied).then_some("lm_head.weight"), bias: Some("lm_head.bias") }
    }
}
