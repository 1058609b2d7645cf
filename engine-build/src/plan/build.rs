//! Builds a TensorRT plan from a bundle's graph.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tensorrt::{
    Builder, Flavour, Gpu, HostMemory, Layer, LayerKind, Library, Network, OptimizationProfile, Parser, ShapeRange, Sm,
    TensorName,
};

use super::error::PlanError;
use super::part::Part;
use super::record::{BuiltPlan, ENGINES, PlanRecord};
use super::sealed::write_whole;
use super::shapes::{PlanShapes, ProfileShapes, Range};
use crate::onnx::proto::ModelProto;
use crate::progress::Progress;
use bundle::manifest::{Dtype, Manifest, ModelInfo, Quantization, attended_lengths};

/// The hidden size below which TensorRT-RTX 1.7.1 was seen to crash, for SM75.
const LEAST_HIDDEN: u32 = 32;

/// The options of a plan.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// Architectures; none stands for the GPU's. TensorRT knows no others.
    pub architectures: Vec<Sm>,
    /// The GPU that TensorRT builds on, if the caller has made one current. Otherwise the machine's first.
    pub gpu: Option<Gpu>,
    /// The graph to build it of.
    pub part: Part,
    /// What it takes. Rows are cut to the model's context, and sources are the model's.
    pub shapes: PlanShapes,
    /// Device memory that a layer may use beside its inputs and outputs.
    pub workspace_bytes: u64,
    /// Where plans go; by default the bundle's folder `engines`.
    pub engines: Option<PathBuf>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            architectures: Vec::new(),
            gpu: None,
            part: Part::default(),
            shapes: PlanShapes::default(),
            workspace_bytes: 1 << 30,
            engines: None,
        }
    }
}

/// Builds a plan of one of a bundle's graphs and writes it and its record; returns the record's path and content.
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
    let shapes = options.shapes.within(manifest.model.context).reading(manifest.model.source);
    check(&manifest.model, library, options.part, &shapes)?;
    let (architectures, gpu) = architectures(library, options)?;
    check_architectures(&manifest.model, library, &architectures)?;
    let model = &manifest.model;
    let job = Job { bundle, model, library, part: options.part, architectures: &architectures, shapes: &shapes };
    let plan = job.serialize(options.workspace_bytes, &progress)?;
    let record = PlanRecord::new(BuiltPlan {
        library,
        part: options.part,
        architectures: &architectures,
        gpu: gpu.as_ref(),
        shapes,
        manifest: &manifest,
        bytes: &plan,
    });
    let engines = options.engines.clone().unwrap_or_else(|| bundle.join(ENGINES));
    let path = write(&engines, &record, &plan)?;
    Ok((path, record))
}

fn check(model: &ModelInfo, library: &Library, part: Part, shapes: &PlanShapes) -> Result<(), PlanError> {
    if !Part::of(model).contains(&part) {
        return Err(PlanError::NoEncoder);
    }
    if model.dtype != Dtype::F16 {
        return Err(PlanError::Dtype(format!("{:?}", model.dtype).to_lowercase()));
    }
    if library.flavour() == Flavour::Rtx && model.hidden < LEAST_HIDDEN {
        return Err(PlanError::TooSmall(model.hidden));
    }
    if shapes.is_ordered() { Ok(()) } else { Err(PlanError::Shapes) }
}

/// The architectures by their names, because a record can't say "the one at hand"; and the GPU that kernels are timed
/// on, if they are timed at all: TensorRT-RTX compiles them where they run.
fn architectures(library: &Library, options: &PlanOptions) -> Result<(Vec<Sm>, Option<Gpu>), PlanError> {
    let (asked, is_rtx) = (&options.architectures, library.flavour() == Flavour::Rtx);
    if is_rtx && !asked.is_empty() {
        return Ok((asked.clone(), None));
    }
    let here = options.gpu.clone().map_or_else(|| tensorrt::gpu(0, None), Ok)?;
    match asked.iter().find(|sm| **sm != here.sm) {
        Some(other) => Err(PlanError::OtherGpu { here: here.sm.to_string(), asked: other.to_string() }),
        None => Ok((vec![here.sm], (!is_rtx).then_some(here))),
    }
}

/// The feed-forward networks of encoder-decoders are f32: see `Builder::mlp_widened`.
fn check_architectures(model: &ModelInfo, library: &Library, architectures: &[Sm]) -> Result<(), PlanError> {
    let is_turing_on_rtx = library.flavour() == Flavour::Rtx && architectures.contains(&Sm(75));
    match model.quantization {
        _ if is_turing_on_rtx && model.source.is_some() => Err(PlanError::F32OnTuring),
        Quantization::Int4 if is_turing_on_rtx => Err(PlanError::Int4OnTuring),
        _ => Ok(()),
    }
}

