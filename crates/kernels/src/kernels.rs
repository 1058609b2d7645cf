//! The state that all kernels of one engine share.

use crate::best::Candidates;
use crate::cpu::CpuLevel;
use crate::rows::Rows;
use crate::threads::Threads;
use crate::workers::Workers;

/// What all kernels of one engine share: its threads, its CPU level, and memory that is reused from call to call.
#[derive(Debug)]
pub struct Kernels {
    pub(crate) workers: Workers,
    pub(crate) rows: Rows,
    /// f32 `[threads, queries, positions]`: scores of a block of queries.
    pub(crate) scores: Vec<f32>,
    /// By slot of a KV cache: whether a call of the attention writes to it. All false between calls.
    pub(crate) written: Vec<bool>,
    /// Candidates of the head's top-k, one list for each thread.
    pub(crate) candidates: Vec<Candidates>,
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
        let workers = Workers { threads: Threads::new(threads, spin), level };
        let candidates = (0..workers.threads.count()).map(|_| Candidates::default()).collect();
        Self { workers, rows: Rows::default(), scores: Vec::new(), written: Vec::new(), candidates }
    }

    /// The CPU level in use.
    pub fn level(&self) -> CpuLevel {
        self.workers.level
    }
}

/// Makes room for so many elements. What a larger call needed before stays: to shrink and grow would zero it each time.
pub(crate) fn grow<T: Copy + Default>(elements: &mut Vec<T>, len: usize) {
    if elements.len() < len {
        elements.resize(len, T::default());
    }
}
