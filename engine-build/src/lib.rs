//! From a Hugging Face checkpoint to a foretype bundle: an ONNX graph, its weights, the tokenizer and a manifest.
//!
//! - [`build()`](fn@build): the stages, in order; [`BuildOptions`] and [`Progress`].
//! - [`error`]: every reason for which there is no bundle.
//! - `checkpoint`: `config.json`, safetensors and PyTorch's files; `tokenizer`: the tokenizer's files.
//! - `families`: one file per model family, over `blocks`, over `onnx` (graph builder, messages, weights file).
//! - `fuse`: from ONNX's operators to those of foretype's own CPU runtime, over `packing`, the layout of their weights.
//! - `quantizing`: matrices in 4 or 8 bits for ONNX's operators.
//! - `extras`: blocklist, popular queries, template and typing channel.
//! - `smoothing`: factors that make quantized weights more exact. `rounding`: so does rounding for what is read.
//! - `output`: the output folder, complete or absent.
//! - [`plan`]: TensorRT plans of a bundle, through the crate `tensorrt-rs`.
//!
//! Invariants: memory does not grow with the weights, because they are streamed; a bundle appears whole or not at all;
//! no input makes it panic. An int8 build also holds what each map read at 256 positions. Deliberately absent: Python,
//! network access, unsafe code.

mod blocks;
mod build;
mod checkpoint;
pub mod error;
mod extras;
mod families;
mod fuse;
mod hashed;
mod onnx;
mod output;
mod packing;
pub mod plan;
mod progress;
mod quantizing;
mod resume;
mod rounding;
mod smoothing;
mod tokenizer;

pub use build::{BuildOptions, Check, build, build_checked, default_context, is_encoder_decoder};
pub use checkpoint::check_weights;
pub use error::BuildError;
pub use hashed::Hashed;
pub use progress::Progress;
pub use smoothing::Activations;
