//! From a bundle's graph to a plan.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorrt::{
    Builder, Flavour, HostMemory, Layer, LayerKind, Library, Network, OptimizationProfile, Parser, ShapeRange, Sm,
    TensorName,
};

use super::error::PlanError;
use super::record::{ENGINES, PlanRecord};
use super::shapes::{PlanShapes, ProfileShapes, Range};
use crate::build::Progress;
use crate::manifest::{Dtype, GRAPH_FILE, Manifest, ModelInfo};

/// The hidden size below which TensorRT-RTX 1.7.1 was seen to crash, for SM75.
const LEAST_HIDDEN: u32 = 32;

/// What to build a plan for.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// GPUs; none stands for the one in this machine. TensorRT knows no others.
    pub architectures: Vec<Sm>,
    /// What it takes. Rows are cut to the model's context.
    pub shapes: PlanShapes,
    /// Device memory that a layer may use beside its inputs and outputs.
    pub workspace_bytes: u64,
    /// Where plans go; by default the bundle's folder `engines`.
    pub engines: Option<PathBuf>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { architectures: Vec::new(), shapes: PlanShapes::default(), workspace_bytes: 1 << 30, engines: None }
    }
}

/// Builds a plan of a bundle's graph and writes it and its record; returns the record's path and content.
///
/// It takes seconds with TensorRT-RTX and minutes with TensorRT, and several times the weights' size of memory.
///
/// # Errors
/// See [`PlanError`]. No plan is left half written.
pub fn build_plan(
    bundle: &Path,
    library: &Library,
    options: &PlanOptions,
    progress: Arc<dyn Progress + Send + Sync>,
) -> Result<(PathBuf, PlanRecord), PlanError> {
    let manifest = Manifest::load(bundle)?;
    manifest.verify(bundle)?;
    let shapes = options.shapes.within(manifest.model.context);
    check(&manifest.model, library, &shapes)?;
    let architectures = architectures(library, &options.architectures)?;
    let job = Job { bundle, manifest: &manifest, library, architectures: &architectures, shapes: &shapes };
    let plan = job.serialize(options.workspace_bytes, &progress)?;
    let record = PlanRecord::new(library, &architectures, shapes, &manifest, &plan);
    let engines = options.engines.clone().unwrap_or_else(|| bundle.join(ENGINES));
    let path = write(&engines, &record, &plan)?;
    Ok((path, record))
}

fn check(model: &ModelInfo, library: &Library, shapes: &PlanShapes) -> Result<(), PlanError> {
    if model.source.is_some() {
        return Err(PlanError::EncoderDecoder);
    }
    if model.dtype != Dtype::F16 {
        return Err(PlanError::Dtype(format!("{:?}", model.dtype).to_lowercase()));
    }
    if library.flavour() == Flavour::Rtx && model.hidden < LEAST_HIDDEN {
        return Err(PlanError::TooSmall(model.hidden));
    }
    if shapes.is_ordered() { Ok(()) } else { Err(PlanError::Shapes) }
}

/// The architectures by their names: a record can't say "the one at hand".
fn architectures(library: &Library, asked: &[Sm]) -> Result<Vec<Sm>, PlanError> {
    if library.flavour() == Flavour::Rtx && !asked.is_empty() {
        return Ok(asked.to_owned());
    }
    let here = tensorrt::current_architecture()?;
    match asked.iter().find(|sm| **sm != here) {
        Some(other) => Err(PlanError::OtherGpu { here: here.to_string(), asked: other.to_string() }),
        None => Ok(vec![here]),
    }
}

/// A graph that was found fit, and what becomes of it.
struct Job<'a> {
    bundle: &'a Path,
    manifest: &'a Manifest,
    library: &'a Library,
    architectures: &'a [Sm],
    shapes: &'a PlanShapes,
}

impl Job<'_> {
    fn serialize(
        &self,
        workspace_bytes: u64,
        progress: &Arc<dyn Progress + Send + Sync>,
    ) -> Result<HostMemory, PlanError> {
        progress.stage("read the graph", 0);
        let builder = Builder::new(self.library)?;
        let mut network = builder.network()?;
        Parser::new(&mut network)?.parse_file(&self.bundle.join(GRAPH_FILE))?;
        network.set_decomposable()?;
        inspect(&network, &self.manifest.model)?;
        let mut config = builder.config()?;
        config.set_workspace_bytes(workspace_bytes);
        for profile in [&self.shapes.prefill, &self.shapes.decode] {
            config.add_profile(&optimization_profile(&network, &self.manifest.model, profile)?)?;
        }
        if self.library.flavour() == Flavour::Rtx {
            config.set_architectures(self.architectures)?;
        }
        config.set_progress(Steps { progress: Arc::clone(progress), outermost: Mutex::default() });
        let built = builder.build(&mut network, &mut config);
        built.map_err(|error| if progress.is_cancelled() { PlanError::Cancelled } else { error.into() })
    }
}

