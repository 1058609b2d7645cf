//! TensorRT: a plan of the bundle's graph, run on a CUDA device.
//!
//! `plan` finds or builds the plan for this machine, and `kernels` keeps what TensorRT-RTX compiles. `runner` holds the
//! decoder's contexts and CUDA graphs, `encoder` the encoder's context. `tensors` lists the tensors that an engine must
//! have; `memory` checks what fits. Caches, staging and the step itself are in [`crate::device`]. The crate
//! `tensorrt-rs` loads either flavour of the library at run time. A build without TensorRT's headers reports that it
//! has no TensorRT.
//!
//! `unsafe` is where addresses and streams are given to TensorRT (`runner`, `encoder`), and where a plan is
//! deserialized (`plan`).

mod encoder;
mod kernels;
mod memory;
mod plan;
mod runner;
mod tensors;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bundle::manifest::{Dtype, Manifest};
use engine_build::plan::{Part, PlanError, PlanShapes};
use tensorrt::{Engine, Flavour, Library};

use self::encoder::EncoderRunner;
use self::kernels::Kernels;
pub use self::memory::{Needs, TooLarge};
use self::plan::Plans;
use self::runner::TensorRtRunner;
use self::tensors::check_tensors;
use crate::cuda::{CudaError, Device, DeviceMemory, Driver, DriverError, Stream};
use crate::device::{Buffers, DeviceBackend, DeviceKv, DeviceSources, KvShape, Sizes};
use crate::readings::SourceShape;
use scheduler::backend::{Backend, BackendError, Limits};

/// The bundle to load, and the device for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// TensorRT or TensorRT-RTX.
    pub flavour: Flavour,
    /// The library's file or folder; without it, it is looked for beside the binary and where the system's loader
    /// looks.
    pub library: Option<PathBuf>,
    /// The CUDA driver; the system's if absent.
    pub driver: Option<PathBuf>,
    /// The device, from 0; with several, the first.
    pub device: usize,
    /// Number of devices that replicas take turns on.
    pub devices: usize,
    /// Rows of one forward; fewer if the plan takes fewer.
    pub lanes: usize,
    /// Tokens of one row in one forward; fewer if the plan takes fewer.
    pub chunk: usize,
    /// Device memory of the KV page pool, in bytes.
    pub pool_bytes: usize,
    /// Whether steps of decoding are captured as CUDA graphs.
    pub graphs: bool,
    /// Folder for plans that this process builds: the bundle's own folder may be read-only.
    pub engines: PathBuf,
}

