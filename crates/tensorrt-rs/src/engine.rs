//! Engines: their input and output tensors, and execution contexts.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::cache::RuntimeCache;
use crate::context::Context;
use crate::error::Error;
use crate::library::Library;
use crate::profile::{Selector, ShapeRange};
use crate::runtime::Inner as RuntimeInner;
use crate::sys::{TrtEngine, TrtRuntimeConfig, call};
use crate::types::{DataType, Shape, TensorName, text};

/// A network that was built for a GPU, with its weights in the GPU's memory. Clones are the same one.
#[doc(alias = "ICudaEngine")]
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

pub(crate) struct Inner {
    raw: NonNull<TrtEngine>,
    runtime: Arc<RuntimeInner>,
}

// SAFETY: an engine may be used from any thread; what would race takes the runtime's lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    pub(crate) fn library(&self) -> &Library {
        &self.runtime.library
    }

    pub(crate) fn exclusive(&self) -> std::sync::MutexGuard<'_, ()> {
        self.runtime.exclusive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _exclusive = self.exclusive();
        // SAFETY: the engine is ours, and every context holds an `Arc` of this, so they are gone.
        unsafe { call!(self.library().table(), engine_destroy, self.raw.as_ptr()) }
    }
}

/// A tensor that goes into or comes out of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct IoTensor {
    /// The tensor's name, as in the ONNX file.
    pub name: String,
    /// An input, and not an output.
    pub is_input: bool,
    /// Type of the tensor's elements.
    pub data_type: DataType,
    /// The tensor's shape; -1 where it is dynamic.
    pub shape: Shape,
    /// Read or written by the CPU, and so to be in host memory.
    pub on_host: bool,
    /// The input at whose address this output has to be, for state that is changed in place.
    pub alias_of: Option<String>,
}

/// Who allocates a context's scratch memory, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ExecutionContextAllocationStrategy")]
pub enum ScratchMemory {
    /// TensorRT, once, for the largest profile.
    #[default]
    Static,
    /// TensorRT, whenever the profile changes.
    PerProfile,
    /// The caller; see [`Context::set_scratch`].
    UserManaged,
}

/// When TensorRT-RTX compiles kernels for the shapes that it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DynamicShapesKernelSpecializationStrategy")]
pub enum Specialization {
    /// Kernels are compiled in the background, while generic ones run.
    Lazy,
    /// Kernels are compiled before the first run with new shapes.
    Eager,
    /// No kernels are compiled for single shapes.
    None,
}

/// How to make a context. The default suits both flavours.
#[derive(Clone, Debug, Default)]
#[doc(alias = "IRuntimeConfig")]
pub struct ContextOptions {
    /// Whether TensorRT or the caller allocates scratch memory.
    pub scratch: ScratchMemory,
    /// When kernels are compiled for particular shapes. TensorRT-RTX only; by default lazily.
    pub specialization: Option<Specialization>,
    /// Whether TensorRT-RTX captures CUDA graphs by itself. It doesn't by default, and must not where the caller
    /// captures.
    pub own_graphs: bool,
    /// Where TensorRT-RTX keeps the kernels that it compiled. By default nowhere.
    pub cache: Option<RuntimeCache>,
}

impl ContextOptions {
    /// Whether there is anything in it that only TensorRT-RTX knows.
    fn is_for_rtx(&self) -> bool {
        self.specialization.is_some() || self.own_graphs || self.cache.is_some()
    }
}

impl Engine {
    pub(crate) fn new(raw: NonNull<TrtEngine>, runtime: &Arc<RuntimeInner>) -> Self {
        Self(Arc::new(Inner { raw, runtime: Arc::clone(runtime) }))
    }

    fn as_ptr(&self) -> *mut TrtEngine {
        self.0.raw.as_ptr()
    }

    /// The library that it is of.
    pub fn library(&self) -> &Library {
        self.0.library()
    }

    /// All input and output tensors.
    pub fn tensors(&self) -> Vec<IoTensor> {
        let table = self.library().table();
        // SAFETY: the engine is alive.
        let count = unsafe { call!(table, engine_tensors, self.as_ptr()) };
        (0..count).map(|index| self.tensor(index)).collect()
    }

    /// `index` is below the number of tensors.
    fn tensor(&self, index: i32) -> IoTensor {
        let (table, engine) = (self.library().table(), self.as_ptr());
        // SAFETY: the engine is alive, the index is one of its tensors', and the names are the engine's own.
        unsafe {
            let name = call!(table, engine_tensor_name, engine, index);
            let is_input = call!(table, engine_tensor_mode, engine, name) == 1;
            let alias = if is_input { std::ptr::null() } else { call!(table, engine_aliased_input, engine, name) };
            IoTensor {
                name: text(name),
                is_input,
                data_type: DataType::from_raw(call!(table, engine_tensor_type, engine, name)),
                shape: Shape::from_raw(call!(table, engine_tensor_shape, engine, name)).unwrap_or_default(),
                on_host: call!(table, engine_tensor_location, engine, name) == 1,
                alias_of: (!alias.is_null()).then(|| text(alias)),
            }
        }
    }

    /// Number of optimization profiles.
    #[doc(alias = "getNbOptimizationProfiles")]
    pub fn profiles(&self) -> usize {
        // SAFETY: the engine is alive.
        let count = unsafe { call!(self.library().table(), engine_profiles, self.as_ptr()) };
        usize::try_from(count).unwrap_or(0)
    }

