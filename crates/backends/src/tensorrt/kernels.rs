//! The kernels that TensorRT-RTX compiles on this machine, kept in a file from one start to the next.

use std::path::PathBuf;

use engine_build::plan::{read_sealed, write_sealed};
use tensorrt::{Engine, RuntimeCache};

/// The kernels of one engine.
pub(super) struct Kernels {
    cache: RuntimeCache,
    path: PathBuf,
    /// The file's content when it was read.
    loaded: Vec<u8>,
}

impl Kernels {
    /// The kernels in a file, or none yet. `None` from TensorRT, whose plans hold their kernels.
    pub(super) fn open(engine: &Engine, path: PathBuf) -> Option<Self> {
        let cache = engine.runtime_cache().ok()?;
        let loaded = read_sealed(&path).unwrap_or_default();
        // Those of another driver or GPU are refused, and compiled anew.
        let is_taken = !loaded.is_empty() && cache.load(&loaded).unwrap_or(false);
        tracing::debug!(path = %path.display(), bytes = loaded.len(), is_taken, "compiled kernels");
        Some(Self { cache, path, loaded })
    }

    /// The place where contexts put them.
    pub(super) fn cache(&self) -> RuntimeCache {
        self.cache.clone()
    }

    /// Writes the file, if there is anything new. Without it the next start takes longer, and nothing else.
    pub(super) fn keep(&mut self) {
        let bytes = match self.cache.serialize() {
            Ok(bytes) if *bytes == *self.loaded => return,
            Ok(bytes) => bytes,
            Err(error) => return tracing::warn!(%error, "the compiled kernels are not kept"),
        };
        if let Err(error) = write_sealed(&self.path, &bytes) {
            tracing::warn!(%error, "the compiled kernels are not kept");
        }
        self.loaded = bytes.to_vec();
    }
}