/// Why a bundle can't be run with TensorRT.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no usable CUDA driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// CUDA refused something.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// There is no usable library, or TensorRT refused.
    #[error(transparent)]
    TensorRt(#[from] tensorrt::Error),
    /// The plan that fits can't be read.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no plan that fits, and none can be built: both reasons.
    #[error("{0}")]
    Unbuilt(String),
    /// The plan is of another graph than its record says.
    #[error("the plan's {0}: build it again")]
    Tensor(String),
    /// The engine failed while it was prepared.
    #[error(transparent)]
    Prepare(#[from] BackendError),
    /// The engine and its buffers don't fit into the device's memory.
    #[error(transparent)]
    Memory(#[from] TooLarge),
}

impl From<tensorrt::LoadError> for LoadError {
    fn from(error: tensorrt::LoadError) -> Self {
        Self::TensorRt(error.into())
    }
}

/// Replicas load one after the other. The first one builds plans and compiles kernels, which the others find. Nobody
/// takes memory while another one measures it.
static LOADING: Mutex<()> = Mutex::new(());

/// Loads a bundle's plans, building them first where there is none that fits.
///
/// # Errors
/// See [`LoadError`].
pub fn load(bundle: &Path, manifest: &Manifest, options: &Options) -> Result<Box<dyn Backend>, LoadError> {
    let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let device = Driver::load(options.driver.as_deref())?.open(options.device)?;
    device.make_current()?;
    let library = library(options.flavour, options.library.as_deref())?;
    let plans = Plans { bundle, manifest, library: &library, device: &device, options };
    let engine = |part| {
        let (engine, shapes) = plans.engine(part)?;
        check_tensors(&engine, part, &manifest.model)?;
        Ok::<_, LoadError>((engine, shapes))
    };
    let encoder = manifest.model.source.map(|_| engine(Part::Encoder)).transpose()?;
    let (decoder, shapes) = engine(Part::Decoder)?;
    let dimensions = dimensions(manifest, options, &shapes);
    let backend = assemble((decoder, encoder.map(|(engine, _)| engine)), &device, dimensions, manifest, options)?;
    tracing::info!(
        library = ?library, device = device.name(), sm = device.capability(), lanes = backend.limits().lanes,
        chunk = backend.limits().chunk, graphs = options.graphs, "TensorRT is ready"
    );
    Ok(backend)
}

/// The library, opened once for each place: it stays, and so does its log.
pub(crate) fn library(flavour: Flavour, place: Option<&Path>) -> Result<Library, tensorrt::LoadError> {
    static OPENED: Mutex<Vec<(Flavour, Option<PathBuf>, Library)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |known: &&(Flavour, Option<PathBuf>, Library)| known.0 == flavour && known.1.as_deref() == place;
    if let Some((_, _, library)) = opened.iter().find(same) {
        return Ok(library.clone());
    }
    let library = Library::open(flavour, place)?;
    opened.push((flavour, place.map(Path::to_owned), library.clone()));
    Ok(library)
}

/// The limits and abilities of an engine whose plan is built for these options.
pub fn limits(manifest: &Manifest, options: &Options) -> Limits {
    dimensions(manifest, options, &plan::wanted(options, manifest)).limits
}

/// Extents of the memory, and what can be done with it.
struct Dimensions {
    kv: KvShape,
    sources: Option<SourceShape>,
    limits: Limits,
}

fn dimensions(manifest: &Manifest, options: &Options, shapes: &PlanShapes) -> Dimensions {
    let model = &manifest.model;
    let size = |n: u32| n as usize;
    let element_bytes = if model.dtype == Dtype::F16 { 2 } else { 4 };
    let mut kv = KvShape {
        layers: size(model.layers),
        heads: size(model.kv_heads),
        context: size(model.context),
        head_dim: size(model.head_dim),
        element_bytes,
        lanes: options.lanes.min(size(shapes.lanes())),
        pages: 0,
    };
    // Below one full lane nothing longer than the pool could ever be kept.
    kv.pages = (options.pool_bytes / kv.page_bytes()).max(kv.context);
    let chunk = options.chunk.min(kv.context).min(size(shapes.chunk()));
    let sources = SourceShape::of(manifest, kv.lanes, element_bytes);
    let limits = Limits {
        lanes: kv.lanes,
        context: kv.context,
        chunk,
        selected: kv.lanes.max(chunk).min(size(shapes.selected())),
        vocab: size(model.vocab),
        top_k: size(model.top_k),
        pages: kv.pages,
        page_bytes: kv.page_bytes(),
        source: sources.map(|sources| sources.limits),
    };
    Dimensions { kv, sources, limits }
}

/// Takes the memory, once it is known to fit, and puts the backend together.
fn assemble(
    (engine, encoder): (Engine, Option<Engine>),
    device: &Arc<Device>,
    Dimensions { kv, sources, limits }: Dimensions,
    manifest: &Manifest,
    options: &Options,
) -> Result<Box<dyn Backend>, LoadError> {
    let sizes = Sizes::new(&limits, manifest.model.vocab_padded as usize, tensors::has_slots(&engine));
    // The contexts run one after the other.
    let scratch_bytes = [Some(&engine), encoder.as_ref()].into_iter().flatten().map(|e| e.scratch_bytes(None)).max();
    let scratch_bytes = usize::try_from(scratch_bytes.unwrap_or(0)).unwrap_or(usize::MAX);
    let stream = device.stream()?;
    let context_bytes = runner::context_bytes(&engine, &stream)?;
    let needs = Needs { kv, sources, sizes, scratch_bytes, context_bytes };
    needs.check(device.memory()?.free)?;
    let take = |stream: &Arc<Stream>| -> Result<_, CudaError> {
        let sources = sources.map(|shape| DeviceSources::new(stream, shape)).transpose()?;
        let buffers = Buffers::new(stream, sizes, DeviceKv::new(stream, kv)?, sources)?;
        Ok((buffers, DeviceMemory::new(stream, scratch_bytes)?))
    };
    let (buffers, scratch) = match take(&stream) {
        Err(error) if error.is_out_of_memory() => return Err(needs.refused(device.memory()?.free).into()),
        taken => taken?,
    };
    let kept = plan::kept(options, manifest);
    let kernels = |engine: &Engine, name: &str| Kernels::open(engine, kept.join(name));
    let encoder = encoder.zip(sources.as_ref()).map(|(engine, shape)| {
        let kernels = kernels(&engine, "kernels-encoder.bin");
        EncoderRunner::new((engine, kernels), shape)
    });
    let kernels = kernels(&engine, "kernels.bin");
    let runner = TensorRtRunner::new((engine, kernels, encoder.transpose()?), kv.layers, scratch, options.graphs)?;
    Ok(Box::new(DeviceBackend::new(runner, limits, buffers, needs.buckets())?))
}
