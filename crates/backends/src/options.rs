//! The options of each engine, and loading the chosen engine.

use std::path::Path;

use bundle::manifest::{Manifest, Operators};

use crate::onnxruntime::CpuLevel;
use crate::onnxruntime::cuda::CudaOptions;
use crate::{onnxruntime, tensorrt};
use scheduler::backend::{Backend, Limits, LoadError};

/// An engine and its options.
#[derive(Clone, Debug)]
pub enum BackendOptions {
    /// ONNX Runtime on the CPU.
    OnnxRuntime(onnxruntime::Options),
    /// ONNX Runtime on a CUDA device.
    OnnxRuntimeCuda(onnxruntime::Options, CudaOptions),
    /// TensorRT or TensorRT-RTX, with its options.
    TensorRt(tensorrt::Options),
}

impl From<onnxruntime::Options> for BackendOptions {
    fn from(options: onnxruntime::Options) -> Self {
        Self::OnnxRuntime(options)
    }
}

impl BackendOptions {
    /// The same for one of several replicas, counted from 0: replicas on all GPUs take turns.
    #[must_use]
    pub fn for_replica(&self, replica: usize) -> Self {
        let mut own = self.clone();
        if let Self::OnnxRuntimeCuda(_, CudaOptions { device, devices, .. })
        | Self::TensorRt(tensorrt::Options { device, devices, .. }) = &mut own
        {
            *device += replica % (*devices).max(1);
        }
        own
    }

    /// Number of devices, each with memory of its own.
    pub fn devices(&self) -> usize {
        match self {
            Self::OnnxRuntime(_) => 1,
            Self::OnnxRuntimeCuda(_, CudaOptions { devices, .. })
            | Self::TensorRt(tensorrt::Options { devices, .. }) => (*devices).max(1),
        }
    }

    /// Whether all of a replica is computed by the thread that steps it, as with one thread on a CPU.
    pub fn has_no_threads(&self) -> bool {
        matches!(self, Self::OnnxRuntime(engine) if engine.threads == 1)
    }

    /// The CPU level of the kernels that compute a bundle, if foretype's kernels do.
    pub fn cpu_level(&self, manifest: &Manifest) -> Option<CpuLevel> {
        match self {
            Self::OnnxRuntime(options) if manifest.model.operators == Operators::Foretype => Some(options.cpu_level),
            _ => None,
        }
    }
}

/// Loads a bundle with the engine that was chosen.
///
/// # Errors
/// The engine's.
pub fn load(bundle: &Path, manifest: &Manifest, options: &BackendOptions) -> Result<Box<dyn Backend>, LoadError> {
    match options {
        BackendOptions::OnnxRuntime(options) => onnxruntime::load(bundle, manifest, options).map_err(LoadError::engine),
        BackendOptions::OnnxRuntimeCuda(options, cuda) => {
            onnxruntime::cuda::load(bundle, manifest, options, cuda).map_err(LoadError::engine)
        }
        BackendOptions::TensorRt(options) => tensorrt::load(bundle, manifest, options).map_err(LoadError::engine),
    }
}

/// The limits and abilities of a bundle's engine, computed without loading it.
pub fn limits(manifest: &Manifest, options: &BackendOptions) -> Limits {
    match options {
        BackendOptions::OnnxRuntime(options) | BackendOptions::OnnxRuntimeCuda(options, _) => {
            onnxruntime::limits(manifest, options)
        }
        BackendOptions::TensorRt(options) => tensorrt::limits(manifest, options),
    }
}

/// Bytes of everything but the weights that an engine takes when its caches are full, computed without loading it.
pub fn memory_bytes(manifest: &Manifest, options: &BackendOptions) -> u64 {
    if let BackendOptions::OnnxRuntime(options) = options {
        return onnxruntime::memory_bytes(manifest, options);
    }
    let Limits { lanes, context, pages, page_bytes, source, .. } = limits(manifest, options);
    let sources = source.map_or(0, |source| (source.slots + lanes).saturating_mul(source.slot_bytes));
    lanes.saturating_mul(context).saturating_add(pages).saturating_mul(page_bytes).saturating_add(sources) as u64
}
