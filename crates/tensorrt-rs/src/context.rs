//! Execution contexts: shapes, addresses, and the launch.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::cache::RuntimeCache;
use crate::engine::Inner as EngineInner;
use crate::error::Error;
use crate::library::Library;
use crate::sys::{TrtContext, call};
use crate::types::{Shape, TensorName};

/// A CUDA stream, by its handle: a `cudaStream_t` or `CUstream`, which are the same. Null is the default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub *mut c_void);

/// An address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    fn as_ptr(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

/// The state of one thread's runs of an engine.
///
/// # Why does everything take `&mut self`?
/// TensorRT keeps profile, shapes and addresses in the context and reads them at the launch: a context belongs to one
/// thread at a time. Several contexts of one engine may run side by side.
///
/// ```compile_fail
/// fn shared(context: &tensorrt::Context) {
///     std::thread::scope(|scope| {
///         scope.spawn(move || context.profile());
///     });
/// }
/// ```
#[doc(alias = "IExecutionContext")]
pub struct Context {
    raw: NonNull<TrtContext>,
    engine: Arc<EngineInner>,
    /// Outlives the context, which writes to it.
    _cache: Option<RuntimeCache>,
}

// SAFETY: a context may be handed to another thread; `&mut self` keeps it with one at a time, and destroying takes the
// lock.
unsafe impl Send for Context {}

impl Context {
    pub(crate) fn new(raw: NonNull<TrtContext>, engine: &Arc<EngineInner>, cache: Option<RuntimeCache>) -> Self {
        Self { raw, engine: Arc::clone(engine), _cache: cache }
    }

    fn library(&self) -> &Library {
        self.engine.library()
    }

    fn as_ptr(&self) -> *mut TrtContext {
        self.raw.as_ptr()
    }

    /// The profile in use. A new context is in profile 0 if no other context is, and otherwise in none.
    #[doc(alias = "getOptimizationProfile")]
    pub fn profile(&self) -> Option<usize> {
        // SAFETY: the context is alive.
        usize::try_from(unsafe { call!(self.library().table(), context_profile, self.as_ptr()) }).ok()
    }

    /// Takes another profile, in the order of the stream. Shapes have to be set again afterwards.
    ///
    /// # Safety
    /// `stream` is a stream of the engine's device, and stays until the work on it is done.
    ///
    /// # Errors
    /// A profile that doesn't exist.
    #[doc(alias = "setOptimizationProfileAsync")]
    pub unsafe fn set_profile(&mut self, profile: usize, stream: Stream) -> Result<(), Error> {
        let index = i32::try_from(profile).unwrap_or(i32::MAX);
        self.library().accept("IExecutionContext::setOptimizationProfileAsync", |table| {
            // SAFETY: the context is alive, and the caller vouches for the stream.
            unsafe { call!(table, context_set_profile, self.as_ptr(), index, stream.0) }
        })
    }

    /// Sets an input's shape.
    ///
    /// # Errors
    /// No such input, or a shape outside the profile.
    #[doc(alias = "setInputShape")]
    pub fn set_input_shape(&mut self, input: &TensorName, shape: &[i64]) -> Result<(), Error> {
        let dims = Shape::new(shape)?.to_raw();
        self.library().accept("IExecutionContext::setInputShape", |table| {
            // SAFETY: the context, the name and the shape are there during the call.
            unsafe { call!(table, context_set_input_shape, self.as_ptr(), input.as_ptr(), &dims) }
        })
    }

    /// A tensor's shape for the inputs' shapes; -1 where those are not all set. `None` where there is no such tensor.
    #[doc(alias = "getTensorShape")]
    pub fn shape(&self, tensor: &TensorName) -> Option<Shape> {
        // SAFETY: the context and the name are alive.
        Shape::from_raw(unsafe { call!(self.library().table(), context_tensor_shape, self.as_ptr(), tensor.as_ptr()) })
    }

    /// Says where a tensor is.
    ///
    /// # Safety
    /// Whenever the context runs, memory of the tensor's size has to be there: on the engine's device, or on the host
    /// where the engine says so. An output that aliases an input has to be where that input is.
    ///
    /// # Errors
    /// No such tensor, or an address that is not aligned to 256 bytes.
    #[doc(alias = "setTensorAddress")]
    pub unsafe fn set_address(&mut self, tensor: &TensorName, address: DevicePtr) -> Result<(), Error> {
        self.library().accept("IExecutionContext::setTensorAddress", |table| {
            // SAFETY: the context and the name are alive; the address is only kept.
            unsafe { call!(table, context_set_address, self.as_ptr(), tensor.as_ptr(), address.as_ptr()) }
        })
    }

    /// Scratch memory for the shapes that are set, in bytes; less than for the profile's largest.
    ///
    /// # Errors
    /// Shapes that are not all set.
    #[doc(alias = "updateDeviceMemorySizeForShapes")]
    pub fn scratch_bytes_for_shapes(&mut self) -> Result<u64, Error> {
        self.library().attempt("IExecutionContext::updateDeviceMemorySizeForShapes", |table| {
            // SAFETY: the context is alive.
            Some(unsafe { call!(table, context_scratch_bytes, self.as_ptr()) }).filter(|bytes| *bytes > 0)
        })
    }

    /// Gives scratch memory to a context that was made with
    /// [`ScratchMemory::UserManaged`](crate::ScratchMemory::UserManaged).
    ///
    /// # Safety
    /// Whenever the context runs, this many bytes have to be there, aligned to 256 bytes, on the engine's device, and
    /// nothing else may use them. Contexts whose runs never overlap may share them.
    #[doc(alias = "setDeviceMemoryV2")]
    pub unsafe fn set_scratch(&mut self, address: DevicePtr, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        // SAFETY: the context is alive; the address is only kept.
        unsafe { call!(self.library().table(), context_set_scratch, self.as_ptr(), address.as_ptr(), bytes) }
    }

    /// Launches a run on a stream. The work is done when the stream says so.
    ///
    /// # Safety
    /// `stream` is a stream of the engine's device. What [`Context::set_address`] and [`Context::set_scratch`] ask for
    /// holds until the work is done; for a captured run that is the end of the graph's last launch. Until then the
    /// context isn't used for another stream.
    ///
    /// # Errors
    /// Shapes or addresses that are missing, and what CUDA refuses. Errors of the work itself show on the stream.
    #[doc(alias = "enqueueV3")]
    pub unsafe fn enqueue(&mut self, stream: Stream) -> Result<(), Error> {
        self.library().accept("IExecutionContext::enqueueV3", |table| {
            // SAFETY: the context is alive, and the caller vouches for the stream and the memory.
            unsafe { call!(table, context_enqueue, self.as_ptr(), stream.0) }
        })
    }

    /// Whether a run can be captured into a CUDA graph. `None` from TensorRT, which can't tell beforehand.
    ///
    /// # Safety
    /// `stream` is a stream of the engine's device.
    #[doc(alias = "isStreamCapturable")]
    pub unsafe fn is_capturable(&self, stream: Stream) -> Option<bool> {
        let check = self.library().table().context_is_capturable?;
        // SAFETY: the context is alive, and the caller vouches for the stream.
        Some(unsafe { check(self.as_ptr(), stream.0) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _exclusive = self.engine.exclusive();
        // SAFETY: the context is ours; its engine and its cache are still there.
        unsafe { call!(self.engine.library().table(), context_destroy, self.raw.as_ptr()) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(profile {:?})", self.profile())
    }
}
