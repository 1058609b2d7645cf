//! ONNX Runtime on the CPU: the bundle's graph over in-place KV caches.
//!
//! `library` finds and loads the library. `operators` computes the fused operators of bundles for the CPU. `raw` is the
//! fenced part that binds memory. `kv` holds lanes and pages, `sources` the encoder outputs, and `sizes` computes how
//! much of everything there is. This file copies a batch into the bound memory, runs the graph and reads the results.

pub mod cuda;
mod kv;
mod library;
mod operators;
mod raw;
mod sizes;
mod sources;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bundle::manifest::{Dtype, ENCODER_FILE, GRAPH_FILE, Manifest, Operators};
pub use kernels::CpuLevel;
use kernels::Kernels;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use rustc_hash::FxHashMap;

use self::kv::{Kv, KvShape};
pub use self::library::LibraryError;
pub use self::operators::Observed;
pub use self::raw::NoMemory;
use self::raw::{Binding, Element, Memory, c_name};
pub use self::sizes::memory_bytes;
use self::sources::Sources;
use crate::readings::{SLOTS, SourceShape, attended};
use completion::text::TokenId;
use scheduler::backend::{
    Backend, BackendError, Batch, KvCopy, Limits, Outputs, SourceSlot, check_numbers, check_source,
};

/// Combinations of shapes whose bindings are kept. Steady decoding uses one per number of rows; past this many, all are
/// dropped and made again as needed.
const MAX_BINDINGS: usize = 256;

/// The bundle to load, and the share of the machine for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The ONNX Runtime library; without it, it is looked for beside the binary.
    pub library: Option<PathBuf>,
    /// Threads of one forward.
    pub threads: usize,
    /// Whether idle threads of the pool spin: lower latency of a step, for a whole core per thread between steps.
    pub spin: bool,
    /// The instructions of foretype's own operators; this machine has to have them.
    pub cpu_level: CpuLevel,
    /// Rows of one forward.
    pub lanes: usize,
    /// Tokens of one row in one forward.
    pub chunk: usize,
    /// Memory of the KV page pool, in bytes.
    pub pool_bytes: usize,
    /// Copies weights into huge pages: shorter steps, for as much memory again. Who runs a few steps only needs none.
    pub huge_pages: bool,
}

/// Why a bundle could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no usable library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library refused the graph.
    #[error("ONNX Runtime can't load {}: {reason}", path.display())]
    Graph {
        /// The graph.
        path: PathBuf,
        /// The library's words.
        reason: String,
    },
    /// The graph isn't the one that the manifest describes.
    #[error("{} doesn't fit its manifest: {reason}; build the bundle again", path.display())]
    Mismatch {
        /// The graph.
        path: PathBuf,
        /// The tensor that differs.
        reason: String,
    },
    /// The caches don't fit into memory.
    #[error("{0}; lower --lanes or --kv-pool-mib, or build the bundle with a smaller --context")]
    Memory(#[from] NoMemory),
}

/// Loads a bundle's graph.
///
/// # Errors
/// See [`LoadError`]. Nothing is computed yet.
pub fn load(bundle: &Path, manifest: &Manifest, options: &Options) -> Result<Box<dyn Backend>, LoadError> {
    load_observed(bundle, manifest, options, None)
}

/// Loads a bundle's graph, whose linear maps then note what they read, if they are foretype's own.
///
/// # Errors
/// See [`LoadError`]. Nothing is computed yet.
pub fn load_observed(
    bundle: &Path,
    manifest: &Manifest,
    options: &Options,
    observed: Option<&Observed>,
) -> Result<Box<dyn Backend>, LoadError> {
    let environment = library::environment(options.library.as_deref())?;
    let session = |file: &str, operators, options: &Options| {
        let path = bundle.join(file);
        open(&environment, &path, (operators, observed), options)
            .map_err(|e| LoadError::Graph { path, reason: e.to_string() })
    };
    let decoder = session(GRAPH_FILE, manifest.model.operators, options)?;
    // Before anything is allocated by the manifest's numbers.
    sizes::check_graph(&decoder, manifest)
        .map_err(|reason| LoadError::Mismatch { path: bundle.join(GRAPH_FILE), reason })?;
    // Its threads have nothing to do while the decoder computes, so they must not spin.
    let quiet = Options { spin: false, ..options.clone() };
    let encoder = manifest.model.source.map(|_| session(ENCODER_FILE, Operators::Onnx, &quiet)).transpose()?;
    Ok(match manifest.model.dtype {
        Dtype::F32 => Box::new(OnnxRuntime::<f32>::new((decoder, encoder), manifest, options)?),
        Dtype::F16 => Box::new(OnnxRuntime::<u16>::new((decoder, encoder), manifest, options)?),
    })
}

