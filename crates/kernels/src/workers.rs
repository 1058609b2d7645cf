//! A team of threads together with the CPU level that its threads use.

use crate::cpu::CpuLevel;
use crate::threads::Threads;

/// A team of threads, and the CPU level at which its threads run a kernel.
#[derive(Debug)]
pub(crate) struct Workers {
    pub(crate) threads: Threads,
    /// The CPU level, one that the machine has.
    pub(crate) level: CpuLevel,
}