    /// An input's shapes in a profile; `None` where there is no such input or profile.
    #[doc(alias = "getProfileShape")]
    pub fn profile_shapes(&self, input: &TensorName, profile: usize) -> Option<ShapeRange> {
        let profile = i32::try_from(profile).ok()?;
        let [min, opt, max] = Selector::ALL.map(|selector| {
            // SAFETY: the engine and the name are alive; TensorRT checks both name and profile.
            let dims = unsafe {
                call!(
                    self.library().table(),
                    engine_profile_shape,
                    self.as_ptr(),
                    input.as_ptr(),
                    profile,
                    selector.raw()
                )
            };
            Shape::from_raw(dims)
        });
        Some(ShapeRange { min: min?, opt: opt?, max: max? })
    }

    /// Scratch memory of a context, for one profile or for the largest.
    #[doc(alias = "getDeviceMemorySizeV2")]
    pub fn scratch_bytes(&self, profile: Option<usize>) -> u64 {
        let (table, engine) = (self.library().table(), self.as_ptr());
        // SAFETY: the engine is alive; TensorRT checks the profile.
        let bytes = unsafe {
            match profile {
                Some(profile) => call!(table, engine_profile_scratch_bytes, engine, profile as i32),
                None => call!(table, engine_scratch_bytes, engine),
            }
        };
        u64::try_from(bytes).unwrap_or(0)
    }

    /// A place for the kernels that TensorRT-RTX compiles at run time, empty.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from TensorRT, whose plans hold their kernels.
    #[doc(alias = "createRuntimeCache")]
    pub fn runtime_cache(&self) -> Result<RuntimeCache, Error> {
        let (call, library) = ("IRuntimeConfig::createRuntimeCache", self.library());
        let create = library.entry(call, library.table().runtime_cache_create)?;
        let config = RuntimeConfig::new(&self.0)?;
        // SAFETY: the configuration is alive.
        let raw = library.attempt(call, |_| NonNull::new(unsafe { create(config.raw.as_ptr()) }))?;
        Ok(RuntimeCache::new(raw, library))
    }

    /// A context: what one thread needs to run the engine.
    ///
    /// # Errors
    /// TensorRT's reasons, such as too little device memory; options that the flavour doesn't have.
    #[doc(alias = "createExecutionContext")]
    pub fn context(&self, options: &ContextOptions) -> Result<Context, Error> {
        let library = self.library();
        let call = "ICudaEngine::createExecutionContext";
        let config = if options.is_for_rtx() { Some(self.runtime_config(options)?) } else { None };
        let _exclusive = self.0.exclusive();
        let raw = library.attempt(call, |table| {
            // SAFETY: the engine is alive, and so is the configuration.
            NonNull::new(unsafe {
                match &config {
                    Some(config) => call!(table, context_create_with, self.as_ptr(), config.raw.as_ptr()),
                    None => call!(table, context_create, self.as_ptr(), options.scratch as i32),
                }
            })
        })?;
        Ok(Context::new(raw, &self.0, options.cache.clone()))
    }

    fn runtime_config(&self, options: &ContextOptions) -> Result<RuntimeConfig, Error> {
        let (library, table) = (self.library(), self.library().table());
        let config = RuntimeConfig::new(&self.0)?;
        let raw = config.raw.as_ptr();
        // SAFETY: the configuration is alive.
        unsafe { call!(table, runtime_config_set_allocation, raw, options.scratch as i32) };
        if let Some(strategy) = options.specialization {
            let call = "IRuntimeConfig::setDynamicShapesKernelSpecializationStrategy";
            let set = library.entry(call, table.runtime_config_set_specialization)?;
            // SAFETY: the configuration is alive.
            unsafe { set(raw, strategy as i32) };
        }
        if options.own_graphs {
            let call = "IRuntimeConfig::setCudaGraphStrategy";
            let set = library.entry(call, table.runtime_config_set_graphs)?;
            // SAFETY: the configuration is alive.
            library.accept(call, |_| unsafe { set(raw, 1) })?;
        }
        if let Some(cache) = &options.cache {
            let call = "IRuntimeConfig::setRuntimeCache";
            let set = library.entry(call, table.runtime_config_set_cache)?;
            // SAFETY: both are alive, and the context that is made keeps the cache.
            library.accept(call, |_| unsafe { set(raw, cache.as_ptr()) })?;
        }
        Ok(config)
    }
}

/// TensorRT's object behind [`ContextOptions`].
struct RuntimeConfig {
    raw: NonNull<TrtRuntimeConfig>,
    engine: Arc<Inner>,
}

impl RuntimeConfig {
    fn new(engine: &Arc<Inner>) -> Result<Self, Error> {
        let _exclusive = engine.exclusive();
        let raw = engine.library().attempt("ICudaEngine::createRuntimeConfig", |table| {
            // SAFETY: the engine is alive.
            NonNull::new(unsafe { call!(table, runtime_config_create, engine.raw.as_ptr()) })
        })?;
        Ok(Self { raw, engine: Arc::clone(engine) })
    }
}

impl Drop for RuntimeConfig {
    fn drop(&mut self) {
        // SAFETY: ours; its engine is still there.
        unsafe { call!(self.engine.library().table(), runtime_config_destroy, self.raw.as_ptr()) }
    }
}
