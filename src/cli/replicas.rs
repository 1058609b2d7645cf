//! How many copies of a model work side by side where nobody says, and what each gets of the memory. Pure.

use crate::engine::EngineOptions;
use backends::options::BackendOptions;

/// Weights up to this stay in a core's caches. A step of such a model is dozens of pieces of work of a few microseconds, and handing
/// them to a second thread costs about what it brings; beside it, that thread searches for others. What is larger waits for memory,
/// which all cores together read sooner, and one person's wait is shortest when they do.
pub(super) const SMALL_BYTES: u64 = 16 << 20;

/// More copies than this bring less than their memory is worth: each has lanes of its own, and learns what the others know.
const MOST: usize = 8;

/// Makes replicas of the one that has all memory, which they share.
pub(super) fn share(mut of_one: EngineOptions, replicas: usize) -> EngineOptions {
    let pool_bytes = match &mut of_one.backend {
        BackendOptions::OnnxRuntime(engine) | BackendOptions::OnnxRuntimeCuda(engine, _) => &mut engine.pool_bytes,
        BackendOptions::TensorRt(engine) => &mut engine.pool_bytes,
    };
    *pool_bytes /= replicas;
    let pool = &mut of_one.requests.pool;
    pool.replicas = replicas;
    pool.tree_bytes /= replicas;
    of_one
}

/// Spreads a small model on a CPU over the cores: a replica for each, with one thread.
pub(super) fn spread(mut options: EngineOptions, weights_bytes: u64, cores: usize) -> EngineOptions {
    let BackendOptions::OnnxRuntime(engine) = &mut options.backend else { return options };
    if weights_bytes > SMALL_BYTES {
        return options;
    }
    engine.threads = 1;
    share(options, cores.clamp(1, MOST))
}
