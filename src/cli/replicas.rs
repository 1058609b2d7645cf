//! How many replicas a model gets by default, and each one's share of the memory. Pure.

use crate::engine::EngineOptions;
use backends::options::BackendOptions;

/// Weights up to this size stay in a core's caches. A step of such a model is dozens of tasks of a few microseconds.
/// To hand them to a second thread costs about as much as it saves, so the second thread runs another replica. Larger
/// models are limited by memory bandwidth, which one core can't use up.
pub(super) const SMALL_BYTES: u64 = 16 << 20;

/// Most replicas by default. Each has lanes and a prefix cache of its own, so the next one costs more memory than it is
/// worth.
const MAX_REPLICAS: usize = 8;

/// Divides the memory of one replica among several.
pub(super) fn share(mut one: EngineOptions, replicas: usize) -> EngineOptions {
    let pool_bytes = match &mut one.backend {
        BackendOptions::OnnxRuntime(engine) | BackendOptions::OnnxRuntimeCuda(engine, _) => &mut engine.pool_bytes,
        BackendOptions::TensorRt(engine) => &mut engine.pool_bytes,
    };
    *pool_bytes /= replicas;
    let pool = &mut one.requests.pool;
    pool.replicas = replicas;
    pool.prefix_cache_bytes /= replicas;
    one
}

/// Spreads a small model on a CPU over the cores: a replica for each, with one thread.
pub(super) fn spread(mut options: EngineOptions, weights_bytes: u64, cores: usize) -> EngineOptions {
    let BackendOptions::OnnxRuntime(engine) = &mut options.backend else { return options };
    if weights_bytes > SMALL_BYTES {
        return options;
    }
    engine.threads = 1;
    share(options, cores.clamp(1, MAX_REPLICAS))
}
