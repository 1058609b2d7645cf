//! A team of threads together with the CPU level that its threads use.

use crate::cpu::CpuLevel;
use crate::threads::Threads;

/// What computes a kernel.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) threads: Threads,
    /// The CPU level, one that the machine has.
    pub(crate) level: CpuLevel,
}
