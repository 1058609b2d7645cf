//! The arguments about the model that several commands have.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backends::choice::GpuUnused;
use backends::gpu_defaults::{GpuDefaults, SMALLEST_POOL, pool_bytes};
use backends::onnxruntime::{self, CpuLevel};
use backends::options::BackendOptions;
use bundle::manifest::WEIGHTS_FILE;
use clap::Args;
use scheduler::{PoolOptions, RESTART_EVERY, Replicas};

use super::choices::{OperatorsChoice, QuantizeChoice, ReplicaRange, ToleranceChoice, cpu_level, replica_range};
use super::gpu::{ChosenEngine, GpuArgs};
use super::progress::Bar;
use super::replicas;
use crate::engine::{DEFAULT_MAX_REQUEST_TOKENS, EngineOptions, RequestOptions, machine};
use crate::models::folder::{self, IntakeError, IntakeOptions, ModelFolder};
use crate::models::named::{self, Named};
use crate::quality::Gate;

/// The model and what of the machine it gets.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A bundle made by `foretype build`, a Hugging Face checkpoint folder, or a folder with one of them in it. Or a
    /// model to download: `ORG/NAME[@REVISION]` of the Hugging Face Hub, or a folder at s3://, gs://, az:// or
    /// https://.
    #[arg(long, env = "FORETYPE_MODEL", value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Where bundles built from checkpoints are kept, and downloads other than the Hub's. Default: the user's cache
    /// folder.
    #[arg(long, env = "FORETYPE_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Positions per query when a checkpoint is built on start. Default: 128, or what the model has.
    #[arg(long, env = "FORETYPE_CONTEXT", value_name = "TOKENS")]
    context: Option<u32>,
    /// Operators of a graph that is built on start: ONNX's own, or foretype's fused ones for CPUs.
    #[arg(long, env = "FORETYPE_OPERATORS", value_enum, default_value = "auto")]
    operators: OperatorsChoice,
    /// How weights are stored when a checkpoint is built on start: as they are, or in 8 bits if that changes the model
    /// little.
    #[arg(long, env = "FORETYPE_QUANTIZE", value_enum, default_value = "none")]
    quantize: QuantizeChoice,
    /// The ONNX Runtime library (`libonnxruntime.so`). Default: looked for beside this binary.
    #[arg(long, env = "FORETYPE_ONNXRUNTIME", value_name = "FILE")]
    onnxruntime: Option<PathBuf>,
    /// Threads of one model step. Default: one per core, shared among the replicas.
    #[arg(long, env = "FORETYPE_THREADS", value_name = "N")]
    threads: Option<NonZero<usize>>,
    /// Let the model's threads spin while they wait: faster steps, but cores stay busy for a while after each.
    #[arg(long, env = "FORETYPE_SPIN")]
    spin: bool,
    /// The instructions of a model step on a CPU: `auto` (the best that this machine has), `amx`, `avx512`, `avx2` or
    /// `portable`.
    #[arg(long, env = "FORETYPE_CPU_LEVEL", value_name = "LEVEL", default_value = "auto", value_parser = cpu_level)]
    cpu_level: CpuLevel,
    /// Rows that share one model step. Default: 32, and 64 on a GPU of at least 100 multiprocessors.
    #[arg(long, env = "FORETYPE_LANES", value_name = "N")]
    lanes: Option<NonZero<usize>>,
    /// Most tokens of one row in one model step; longer inputs take several. Default: twice the default of --lanes.
    #[arg(long, env = "FORETYPE_CHUNK", value_name = "TOKENS")]
    chunk: Option<NonZero<usize>>,
    /// Memory for keys and values kept from keystroke to keystroke, in MiB, shared among the replicas. Default: a
    /// sixteenth of the memory of the GPU or of the machine, 256 to 4,096, and 256 for each model of --multi-model.
    #[arg(long, env = "FORETYPE_KV_POOL_MIB", value_name = "MIB")]
    kv_pool_mib: Option<usize>,
    /// Whether other models may share the device's memory.
    #[arg(skip)]
    pub(super) is_one_of_many: bool,
    /// Memory for next-token distributions kept from keystroke to keystroke, in MiB, shared among the replicas.
    /// Default: a thirty-second of the machine's memory, 128 to 2,048, and 128 for each model of --multi-model.
    #[arg(long, env = "FORETYPE_PREFIX_CACHE_MIB", value_name = "MIB")]
    prefix_cache_mib: Option<usize>,
    /// Beams of a search: prefixes that it expands at each number of new tokens; more give better suggestions and cost
    /// time. Default: 16, or as many as the suggestions if these are more.
    #[arg(long, env = "FORETYPE_BEAMS", value_name = "N")]
    beams: Option<NonZero<usize>>,
    /// Most characters of an input.
    #[arg(long, env = "FORETYPE_MAX_CHARACTERS", value_name = "N", default_value_t = 1000)]
    max_characters: usize,
    /// Tokens that one request may ask for: lines x prompts x n, beams or suggestions x max_new_tokens; more gets 400.
    #[arg(
        long, env = "FORETYPE_MAX_REQUEST_TOKENS", value_name = "TOKENS",
        default_value_t = DEFAULT_MAX_REQUEST_TOKENS
    )]
    max_request_tokens: u64,
    /// What a typed text may be taken to mean if its request doesn't say.
    #[arg(long, env = "FORETYPE_TOLERANCE", value_enum, default_value = "auto")]
    tolerance: ToleranceChoice,
    /// Least probability of a typed character, as the geometric mean of all, for completions of the text as it stands.
    /// A text that is less probable, such as one in a script that the model never read, gets no list. 0 to 1.
    #[arg(long, env = "FORETYPE_MIN_PROBABILITY", value_name = "P", default_value_t = 1e-6)]
    min_probability: f64,
    /// Weight of the bundle's popular queries against the model, 0 to 1.
    #[arg(long, env = "FORETYPE_POPULAR_WEIGHT", value_name = "SHARE", default_value_t = 0.3)]
    popular_weight: f64,
    /// Time for requests that name no deadline_ms, in milliseconds.
    #[arg(long, env = "FORETYPE_DEADLINE_MS", value_name = "MS", default_value_t = 10_000)]
    deadline_ms: u64,
    /// Requests that share model steps; more wait. Half as many lines of batches and prompts of lists may run beside
    /// them, and a quarter as many requests of clients who have nothing running.
    #[arg(long, env = "FORETYPE_MAX_BATCH", value_name = "N", default_value = "64")]
    max_batch: NonZero<usize>,
    /// Most positions of one model step. Long inputs, and many new ones at once, take several steps, so that nobody
    /// waits long.
    #[arg(long, env = "FORETYPE_STEP_TOKENS", value_name = "TOKENS", default_value = "128")]
    step_tokens: NonZero<usize>,
    /// Copies of the model that work side by side, each with its share of the threads and caches. Default: one; in
    /// `serve`, with `--device cuda:all`, one for each GPU; of a model of at most 16 MiB on a CPU, one for each core, 8
    /// at most, unless --threads is given.
    /// MIN..MAX adds a replica when requests wait for a place, and lets it go when one fewer would do; with MIN 0 the
    /// model sleeps while nobody asks, and the next request wakes it.
    #[arg(long, env = "FORETYPE_REPLICAS", value_name = "N|MIN..MAX", value_parser = replica_range)]
    replicas: Option<ReplicaRange>,
    /// With --replicas MIN..MAX: time after which a replica that isn't needed goes, in milliseconds.
    #[arg(long, env = "FORETYPE_MAX_IDLE_TIME_MS", value_name = "MS", default_value_t = 60_000)]
    max_idle_time_ms: u64,
    /// Don't prepare, while idle, for the character that the first suggestion has next.
    #[arg(long, env = "FORETYPE_NO_LOOKAHEAD")]
    no_lookahead: bool,
    /// Requests that wait; one more is answered 429, or another of the client who has most of them.
    #[arg(long, env = "FORETYPE_MAX_QUEUED", value_name = "N", default_value_t = 256)]
    max_queued: usize,
    /// Once the oldest waiting request is older than this, the newest is taken first, in milliseconds.
    #[arg(long, env = "FORETYPE_NEWEST_FIRST_AFTER_MS", value_name = "MS", default_value_t = 100)]
    newest_first_after_ms: u64,
    /// A model step that takes longer makes /ping unhealthy until it comes back, in milliseconds.
    #[arg(long, env = "FORETYPE_HANG_AFTER_MS", value_name = "MS", default_value_t = 5_000)]
    hang_after_ms: u64,
    #[command(flatten)]
    gpu: GpuArgs,
}

