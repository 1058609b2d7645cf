//! What GPT-2 and its closest relatives share: the fields of their shape, under each family's own names, and the
//! structure of a layer.

use super::Shape;
use super::fields::{activation, head_dim, named};
use crate::blocks::{
    Activation, Attention, Builder, Gate, LayerPlan, LearnedPositions, Linear, Mlp, Norm, NormKind, Order, Step,
};
use crate::checkpoint::Config;
use crate::error::{ConfigError, WeightsError};
use crate::onnx::Value;

/// A family's names of the fields; the first name that is present counts.
pub(super) struct Names {
    pub(super) hidden: &'static [&'static str],
    pub(super) heads: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    pub(super) positions: &'static [&'static str],
    /// Four times the hidden size where it is absent.
    pub(super) inner: &'static str,
    /// Whether the head shares the embedding's matrix if `config.json` doesn't say.
    pub(super) tied: bool,
}

/// The values of the fields.
#[derive(Debug)]
pub(super) struct Gpt {
    pub(super) shape: Shape,
    /// Width of the feed-forward network.
    pub(super) inner: u32,
    pub(super) activation: Activation,
    epsilon: f32,
    /// The head is the token embedding, not `lm_head.weight`.
    pub(super) tied: bool,
}

/// The linear maps of a layer.
pub(super) struct Maps {
    pub(super) qkv: Linear,
    pub(super) out: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

impl Gpt {
    /// Reads the fields; transformers' defaults stand in for absent ones that have one.
    pub(super) fn read(config: &Config, names: &Names) -> Result<Self, ConfigError> {
        let hidden = config.dimension(names.hidden)?;
        let heads = config.dimension(names.heads)?;
        Ok(Self {
            shape: Shape {
                layers: config.dimension(names.layers)?,
                heads,
                kv_heads: heads,
                head_dim: head_dim(named(names.hidden[0], hidden), named(names.heads[0], heads))?,
                hidden,
                positions: config.dimension(names.positions)?,
                window: None,
                vocab: config.dimension(&["vocab_size"])?,
            },
            inner: config.dimension_opt(names.inner)?.unwrap_or(4 * hidden),
            activation: activation(config, "activation_function", "gelu_new")?,
            epsilon: config.positive_or("layer_norm_epsilon", 1e-5)?,
            tied: config.flag_or("tie_word_embeddings", names.tied)?,
        })
    }

    pub(super) fn norm(&self) -> Norm {
        Norm { kind: NormKind::Layer, hidden: self.shape.hidden, epsilon: self.epsilon }
    }

    /// The head's matrix.
    pub(super) fn matrix(&self) -> Option<&'static str> {
        (!self.tied).then_some("lm_head.weight")
    }

    /// Adds learned positions to the embeddings `rows`.
    pub(super) fn add_positions(
        &self,
        builder: &mut Builder,
        step: &Step,
        rows: &Value,
    ) -> Result<Value, WeightsError> {
        let Shape { positions, hidden, .. } = self.shape;
        builder.add_positions(step, rows, &LearnedPositions { name: "wpe.weight", positions, hidden, offset: 0 })
    }

    /// A layer, of which `scale` is the factor of query-key products.
    pub(super) fn layer(&self, index: u32, order: Order, scale: f32, maps: Maps) -> LayerPlan {
        let Shape { heads, kv_heads, head_dim, .. } = self.shape;
        let Maps { qkv, out, up, down } = maps;
        LayerPlan {
            scope: format!("h.{index}."),
            norm: self.norm(),
            first_norm: "ln_1",
            order,
            attention: Attention { heads, kv_heads, head_dim, scale, qkv, out },
            mlp: Mlp { up, gate: Gate::None, activation: self.activation, down },
        }
    }

    /// The norm behind the last layer.
    pub(super) fn end_norm(&self) -> Option<(Norm, &'static str)> {
        Some((self.norm(), "ln_f"))
    }
}
