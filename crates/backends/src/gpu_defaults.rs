//! What an engine gets where nobody says otherwise, by what the GPU or the machine is. Pure; docs/tuning.md has the
//! reasons.

/// Rows, tokens and memory of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuDefaults {
    /// Rows of a step.
    pub lanes: usize,
    /// Most tokens of a row in a step.
    pub chunk: usize,
    /// Bytes of the pool of keys and values, on each GPU.
    pub pool_bytes: usize,
}

/// From this number of multiprocessors on, a step of 64 rows takes hardly longer than one of 32: its time is that of
/// reading the weights. A100, H100 and L40S have more of them; T4, L4 and A10G have fewer.
const MANY_MULTIPROCESSORS: u32 = 100;

/// The pool's part of the memory, so that two versions of a model fit during a swap, with weights and lanes.
const POOL_PART: usize = 16;

/// Smallest pool, and that of each of several models which share the memory.
pub const SMALLEST_POOL: usize = 256 << 20;

/// Largest pool, which is host memory, too: the prefix cache has an entry for each position.
const LARGEST_POOL: usize = 4 << 30;

/// Bytes of the pool in so much memory: a GPU's, or the machine's where the engine runs on the CPU.
pub fn pool_bytes(memory_bytes: usize) -> usize {
    (memory_bytes / POOL_PART).clamp(SMALLEST_POOL, LARGEST_POOL)
}

impl GpuDefaults {
    /// The defaults for a GPU with so much memory and so many multiprocessors.
    pub fn of(memory_bytes: usize, multiprocessors: u32) -> Self {
        let is_large = multiprocessors >= MANY_MULTIPROCESSORS;
        let pool_bytes = pool_bytes(memory_bytes);
        Self { lanes: if is_large { 64 } else { 32 }, chunk: if is_large { 128 } else { 64 }, pool_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gpus_of_sagemaker_get_what_suits_them() {
        const GIB: usize = 1 << 30;
        let defaults = |gib: usize, multiprocessors| {
            let GpuDefaults { lanes, chunk, pool_bytes } = GpuDefaults::of(gib * GIB, multiprocessors);
            (lanes, chunk, pool_bytes >> 20)
        };
        assert_eq!(defaults(16, 40), (32, 64, 1024), "T4, ml.g4dn");
        assert_eq!(defaults(24, 58), (32, 64, 1536), "L4, ml.g6");
        assert_eq!(defaults(24, 80), (32, 64, 1536), "A10G, ml.g5");
        assert_eq!(defaults(48, 142), (64, 128, 3072), "L40S, ml.g6e");
        assert_eq!(defaults(40, 108), (64, 128, 2560), "A100, ml.p4d");
        assert_eq!(defaults(80, 132), (64, 128, 4096), "H100, ml.p5");
        assert_eq!(defaults(10, 16), (32, 64, 640), "a seventh of an H100");
        assert_eq!(defaults(2, 10), (32, 64, 256));
    }

    proptest! {
        #[test]
        fn a_larger_gpu_never_gets_less(memory: [usize; 2], multiprocessors: [u32; 2]) {
            let [few, many] = { let mut sorted = multiprocessors; sorted.sort_unstable(); sorted };
            let [small, large] = { let mut sorted = memory; sorted.sort_unstable(); sorted };
            let (less, more) = (GpuDefaults::of(small, few), GpuDefaults::of(large, many));
            prop_assert!(less.lanes <= more.lanes && less.chunk <= more.chunk && less.pool_bytes <= more.pool_bytes);
        }
    }
}
