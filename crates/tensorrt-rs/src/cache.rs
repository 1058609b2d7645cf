//! TensorRT-RTX's runtime cache: compiled kernels, kept from one start to the next.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::builder::HostMemory;
use crate::error::Error;
use crate::library::Library;
use crate::sys::TrtRuntimeCache;

/// Compiled kernels. Clones are the same one; contexts that share one share the kernels.
#[doc(alias = "IRuntimeCache")]
#[derive(Clone, Debug)]
pub struct RuntimeCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    raw: NonNull<TrtRuntimeCache>,
    library: Library,
    lock: Mutex<()>,
}

// SAFETY: the cache may be used from any thread; our own calls take `lock`, and contexts that fill it are TensorRT's to
// order.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(destroy) = self.library.table().runtime_cache_destroy {
            // SAFETY: ours, and every context that uses it holds a clone, so they are gone.
            unsafe { destroy(self.raw.as_ptr()) }
        }
    }
}

impl RuntimeCache {
    pub(crate) fn new(raw: NonNull<TrtRuntimeCache>, library: &Library) -> Self {
        Self(Arc::new(Inner { raw, library: library.clone(), lock: Mutex::default() }))
    }

    pub(crate) fn as_ptr(&self) -> *const TrtRuntimeCache {
        self.0.raw.as_ptr()
    }

    /// Takes in what [`RuntimeCache::serialize`] gave. `false` where it was made by another version, for another GPU or
    /// driver, or is damaged; the cache is then as it was.
    ///
    /// # Errors
    /// [`Error::Unsupported`] from TensorRT.
    pub fn load(&self, bytes: &[u8]) -> Result<bool, Error> {
        let _exclusive = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let library = &self.0.library;
        let load = library.entry("IRuntimeCache::deserialize", library.table().runtime_cache_load)?;
        // SAFETY: the cache is alive, and there are as many bytes as is said.
        Ok(unsafe { load(self.0.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len() as u64) })
    }

    /// The cache's content, to be kept in a file.
    ///
    /// # Errors
    /// TensorRT-RTX's reasons.
    pub fn serialize(&self) -> Result<HostMemory, Error> {
        let _exclusive = self.0.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (call, library) = ("IRuntimeCache::serialize", &self.0.library);
        let serialize = library.entry(call, library.table().runtime_cache_serialize)?;
        // SAFETY: the cache is alive.
        let raw = library.attempt(call, |_| NonNull::new(unsafe { serialize(self.0.raw.as_ptr()) }))?;
        Ok(HostMemory::new(raw, library.clone()))
    }
}
