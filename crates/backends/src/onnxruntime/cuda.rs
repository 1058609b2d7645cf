//! ONNX Runtime on a CUDA device, for GPUs without TensorRT.
//!
//! This needs ONNX Runtime's GPU build; a library without the CUDA provider is refused. ONNX Runtime places nodes for
//! which the provider has no kernel on the CPU, and its log names them. All tensors are bound in device memory at fixed
//! addresses, and runs go to our stream. Each bucket of shapes has one of ONNX Runtime's own CUDA graphs, captured
//! before the first request, where it can capture them.
//!
//! This file and `raw` are the `unsafe` parts of this module: bindings over device memory.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::time::Instant;

use bundle::manifest::{Dtype, GRAPH_FILE, Manifest, Operators};
use ort::AsPointer;
use ort::ep::{ArbitrarilyConfigurableExecutionProvider, CUDA, ExecutionProvider};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::sys::{self, ONNXTensorElementDataType as ElementType};
use rustc_hash::FxHashMap;

use super::raw::{c_name, check};
use super::{LoadError, MAX_BINDINGS, Options, library, limits, sizes};
use crate::cuda::{CudaError, Driver, DriverError, Stream};
use crate::device::{Buckets, Buffers, DeviceBackend, DeviceKv, KvShape, Runner, Shapes, Sizes};
use crate::readings::SLOTS;
use scheduler::backend::{Backend, BackendError};

/// The options that are particular to a CUDA device.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Index of the GPU, from 0; with several, of the first.
    pub device: usize,
    /// Number of GPUs that replicas take turns on.
    pub devices: usize,
    /// The CUDA driver; the system's if absent.
    pub driver: Option<PathBuf>,
    /// Whether steps of decoding are captured as CUDA graphs, where that is possible.
    pub graphs: bool,
    /// More options of the provider, as its documentation names them.
    pub provider: Vec<(String, String)>,
}

/// Why a bundle can't be run on a CUDA device.
#[derive(Debug, thiserror::Error)]
pub enum CudaLoadError {
    /// The model can't be loaded, for a reason that applies to the CPU too.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no usable driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// CUDA refused something, memory for example.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The library has no provider for CUDA.
    #[error(
        "--device cuda needs ONNX Runtime's GPU build, and this ONNX Runtime has no CUDA provider: name another \
         library with --onnxruntime, or use --device cpu"
    )]
    NoProvider,
    /// The graph has operators of this program's own, which are for the CPU.
    #[error("the bundle's graph has operators that are only there for the CPU: build it with --dtype f16 for a GPU")]
    Operators,
    /// The engine failed while it was put together.
    #[error(transparent)]
    Engine(#[from] BackendError),
    /// The model reads a source with an encoder.
    #[error(
        "the bundle's model reads a source with an encoder, which ONNX Runtime does on the CPU only: use --device \
         cpu, or TensorRT with --backend"
    )]
    EncoderDecoder,
}