/// Whether TensorRT read the graph as it is meant: it drops what it doesn't know without a word.
fn inspect(network: &Network, model: &ModelInfo) -> Result<(), PlanError> {
    let misread = |what: String| Err(PlanError::Misread(what));
    let unused = network.unused_inputs();
    if !unused.is_empty() {
        return misread(format!("nothing reads its input {}", unused.join(", ")));
    }
    let attentions: Vec<_> = network.layers().filter(Layer::is_attention).collect();
    if attentions.len() != model.layers as usize {
        return misread(format!("{} of {} attentions were recognized", attentions.len(), model.layers));
    }
    if let Some(layer) = attentions.iter().find(|layer| !layer.has_mask() || !layer.is_decomposable()) {
        return misread(format!("{layer:?} has no mask, or can't be taken apart"));
    }
    let updates = network.layers().filter(|layer| layer.kind() == LayerKind::KV_CACHE_UPDATE).count();
    if updates != 2 * model.layers as usize {
        return misread(format!("{updates} of {} cache updates were recognized", 2 * model.layers));
    }
    Ok(())
}

/// The shapes of the graph's inputs: `input_ids [B, S]`, `past_len [B]`, `select [R]`, `past_* [B, KV heads, C, D]`.
fn optimization_profile(
    network: &Network,
    model: &ModelInfo,
    shapes: &ProfileShapes,
) -> Result<OptimizationProfile, PlanError> {
    let [heads, context, head_dim] =
        [model.kv_heads, model.context, model.head_dim].map(|size| Range::new(size, size, size));
    let mut profile = OptimizationProfile::new();
    for input in network.inputs() {
        let ranges: Vec<Range> = match input.name.as_str() {
            "input_ids" => vec![shapes.batch, shapes.tokens],
            "past_len" => vec![shapes.batch],
            "select" => vec![shapes.select],
            name if name.starts_with("past_") => vec![shapes.batch, heads, context, head_dim],
            name => return Err(PlanError::Misread(format!("nobody knows what its input {name} is"))),
        };
        let at = |pick: fn(&Range) -> u32| ranges.iter().map(|range| i64::from(pick(range))).collect::<Vec<_>>();
        let range = ShapeRange::new(&at(|range| range.min), &at(|range| range.opt), &at(|range| range.max))?;
        profile.set(TensorName::new(input.name)?, range);
    }
    Ok(profile)
}

/// Writes the plan, then the record; each appears whole or not at all.
fn write(engines: &Path, record: &PlanRecord, plan: &[u8]) -> Result<PathBuf, PlanError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| PlanError::Io { path, source }
    };
    fs::create_dir_all(engines).map_err(io(engines))?;
    let path = engines.join(&record.plan.path);
    let record_path = PlanRecord::path_beside(&path);
    let mut json = serde_json::to_vec_pretty(record).map_err(|error| io(&record_path)(error.into()))?;
    json.push(b'\n');
    // A plan without its record is none, so an old one is never taken for the new one's.
    let gone = fs::remove_file(&record_path);
    if let Err(source) = gone
        && source.kind() != std::io::ErrorKind::NotFound
    {
        return Err(io(&record_path)(source));
    }
    for (path, bytes) in [(&path, plan), (&record_path, json.as_slice())] {
        // Readable as the bundle's other files are: temporary files are their owner's alone unless this is said.
        let readable = fs::Permissions::from_mode(0o666);
        let mut partial = tempfile::Builder::new().permissions(readable).tempfile_in(engines).map_err(io(engines))?;
        partial.write_all(bytes).and_then(|()| partial.as_file().sync_all()).map_err(io(path))?;
        partial.persist(path).map_err(|error| io(path)(error.error))?;
    }
    Ok(record_path)
}

/// TensorRT's phases as stages; those inside others would only flicker.
struct Steps {
    progress: Arc<dyn Progress + Send + Sync>,
    /// The outermost phase.
    outermost: Mutex<Option<String>>,
}

impl Steps {
    fn outermost(&self) -> MutexGuard<'_, Option<String>> {
        self.outermost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tensorrt::Progress for Steps {
    fn start(&self, phase: &str, parent: Option<&str>, steps: u32) {
        tracing::debug!(phase, parent, steps, "build");
        if parent.is_none() {
            *self.outermost() = Some(phase.to_owned());
            self.progress.steps(phase, steps.into());
        }
    }

    fn step(&self, phase: &str, _step: u32) -> bool {
        if self.outermost().as_deref() == Some(phase) {
            self.progress.advance(1);
        }
        !self.progress.is_cancelled()
    }

    fn finish(&self, phase: &str) {
        tracing::debug!(phase, "done");
    }
}
