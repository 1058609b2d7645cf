//! Chooses the engine of a server: the one that was asked for, or the fastest that this machine has.
//!
//! [`find`] looks at the machine. [`choose`] is the rule, pure, and always gives its reason.

use std::fmt;
use std::path::Path;

use bundle::Dtype;
use engine_build::plan::PlanError;
use tensorrt::{Flavour, Library, Sm};

use crate::cuda::Driver;

/// The engine that the caller asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// TensorRT, or TensorRT-RTX, where there is a GPU and the library; ONNX Runtime on the CPU elsewhere.
    #[default]
    Auto,
    /// ONNX Runtime, on the CPU or, with `--device cuda`, on a GPU.
    OnnxRuntime,
    /// TensorRT; an error where it can't be had.
    TensorRt,
    /// TensorRT-RTX; an error where it can't be had.
    TensorRtRtx,
}

/// The device that an engine runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// A CUDA device, from 0.
    Cuda(usize),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text {
            "cpu" => return Ok(Self::Cpu),
            "cuda" => Some(0),
            text => text.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        number.map(Self::Cuda).ok_or_else(|| format!("{text:?} is no device; cpu, cuda and cuda:N are"))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// A GPU that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The GPU's name, as the driver reports it.
    pub name: String,
    /// The GPU's architecture.
    pub sm: Sm,
}

/// The machine and the bundle, as far as known before anything is loaded.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The GPU that would be used, or why there is none.
    pub gpu: Result<Gpu, String>,
    /// TensorRT's version, or why it can't be used.
    pub tensorrt: Result<String, String>,
    /// The version of TensorRT-RTX's library, or why it can't be loaded.
    pub tensorrt_rtx: Result<String, String>,
    /// The bundle's precision; `None` for a checkpoint that is still to be built.
    pub dtype: Option<Dtype>,
    /// Whether the model is an encoder-decoder; not every engine runs those.
    pub encoder_decoder: bool,
}

/// The engine that was chosen, with its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// ONNX Runtime on a device.
    OnnxRuntime(Device),
    /// TensorRT of a flavour on a CUDA device.
    TensorRt(Flavour, usize),
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnnxRuntime(device) => write!(f, "onnxruntime on {device}"),
            Self::TensorRt(flavour, device) => write!(f, "{} on cuda:{device}", flavour.name()),
        }
    }
}

/// Chooses the engine and its device, with the reason as a sentence. `device` is the requested one, if any.
///
/// # Errors
/// The requested engine or device is not available; the sentence has the reason.
pub fn choose(wanted: Wanted, device: Option<Device>, facts: &Facts) -> Result<(Chosen, String), String> {
    let gpu_number = if let Some(Device::Cuda(number)) = device { number } else { 0 };
    let asked = |chosen| Ok((chosen, "it was asked for".to_owned()));
    match wanted {
        Wanted::OnnxRuntime => asked(Chosen::OnnxRuntime(device.unwrap_or(Device::Cpu))),
        Wanted::TensorRt | Wanted::TensorRtRtx if device == Some(Device::Cpu) => {
            Err("TensorRT runs on a GPU, and --device is cpu: leave one of them out".into())
        }
        Wanted::TensorRt => usable(Flavour::Enterprise, facts)
            .map(|_| ())
            .and_then(|()| asked(Chosen::TensorRt(Flavour::Enterprise, gpu_number))),
        Wanted::TensorRtRtx => {
            usable(Flavour::Rtx, facts).map(|_| ()).and_then(|()| asked(Chosen::TensorRt(Flavour::Rtx, gpu_number)))
        }
        Wanted::Auto => Ok(automatic(device, gpu_number, facts)),
    }
}

fn automatic(device: Option<Device>, gpu_number: usize, facts: &Facts) -> (Chosen, String) {
    let cpu = Chosen::OnnxRuntime(Device::Cpu);
    if device == Some(Device::Cpu) {
        return (cpu, "--device is cpu".into());
    }
    let mut reasons = Vec::new();
    for flavour in Flavour::ALL {
        match usable(flavour, facts) {
            Ok(found) => return (Chosen::TensorRt(flavour, gpu_number), found),
            Err(reason) if !reasons.contains(&reason) => reasons.push(reason),
            Err(_) => {}
        }
    }
    // A GPU that was asked for is not given up for the CPU.
    let chosen = device.map_or(cpu, Chosen::OnnxRuntime);
    (chosen, reasons.join("; "))
}

/// Whether a flavour can be used, or why not.
fn usable(flavour: Flavour, facts: &Facts) -> Result<String, String> {
    let gpu = facts.gpu.as_ref().map_err(|reason| format!("no GPU can be used: {reason}"))?;
    let library = if flavour == Flavour::Rtx { &facts.tensorrt_rtx } else { &facts.tensorrt };
    let version = library.as_ref().map_err(Clone::clone)?;
    if flavour == Flavour::Rtx && !Sm::RTX.contains(&gpu.sm) {
        return Err(format!("{flavour} has no kernels for the {} ({})", gpu.name, gpu.sm));
    }
    if flavour == Flavour::Rtx && gpu.sm == Sm(75) && facts.encoder_decoder {
        return Err(PlanError::F32OnTuring.to_string());
    }
    match facts.dtype {
        Some(dtype) if dtype != Dtype::F16 => {
            Err("TensorRT needs an f16 graph, and this bundle has another: build it with --dtype f16".into())
        }
        _ => Ok(format!("there are {flavour} {version} and a {} ({})", gpu.name, gpu.sm)),
    }
}

