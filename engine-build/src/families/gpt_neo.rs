//! GPT-Neo (`GPTNeoForCausalLM`): GPT-2 with separate maps for queries, keys and values, which have no biases, attention
//! that is not scaled, and layers in turn global and local. Within its window, local attention is global attention.

use super::fields::{activation, head_dim};
use super::{Family, Head, Shape};
use crate::blocks::{
    Activation, Attention, Builder, Gate, LayerPlan, LearnedPositions, Linear, Mlp, Norm, NormKind, Order, Step,
};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

#[derive(Debug)]
struct GptNeo {
    shape: Shape,
    /// Width of the feed-forward network.
    inner: u32,
    activation: Activation,
    epsilon: f32,
    tied: bool,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    let hidden = config.dimension(&["hidden_size"])?;
    let heads = config.dimension(&["num_heads", "num_attention_heads"])?;
    let window = config.dimension_opt("window_size")?.unwrap_or(256);
    Ok(Box::new(GptNeo {
        shape: Shape {
            layers: config.dimension(&["num_layers", "num_hidden_layers"])?,
            heads,
            kv_heads: heads,
            head_dim: head_dim(("hidden_size", hidden), ("num_heads", heads))?,
            hidden,
            positions: config.dimension(&["max_position_embeddings"])?,
            window: config.mentions("attention_types", "local").then_some(window),
            vocab: config.dimension(&["vocab_size"])?,
        },
        inner: config.dimension_opt("intermediate_size")?.unwrap_or(4 * hidden),
        activation: activation(config, "activation_function", "gelu_new")?,
        epsilon: config.positive_or("layer_norm_epsilon", 1e-5)?,
        tied: config.flag_or("tie_word_embeddings", true)?,
    }))
}

impl GptNeo {
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, hidden: self.shape.hidden, epsilon: self.epsilon }
    }
}

impl Family for GptNeo {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["transformer.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "wte.weight"
    }

    fn embed(&self, builder: &mut Builder, step: &Step, rows: Value) -> Result<Value, WeightsError> {
        let Shape { positions, hidden, .. } = self.shape;
        builder.add_positions(step, &rows, &LearnedPositions { name: "wpe.weight", positions, hidden, offset: 0 })
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let name = |part: &str| format!("h.{index}.{part}");
        let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| (name(&format!("attn.attention.{part}")), hidden));
        LayerPlan {
            scope: name(""),
            norm: self.norm(),
            first_norm: "ln_1",
            order: Order::Sequential("ln_2"),
            attention: Attention {
                heads,
                kv_heads,
                head_dim,
                scale: 1.0,
                qkv: Linear::stacked(qkv, hidden).bias(false),
                out: Linear::new(name("attn.attention.out_proj"), hidden, hidden),
            },
            mlp: Mlp {
                up: Linear::new(name("mlp.c_fc"), hidden, self.inner),
                gate: Gate::None,
                activation: self.activation,
                down: Linear::new(name("mlp.c_proj"), self.inner, hidden),
            },
        }
    }

    fn end(&self, builder: &mut Builder, x: &Value) -> Result<Value, WeightsError> {
        builder.norm(&self.norm(), "ln_f", x)
    }

    fn head(&self) -> Head {
        Head { matrix: (!self.tied).then_some("lm_head.weight"), bias: None }
    }
}
