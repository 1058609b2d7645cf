//! Building engines: the builder, its configuration, its progress and the serialized engine.
//!
//! Everything here stays on the thread that made it; see [`Builder`].

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::library::Library;
use crate::network::Network;
use crate::profile::{OptimizationProfile, Selector};
use crate::sys::{TrtBuilder, TrtConfig, TrtMemory, TrtMonitor, TrtMonitorFns, TrtNetwork, call, made};
use crate::types::Sm;

/// Held while a builder builds: of two builds of TensorRT-RTX at once, one has failed with "Target SM 80 is not found
/// in the accelerator list" while the other was for SM 86 and 89.
static BUILDING: Mutex<()> = Mutex::new(());

/// Makes networks and configurations, and builds engines of them.
///
/// A builder and what it made share state that TensorRT doesn't guard, so they are neither `Send` nor `Sync`: make them
/// on the thread that builds. The serialized engine may go anywhere.
///
/// ```compile_fail
/// fn elsewhere(builder: tensorrt::Builder) {
///     std::thread::spawn(move || drop(builder));
/// }
/// ```
#[doc(alias = "IBuilder")]
pub struct Builder(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    raw: NonNull<TrtBuilder>,
    pub(crate) library: Library,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the builder is ours, and whatever it made holds an `Rc` of this, so all of it is gone.
        unsafe { call!(self.library.table(), builder_destroy, self.raw.as_ptr()) }
    }
}

impl Builder {
    /// # Errors
    /// [`LoadError::NoSymbol`](crate::LoadError::NoSymbol) from a library that can only run engines; otherwise
    /// TensorRT's reasons.
    #[doc(alias = "createInferBuilder")]
    pub fn new(library: &Library) -> Result<Self, Error> {
        let factory = library.builder_factory()?;
        let raw = library.attempt("createInferBuilder", |table| {
            // SAFETY: the factory is the library's own, and the logger lives for good.
            made(unsafe { call!(table, builder_create, factory.as_ptr(), library.logger()) })
        })?;
        Ok(Self(Rc::new(Inner { raw, library: library.clone() })))
    }

    /// An empty, strongly typed network.
    ///
    /// # Errors
    /// TensorRT's reasons.
    #[doc(alias = "createNetworkV2")]
    pub fn network(&self) -> Result<Network, Error> {
        let raw = self.0.library.attempt("IBuilder::createNetworkV2", |table| {
            // SAFETY: the builder is alive.
            NonNull::new(unsafe { call!(table, network_create, self.0.raw.as_ptr()) })
        })?;
        Ok(Network::new(raw, &self.0))
    }

    /// A configuration with TensorRT's defaults.
    ///
    /// # Errors
    /// TensorRT's reasons.
    #[doc(alias = "createBuilderConfig")]
    pub fn config(&self) -> Result<BuilderConfig, Error> {
        let raw = self.0.library.attempt("IBuilder::createBuilderConfig", |table| {
            // SAFETY: the builder is alive.
            NonNull::new(unsafe { call!(table, config_create, self.0.raw.as_ptr()) })
        })?;
        Ok(BuilderConfig { raw, builder: Rc::clone(&self.0), monitor: None })
    }

    /// Builds and serializes an engine. Builds of a process wait for each other; a [`Progress`] must not begin one.
    ///
    /// # Errors
    /// TensorRT's reasons; also where the configuration's [`Progress`] ended the build.
    #[doc(alias = "buildSerializedNetwork")]
    pub fn build(&self, network: &mut Network, config: &mut BuilderConfig) -> Result<HostMemory, Error> {
        let (network, raw): (*mut TrtNetwork, _) = (network.as_ptr(), config.raw.as_ptr());
        // It guards no data that a panic could have left half-done.
        let _alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = self.0.library.attempt("IBuilder::buildSerializedNetwork", |table| {
            // SAFETY: all three are alive and of this library; the network still has its parsers, whose memory it uses.
            NonNull::new(unsafe { call!(table, build_serialized, self.0.raw.as_ptr(), network, raw) })
        })?;
        Ok(HostMemory { raw, library: self.0.library.clone() })
    }
}

/// The options of a build.
#[doc(alias = "IBuilderConfig")]
pub struct BuilderConfig {
    raw: NonNull<TrtConfig>,
    builder: Rc<Inner>,
    monitor: Option<Monitor>,
}

impl BuilderConfig {
    fn library(&self) -> &Library {
        &self.builder.library
    }