/// Loads a bundle's graph onto a device.
///
/// # Errors
/// See [`CudaLoadError`].
pub fn load(
    bundle: &Path,
    manifest: &Manifest,
    options: &Options,
    cuda: &CudaOptions,
) -> Result<Box<dyn Backend>, CudaLoadError> {
    if manifest.model.source.is_some() {
        return Err(CudaLoadError::EncoderDecoder);
    }
    let environment = library::environment(options.library.as_deref()).map_err(LoadError::from)?;
    // The library first: that it is the wrong build is the likeliest mistake.
    if !CUDA::is_available().unwrap_or(false) {
        return Err(CudaLoadError::NoProvider);
    }
    if manifest.model.operators != Operators::Onnx {
        return Err(CudaLoadError::Operators);
    }
    let device = Driver::load(cuda.driver.as_deref())?.open(cuda.device)?;
    device.make_current()?;
    let stream = device.stream()?;
    let path = bundle.join(GRAPH_FILE);
    let open = |graphs| open(&environment, &path, options, cuda, &stream, graphs);
    let graph_error = |e: ort::Error| LoadError::Graph { path: path.clone(), reason: e.to_string() };
    let (session, graphs) = match cuda.graphs.then(|| open(true)) {
        Some(Ok(session)) => (session, true),
        Some(Err(error)) => {
            tracing::warn!(%error, "ONNX Runtime can't capture this graph: steps run without CUDA graphs");
            (open(false).map_err(graph_error)?, false)
        }
        None => (open(false).map_err(graph_error)?, false),
    };
    let limits = limits(manifest, options);
    let model = &manifest.model;
    let kv = KvShape {
        layers: model.layers as usize,
        heads: model.kv_heads as usize,
        context: limits.context,
        head_dim: model.head_dim as usize,
        element_bytes: if model.dtype == Dtype::F16 { 2 } else { 4 },
        lanes: limits.lanes,
        pages: limits.pages,
    };
    let sizes = Sizes::new(&limits, model.vocab_padded as usize, sizes::has_input(&session, SLOTS));
    let buffers = Buffers::new(&stream, sizes, DeviceKv::new(&stream, kv)?, None)?;
    let memory =
        MemoryInfo::new(AllocationDevice::CUDA, cuda.device as i32, AllocatorType::Device, MemoryType::Default);
    let runner = CudaRunner {
        prepared: FxHashMap::default(),
        others: FxHashMap::default(),
        memory: memory.map_err(graph_error)?,
        kv_names: kv_names(kv.layers),
        kv_type: if model.dtype == Dtype::F16 { FLOAT16 } else { FLOAT },
        graphs,
        session,
    };
    Ok(Box::new(DeviceBackend::new(runner, limits, buffers, Buckets::new(&sizes, &[]))?))
}

fn open(
    environment: &ort::environment::Environment,
    path: &Path,
    options: &Options,
    cuda: &CudaOptions,
    stream: &Stream,
    graphs: bool,
) -> Result<Session, ort::Error> {
    let mut provider = CUDA::default().with_device_id(cuda.device as i32).with_cuda_graph(graphs);
    for (key, value) in &cuda.provider {
        provider = provider.with_arbitrary_config(key, value);
    }
    // SAFETY: the stream lives as long as the buffers, which a `DeviceBackend` drops after its runner and the session
    // in it.
    let provider = unsafe { provider.with_compute_stream(stream.raw().cast()) };
    Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_memory_pattern(false)?
        .with_intra_threads(options.threads)?
        // Says which nodes stay on the CPU.
        .with_log_level(ort::logging::LogLevel::Warning)?
        .with_execution_providers([provider.build().error_on_failure()])?
        .commit_from_file(path)
}

const FLOAT: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
const FLOAT16: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
const INT64: ElementType = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;

/// `past_k_i`, `present_k_i`, `past_v_i`, `present_v_i`, in the order of the cache's tensors.
fn kv_names(layers: usize) -> Vec<(CString, CString)> {
    let names = (0..layers).flat_map(|i| [("k", i), ("v", i)]);
    names.map(|(kv, i)| (c_name(format!("past_{kv}_{i}")), c_name(format!("present_{kv}_{i}")))).collect()
}

/// ONNX Runtime's part of a step.
struct CudaRunner {
    /// Bindings of the buckets. Declared first: bindings go before the session.
    prepared: FxHashMap<Shapes, Bound>,
    /// Bindings of other steps, at most [`MAX_BINDINGS`].
    others: FxHashMap<Shapes, Bound>,
    session: Session,
    memory: MemoryInfo<'static>,
    kv_names: Vec<(CString, CString)>,
    kv_type: ElementType,
    graphs: bool,
}

/// Runs of a graph until ONNX Runtime has captured it: in those before, it takes its memory and loads its kernels.
const RUNS_TO_CAPTURE: usize = 3;

