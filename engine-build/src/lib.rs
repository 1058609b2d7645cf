//! From a Hugging Face checkpoint to a foretype bundle: an ONNX graph, its weights, the tokenizer and a manifest.
//!
//! - [`build()`](fn@build): the stages, in order; [`BuildOptions`] and [`Progress`].
//! - [`manifest`]: what a bundle says about itself, and checks of it.
//! - [`error`]: every reason for which there is no bundle.
//! - [`extras`]: the blocklist and the popular queries that a bundle may carry.
//! - `checkpoint`: `config.json` and safetensors; `tokenizer`: the tokenizer's files.
//! - `families`: one file per model family, over `blocks`, over `onnx` (graph builder, messages, weights file).
//! - `fuse`: from ONNX's operators to those of foretype's own CPU runtime, over `packing`, the layout of their weights.
//! - `bundle`: the output folder, complete or absent.
//! - [`plan`]: TensorRT plans of a bundle, through the crate `tensorrt-rs`.
//!
//! Invariants: memory does not grow with the model, because weights are streamed; a bundle appears whole or not at all;
//! no input makes it panic. Deliberately absent: Python, network access, unsafe code.

mod blocks;
mod build;
mod bundle;
mod checkpoint;
pub mod error;
pub mod extras;
mod families;
mod fuse;
mod hashed;
pub mod manifest;
mod onnx;
mod packing;
pub mod plan;
mod resume;
mod tokenizer;

pub use build::{BuildOptions, Progress, build, build_checked, default_context, is_encoder_decoder};
pub use checkpoint::check_weights;
pub use error::BuildError;
pub use hashed::Hashed;
pub use manifest::{Dtype, Manifest, ManifestError, Operators, Quantization, is_bundle, is_checkpoint};
pub use tokenizer::read_tokenizer;
