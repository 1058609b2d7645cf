//! The error type of [`build`](crate::build()): one sentence that says what was wrong and what would be right.
//!
//! Each stage has its own error type beside its code. This type joins them and adds the errors of a whole build.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

pub use crate::checkpoint::adapter::AdapterError;
pub use crate::checkpoint::config::ConfigError;
pub use crate::checkpoint::error::WeightsError;
pub use crate::checkpoint::folder::FileError;
use crate::plan::PlanError;
pub use crate::tokenizer::TokenizerError;
pub use bundle::extras::ExtrasError;

/// Why no bundle was written.
#[derive(Debug, Error)]
pub enum BuildError {
    /// A folder or file of the checkpoint cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// `config.json` is broken or describes an unsupported model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights are broken or do not fit the configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The adapter is broken, or isn't of this model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The probabilities of typing errors can't be read.
    #[error("{}: {reason}", path.display())]
    Typing {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// The template leaves no room for an input.
    #[error("{}: {reason}", path.display())]
    Template {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// The tokenizer is broken or does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The blocklist, the popular queries or the template is broken.
    #[error(transparent)]
    Extras(#[from] ExtrasError),
    /// More context than the model has positions.
    #[error("a context of {asked} was asked for, but the model has {positions} positions: ask for 1 to {positions}")]
    Context {
        /// Positions asked for.
        asked: u32,
        /// Positions of the model.
        positions: u32,
    },
    /// More context than the model's local attention looks back.
    #[error(
        "a context of {asked} was asked for, but the model's sliding window is {window}, and attention over a window \
         is not supported: ask for 1 to {window}, where there is no difference"
    )]
    Window {
        /// Positions asked for.
        asked: u32,
        /// Positions that local attention sees.
        window: u32,
    },
    /// `top_k` is 0.
    #[error("a top-k of 0 was asked for: ask for at least 1")]
    TopK,
    /// foretype's own operators in another precision than theirs.
    #[error(
        "foretype's own operators were asked for in f16, but they compute in f32: ask for f32, or for ONNX's operators"
    )]
    OperatorsPrecision,
    /// Quantization without the precision or the operators that read it.
    #[error("{asked} was asked for, {why}")]
    Quantization {
        /// The name of the quantization.
        asked: &'static str,
        /// Why it can't be had, and what can.
        why: &'static str,
    },
    /// Blocks of a size that there isn't.
    #[error("blocks of {0} weights were asked for: ask for 32, 64 or 128")]
    QuantizationBlock(u32),
    /// Something that only decoders that stand alone can have.
    #[error("{asked} was asked for, but the model is an encoder-decoder, {why}: leave it out")]
    EncoderDecoder {
        /// What was asked for.
        asked: &'static str,
        /// Why it can't be had.
        why: &'static str,
    },
    /// No token for an encoder-decoder's answers to begin with.
    #[error(
        "no start token: add `decoder_start_token_id` to config.json or generation_config.json, which every answer of \
         an encoder-decoder begins with"
    )]
    DecoderStart,
    /// The caller inspected the finished bundle and refused it.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// No token to start a sequence from.
    #[error(
        "no start token: add `bos_token_id` to config.json, or a token `<|endoftext|>` to the tokenizer, so that the \
         first token of a query has a distribution"
    )]
    StartToken,
    /// A weight beyond the largest f16.
    #[error("the tensor {tensor} holds {value} at index {index}, beyond f16's largest 65504: build it with f32")]
    Overflow {
        /// The tensor's name.
        tensor: String,
        /// Position in row-major order.
        index: u64,
        /// The value that is too large.
        value: f32,
    },
    /// The caller cancelled the build.
    #[error("the build was cancelled: start it again for a bundle")]
    Cancelled,
    /// The bundle is there, but no TensorRT plan of it.
    #[error(transparent)]
    Plan(Box<PlanError>),
    /// The output path holds something that is not a bundle, so the build does not replace it.
    #[error("{0} exists and is not a bundle: name a new or empty folder, or a bundle to replace")]
    Occupied(PathBuf),
    /// The output path names no folder that could be made (`/`, `..`).
    #[error("{0} cannot be the bundle's folder: name a folder that can be created or replaced")]
    OutputName(PathBuf),
    /// The weights file cannot be written.
    #[error("cannot write the bundle's weights: {0}")]
    WriteWeights(io::Error),
    /// Another part of the bundle cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl BuildError {
    /// Whether there was no room on the disk.
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::WriteWeights(source) | Self::Write { source, .. } if is_full_disk(source))
    }
}

/// Whether an error of the operating system says that there is no room on the disk.
pub fn is_full_disk(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl From<PlanError> for BuildError {
    fn from(error: PlanError) -> Self {
        Self::Plan(Box::new(error))
    }
}
