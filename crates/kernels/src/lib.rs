//! The arithmetic of a decoder step on a CPU.
//!
//! ```text
//! linear      y = activation(norm(x) W + b) * factor + residual
//!   rows        x: normalized, quantized for int8 weights, and laid out as tiles read it
//!   tile        the inner loops: rows times panels of 16 outputs, f32 and int8
//! attention   writes keys and values into the cache, then softmax(q K) V over the slots that a table lists
//!   attend      its inner loops: queries that share the loads of keys and values
//!   slots       checks tables of slots
//! embedding   rows of the packed vocabulary matrix
//! head        logits, the top k, and the logarithm of the sum of their exponentials
//!   best        the top k
//! observe     what linear maps read, for who rounds weights
//! layout      the order of packed weights in memory
//! vector      vector operations; isa: vectors and tiles of an instruction set, and kernels over any of them
//! cpu         AVX-512 VNNI, AVX2 and plain Rust, one source for all; AMX for many int8 rows
//! threads     one team of threads for all kernels of a step
//! ```
//!
//! # Invariants
//!
//! * A row's result does not depend on the rows beside it, on their number, or on the number of threads: what is
//!   computed in a batch is bit for bit what is computed alone. Exact replay of a search relies on this.
//! * Weights are read where they lie. Nothing here repacks or copies them, and only [`layout`] knows their order.
//! * `unsafe` is for vector instructions and for results that threads write side by side; sizes are asserted before
//!   either.
//!
//! # Deliberately absent
//!
//! Graphs, models, files: the caller decides which kernels run in which order.

pub mod activation;
mod attend;
pub mod attention;
mod best;
mod cpu;
pub mod embedding;
pub mod head;
mod isa;
mod kernels;
pub mod layout;
pub mod linear;
mod math;
pub mod observe;
mod prefetch;
mod rows;
mod shared;
mod slots;
mod sync;
mod threads;
mod tile;
mod vector;
mod workers;

pub use cpu::CpuLevel;
pub use kernels::Kernels;