/// ONNX Runtime's number of a CUDA graph.
#[derive(Clone, Copy)]
struct GraphNumber(i64);

impl GraphNumber {
    /// The number of runs that are not captured.
    const NONE: Self = Self(-1);
}

/// A binding for one combination of shapes, and how to run it.
struct Bound {
    binding: NonNull<sys::OrtIoBinding>,
    options: NonNull<sys::OrtRunOptions>,
}

// SAFETY: ONNX Runtime ties neither to a thread; without `Sync` they are used by one at a time.
unsafe impl Send for Bound {}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: both are ours and released once.
        unsafe {
            (ort::api().ReleaseIoBinding)(self.binding.as_ptr());
            (ort::api().ReleaseRunOptions)(self.options.as_ptr());
        }
    }
}

impl Bound {
    fn new(session: &Session) -> Result<Self, ort::Error> {
        let (mut binding, mut options) = (ptr::null_mut(), ptr::null_mut());
        let null = || ort::Error::new("ONNX Runtime returned null");
        // SAFETY: the session is alive, and both results have a place.
        unsafe {
            check((ort::api().CreateRunOptions)(&mut options))?;
            let options = NonNull::new(options).ok_or_else(null)?;
            if let Err(error) = check((ort::api().CreateIoBinding)(session.ptr().cast_mut(), &mut binding)) {
                (ort::api().ReleaseRunOptions)(options.as_ptr());
                return Err(error);
            }
            Ok(Self { binding: NonNull::new(binding).ok_or_else(null)?, options })
        }
    }

    /// Which CUDA graph the run is. A graph is captured at its run number [`RUNS_TO_CAPTURE`], and replayed from then
    /// on.
    fn set_graph(&mut self, graph: GraphNumber) -> Result<(), ort::Error> {
        let number = c_name(graph.0.to_string());
        // SAFETY: the options are alive; both strings are copied.
        check(unsafe {
            (ort::api().AddRunConfigEntry)(self.options.as_ptr(), c"gpu_graph_id".as_ptr(), number.as_ptr())
        })
    }

    /// Binds an input or output to device memory of that shape, which the caller keeps in place as long as this.
    fn bind(&mut self, tensor: &DeviceTensor<'_>, memory: &MemoryInfo<'_>) -> Result<(), ort::Error> {
        let element_bytes = match tensor.element {
            INT64 => 8,
            FLOAT16 => 2,
            _ => 4,
        };
        let bytes = tensor.shape.iter().product::<i64>() as usize * element_bytes;
        let api = ort::api();
        let mut value = ptr::null_mut();
        // SAFETY: the address has so many bytes on the device (the buffers are sized for the largest shapes); shape,
        // name and value are there during the calls, and the binding takes its own reference to the value.
        unsafe {
            check((api.CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                tensor.address as *mut c_void,
                bytes,
                tensor.shape.as_ptr(),
                tensor.shape.len(),
                tensor.element,
                &mut value,
            ))?;
            let bind = if tensor.is_input { api.BindInput } else { api.BindOutput };
            let bound = check(bind(self.binding.as_ptr(), tensor.name.as_ptr(), value));
            (api.ReleaseValue)(value);
            bound
        }
    }
}

/// A graph input or output in device memory.
struct DeviceTensor<'a> {
    name: &'a CStr,
    is_input: bool,
    address: u64,
    element: ElementType,
    shape: &'a [i64],
}