/// The limits and abilities of a bundle's engine, computed without loading it.
pub fn limits(manifest: &Manifest, options: &Options) -> Limits {
    sizes::dimensions(manifest, options).1
}

/// Held while a session is made.
static OPENING: Mutex<()> = Mutex::new(());

fn open(
    environment: &ort::environment::Environment,
    path: &Path,
    (operators, observed): (Operators, Option<&Observed>),
    options: &Options,
) -> Result<Session, ort::Error> {
    let builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_memory_pattern(false)?; // it assumes that shapes repeat; ours change from step to step
    // Sessions that begin at the same moment both find their domain of operators unknown, and the second to add it
    // fails.
    let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    match operators {
        Operators::Onnx => builder.with_intra_threads(options.threads)?.with_intra_op_spinning(options.spin)?,
        // The kernels have threads of their own, and hardly anything is left for ONNX Runtime's.
        Operators::Foretype => {
            let kernels = Kernels::new(options.threads, options.spin, options.cpu_level);
            builder.with_intra_threads(1)?.with_operators(operators::domain(kernels, observed, options.huge_pages)?)?
        }
    }
    .commit_from_file(path)
}

/// 0, 1, ... for each position.
fn positions(context: usize) -> Result<Memory<i64>, NoMemory> {
    let mut memory = Memory::zeroed(context)?;
    memory.as_mut_slice().iter_mut().zip(0..).for_each(|(slot, position)| *slot = position);
    Ok(memory)
}

/// The engine; `T` is the element of the KV cache.
struct OnnxRuntime<T: Element> {
    /// By `[rows, longest, selected, width of the sources, positions that attention reads]`. Declared first: bindings
    /// go before their session.
    bindings: FxHashMap<[usize; 5], Binding>,
    session: Session,
    limits: Limits,
    shape: KvShape,
    vocab_padded: usize,
    kv: Kv<T>,
    /// Memory for sources, in models with an encoder.
    sources: Option<Sources<T>>,
    /// `past_k_i`, `present_k_i`, `past_v_i`, `present_v_i`, in the order of the cache's tensors.
    kv_names: Vec<(CString, CString)>,
    /// `[rows, longest]`
    input_ids: Memory<i64>,
    /// `[rows]`
    past_len: Memory<i64>,
    /// `[selected]`
    select: Memory<i64>,
    /// `[context]`, in graphs that are told how many positions attention reads: 0, 1, ...
    slots: Option<Memory<i64>>,
    /// `[selected, vocab_padded]`
    logits: Memory<f32>,
    /// `[selected, top_k]`
    top_logits: Memory<f32>,
    /// `[selected, top_k]`
    top_ids: Memory<i64>,
    /// `[selected, 1]`
    logsumexp: Memory<f32>,
}

impl<T: Element> OnnxRuntime<T> {
    fn new(
        (session, encoder): (Session, Option<Session>),
        manifest: &Manifest,
        options: &Options,
    ) -> Result<Self, NoMemory> {
        let (shape, limits) = sizes::dimensions(manifest, options);
        let size = |n: u32| n as usize;
        let model = &manifest.model;
        let names = (0..shape.layers).flat_map(|i| [("k", i), ("v", i)]);
        let sources = SourceShape::of(manifest, options.lanes, size_of::<T>());
        let has_slots = sizes::has_input(&session, SLOTS);
        let by_places = sizes::has_input(&session, kv::TABLE);
        let kv_names = names.map(|(kv, i)| (c_name(format!("past_{kv}_{i}")), c_name(format!("present_{kv}_{i}"))));
        Ok(Self {
            bindings: FxHashMap::default(),
            session,
            vocab_padded: size(model.vocab_padded),
            kv_names: kv_names.collect(),
            kv: Kv::new(shape, by_places)?,
            sources: encoder.zip(sources).map(|(encoder, shape)| Sources::new(encoder, shape)).transpose()?,
            input_ids: Memory::zeroed(limits.lanes * limits.chunk)?,
            past_len: Memory::zeroed(limits.lanes)?,
            select: Memory::zeroed(limits.selected)?,
            slots: has_slots.then(|| positions(limits.context)).transpose()?,
            logits: Memory::zeroed(limits.selected * size(model.vocab_padded))?,
            top_logits: Memory::zeroed(limits.selected * limits.top_k)?,
            top_ids: Memory::zeroed(limits.selected * limits.top_k)?,
            logsumexp: Memory::zeroed(limits.selected)?,
            shape,
            limits,
        })
    }

