//! The arithmetic of a decoder step on a CPU.
//!
//! ```text
//! linear      y = activation(norm(x) W + b) * factor + residual
//!   rows        x, normalized, and for int8 weights quantized, in the order that tiles read
//!   tile        the inner loops: rows x panels of 16 outputs, f32 and int8
//! attention   keys and values into the cache, then softmax(q K) V over the positions that are there, wherever a table says
//!   attend      its inner loops: queries that share what they read
//!   places      which tables of places can be
//! embedding   rows of the packed vocabulary matrix
//! head        logits, the best of them, and the logarithm of the sum of their exponentials
//! isa         AVX-512 VNNI, AVX2, and plain Rust, one source for all; AMX for many int8 rows
//! threads     one team for all kernels of a step
//! ```
//!
//! # Invariants
//!
//! * A row's result does not depend on the rows beside it, on their number, or on the number of threads: what is computed in a batch
//!   is bit for bit what is computed alone. Exact replay of a search rests on it.
//! * Weights are read where they lie. Nothing here repacks or copies them, and only [`layout`] knows their order.
//! * `unsafe` is for vector instructions and for results that threads write side by side; sizes are asserted before either.
//!
//! # Deliberately absent
//!
//! Graphs, models, files: what is computed in which order is the caller's.

pub mod activation;
mod attend;
pub mod attention;
pub mod embedding;
pub mod head;
pub mod isa;
pub mod layout;
pub mod linear;
mod math;
mod places;
mod rows;
pub mod threads;
mod tile;

pub use isa::CpuLevel;
pub use threads::Threads;

/// What all kernels of one engine share: its threads, its instruction set, and memory that is used again from call to call.
#[derive(Debug)]
pub struct Kernels {
    pub(crate) threads: Threads,
    pub(crate) level: CpuLevel,
    pub(crate) rows: rows::Rows,
    /// f32 `[threads, queries, positions]`: scores of a block of queries, a stretch for each query.
    pub(crate) scores: Vec<f32>,
    /// By place of a KV cache: whether a call of the attention writes to it. All false between calls.
    pub(crate) written: Vec<bool>,
    /// Candidates of the head's top-k, one list for each thread.
    pub(crate) candidates: Vec<head::Candidates>,
}

impl Kernels {
    /// Kernels on `threads` threads, the calling one included, with the instructions of `level`.
    ///
    /// `spin` keeps idle threads awake between calls: a shorter step, for a busy core each.
    ///
    /// # Panics
    /// If this machine lacks the level.
    pub fn new(threads: usize, spin: bool, level: CpuLevel) -> Self {
        assert!(level.is_available(), "this machine has no {level}");
        let threads = Threads::new(threads, spin);
        let candidates = (0..threads.count()).map(|_| head::Candidates::default()).collect();
        Self { threads, level, rows: rows::Rows::default(), scores: Vec::new(), written: Vec::new(), candidates }
    }

    /// The instruction set in use.
    pub fn level(&self) -> CpuLevel {
        self.level
    }
}
