//! TensorRT: a plan of the bundle's graph, run on a CUDA device.
//!
//! `plan` finds the plan that fits the machine or has it built, `runner` holds the engine's contexts and CUDA graphs, `memory`
//! says what fits. Caches, staging and the step itself are [`super::device`]'s. The crate `tensorrt-rs` loads the library, of either
//! flavour, at run time; where it was compiled without TensorRT's headers it says so.
//!
//! `unsafe` is where TensorRT is told addresses and streams (`runner`), and where a plan becomes an engine (`plan`).

mod memory;
mod plan;
mod runner;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use engine_build::manifest::{Dtype, Manifest, ModelInfo};
use engine_build::plan::{PlanError, PlanShapes};
use tensorrt::{DataType, Engine, Flavour, IoTensor, Library};

pub use self::memory::{Needs, TooLarge};
use self::runner::TensorRtRunner;
use super::cuda::{CudaError, Device, DeviceMemory, Driver, DriverError, Stream};
use super::device::{Buffers, DeviceBackend, DeviceKv, KvShape, Sizes};
use super::{Backend, Limits};

/// What to load, and on which device.
#[derive(Clone, Debug)]
pub struct Options {
    /// TensorRT or TensorRT-RTX.
    pub flavour: Flavour,
    /// The library's file or folder; without it, it is looked for beside the binary and where the system's loader looks.
    pub library: Option<PathBuf>,
    /// The CUDA driver; the system's if absent.
    pub driver: Option<PathBuf>,
    /// The device, from 0.
    pub device: usize,
    /// Rows of one forward; fewer if the plan takes fewer.
    pub lanes: usize,
    /// Tokens of one row in one forward, likewise.
    pub chunk: usize,
    /// Device memory of the KV page pool, in bytes.
    pub pool_bytes: usize,
    /// Whether steps of decoding are captured as CUDA graphs.
    pub graphs: bool,
    /// Where plans that are built on the spot are kept: the bundle's folder may be read-only.
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
    /// It doesn't fit into the device's memory.
    #[error(transparent)]
    Memory(#[from] TooLarge),
}

impl From<tensorrt::LoadError> for LoadError {
    fn from(error: tensorrt::LoadError) -> Self {
        Self::TensorRt(error.into())
    }
}

/// Loads a bundle's plan, building it first if there is none that fits.
///
/// # Errors
/// See [`LoadError`].
pub fn load(bundle: &Path, manifest: &Manifest, options: &Options) -> Result<Box<dyn Backend>, LoadError> {
    if manifest.model.source.is_some() {
        return Err(PlanError::EncoderDecoder.into());
    }
    let device = Driver::load(options.driver.as_deref())?.open(options.device)?;
    device.make_current()?;
    let library = library(options)?;
    let (engine, shapes) = plan::engine(bundle, manifest, &library, &device, options)?;
    check_tensors(&engine, &manifest.model)?;
    let (kv, limits) = dimensions(manifest, options, &shapes);
    let backend = assemble(engine, &device, (kv, limits), manifest, options)?;
    tracing::info!(
        library = ?library, device = device.name(), sm = device.capability(), lanes = backend.limits().lanes,
        chunk = backend.limits().chunk, graphs = options.graphs, "TensorRT is ready"
    );
    Ok(backend)
}

/// The library, opened once for each place: it stays, and so does its log.
fn library(options: &Options) -> Result<Library, LoadError> {
    static OPENED: Mutex<Vec<(Flavour, Option<PathBuf>, Library)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |(flavour, place, _): &&(Flavour, Option<PathBuf>, Library)| {
        *flavour == options.flavour && *place == options.library
    };
    if let Some((_, _, library)) = opened.iter().find(same) {
        return Ok(library.clone());
    }
    let library = Library::open(options.flavour, options.library.as_deref())?;
    opened.push((options.flavour, options.library.clone(), library.clone()));
    Ok(library)
}

/// What an engine will be able to hold and do if a plan is built for these options.
pub fn limits(manifest: &Manifest, options: &Options) -> Limits {
    dimensions(manifest, options, &plan::wanted(options, manifest)).1
}

fn dimensions(manifest: &Manifest, options: &Options, shapes: &PlanShapes) -> (KvShape, Limits) {
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
    let limits = Limits {
        lanes: kv.lanes,
        context: kv.context,
        chunk,
        selected: kv.lanes.max(chunk).min(size(shapes.selected())),
        vocab: size(model.vocab),
        top_k: size(model.top_k),
        pages: kv.pages,
        page_bytes: kv.page_bytes(),
        source: None,
    };
    (kv, limits)
}

/// Takes the memory, once it is known to fit, and puts the backend together.
fn assemble(
    engine: Engine,
    device: &Arc<Device>,
    (kv, limits): (KvShape, Limits),
    manifest: &Manifest,
    options: &Options,
) -> Result<Box<dyn Backend>, LoadError> {
    let sizes = Sizes::new(&limits, manifest.model.vocab_padded as usize);
    let scratch_bytes = usize::try_from(engine.scratch_bytes(None)).unwrap_or(usize::MAX);
    let needs = Needs { kv, sizes, scratch_bytes };
    needs.check(device.memory()?.free)?;
    let stream = device.stream()?;
    let take = |stream: &Arc<Stream>| -> Result<_, CudaError> {
        let buffers = Buffers::new(stream, sizes, DeviceKv::new(stream, kv)?)?;
        Ok((buffers, DeviceMemory::new(stream, scratch_bytes)?))
    };
    let (buffers, scratch) = match take(&stream) {
        Err(error) if error.is_out_of_memory() => return Err(needs.refused(device.memory()?.free).into()),
        taken => taken?,
    };
    let runner = TensorRtRunner::new(engine, kv.layers, scratch, options.graphs)?;
    Ok(Box::new(DeviceBackend::new(runner, limits, buffers)))
}

/// Compares what the engine takes and gives with the bundle's graph: addresses will be set by name, for these types.
fn check_tensors(engine: &Engine, model: &ModelInfo) -> Result<(), LoadError> {
    let cache = if model.dtype == Dtype::F16 { DataType::F16 } else { DataType::F32 };
    let mut expected: Vec<(String, bool, DataType)> = [
        ("input_ids", true, DataType::I64),
        ("past_len", true, DataType::I64),
        ("select", true, DataType::I64),
        ("logits", false, DataType::F32),
        ("topv", false, DataType::F32),
        ("topi", false, DataType::I64),
        ("lse", false, DataType::F32),
    ]
    .map(|(name, is_input, data_type)| (name.to_owned(), is_input, data_type))
    .into();
    for layer in 0..model.layers {
        for kv in ['k', 'v'] {
            expected.push((format!("past_{kv}_{layer}"), true, cache));
            expected.push((format!("present_{kv}_{layer}"), false, cache));
        }
    }
    let tensors = engine.tensors();
    for (name, is_input, data_type) in &expected {
        let wrong = |what: &str| Err(LoadError::Tensor(format!("tensor {name} {what}")));
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == *name) else { return wrong("is missing") };
        if tensor.is_input != *is_input || tensor.data_type != *data_type || tensor.on_host {
            return wrong(&format!("is {tensor:?}, where {data_type:?} in device memory is expected"));
        }
        if !is_in_place(tensor) {
            return wrong("is not updated in place");
        }
    }
    match tensors.iter().find(|tensor| expected.iter().all(|(name, ..)| *name != tensor.name)) {
        Some(other) => Err(LoadError::Tensor(format!("tensor {} is not the graph's", other.name))),
        None => Ok(()),
    }
}

/// A cache's present is its past, as far as the engine says.
fn is_in_place(tensor: &IoTensor) -> bool {
    let past = tensor.name.strip_prefix("present_").map(|cache| format!("past_{cache}"));
    tensor.alias_of.is_none() || tensor.alias_of == past
}