/// How a folder is built and loaded.
pub(super) struct Setup {
    /// The build of a bundle, where the folder is none.
    pub(super) intake: IntakeOptions,
    /// The engine.
    pub(super) engine: EngineOptions,
    /// What keeps the machine's GPU from being used, if it has one.
    pub(super) gpu_unused: Option<GpuUnused>,
}

/// Rows of a step, and tokens of a row, of an engine on a CPU where nobody says otherwise.
const ON_CPU: (usize, usize) = (32, 64);

/// SageMaker ends invocations after 60 s.
const MAX_DEADLINE: Duration = Duration::from_secs(60);

impl ModelArgs {
    /// What `--model` names.
    pub(super) fn named(&self) -> Result<Named, Box<dyn std::error::Error>> {
        let model = self.model.as_deref().ok_or("no model is named; use --model DIR or the variable FORETYPE_MODEL")?;
        Ok(named::find(model)?)
    }

    /// The folder that `--model` names, downloaded if it lies elsewhere.
    pub(super) fn folder(&self) -> Result<ModelFolder, Box<dyn std::error::Error>> {
        Ok(self.fetch(&self.named()?, &Bar::default())?)
    }

    /// The folder of what `--model` names, downloaded if it lies elsewhere.
    pub(super) fn fetch(&self, model: &Named, bar: &Bar) -> Result<ModelFolder, IntakeError> {
        fetch(model, &self.cache(), bar)
    }