/// A graph that was found fit, and what becomes of it.
struct Job<'a> {
    bundle: &'a Path,
    model: &'a ModelInfo,
    library: &'a Library,
    part: Part,
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
        let path = self.bundle.join(self.part.graph());
        let builder = Builder::new(self.library)?;
        let mut network = builder.network()?;
        Parser::new(&mut network)?.parse_file(&path)?;
        network.set_decomposable()?;
        inspect(&network, &Marks::of(&path)?)?;
        let mut config = builder.config()?;
        config.set_workspace_bytes(workspace_bytes);
        for profile in self.profiles(&network)? {
            config.add_profile(&profile)?;
        }
        if self.library.flavour() == Flavour::Rtx {
            config.set_architectures(self.architectures)?;
        }
        config.set_progress(Steps { progress: Arc::clone(progress), outermost: Mutex::default() });
        let built = builder.build(&mut network, &mut config);
        built.map_err(|error| if progress.is_cancelled() { PlanError::Cancelled } else { error.into() })
    }

    /// The part's profiles, in the order of their numbers.
    fn profiles(&self, network: &Network) -> Result<Vec<OptimizationProfile>, PlanError> {
        match self.part {
            Part::Decoder => [self.shapes.prefill, self.shapes.decode]
                .iter()
                .map(|profile| optimization_profile(network, |input| self.decoder_input(profile, input)))
                .collect(),
            Part::Encoder => Ok(vec![optimization_profile(network, |input| self.encoder_input(input))?]),
        }
    }

    /// The shapes of the decoder's inputs: `input_ids [B, S]`, `past_len [B]`, `select [R]`, `past_* [B, KV heads, C,
    /// D]`, perhaps `slots [A]`, and in models that read sources `source_len [B]`, `cross_* [B, KV heads, T, D]`.
    fn decoder_input(&self, shapes: &ProfileShapes, input: &str) -> Option<Vec<Range>> {
        let model = self.model;
        let [heads, context, head_dim] = [model.kv_heads, model.context, model.head_dim].map(Range::exactly);
        match input {
            "input_ids" => Some(vec![shapes.batch, shapes.tokens]),
            "past_len" | "source_len" => Some(vec![shapes.batch]),
            "select" => Some(vec![shapes.select]),
            "slots" => {
                let least = attended_lengths(model.context).next().unwrap_or(model.context);
                Some(vec![Range::new(least, least, model.context)])
            }
            name if name.starts_with("past_") => Some(vec![shapes.batch, heads, context, head_dim]),
            name if name.starts_with("cross_") => Some(vec![shapes.batch, heads, self.shapes.source?, head_dim]),
            _ => None,
        }
    }

    /// The shape of the encoder's input: `input_ids [1, T]`.
    fn encoder_input(&self, input: &str) -> Option<Vec<Range>> {
        (input == "input_ids").then_some(vec![Range::exactly(1), self.shapes.source?])
    }
}

/// The profile in which each input has the extents that `extents` gives.
fn optimization_profile(
    network: &Network,
    extents: impl Fn(&str) -> Option<Vec<Range>>,
) -> Result<OptimizationProfile, PlanError> {
    let mut profile = OptimizationProfile::new();
    for input in network.inputs() {
        let unknown = || PlanError::Misread(format!("nobody knows what its input {} is", input.name));
        let ranges = extents(&input.name).ok_or_else(unknown)?;
        let at = |pick: fn(&Range) -> u32| ranges.iter().map(|range| i64::from(pick(range))).collect::<Vec<_>>();
        let range = ShapeRange::new(&at(|range| range.min), &at(|range| range.opt), &at(|range| range.max))?;
        profile.set(TensorName::new(input.name)?, range);
    }
    Ok(profile)
}

/// Counts of the forms in a graph that TensorRT has to recognize.
struct Marks {
    attentions: usize,
    cache_updates: usize,
}

impl Marks {
    fn of(graph: &Path) -> Result<Self, PlanError> {
        let bytes = fs::read(graph).map_err(|source| PlanError::Io { path: graph.to_owned(), source })?;
        let model = ModelProto::decode(&*bytes).map_err(|error| PlanError::Misread(error.to_string()))?;
        let nodes = model.graph.unwrap_or_default().node;
        let count = |operator: &str| nodes.iter().filter(|node| node.op_type == operator).count();
        Ok(Self { attentions: count("Attention"), cache_updates: count("TensorScatter") })
    }
}

/// Whether TensorRT read the graph as it is meant: it drops what it doesn't know without a word.
fn inspect(network: &Network, marks: &Marks) -> Result<(), PlanError> {
    let misread = |what: String| Err(PlanError::Misread(what));
    let unused = network.unused_inputs();
    if !unused.is_empty() {
        return misread(format!("nothing reads its input {}", unused.join(", ")));
    }
    let attentions: Vec<_> = network.layers().filter(Layer::is_attention).collect();
    if attentions.len() != marks.attentions {
        return misread(format!("{} of {} attentions were recognized", attentions.len(), marks.attentions));
    }
    if let Some(layer) = attentions.iter().find(|layer| !layer.has_mask() || !layer.is_decomposable()) {
        return misread(format!("{layer:?} has no mask, or can't be taken apart"));
    }
    let updates = network.layers().filter(|layer| layer.kind() == LayerKind::KV_CACHE_UPDATE).count();
    if updates != marks.cache_updates {
        return misread(format!("{updates} of {} cache updates were recognized", marks.cache_updates));
    }
    Ok(())
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
        write_whole(path, &[bytes]).map_err(io(path))?;
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
