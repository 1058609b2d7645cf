//! Runtimes: from a serialized engine to one that runs.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::Engine;
use crate::error::Error;
use crate::library::Library;
use crate::sys::{TrtRuntime, call, made};

/// Makes engines of plans. Clones are the same one.
#[doc(alias = "IRuntime")]
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

pub(crate) struct Inner {
    raw: NonNull<TrtRuntime>,
    pub(crate) library: Library,
    /// Held by every call that makes or destroys engines and contexts. Those are the calls that change what a runtime
    /// shares; TensorRT allows the others from several threads.
    lock: Mutex<()>,
}

// SAFETY: the runtime may be used from any thread; what would race takes `lock`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    pub(crate) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the runtime is ours, and every engine holds an `Arc` of this, so they are gone.
        unsafe { call!(self.library.table(), runtime_destroy, self.raw.as_ptr()) }
    }
}

impl Runtime {
    /// # Errors
    /// TensorRT's reasons.
    #[doc(alias = "createInferRuntime")]
    pub fn new(library: &Library) -> Result<Self, Error> {
        let raw = library.attempt("createInferRuntime", |table| {
            // SAFETY: the factory is the library's own, and the logger lives for good.
            made(unsafe { call!(table, runtime_create, library.runtime_factory().as_ptr(), library.logger()) })
        })?;
        Ok(Self(Arc::new(Inner { raw, library: library.clone(), lock: Mutex::default() })))
    }

    /// The library that it is of.
    pub fn library(&self) -> &Library {
        &self.0.library
    }

    /// What a plan's header says about its fitness for this machine. The rest of the plan isn't looked at.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from TensorRT: only TensorRT-RTX can tell.
    #[doc(alias = "getEngineValidity")]
    pub fn validity(&self, plan: &[u8]) -> Result<Validity, Error> {
        let (call, table) = ("IRuntime::getEngineValidity", self.0.library.table());
        let check = self.0.library.entry(call, table.runtime_validity)?;
        let header_bytes = self.0.library.entry(call, table.runtime_header_bytes)?;
        // SAFETY: the runtime is alive.
        let header_bytes = unsafe { header_bytes(self.0.raw.as_ptr()) };
        if (plan.len() as u64) < u64::try_from(header_bytes).unwrap_or(0) {
            return Ok(Validity::Invalid(Invalidity(Invalidity::MALFORMED)));
        }
        let mut diagnostics = 0;
        // SAFETY: the runtime is alive, and the plan has as many bytes as is said, which is enough for a header.
        let found = unsafe { check(self.0.raw.as_ptr(), plan.as_ptr().cast(), plan.len() as u64, &mut diagnostics) };
        Ok(match found {
            0 => Validity::Valid,
            1 => Validity::Slower,
            _ => Validity::Invalid(Invalidity(diagnostics)),
        })
    }

    /// An engine of a plan, on the current thread's CUDA device.
    ///
    /// # Safety
    /// The bytes have to be a plan that TensorRT wrote, unchanged: a plan contains code, and TensorRT does not check
    /// all of it. Compare a checksum first.
    ///
    /// # Errors
    /// TensorRT's reasons, such as a plan for another GPU or version, or no GPU.
    #[doc(alias = "deserializeCudaEngine")]
    pub unsafe fn deserialize(&self, plan: &[u8]) -> Result<Engine, Error> {
        let _exclusive = self.0.exclusive();
        let raw = self.0.library.attempt("IRuntime::deserializeCudaEngine", |table| {
            // SAFETY: the runtime is alive, the plan has as many bytes as is said, and the caller vouches for its
            // content.
            let raw = unsafe {
                call!(table, runtime_deserialize, self.0.raw.as_ptr(), plan.as_ptr().cast(), plan.len() as u64)
            };
            NonNull::new(raw)
        })?;
        Ok(Engine::new(raw, &self.0))
    }
}

/// Whether a plan fits this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// The plan fits this library and this GPU.
    Valid,
    /// The plan fits, but one built for this GPU would be faster.
    Slower,
    /// The plan does not fit, for this reason.
    Invalid(Invalidity),
}

/// Why a plan doesn't fit; there may be several reasons.
#[derive(Clone, Copy, PartialEq, Eq)]
#[doc(alias = "EngineInvalidityDiagnostics")]
pub struct Invalidity(pub u64);

impl Invalidity {
    const MALFORMED: u64 = 1 << 5;
    const REASONS: [(u64, &str); 7] = [
        (1, "it was built by another version of TensorRT-RTX"),
        (1 << 1, "it was built for another GPU architecture"),
        (1 << 2, "the CUDA driver is older than the one it was built with"),
        (1 << 3, "the CUDA runtime is older than the one it was built with"),
        (1 << 4, "the GPU has too little memory for its weights"),
        (Self::MALFORMED, "it is damaged, or no plan at all"),
        (1 << 6, "there is no usable CUDA driver"),
    ];

    /// Whether the plan itself is broken, whatever the machine.
    pub fn is_malformed(self) -> bool {
        self.0 & Self::MALFORMED != 0
    }
}

impl fmt::Display for Invalidity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons: Vec<_> =
            Self::REASONS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, reason)| *reason).collect();
        match reasons.as_slice() {
            [] if self.0 == 0 => f.write_str("it didn't say why, as where there is no GPU"),
            [] => write!(f, "for a reason that this version doesn't know ({:#x})", self.0),
            reasons => f.write_str(&reasons.join(", and ")),
        }
    }
}

impl fmt::Debug for Invalidity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Invalidity({self})")
    }
}
