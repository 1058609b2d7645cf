//! How many replicas a model gets by default, and each one's share of the memory. Pure.

use crate::engine::EngineOptions;
use backends::options::BackendOptions;
use scheduler::Replicas;

/// Weights up to this size stay in a core's caches. A step of such a model is dozens of tasks of a few microseconds.
/// To hand them to a second thread costs about as much as it saves, so the second thread runs another replica. Larger
/// models are limited by memory bandwidth, which one core can't use up.
pub(super) const SMALL_BYTES: u64 = 16 << 20;

/// Most replicas by default. Each has lanes and a prefix cache of its own, so the next one costs more memory than it is
/// worth.
const MAX_REPLICAS: usize = 8;

/// Divides the memory of one replica among as many as there may be. Those on different devices share no memory for keys
/// and values.
pub(super) fn share(mut one: EngineOptions, replicas: Replicas) -> EngineOptions {
    let devices = one.backend.devices();
    let pool_bytes = match &mut one.backend {
        BackendOptions::OnnxRuntime(engine) | BackendOptions::OnnxRuntimeCuda(engine, _) => &mut engine.pool_bytes,
        BackendOptions::TensorRt(engine) => &mut engine.pool_bytes,
    };
    *pool_bytes /= replicas.most.div_ceil(devices);
    let pool = &mut one.requests.pool;
    pool.replicas = replicas;
    pool.prefix_cache_bytes /= replicas.most;
    one
}

/// Spreads a model on several GPUs over them, with a replica for each, and a small model on a CPU over the cores, with
/// a replica of one thread for each.
pub(super) fn spread(mut options: EngineOptions, weights_bytes: u64, cores: usize) -> EngineOptions {
    let devices = options.backend.devices();
    let BackendOptions::OnnxRuntime(engine) = &mut options.backend else {
        return share(options, Replicas::fixed(devices));
    };
    if weights_bytes > SMALL_BYTES {
        return options;
    }
    engine.threads = 1;
    share(options, Replicas::fixed(cores.clamp(1, MAX_REPLICAS)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use backends::gpu_defaults::GpuDefaults;
    use backends::tensorrt;
    use clap::Parser;

    use super::*;
    use crate::cli::model_args::ModelArgs;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn options(arguments: &[&str]) -> EngineOptions {
        // Without these, the machine's memory decides.
        let memory = ["foretype", "--kv-pool-mib", "256", "--prefix-cache-mib", "128"];
        let Arguments { model } = Arguments::parse_from(memory.iter().chain(arguments));
        model.engine(model.onnxruntime(None).into())
    }

    /// Replicas, threads of each, MiB of each for keys and values, and for distributions.
    fn shares(options: &EngineOptions) -> (usize, usize, usize, usize) {
        let BackendOptions::OnnxRuntime(engine) = &options.backend else { panic!("the CPU was asked for") };
        let pool = &options.requests.pool;
        (pool.replicas.most, engine.threads, engine.pool_bytes >> 20, pool.prefix_cache_bytes >> 20)
    }

    #[test]
    fn small_models_get_a_replica_for_each_core_and_large_ones_all_threads() {
        let four = ["--threads", "4"];
        assert_eq!(shares(&options(&four)), (1, 4, 256, 128));
        assert_eq!(shares(&spread(options(&four), 2 << 20, 4)), (4, 1, 64, 32));
        assert_eq!(shares(&spread(options(&four), SMALL_BYTES, 1)), (1, 1, 256, 128));
        assert_eq!(shares(&spread(options(&four), 2 << 20, 64)), (8, 1, 32, 16));
        assert_eq!(shares(&spread(options(&four), SMALL_BYTES + 1, 4)), (1, 4, 256, 128));
    }

    #[test]
    fn replicas_that_are_asked_for_share_the_memory() {
        let (replicas, _, pool, cache) = shares(&options(&["--replicas", "2"]));
        assert_eq!((replicas, pool, cache), (2, 128, 64));
        assert_eq!(shares(&options(&["--replicas", "2", "--threads", "3"])), (2, 3, 128, 64));
        let range = options(&["--replicas", "0..2", "--max-idle-time-ms", "5"]);
        assert_eq!(shares(&range), shares(&options(&["--replicas", "2"])), "as much as there may be of each");
        let expected = Replicas { least: 0, most: 2, max_idle: std::time::Duration::from_millis(5) };
        assert_eq!(range.requests.pool.replicas, expected);
    }

    #[test]
    fn a_flag_comes_before_what_suits_the_gpu_and_models_of_many_share_its_memory() {
        let sizes = |arguments: &[&str], is_one_of_many| {
            let Arguments { mut model } = Arguments::parse_from(["foretype"].iter().chain(arguments));
            model.is_one_of_many = is_one_of_many;
            let engine = model.onnxruntime(Some(GpuDefaults { lanes: 64, chunk: 128, pool_bytes: 4 << 30 }));
            (engine.lanes, engine.chunk, engine.pool_bytes >> 20)
        };
        assert_eq!(sizes(&[], false), (64, 128, 4096));
        assert_eq!(sizes(&[], true), (64, 128, 256));
        for is_one_of_many in [false, true] {
            let asked = ["--lanes", "3", "--chunk", "5", "--kv-pool-mib", "7"];
            assert_eq!(sizes(&asked, is_one_of_many), (3, 5, 7));
        }
    }

    #[test]
    fn each_gpu_gets_a_replica_with_a_whole_pool_of_its_own() {
        let on_gpus = |devices| {
            let options = tensorrt::Options {
                flavour: ::tensorrt::Flavour::Rtx,
                library: None,
                driver: None,
                device: 0,
                devices,
                lanes: 32,
                chunk: 64,
                pool_bytes: 240,
                graphs: true,
                engines: PathBuf::new(),
            };
            EngineOptions { backend: BackendOptions::TensorRt(options), ..self::options(&[]) }
        };
        let shares = |options: &EngineOptions| {
            let BackendOptions::TensorRt(engine) = &options.backend else { panic!("a GPU was asked for") };
            (options.requests.pool.replicas.most, engine.pool_bytes, options.requests.pool.prefix_cache_bytes >> 20)
        };
        assert_eq!(shares(&spread(on_gpus(1), 1 << 30, 2)), (1, 240, 128));
        assert_eq!(shares(&spread(on_gpus(4), 1 << 30, 2)), (4, 240, 32));
        assert_eq!(shares(&share(on_gpus(4), Replicas::fixed(8))), (8, 120, 16), "two on each");
        let devices: Vec<_> = (0..6)
            .map(|replica| match on_gpus(4).backend.for_replica(replica) {
                BackendOptions::TensorRt(own) => own.device,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(devices, [0, 1, 2, 3, 0, 1]);
    }
}
