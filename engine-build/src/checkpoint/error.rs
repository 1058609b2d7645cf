//! Errors of a checkpoint's weights.

use std::path::PathBuf;

use thiserror::Error;

use super::folder::FileError;
use super::torch::TorchError;

/// An error in the weights.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder has no weights at all.
    #[error(
        "{0} has no weights: it should have model.safetensors or pytorch_model.bin, or one of them as an index of \
         shards (.index.json)"
    )]
    Missing(PathBuf),
    /// A file of `torch.save` that is broken, or that would execute something.
    #[error("{file} is refused: {source}")]
    Torch {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: TorchError,
    },
    /// A tensor that isn't stored row by row can't be copied.
    #[error("the tensor {tensor} isn't stored row by row and can't be put in order in a temporary file: {source}")]
    Order {
        /// The tensor's name.
        tensor: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Weights in a format that needs another framework, or under another name.
    #[error(
        "the weights are only in {file}, which is not read here, as model.safetensors and pytorch_model.bin are: \
         load the model with transformers and \
         `save_pretrained(..., safe_serialization=True)`"
    )]
    OtherFormat {
        /// The file found.
        file: String,
    },
    /// A matrix isn't what it was when it was looked through.
    #[error("the weights have changed while they were read; build again, and leave the checkpoint alone meanwhile")]
    Changed,
    /// The file ends before its tensors do.
    #[error("{file} is truncated: it has {bytes} bytes and should have {expected}; download it again")]
    Truncated {
        /// The file.
        file: String,
        /// Size of the file, in bytes.
        bytes: u64,
        /// The size its header asks for.
        expected: u64,
    },
    /// The file goes on after its tensors.
    #[error("{file} has {bytes} bytes behind its last tensor: it is not a safetensors file as the format defines it")]
    TrailingBytes {
        /// The file.
        file: String,
        /// Number of bytes behind the last tensor.
        bytes: u64,
    },
    /// The length prefix is beyond the format's limit.
    #[error("{file} claims a header of {length} bytes, over the format's limit of {limit}: it is no safetensors file")]
    HeaderLength {
        /// The file.
        file: String,
        /// The length it claims.
        length: u64,
        /// The format's limit, in bytes.
        limit: u64,
    },
    /// A header that is not the JSON of the safetensors format.
    #[error("the header of {file} is not valid safetensors JSON: {source}")]
    HeaderJson {
        /// The file.
        file: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The index is not the JSON it should be.
    #[error("{index} is not an index of shards: {source}")]
    IndexJson {
        /// The index.
        index: &'static str,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The index names a file that is not there.
    #[error("the index of shards names {0}, which is missing: download it, too")]
    ShardMissing(String),
    /// The index names a file outside the folder.
    #[error("the index of shards names `{0}`, which lies outside the checkpoint: shards are files of the same folder")]
    ShardPath(String),
    /// Two shards hold the same tensor.
    #[error("the tensor {tensor} is in both {first} and {second}: each tensor belongs in one shard")]
    Duplicate {
        /// The tensor's name.
        tensor: String,
        /// A shard that has it.
        first: String,
        /// Another shard that has it.
        second: String,
    },
    /// A tensor that the model needs is in no shard.
    #[error("the weights have no tensor {0}: config.json does not describe these weights, or they are incomplete")]
    TensorMissing(String),
    /// A tensor has another shape than the configuration implies.
    #[error("the tensor {tensor} has the shape {found:?}, but config.json implies {expected:?}")]
    Shape {
        /// Name of the tensor.
        tensor: String,
        /// The tensor's shape.
        found: Vec<u64>,
        /// The shape the configuration implies.
        expected: Vec<u64>,
    },
    /// A tensor of integers, or of a float type not read here.
    #[error("the tensor {tensor} is of type {found}: supported are F32, F16 and BF16 (quantized weights are not)")]
    Dtype {
        /// The tensor's name.
        tensor: String,
        /// The tensor's type, in the format's own words.
        found: String,
    },
    /// A weight that is NaN or infinite.
    #[error("the tensor {tensor} holds {value} at index {index}: every weight must be a finite number")]
    NotFinite {
        /// The tensor's name.
        tensor: String,
        /// Position in row-major order.
        index: u64,
        /// The value.
        value: f32,
    },
}