/// Files or folders of the libraries that a GPU needs.
#[derive(Clone, Copy, Debug)]
pub struct LibraryPaths<'a> {
    /// The CUDA driver; the system's if absent.
    pub driver: Option<&'a Path>,
    /// The folder or file of TensorRT's library; the system loader's paths if absent.
    pub library: Option<&'a Path>,
}

/// Looks at the machine.
pub fn find(paths: LibraryPaths<'_>, device: Option<Device>, (dtype, encoder_decoder): (Option<Dtype>, bool)) -> Facts {
    let number = if let Some(Device::Cuda(number)) = device { number } else { 0 };
    let gpu = Driver::load(paths.driver).map_err(|error| error.to_string()).and_then(|driver| {
        let device = driver.open(number).map_err(|error| error.to_string())?;
        Ok(Gpu { name: device.name().to_owned(), sm: Sm(device.capability()) })
    });
    let library = |flavour| {
        // Loading takes a while; without a GPU nobody asks.
        if gpu.is_err() {
            return Err("no GPU can be used".to_owned());
        }
        Library::open(flavour, paths.library).map(|library| library.version().to_string()).map_err(|e| e.to_string())
    };
    Facts { tensorrt: library(Flavour::Enterprise), tensorrt_rtx: library(Flavour::Rtx), gpu, dtype, encoder_decoder }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            gpu: Ok(Gpu { name: "A10G".into(), sm: Sm(86) }),
            tensorrt: Ok("11.4.0".into()),
            tensorrt_rtx: Ok("1.7.1".into()),
            dtype: None,
            encoder_decoder: false,
        }
    }

    #[test]
    fn the_best_that_there_is_is_taken_and_said() {
        let chosen = |facts: &Facts| choose(Wanted::Auto, None, facts).unwrap();
        let (best, why) = chosen(&facts());
        assert_eq!(best, Chosen::TensorRt(Flavour::Enterprise, 0));
        assert!(why.contains("11.4.0") && why.contains("A10G"), "{why}");
        let without = Facts { tensorrt: Err("not found".into()), ..facts() };
        assert_eq!(chosen(&without).0, Chosen::TensorRt(Flavour::Rtx, 0));
        let cpu = Chosen::OnnxRuntime(Device::Cpu);
        let h100 = Facts { gpu: Ok(Gpu { name: "H100".into(), sm: Sm(90) }), ..without.clone() };
        let (best, why) = chosen(&h100);
        assert!(best == cpu && why.contains("not found") && why.contains("no kernels for the H100"), "{why}");
        let (best, why) = chosen(&Facts { dtype: Some(Dtype::F32), ..facts() });
        assert!(best == cpu && why.contains("--dtype f16"), "{why}");
        let t5 = Facts { encoder_decoder: true, ..without };
        assert_eq!(chosen(&t5).0, Chosen::TensorRt(Flavour::Rtx, 0));
        let (best, why) = chosen(&Facts { gpu: Ok(Gpu { name: "T4".into(), sm: Sm(75) }), ..t5 });
        assert!(best == cpu && why.contains("no f32 matrices on SM75"), "{why}");
        let (best, why) = chosen(&Facts { gpu: Err("no driver".into()), ..facts() });
        assert_eq!((best, why.as_str()), (cpu, "no GPU can be used: no driver"));
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        let none = Facts { gpu: Err("no driver".into()), ..facts() };
        for wanted in [Wanted::TensorRt, Wanted::TensorRtRtx] {
            assert_eq!(choose(wanted, None, &none).unwrap_err(), "no GPU can be used: no driver");
            choose(wanted, Some(Device::Cpu), &facts()).unwrap_err();
        }
        let gpu = Some(Device::Cuda(1));
        assert_eq!(choose(Wanted::TensorRtRtx, gpu, &facts()).unwrap().0, Chosen::TensorRt(Flavour::Rtx, 1));
        assert_eq!(choose(Wanted::OnnxRuntime, None, &none).unwrap().0, Chosen::OnnxRuntime(Device::Cpu));
        // Never silently on the CPU: loading on the GPU that was asked for says what is wrong.
        assert_eq!(choose(Wanted::Auto, gpu, &none).unwrap().0, Chosen::OnnxRuntime(Device::Cuda(1)));
    }

    #[test]
    fn devices_are_read_and_written() {
        for (text, device) in [("cpu", Device::Cpu), ("cuda", Device::Cuda(0)), ("cuda:3", Device::Cuda(3))] {
            assert_eq!(text.parse(), Ok(device));
        }
        assert_eq!(Device::Cuda(2).to_string(), "cuda:2");
        assert!("gpu".parse::<Device>().unwrap_err().contains("cuda:N"));
    }
}