impl CudaRunner {
    fn bind(&self, shapes: Shapes, graph: GraphNumber, buffers: &Buffers) -> Result<Bound, ort::Error> {
        let (b, s, r) = (shapes.rows as i64, shapes.longest as i64, shapes.selected as i64);
        let (kv, sizes) = (buffers.kv.shape(), buffers.sizes());
        let [topi, topv, lse] = buffers.results(shapes);
        let k = sizes.top_k as i64;
        let mut bound = Bound::new(&self.session)?;
        let mut bind = |name: &CStr, is_input, address, element, shape: &[i64]| {
            bound.bind(&DeviceTensor { name, is_input, address, element, shape }, &self.memory)
        };
        bind(c"input_ids", true, buffers.input_ids(), INT64, &[b, s])?;
        bind(c"past_len", true, buffers.past_len(), INT64, &[b])?;
        bind(c"select", true, buffers.select(), INT64, &[r])?;
        if sizes.slots > 0 {
            bind(&c_name(SLOTS.to_owned()), true, buffers.slots(), INT64, &[shapes.attended as i64])?;
        }
        let cache = [b, kv.heads as i64, kv.context as i64, kv.head_dim as i64];
        for (tensor, (past, present)) in self.kv_names.iter().enumerate() {
            bind(past, true, buffers.kv.address(tensor), self.kv_type, &cache)?;
            bind(present, false, buffers.kv.address(tensor), self.kv_type, &cache)?;
        }
        bind(c"logits", false, buffers.logits(), FLOAT, &[r, sizes.vocab_padded as i64])?;
        bind(c"topv", false, topv, FLOAT, &[r, k])?;
        bind(c"topi", false, topi, INT64, &[r, k])?;
        bind(c"lse", false, lse, FLOAT, &[r, 1])?;
        if self.graphs {
            bound.set_graph(graph)?;
        }
        Ok(bound)
    }

    /// The binding of a bucket, and its graph, which is captured.
    fn bucket(&mut self, shapes: Shapes, graph: GraphNumber, buffers: &Buffers) -> Result<Bound, ort::Error> {
        let bound = self.bind(shapes, graph, buffers)?;
        let runs = if self.graphs { RUNS_TO_CAPTURE } else { 1 };
        for _ in 0..runs {
            run(&mut self.session, &bound)?;
        }
        Ok(bound)
    }

    /// Why a bucket can't be prepared, and what would help.
    fn unprepared(&self, error: ort::Error) -> BackendError {
        let advice = if self.graphs { "; --no-cuda-graphs runs it without CUDA graphs" } else { "" };
        BackendError::Engine(format!("ONNX Runtime can't prepare the graph: {error}{advice}"))
    }
}

/// One run on the session's stream.
fn run(session: &mut Session, bound: &Bound) -> Result<(), ort::Error> {
    // SAFETY: session, options and binding are alive and belong together: bindings are made and kept by the runner that
    // has the session. `&mut` keeps this the only run.
    check(unsafe { (ort::api().RunWithBinding)(session.ptr_mut(), bound.options.as_ptr(), bound.binding.as_ptr()) })
}

fn engine(error: ort::Error) -> BackendError {
    BackendError::Engine(error.to_string())
}

impl Runner for CudaRunner {
    fn prepare(&mut self, buckets: &Buckets, buffers: &Buffers) -> Result<(), BackendError> {
        let started = Instant::now();
        for (&shapes, number) in buckets.all().iter().zip(0..) {
            let bound = self.bucket(shapes, GraphNumber(number), buffers).map_err(|error| self.unprepared(error))?;
            self.prepared.insert(shapes, bound);
        }
        let elapsed_ms = started.elapsed().as_millis() as u64;
        tracing::info!(shapes = self.prepared.len(), graphs = self.graphs, elapsed_ms, "prepared");
        Ok(())
    }

    fn run(&mut self, shapes: Shapes, buffers: &Buffers) -> Result<(), BackendError> {
        if let Some(bound) = self.prepared.get(&shapes) {
            return run(&mut self.session, bound).map_err(engine);
        }
        if !self.others.contains_key(&shapes) {
            if self.others.len() >= MAX_BINDINGS {
                self.others.clear();
            }
            let bound = self.bind(shapes, GraphNumber::NONE, buffers).map_err(engine)?;
            self.others.insert(shapes, bound);
        }
        let Some(bound) = self.others.get(&shapes) else { return Ok(()) };
        run(&mut self.session, bound).map_err(engine)
    }
}