    /// The most device memory that a layer may use beside its inputs and outputs. By default all that the GPU has.
    #[doc(alias = "setMemoryPoolLimit")]
    pub fn set_workspace_bytes(&mut self, bytes: u64) {
        // SAFETY: the configuration is alive.
        unsafe { call!(self.library().table(), config_set_workspace, self.raw.as_ptr(), bytes) }
    }

    /// Adds a profile and returns its index in the engine.
    ///
    /// # Errors
    /// A shape that TensorRT refuses, such as one whose minimum is above its maximum.
    #[doc(alias = "addOptimizationProfile")]
    pub fn add_profile(&mut self, profile: &OptimizationProfile) -> Result<usize, Error> {
        let library = self.library();
        let raw = library.attempt("IBuilder::createOptimizationProfile", |table| {
            // SAFETY: the builder is alive; it owns the profile and so outlives our use of it.
            NonNull::new(unsafe { call!(table, profile_create, self.builder.raw.as_ptr()) })
        })?;
        for (input, range) in profile.inputs() {
            for selector in Selector::ALL {
                let dims = range.at(selector).to_raw();
                library.accept("IOptimizationProfile::setDimensions", |table| {
                    // SAFETY: the profile, the name and the shape are there during the call.
                    unsafe { call!(table, profile_set_dimensions, raw.as_ptr(), input.as_ptr(), selector.raw(), &dims) }
                })?;
            }
        }
        library.attempt("IBuilderConfig::addOptimizationProfile", |table| {
            // SAFETY: the configuration and the profile are alive and of the same builder.
            let index = unsafe { call!(table, config_add_profile, self.raw.as_ptr(), raw.as_ptr()) };
            usize::try_from(index).ok()
        })
    }

    /// The architectures that the engine is for; none stands for the GPU at hand. TensorRT-RTX only: the other flavour
    /// always builds for the GPU at hand.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from TensorRT; an architecture that TensorRT-RTX doesn't know.
    #[doc(alias = "setComputeCapability")]
    pub fn set_architectures(&mut self, architectures: &[Sm]) -> Result<(), Error> {
        const CURRENT: i32 = 1;
        let call = "IBuilderConfig::setComputeCapability";
        let library = self.library();
        let set = library.entry(call, library.table().config_set_compute_capabilities)?;
        if let Some(unknown) = architectures.iter().find(|sm| !Sm::RTX.contains(sm)) {
            let known = Sm::RTX.map(|sm| sm.0.to_string()).join(", ");
            return Err(Error::Argument(format!("{} builds for {known}, and not for {unknown}", library.flavour())));
        }
        let mut values: Vec<i32> = architectures.iter().map(|sm| sm.0 as i32).collect();
        if values.is_empty() {
            values.push(CURRENT);
        }
        library.accept(call, |_| {
            // SAFETY: the configuration is alive, and `values` has as many elements as is said.
            unsafe { set(self.raw.as_ptr(), values.as_ptr(), values.len() as i32) }
        })
    }

    /// Lets the caller provide all device memory, so that every enqueue can be captured. TensorRT-RTX only.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from TensorRT, which needs no such promise.
    #[doc(alias = "kREQUIRE_USER_ALLOCATION")]
    pub fn require_user_allocation(&mut self) -> Result<(), Error> {
        let library = self.library();
        let set = library.entry("kREQUIRE_USER_ALLOCATION", library.table().config_require_user_allocation)?;
        // SAFETY: the configuration is alive.
        unsafe { set(self.raw.as_ptr()) };
        Ok(())
    }

    /// Reports how far builds with this configuration are.
    #[doc(alias = "setProgressMonitor")]
    pub fn set_progress(&mut self, progress: impl Progress) {
        let library = self.library().clone();
        let progress: *mut Box<dyn Progress> = Box::into_raw(Box::new(Box::new(progress)));
        let functions = TrtMonitorFns { start: Some(phase_start), step: Some(phase_step), finish: Some(phase_finish) };
        // SAFETY: `progress` is freed after the monitor, and the three functions take it for what it is.
        let raw = unsafe { call!(library.table(), monitor_create, &functions, progress.cast()) };
        let raw = NonNull::new(raw).expect("out of memory");
        // SAFETY: both are alive; the old monitor is dropped only after it was replaced, the new one after the
        // configuration.
        unsafe { call!(library.table(), config_set_monitor, self.raw.as_ptr(), raw.as_ptr()) };
        self.monitor = Some(Monitor { raw, progress, library });
    }
}