    /// Lays the graph's inputs and outputs over the memory for one combination of shapes.
    fn bind(&self, shape: [usize; 5]) -> Result<Binding, ort::Error> {
        let [b, s, r, width, attended] = shape.map(|size| size as i64);
        let mut binding = Binding::new(&self.session)?;
        binding.input(c"input_ids", &self.input_ids, &[b, s])?;
        binding.input(c"past_len", &self.past_len, &[b])?;
        binding.input(c"select", &self.select, &[r])?;
        if let Some(slots) = &self.slots {
            binding.input(&c_name(SLOTS.to_owned()), slots, &[attended])?;
        }
        if let Some(table) = self.kv.table() {
            binding.input(&c_name(kv::TABLE.to_owned()), table, &[b, self.shape.context as i64])?;
        }
        let cache = self.kv.dims(shape[0]);
        for ((past, present), memory) in self.kv_names.iter().zip(self.kv.tensors()) {
            binding.input(past, memory, &cache)?;
            binding.output(present, memory, &cache)?;
        }
        if let Some(sources) = &self.sources {
            binding.input(c"source_len", &sources.lengths, &[b])?;
            let read = [b, self.shape.heads as i64, width, self.shape.head_dim as i64];
            for (name, memory) in sources.names.iter().zip(&sources.lanes) {
                binding.input(name, memory, &read)?;
            }
        }
        let top_k = self.limits.top_k as i64;
        binding.output(c"logits", &self.logits, &[r, self.vocab_padded as i64])?;
        binding.output(c"topv", &self.top_logits, &[r, top_k])?;
        binding.output(c"topi", &self.top_ids, &[r, top_k])?;
        binding.output(c"lse", &self.logsumexp, &[r, 1])?;
        Ok(binding)
    }

    /// Writes a batch into the input memory, rows right-padded with token 0.
    fn write_inputs(&mut self, batch: &Batch, longest: usize) {
        let ids = self.input_ids.as_mut_slice();
        let past_len = self.past_len.as_mut_slice();
        for (r, row) in batch.rows.iter().enumerate() {
            past_len[r] = row.past_len as i64;
            let padded = &mut ids[r * longest..(r + 1) * longest];
            padded[row.len..].fill(0);
            for (id, token) in padded.iter_mut().zip(&batch.tokens[row.start..row.start + row.len]) {
                *id = i64::from(token.0);
            }
        }
        for (flat, selected) in self.select.as_mut_slice().iter_mut().zip(&batch.selected) {
            *flat = (selected.row * longest + selected.offset) as i64;
        }
    }

    fn read_outputs(&self, batch: &Batch, out: &mut Outputs) {
        out.clear();
        let selected = batch.selected.len();
        let (top_k, vocab) = (self.limits.top_k, self.limits.vocab);
        out.top_logits.extend_from_slice(&self.top_logits.as_slice()[..selected * top_k]);
        out.top_ids.extend(self.top_ids.as_slice()[..selected * top_k].iter().map(|&id| id as u32));
        out.logsumexp.extend_from_slice(&self.logsumexp.as_slice()[..selected]);
        for (index, _) in batch.selected.iter().enumerate().filter(|(_, s)| s.full) {
            let start = index * self.vocab_padded;
            out.logits.extend_from_slice(&self.logits.as_slice()[start..start + vocab]);
        }
    }
}

impl<T: Element> Backend for OnnxRuntime<T> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn forward(&mut self, batch: &Batch, out: &mut Outputs) -> Result<(), BackendError> {
        batch.check(&self.limits)?;
        let engine = |error: ort::Error| BackendError::Engine(error.to_string());
        if let Some(sources) = &mut self.sources {
            sources.load(batch)?;
        }
        let width = self.sources.as_ref().map_or(0, Sources::width);
        let attended = attended(self.slots.as_ref().map_or(0, |_| self.shape.context), batch);
        let shape = [batch.rows.len(), batch.longest(), batch.selected.len(), width, attended];
        self.write_inputs(batch, shape[1]);
        self.kv.prepare(batch);
        if !self.bindings.contains_key(&shape) {
            if self.bindings.len() >= MAX_BINDINGS {
                self.bindings.clear();
            }
            let binding = self.bind(shape).map_err(engine)?;
            self.bindings.insert(shape, binding);
        }
        if let Some(binding) = self.bindings.get_mut(&shape) {
            // SAFETY: made by `bind` for this session, over memory of this engine alone, of which no slice is alive;
            // `&mut self` keeps other threads out.
            unsafe { binding.run(&mut self.session) }.map_err(engine)?;
        }
        self.read_outputs(batch, out);
        check_numbers(out)
    }

    fn copy_kv(&mut self, copies: &[KvCopy]) -> Result<(), BackendError> {
        self.kv.copy(copies)
    }

    fn encode(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), BackendError> {
        check_source(slot, tokens, &self.limits)?;
        let Some(sources) = &mut self.sources else { return Ok(()) };
        sources.encode(slot, tokens).map_err(|error| BackendError::Engine(error.to_string()))
    }
}
