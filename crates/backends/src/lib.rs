//! The engines that implement [`scheduler::backend::Backend`].
//!
//! * [`onnxruntime`] runs the bundle's graph on the CPU, or on a CUDA device.
//! * [`tensorrt`] runs a TensorRT plan of the graph on a CUDA device.
//! * [`device`] is what both share on a CUDA device; [`cuda`] is the driver, its memory and its streams.
//! * [`readings`] tracks which slot and lane holds which encoder output, on the CPU and on devices, and how much of the
//!   KV caches a step reads.
//! * [`gpu_defaults`] are rows and memory for a GPU, and memory for keys and values on a CPU.
//! * [`choice`] selects the engine of a server and gives the reason; [`options`] loads it.
//!
//! `unsafe` is where memory meets native code: `onnxruntime/raw.rs`, `onnxruntime/operators/context.rs`,
//! `onnxruntime/cuda.rs`, `cuda`, `device/kv.rs` and `tensorrt`.

pub mod choice;
pub mod cuda;
pub mod device;
pub mod gpu_defaults;
pub mod onnxruntime;
pub mod options;
pub mod readings;
pub mod tensorrt;