impl Drop for BuilderConfig {
    fn drop(&mut self) {
        // SAFETY: the configuration is ours; its builder and its monitor are dropped after this.
        unsafe { call!(self.library().table(), config_destroy, self.raw.as_ptr()) }
    }
}

/// Hears about phases of a build, several of which may run at once. Called from TensorRT's threads.
pub trait Progress: Send + Sync + 'static {
    /// A phase of this many steps begins, inside another one if `parent` is given.
    fn start(&self, phase: &str, parent: Option<&str>, steps: u32);
    /// A step of a phase, counted from 0, is done. `false` ends the build.
    fn step(&self, phase: &str, step: u32) -> bool;
    /// Called when a phase ends.
    fn finish(&self, phase: &str);
}

/// A C++ monitor and the Rust object that it reports to.
struct Monitor {
    raw: NonNull<TrtMonitor>,
    progress: *mut Box<dyn Progress>,
    library: Library,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // SAFETY: ours, and no configuration refers to it any more.
        unsafe { call!(self.library.table(), monitor_destroy, self.raw.as_ptr()) };
        // SAFETY: it came from `Box::into_raw`, and the monitor that used it is gone.
        drop(unsafe { Box::from_raw(self.progress) });
    }
}

/// Runs `report` on the progress; a panic in it must not reach C++.
///
/// # Safety
/// `user` is the pointer that `set_progress` gave.
unsafe fn report<T>(user: *mut c_void, otherwise: T, report: impl FnOnce(&dyn Progress) -> T) -> T {
    // SAFETY: as the caller says; it is freed only after the monitor.
    let progress = unsafe { &**user.cast::<Box<dyn Progress>>() };
    catch_unwind(AssertUnwindSafe(|| report(progress))).unwrap_or(otherwise)
}

unsafe extern "C" fn phase_start(user: *mut c_void, phase: *const c_char, parent: *const c_char, steps: i32) {
    // SAFETY: TensorRT hands over a string that is there during the call.
    let phase = unsafe { CStr::from_ptr(phase) }.to_string_lossy();
    // SAFETY: as above, where there is one.
    let parent = (!parent.is_null()).then(|| unsafe { CStr::from_ptr(parent) }.to_string_lossy());
    // SAFETY: `user` is what `set_progress` gave.
    unsafe { report(user, (), |progress| progress.start(&phase, parent.as_deref(), steps.max(0) as u32)) }
}

unsafe extern "C" fn phase_step(user: *mut c_void, phase: *const c_char, step: i32) -> bool {
    // SAFETY: TensorRT hands over a string that is there during the call.
    let phase = unsafe { CStr::from_ptr(phase) }.to_string_lossy();
    // SAFETY: `user` is what `set_progress` gave.
    unsafe { report(user, true, |progress| progress.step(&phase, step.max(0) as u32)) }
}

unsafe extern "C" fn phase_finish(user: *mut c_void, phase: *const c_char) {
    // SAFETY: TensorRT hands over a string that is there during the call.
    let phase = unsafe { CStr::from_ptr(phase) }.to_string_lossy();
    // SAFETY: `user` is what `set_progress` gave.
    unsafe { report(user, (), |progress| progress.finish(&phase)) }
}

/// Bytes that the library made: a serialized engine, or a runtime cache.
///
/// ```compile_fail
/// fn outlives(plan: tensorrt::HostMemory) -> &'static [u8] {
///     let bytes: &[u8] = &plan;
///     bytes
/// }
/// ```
#[doc(alias = "IHostMemory")]
pub struct HostMemory {
    raw: NonNull<TrtMemory>,
    library: Library,
}

// SAFETY: memory that has one owner and is never written; freeing it is thread-safe, as with any allocation.
unsafe impl Send for HostMemory {}
// SAFETY: as above: it is only read.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) fn new(raw: NonNull<TrtMemory>, library: Library) -> Self {
        Self { raw, library }
    }
}

impl Deref for HostMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let table = self.library.table();
        // SAFETY: the memory is alive.
        let (data, bytes) =
            unsafe { (call!(table, memory_data, self.raw.as_ptr()), call!(table, memory_size, self.raw.as_ptr())) };
        if data.is_null() {
            return &[];
        }
        // SAFETY: this many bytes are there, and stay the same until the memory is destroyed.
        unsafe { std::slice::from_raw_parts(data.cast(), usize::try_from(bytes).expect("it is in memory")) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: ours, and borrowed slices are gone.
        unsafe { call!(self.library.table(), memory_destroy, self.raw.as_ptr()) }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.len())
    }
}
