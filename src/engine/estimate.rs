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

/// Bytes of the model with all its caches full, roughly.
pub fn memory_bytes(bundle: &Path, manifest: &Manifest, options: &EngineOptions) -> u64 {
    let file = |name| std::fs::metadata(bundle.join(name)).map_or(0, |file| file.len());
    let weights = file(WEIGHTS_FILE).saturating_add(file(ENCODER_WEIGHTS_FILE));
    let popular = file(POPULAR_FILE).saturating_add(file(POPULAR_COUNTS_FILE));
    let shared = file(TOKENIZER_FILE).saturating_mul(TOKENIZER_FACTOR).saturating_add(popular);
    let replicas = options.requests.pool.replicas as u64;
    weights.saturating_mul(replicas).saturating_add(caches(manifest, options)).saturating_add(shared)
}

/// Bytes of keys and values, encoder outputs, results and prefix caches of all replicas.
fn caches(manifest: &Manifest, options: &EngineOptions) -> u64 {
    let pool = &options.requests.pool;
    let one = options::memory_bytes(manifest, &options.backend).saturating_add(pool.prefix_cache_bytes as u64);
    one.saturating_mul(pool.replicas as u64)
}

/// Checks that the caches fit into the machine. The weights may be more than that: they are read from their file, and
/// can be read again.
pub(super) fn check(manifest: &Manifest, options: &EngineOptions) -> Result<(), EngineError> {
    let (needed, machine) = (caches(manifest, options), machine::memory_bytes().unwrap_or(u64::MAX));
    // A GPU's memory is for its engine to check.
    if needed <= machine || !matches!(options.backend, BackendOptions::OnnxRuntime(_)) {
        return Ok(());
    }
    Err(EngineError::Memory { needed: needed.div_ceil(1 << 20), machine: machine >> 20 })
}
