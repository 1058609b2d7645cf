//! BLOOM (`BloomForCausalLM`): linear biases in place of position embeddings, LayerNorm behind the token embedding and
//! before each block, maps stored head by head.
//!
//! `slow_but_exact` and `pretraining_tp` only move rounding and are not read.

use super::fields::{head_dim, named};
use super::{Family, Head, Shape};
use crate::blocks::{
    Activation, Attention, Builder, Gate, LayerPlan, Linear, Mlp, Norm, NormKind, Order, Step, root_scale,
};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

/// Positions that the released models were trained with, which most of their configurations call `seq_length`.
const POSITIONS: u32 = 2048;

#[derive(Debug)]
struct Bloom {
    shape: Shape,
    epsilon: f32,
    tied: bool,
}

/// Reads `config.json`; transformers' defaults stand in for absent fields that have one.
pub(super) fn read(config: &Config) -> Result<Box<dyn Family>, ConfigError> {
    if config.flag_or("apply_residual_connection_post_layernorm", false)? {
        let (found, supported) = ("true".to_owned(), "false: the residual stream isn't normalized");
        return Err(ConfigError::Unsupported { field: "apply_residual_connection_post_layernorm", found, supported });
    }
    // The first configurations have `n_embed`, which goes before the other name.
    let hidden = config.dimension(&["n_embed", "hidden_size"])?;
    let heads = config.dimension(&["n_head", "num_attention_heads"])?;
    Ok(Box::new(Bloom {
        shape: Shape {
            layers: config.dimension(&["n_layer", "num_hidden_layers"])?,
            heads,
            kv_heads: heads,
            head_dim: head_dim(named("hidden_size", hidden), named("n_head", heads))?,
            hidden,
            positions: config.dimension_opt("seq_length")?.unwrap_or(POSITIONS),
            window: None,
            vocab: config.dimension(&["vocab_size"])?,
        },
        epsilon: config.positive_or("layer_norm_epsilon", 1e-5)?,
        tied: config.flag_or("tie_word_embeddings", true)?,
    }))
}

impl Bloom {
    fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, hidden: self.shape.hidden, epsilon: self.epsilon }
    }
}

impl Family for Bloom {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn prefixes(&self) -> &'static [&'static str] {
        &["transformer.", ""]
    }

    fn vocabulary(&self) -> &'static str {
        "word_embeddings.weight"
    }

    fn embed(&self, builder: &mut Builder, _step: &Step, rows: Value) -> Result<Value, WeightsError> {
        builder.norm(&self.norm(), "word_embeddings_layernorm", &rows)
    }

    fn mask(&self, builder: &mut Builder, step: &Step) -> Result<Value, WeightsError> {
        Ok(builder.linear_biases(self.shape.heads, step))
    }

    fn plan(&self, index: u32) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, hidden, .. } = self.shape;
        let name = |part: &str| format!("h.{index}.{part}");
        let qkv = Linear::new(name("self_attention.query_key_value"), hidden, 3 * hidden);
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
                qkv: qkv.interleaved(3, heads, head_dim),
                out: Linear::new(name("self_attention.dense"), hidden, hidden),
            },
            mlp: Mlp {
                up: Linear::new(name("mlp.dense_h_to_4h"), hidden, 4 * hidden),
                gate: Gate::None,
                activation: Activation::GeluTanh,
                down: Linear::new(name("mlp.dense_4h_to_h"), 4 * hidden, hidden),
            },
        }
    }

    fn end_norm(&self) -> Option<(Norm, &'static str)> {
        Some((self.norm(), "ln_f"))
    }

    fn head(&self) -> Head {
        Head { matrix: (!self.tied).then_some("lm_head.weight"), bias: None }
    }
}
