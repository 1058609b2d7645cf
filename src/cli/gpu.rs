//! Which engine runs the model, and what it is told of the GPU.

use std::path::{Path, PathBuf};

use bundle::manifest::{Dtype, Manifest};
use clap::Args;

use super::choices::BackendChoice;
use crate::models::folder::ModelFolder;
use backends::choice::{Choice, Chosen, Device, GpuUnused, LibraryPaths, choose, find};
use backends::gpu_defaults::GpuDefaults;
use backends::onnxruntime::cuda::CudaOptions;
use backends::options::BackendOptions;
use backends::{onnxruntime, tensorrt};

/// Arguments about the engine.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct GpuArgs {
    /// The engine that runs the model.
    #[arg(long, env = "FORETYPE_BACKEND", value_enum, default_value = "auto")]
    backend: BackendChoice,
    /// The device: `cpu`, `cuda`, `cuda:N`, or `cuda:all` for a replica on each GPU. Default: what the backend needs.
    #[arg(long, env = "FORETYPE_DEVICE", value_name = "DEVICE")]
    device: Option<Device>,
    /// The folder or file of TensorRT's library. Default: beside this binary, or where the system's loader looks.
    #[arg(long, env = "FORETYPE_TENSORRT", value_name = "PATH")]
    tensorrt: Option<PathBuf>,
    /// The CUDA driver's library. Default: the system's.
    #[arg(long, env = "FORETYPE_CUDA_DRIVER", value_name = "FILE")]
    cuda_driver: Option<PathBuf>,
    /// Don't capture steps on a GPU as CUDA graphs.
    #[arg(long, env = "FORETYPE_NO_CUDA_GRAPHS")]
    no_cuda_graphs: bool,
    /// An option of ONNX Runtime's CUDA provider, as its documentation names it; may be given several times.
    #[arg(long = "cuda-option", env = "FORETYPE_CUDA_OPTIONS", value_name = "KEY=VALUE", value_delimiter = ',',
        value_parser = key_value)]
    cuda_options: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// The engine that was chosen, with its options.
pub struct ChosenEngine {
    /// The engine and its options.
    pub backend: BackendOptions,
    /// Whether the graph has to be for a GPU.
    pub for_gpu: bool,
    /// What keeps the machine's GPU from being used, if it has one.
    pub gpu_unused: Option<GpuUnused>,
}

impl GpuArgs {
    /// The engine and its options, said in the log with the reason. `sizes` gets what suits the GPU, or `None` for a
    /// CPU.
    ///
    /// # Errors
    /// What was asked for can't be had, and why.
    pub fn choose(
        &self,
        folder: &ModelFolder,
        cache: &Path,
        sizes: impl FnOnce(Option<GpuDefaults>) -> onnxruntime::Options,
    ) -> Result<ChosenEngine, String> {
        // Whatever is wrong with the bundle is said when it is opened.
        let about: (Option<Dtype>, bool) = match folder {
            ModelFolder::Bundle(path) => {
                let model = Manifest::load(path).ok().map(|manifest| manifest.model);
                (model.as_ref().map(|model| model.dtype), model.is_some_and(|model| model.source.is_some()))
            }
            ModelFolder::Checkpoint(path) => (None, engine_build::is_encoder_decoder(path)),
        };
        let paths = LibraryPaths { driver: self.cuda_driver.as_deref(), library: self.tensorrt.as_deref() };
        let wanted = self.backend.into();
        let facts = find(paths, (wanted, self.device), about);
        let Choice { engine, why, gpu_unused } = choose(wanted, self.device, &facts)?;
        if gpu_unused.is_some() {
            tracing::warn!(backend = %engine, why, "this machine's GPU is not used: the engine runs on the CPU");
        } else {
            tracing::info!(backend = %engine, why, "engine");
        }
        let for_gpu = engine != Chosen::OnnxRuntime(Device::Cpu);
        let gpu = facts.gpu.as_ref().ok().filter(|_| for_gpu);
        let defaults = gpu.map(|gpu| GpuDefaults::of(facts.gpu_memory, gpu.multiprocessors));
        let backend = self.options(engine, facts.devices, cache, sizes(defaults));
        Ok(ChosenEngine { backend, for_gpu, gpu_unused })
    }

    fn options(&self, chosen: Chosen, gpus: usize, cache: &Path, onnxruntime: onnxruntime::Options) -> BackendOptions {
        let on = |device| match device {
            Device::Cuda(number) => (number, 1),
            Device::AllCuda => (0, gpus),
            Device::Cpu => (0, 1),
        };
        match chosen {
            Chosen::OnnxRuntime(Device::Cpu) => BackendOptions::OnnxRuntime(onnxruntime),
            Chosen::OnnxRuntime(device) => {
                let (device, devices) = on(device);
                let driver = self.cuda_driver.clone();
                let provider = self.cuda_options.clone();
                let cuda = CudaOptions { device, devices, driver, graphs: !self.no_cuda_graphs, provider };
                BackendOptions::OnnxRuntimeCuda(onnxruntime, cuda)
            }
            Chosen::TensorRt(flavour, device) => {
                let (device, devices) = on(device);
                let onnxruntime::Options { lanes, chunk, pool_bytes, .. } = onnxruntime;
                BackendOptions::TensorRt(tensorrt::Options {
                    flavour,
                    library: self.tensorrt.clone(),
                    driver: self.cuda_driver.clone(),
                    device,
                    devices,
                    lanes,
                    chunk,
                    pool_bytes,
                    graphs: !self.no_cuda_graphs,
                    engines: cache.join("engines"),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_options_are_pairs() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        for wrong in ["", "a", "=b"] {
            key_value(wrong).unwrap_err();
        }
    }
}
