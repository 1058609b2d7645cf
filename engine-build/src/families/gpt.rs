//! What GPT-2 and its nearest relatives have in common: the fields that say their shape, under names of each one's own,
//! and the norm.

use super::Shape;
use super::fields::{activation, head_dim, named};
use crate::blocks::{Activation, Norm, NormKind};
use crate::checkpoint::Config;
use crate::error::ConfigError;

/// What a family calls the fields; the first name that is there counts.
pub(super) struct Names {
    pub(super) hidden: &'static [&'static str],
    pub(super) heads: &'static [&'static str],
    pub(super) layers: &'static [&'static str],
    pub(super) positions: &'static [&'static str],
    /// Four times the hidden size where it is absent.
    pub(super) inner: &'static str,
    /// Whether the head is tied where the configuration doesn't say.
    pub(super) tied: bool,
}

/// What the fields say.
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
}