    fn cache(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(folder::default_cache)
    }

    /// Chooses the backend for a folder, logs which and why, and returns how the folder is built and loaded for it.
    pub(super) fn setup(&self, folder: &ModelFolder) -> Result<Setup, String> {
        let cache = self.cache();
        let sizes = |defaults| self.onnxruntime(defaults);
        let ChosenEngine { backend, for_gpu, gpu_unused } = self.gpu.choose(folder, &cache, sizes)?;
        let intake = IntakeOptions {
            context: self.context,
            for_gpu,
            operators: self.operators.into(),
            quantization: self.quantize.into(),
            gate: Gate { library: self.onnxruntime.clone(), ..Gate::default() },
            ..IntakeOptions::new(cache)
        };
        Ok(Setup { intake, engine: self.engine(backend), gpu_unused })
    }

    /// The engine's options: what is asked for, then what suits the GPU that it runs on, if it runs on one.
    pub(super) fn onnxruntime(&self, gpu: Option<GpuDefaults>) -> onnxruntime::Options {
        let (lanes, chunk) = gpu.map_or(ON_CPU, |gpu| (gpu.lanes, gpu.chunk));
        let pool_bytes =
            gpu.filter(|_| !self.is_one_of_many).map_or_else(|| self.cpu_pool_bytes(), |gpu| gpu.pool_bytes);
        onnxruntime::Options {
            library: self.onnxruntime.clone(),
            threads: self.threads.map_or((cores() / self.replicas()).max(1), NonZero::get),
            spin: self.spin,
            cpu_level: self.cpu_level,
            lanes: self.lanes.map_or(lanes, NonZero::get),
            chunk: self.chunk.map_or(chunk, NonZero::get),
            pool_bytes: self.kv_pool_mib.map_or(pool_bytes, |mib| mib << 20),
            huge_pages: true,
        }
    }

    /// Bytes for keys and values in the machine's memory where nobody says otherwise.
    fn cpu_pool_bytes(&self) -> usize {
        if self.is_one_of_many { SMALLEST_POOL } else { pool_bytes(machine_bytes()) }
    }

    /// The most replicas that are asked for, or one: they share what there is.
    fn replicas(&self) -> usize {
        self.replicas.map_or(1, |range| range.most)
    }

    /// The options with which a server loads a bundle: the default number of replicas depends on the model's size.
    pub(super) fn for_server(&self, options: EngineOptions, bundle: &Path) -> EngineOptions {
        let is_for_cpu = matches!(options.backend, BackendOptions::OnnxRuntime(_));
        if self.replicas.is_some() || (is_for_cpu && self.threads.is_some()) {
            return options;
        }
        let weights = std::fs::metadata(bundle.join(WEIGHTS_FILE)).map_or(u64::MAX, |file| file.len());
        replicas::spread(options, weights, cores())
    }

    pub(super) fn engine(&self, backend: BackendOptions) -> EngineOptions {
        let one = EngineOptions {
            backend,
            requests: RequestOptions {
                max_characters: self.max_characters,
                max_request_tokens: self.max_request_tokens,
                beams: self.beams.map(NonZero::get),
                default_deadline: Duration::from_millis(self.deadline_ms).min(MAX_DEADLINE),
                max_deadline: MAX_DEADLINE,
                tolerance: self.tolerance.into(),
                min_probability: self.min_probability.clamp(0.0, 1.0),
                popular_weight: self.popular_weight.clamp(0.0, 1.0),
                pool: PoolOptions {
                    max_queued: self.max_queued,
                    patience: Duration::from_millis(self.newest_first_after_ms),
                    max_batch: self.max_batch.get(),
                    step_tokens: self.step_tokens.get(),
                    replicas: Replicas::fixed(1),
                    in_background: false,
                    lookahead: !self.no_lookahead,
                    prefix_cache_bytes: self.prefix_cache_mib.map_or(self.cpu_pool_bytes() / 2, |mib| mib << 20),
                    hang_after: Duration::from_millis(self.hang_after_ms),
                    restart_every: RESTART_EVERY,
                },
            },
        };
        let max_idle = Duration::from_millis(self.max_idle_time_ms);
        let asked = self.replicas.map(|ReplicaRange { least, most }| Replicas { least, most, max_idle });
        replicas::share(one, asked.unwrap_or(Replicas::fixed(1)))
    }
}

/// Bytes of the machine's memory, 0 where they can't be told.
fn machine_bytes() -> usize {
    machine::memory_bytes().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The folder of a model, downloaded if it lies elsewhere.
pub(super) fn fetch(model: &Named, cache: &Path, bar: &Bar) -> Result<ModelFolder, IntakeError> {
    #[cfg(not(feature = "remote"))]
    let _ = (cache, bar);
    match model {
        Named::Folder(folder) => Ok(folder.clone()),
        #[cfg(feature = "remote")]
        Named::Elsewhere(source) => named::download(source, cache, bar),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
