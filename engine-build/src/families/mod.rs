//! One file per model family: which fields and tensors it has, and how the blocks make up its graph.
//!
//! A new family is a new file and a line in [`Model::read`].

mod gpt2;

use crate::checkpoint::{Config, Weights};
use crate::error::{BuildError, ConfigError};
use crate::manifest::Dtype;
use crate::onnx::Graph;

/// What the caller chooses about a graph, within the model's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphOptions {
    /// Positions of the KV cache.
    pub(crate) context: u32,
    /// Candidates per selected position.
    pub(crate) top_k: u32,
    pub(crate) dtype: Dtype,
}

/// The shape that every family has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) hidden: u32,
    /// Positions that the model was made for.
    pub(crate) positions: u32,
    pub(crate) vocab: u32,
}

impl Shape {
    /// The vocabulary rounded up to what tensor cores want: TensorRT stores a copy of an odd-sized matrix.
    pub(crate) fn vocab_padded(&self) -> u32 {
        self.vocab.next_multiple_of(8)
    }
}

/// A model whose configuration has been understood.
#[derive(Debug)]
pub(crate) enum Model {
    Gpt2(gpt2::Gpt2),
}

impl Model {
    /// Reads the configuration of whichever family it names.
    pub(crate) fn read(config: &Config) -> Result<Self, ConfigError> {
        let model_type = config.text_opt("model_type")?;
        let architectures = config.texts("architectures")?;
        let unsupported =
            |found: String| ConfigError::Architecture { found, supported: "GPT2LMHeadModel (model_type `gpt2`)" };
        match (model_type, architectures.first().copied()) {
            (Some("gpt2"), None | Some("GPT2LMHeadModel")) | (None, Some("GPT2LMHeadModel")) => {
                Ok(Model::Gpt2(gpt2::Gpt2::read(config)?))
            }
            (Some("gpt2"), Some(other)) => Err(unsupported(format!("the architecture `{other}`"))),
            (Some(other), _) => Err(unsupported(format!("the model type `{other}`"))),
            (None, Some(other)) => Err(unsupported(format!("the architecture `{other}`"))),
            (None, None) => Err(ConfigError::FieldMissing("model_type")),
        }
    }

    /// The family's name in the manifest.
    pub(crate) fn family(&self) -> &'static str {
        match self {
            Model::Gpt2(_) => "gpt2",
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Model::Gpt2(model) => model.shape(),
        }
    }

    /// The graph, with every tensor it takes checked for name, type and shape.
    pub(crate) fn graph(&self, weights: &Weights, options: &GraphOptions) -> Result<Graph, BuildError> {
        match self {
            Model::Gpt2(model) => Ok(model.graph(weights, options)?),
        }
    }
}
