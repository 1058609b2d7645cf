//! Which engine runs the model, and what it is told of the GPU.

use std::path::{Path, PathBuf};

use bundle::manifest::{Dtype, Manifest};
use clap::Args;

use super::choices::BackendChoice;
use crate::models::folder::ModelFolder;
use backends::choice::{Chosen, Device, LibraryPaths, choose, find};
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
    /// The device: `cpu`, `cuda` or `cuda:N`. Default: what the backend needs.
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

impl GpuArgs {
    /// The engine and its options, said in the log with the reason; and whether the graph has to be for a GPU.
    ///
    /// # Errors
    /// What was asked for can't be had, and why.
    pub fn choose(
        &self,
        folder: &ModelFolder,
        cache: &Path,
        onnxruntime: onnxruntime::Options,
    ) -> Result<(BackendOptions, bool), String> {
        // Whatever is wrong with the bundle is said when it is opened.
        let about: (Option<Dtype>, bool) = match folder {
            ModelFolder::Bundle(path) => {
                let model = Manifest::load(path).ok().map(|manifest| manifest.model);
                (model.as_ref().map(|model| model.dtype), model.is_some_and(|model| model.source.is_some()))
            }
            ModelFolder::Checkpoint(path) => (None, engine_build::is_encoder_decoder(path)),
        };
        let paths = LibraryPaths { driver: self.cuda_driver.as_deref(), library: self.tensorrt.as_deref() };
        let facts = find(paths, self.device, about);
        let (chosen, why) = choose(self.backend.into(), self.device, &facts)?;
        tracing::info!(backend = %chosen, why, "engine");
        Ok(match chosen {
            Chosen::OnnxRuntime(Device::Cpu) => (BackendOptions::OnnxRuntime(onnxruntime), false),
            Chosen::OnnxRuntime(Device::Cuda(device)) => {
                let driver = self.cuda_driver.clone();
                let provider = self.cuda_options.clone();
                let cuda = CudaOptions { device, driver, graphs: !self.no_cuda_graphs, provider };
                (BackendOptions::OnnxRuntimeCuda(onnxruntime, cuda), true)
            }
            Chosen::TensorRt(flavour, device) => {
                let onnxruntime::Options { lanes, chunk, pool_bytes, .. } = onnxruntime;
                let options = tensorrt::Options {
                    flavour,
                    library: self.tensorrt.clone(),
                    driver: self.cuda_driver.clone(),
                    device,
                    lanes,
                    chunk,
                    pool_bytes,
                    graphs: !self.no_cuda_graphs,
                    engines: cache.join("engines"),
                };
                (BackendOptions::TensorRt(options), true)
            }
        })
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
