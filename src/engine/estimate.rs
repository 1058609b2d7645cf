//! How much memory a model takes, computed from its manifest and the sizes of its files before anything is loaded.

use std::path::Path;

use backends::options::{self, BackendOptions};
use bundle::extras::{POPULAR_COUNTS_FILE, POPULAR_FILE};
use bundle::manifest::{ENCODER_WEIGHTS_FILE, Manifest, TOKENIZER_FILE, WEIGHTS_FILE};

use super::load::EngineError;
use super::machine;
use super::options::EngineOptions;

/// Bytes of memory for a byte of `tokenizer.json`: its parsed form and the tables of completion.
const TOKENIZER_FACTOR: u64 = 32;

/// Bytes that a model takes with all its caches full, roughly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What its replicas share.
    pub shared: u64,
    /// A replica.
    pub replica: u64,
    /// Replicas that it starts with.
    pub replicas: usize,
}

impl Memory {
    /// What the model takes when it starts.
    pub fn at_start(self) -> u64 {
        self.replica.saturating_mul(self.replicas as u64).saturating_add(self.shared)
    }
}

/// The memory of a model.
pub fn memory(bundle: &Path, manifest: &Manifest, options: &EngineOptions) -> Memory {
    let file = |name| std::fs::metadata(bundle.join(name)).map_or(0, |file| file.len());
    let weights = file(WEIGHTS_FILE).saturating_add(file(ENCODER_WEIGHTS_FILE));
    let popular = file(POPULAR_FILE).saturating_add(file(POPULAR_COUNTS_FILE));
    let shared = file(TOKENIZER_FILE).saturating_mul(TOKENIZER_FACTOR).saturating_add(popular);
    let replicas = options.requests.pool.replicas.at_start();
    Memory { shared, replica: weights.saturating_add(caches(manifest, options)), replicas }
}

/// Bytes of keys and values, encoder outputs, results and prefix cache of a replica.
fn caches(manifest: &Manifest, options: &EngineOptions) -> u64 {
    options::memory_bytes(manifest, &options.backend).saturating_add(options.requests.pool.prefix_cache_bytes as u64)
}

/// Checks that the caches fit into the machine. The weights may be more than that: they are read from their file, and
/// can be read again.
pub(super) fn check(manifest: &Manifest, options: &EngineOptions) -> Result<(), EngineError> {
    let needed = caches(manifest, options).saturating_mul(options.requests.pool.replicas.most as u64);
    let machine = machine::memory_bytes().unwrap_or(u64::MAX);
    // A GPU's memory is for its engine to check.
    if needed <= machine || !matches!(options.backend, BackendOptions::OnnxRuntime(_)) {
        return Ok(());
    }
    Err(EngineError::Memory { needed: needed.div_ceil(1 << 20), machine: machine >> 20 })
}
