//! Chooses the engine of a server: the one that was asked for, or the fastest that this machine has.
//!
//! [`find`] looks at the machine, and tries what it finds: a driver that is too old crashes a library that loads well.
//! [`choose`] is the rule, pure, and always gives its reason.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bundle::Dtype;
use engine_build::plan::PlanError;
use tensorrt::{Flavour, Gpu, Runtime, Sm};

use crate::cuda::{Device as CudaDevice, Driver, DriverError};
use crate::tensorrt::library;

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
    /// All CUDA devices: replicas take turns.
    AllCuda,
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text {
            "cpu" => return Ok(Self::Cpu),
            "cuda:all" => return Ok(Self::AllCuda),
            "cuda" => Some(0),
            text => text.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        number.map(Self::Cuda).ok_or_else(|| format!("{text:?} is no device; cpu, cuda, cuda:N and cuda:all are"))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::AllCuda => f.write_str("cuda:all"),
        }
    }
}

/// Why no GPU can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoGpu {
    /// The reason, in words.
    pub reason: String,
    /// Whether the machine has a GPU all the same, as far as that can be told.
    pub is_there: bool,
}

impl From<DriverError> for NoGpu {
    fn from(error: DriverError) -> Self {
        Self { reason: error.to_string(), is_there: !error.is_without_gpu() }
    }
}

/// What keeps a GPU from being used; of several engines, the one that came furthest decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuUnused {
    /// The CUDA driver is missing, too old or fails.
    Driver,
    /// There is no library that works.
    Library,
    /// The library has no kernels for this GPU.
    Architecture,
    /// The bundle's graph is in a precision that the library doesn't take.
    Precision,
}

impl GpuUnused {
    /// The name that metrics have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Library => "library",
            Self::Architecture => "architecture",
            Self::Precision => "precision",
        }
    }
}

/// The machine and the bundle, as far as known before anything is loaded.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The GPU that would be used, or why there is none.
    pub gpu: Result<Gpu, NoGpu>,
    /// Bytes of the GPU's memory.
    pub gpu_memory: usize,
    /// Number of GPUs of the machine.
    pub devices: usize,
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
    /// TensorRT of a flavour on a device, which is no CPU.
    TensorRt(Flavour, Device),
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnnxRuntime(device) => write!(f, "onnxruntime on {device}"),
            Self::TensorRt(flavour, device) => write!(f, "{} on {device}", flavour.name()),
        }
    }
}

/// The result of [`choose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine and its device.
    pub engine: Chosen,
    /// The reason, as a sentence.
    pub why: String,
    /// Set where the machine has a GPU, none was declined, and the engine runs on the CPU.
    pub gpu_unused: Option<GpuUnused>,
}

/// Chooses the engine and its device. `device` is the requested one, if any.
///
/// # Errors
/// The requested engine or device is not available; the sentence has the reason.
pub fn choose(wanted: Wanted, device: Option<Device>, facts: &Facts) -> Result<Choice, String> {
    let on = device.unwrap_or(Device::Cuda(0));
    let asked = |engine| Ok(Choice { engine, why: "it was asked for".to_owned(), gpu_unused: None });
    let tensorrt = |flavour| match usable(flavour, facts) {
        Ok(_) => asked(Chosen::TensorRt(flavour, on)),
        Err((_, reason)) => Err(reason),
    };
    match wanted {
        Wanted::OnnxRuntime => asked(Chosen::OnnxRuntime(device.unwrap_or(Device::Cpu))),
        Wanted::TensorRt | Wanted::TensorRtRtx if device == Some(Device::Cpu) => {
            Err("TensorRT runs on a GPU, and --device is cpu: leave one of them out".into())
        }
        Wanted::TensorRt => tensorrt(Flavour::Enterprise),
        Wanted::TensorRtRtx => tensorrt(Flavour::Rtx),
        Wanted::Auto => Ok(automatic(device, facts)),
    }
}

fn automatic(device: Option<Device>, facts: &Facts) -> Choice {
    let cpu = Chosen::OnnxRuntime(Device::Cpu);
    if device == Some(Device::Cpu) {
        return Choice { engine: cpu, why: "--device is cpu".into(), gpu_unused: None };
    }
    let on = device.unwrap_or(Device::Cuda(0));
    let (mut reasons, mut furthest) = (Vec::new(), GpuUnused::Driver);
    for flavour in Flavour::ALL {
        match usable(flavour, facts) {
            Ok(why) => return Choice { engine: Chosen::TensorRt(flavour, on), why, gpu_unused: None },
            Err((unused, reason)) => {
                furthest = furthest.max(unused);
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
            }
        }
    }
    // A GPU that was asked for is not given up for the CPU.
    let engine = device.map_or(cpu, Chosen::OnnxRuntime);
    let is_there = facts.gpu.as_ref().map_or_else(|none| none.is_there, |_| true);
    let gpu_unused = (engine == cpu && is_there).then_some(furthest);
    Choice { engine, why: reasons.join("; "), gpu_unused }
}

/// Whether a flavour can be used, or why not.
fn usable(flavour: Flavour, facts: &Facts) -> Result<String, (GpuUnused, String)> {
    let gpu = facts.gpu.as_ref();
    let gpu = gpu.map_err(|none| (GpuUnused::Driver, format!("no GPU can be used: {}", none.reason)))?;
    let library = if flavour == Flavour::Rtx { &facts.tensorrt_rtx } else { &facts.tensorrt };
    let version = library.as_ref().map_err(|reason| (GpuUnused::Library, reason.clone()))?;
    if flavour == Flavour::Rtx && !Sm::RTX.contains(&gpu.sm) {
        let reason = format!("{flavour} has no kernels for the {} ({})", gpu.name, gpu.sm);
        return Err((GpuUnused::Architecture, reason));
    }
    if flavour == Flavour::Rtx && gpu.sm == Sm(75) && facts.encoder_decoder {
        return Err((GpuUnused::Architecture, PlanError::F32OnTuring.to_string()));
    }
    match facts.dtype {
        Some(dtype) if dtype != Dtype::F16 => {
            let reason = "TensorRT needs an f16 graph, and this bundle has another: build it with --dtype f16";
            Err((GpuUnused::Precision, reason.into()))
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

/// Looks at the machine, unless what is asked for needs no GPU.
pub fn find(
    paths: LibraryPaths<'_>,
    (wanted, device): (Wanted, Option<Device>),
    (dtype, encoder_decoder): (Option<Dtype>, bool),
) -> Facts {
    let is_for_cpu = device == Some(Device::Cpu) || (wanted == Wanted::OnnxRuntime && device.is_none());
    let number = if let Some(Device::Cuda(number)) = device { number } else { 0 };
    let opened = if is_for_cpu {
        Err(NoGpu { reason: "none was asked for".into(), is_there: false })
    } else {
        open(paths.driver, number).map_err(NoGpu::from)
    };
    let (gpu, gpu_memory, devices) = match &opened {
        Ok((device, gpu, devices)) => (Ok(gpu.clone()), device.memory().map_or(0, |memory| memory.total), *devices),
        Err(none) => (Err(none.clone()), 0, 0),
    };
    let library = |flavour| match &opened {
        Ok(_) if wanted == Wanted::OnnxRuntime => Err("ONNX Runtime was asked for".to_owned()),
        Ok((device, ..)) => tried(flavour, paths.library, device),
        // Loading takes a while; without a GPU nobody asks.
        Err(_) => Err("no GPU can be used".to_owned()),
    };
    Facts {
        tensorrt: library(Flavour::Enterprise),
        tensorrt_rtx: library(Flavour::Rtx),
        gpu,
        gpu_memory,
        devices,
        dtype,
        encoder_decoder,
    }
}

/// The machine's first GPU. `driver` is the CUDA driver's file; the system's if absent.
///
/// # Errors
/// Why none can be used.
pub fn gpu(driver: Option<&Path>) -> Result<Gpu, NoGpu> {
    open(driver, 0).map(|(_, gpu, _)| gpu).map_err(NoGpu::from)
}

/// A device, its description, and how many devices there are.
fn open(driver: Option<&Path>, number: usize) -> Result<(Arc<CudaDevice>, Gpu, usize), DriverError> {
    let driver = Driver::load(driver)?;
    let device = driver.open(number)?;
    let gpu = device.describe()?;
    Ok((device, gpu, driver.devices()?))
}

/// The version of a library that makes a runtime on the device, or why there is none.
fn tried(flavour: Flavour, place: Option<&Path>, device: &CudaDevice) -> Result<String, String> {
    let library = library(flavour, place).map_err(|error| error.to_string())?;
    device.make_current().map_err(|error| error.to_string())?;
    Runtime::new(&library).map_err(|error| error.to_string())?;
    Ok(library.version().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, architecture: u32) -> Result<Gpu, NoGpu> {
        Ok(Gpu { name: name.into(), sm: Sm(architecture), multiprocessors: 72, cuda: (13, 0) })
    }

    fn facts() -> Facts {
        Facts {
            gpu: gpu("A10G", 86),
            gpu_memory: 24 << 30,
            devices: 1,
            tensorrt: Ok("11.4.0".into()),
            tensorrt_rtx: Ok("1.7.1".into()),
            dtype: None,
            encoder_decoder: false,
        }
    }

    fn absent(reason: &str) -> Result<Gpu, NoGpu> {
        Err(NoGpu { reason: reason.into(), is_there: false })
    }

    #[test]
    fn a_gpu_that_is_left_idle_is_told_with_what_keeps_it_from_work() {
        let unused = |device, facts: &Facts| choose(Wanted::Auto, device, facts).unwrap().gpu_unused;
        let old = Facts { gpu: Err(NoGpu { reason: "CUDA 11.4".into(), is_there: true }), ..facts() };
        let neither = Facts { tensorrt: Err("none".into()), tensorrt_rtx: Err("none".into()), ..facts() };
        let h100 = Facts { gpu: gpu("H100", 90), ..facts() };
        let cases = [
            (facts(), None),
            (Facts { gpu: absent("no driver"), ..facts() }, None),
            (old.clone(), Some(GpuUnused::Driver)),
            (neither.clone(), Some(GpuUnused::Library)),
            (Facts { tensorrt: Err("none".into()), ..h100 }, Some(GpuUnused::Architecture)),
            (Facts { dtype: Some(Dtype::F32), tensorrt: Err("none".into()), ..facts() }, Some(GpuUnused::Precision)),
        ];
        for (facts, expected) in cases {
            assert_eq!(unused(None, &facts), expected, "{facts:?}");
            assert_eq!(unused(Some(Device::Cpu), &facts), None, "the CPU was asked for");
            assert_eq!(unused(Some(Device::Cuda(0)), &facts), None, "the GPU is used, or loading fails");
            assert_eq!(choose(Wanted::OnnxRuntime, None, &facts).unwrap().gpu_unused, None);
        }
        assert_eq!(choose(Wanted::TensorRt, None, &old).unwrap_err(), "no GPU can be used: CUDA 11.4");
        assert_eq!(choose(Wanted::TensorRt, None, &neither).unwrap_err(), "none");
    }

    #[test]
    fn the_best_that_there_is_is_taken_and_said() {
        let chosen = |facts: &Facts| {
            let choice = choose(Wanted::Auto, None, facts).unwrap();
            (choice.engine, choice.why)
        };
        let (best, why) = chosen(&facts());
        assert_eq!(best, Chosen::TensorRt(Flavour::Enterprise, Device::Cuda(0)));
        assert!(why.contains("11.4.0") && why.contains("A10G"), "{why}");
        let without = Facts { tensorrt: Err("not found".into()), ..facts() };
        assert_eq!(chosen(&without).0, Chosen::TensorRt(Flavour::Rtx, Device::Cuda(0)));
        let cpu = Chosen::OnnxRuntime(Device::Cpu);
        let h100 = Facts { gpu: gpu("H100", 90), ..without.clone() };
        let (best, why) = chosen(&h100);
        assert!(best == cpu && why.contains("not found") && why.contains("no kernels for the H100"), "{why}");
        let (best, why) = chosen(&Facts { dtype: Some(Dtype::F32), ..facts() });
        assert!(best == cpu && why.contains("--dtype f16"), "{why}");
        let t5 = Facts { encoder_decoder: true, ..without };
        assert_eq!(chosen(&t5).0, Chosen::TensorRt(Flavour::Rtx, Device::Cuda(0)));
        let (best, why) = chosen(&Facts { gpu: gpu("T4", 75), ..t5 });
        assert!(best == cpu && why.contains("no f32 matrices on SM75"), "{why}");
        let (best, why) = chosen(&Facts { gpu: absent("no driver"), ..facts() });
        assert_eq!((best, why.as_str()), (cpu, "no GPU can be used: no driver"));
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        let none = Facts { gpu: absent("no driver"), ..facts() };
        for wanted in [Wanted::TensorRt, Wanted::TensorRtRtx] {
            assert_eq!(choose(wanted, None, &none).unwrap_err(), "no GPU can be used: no driver");
            choose(wanted, Some(Device::Cpu), &facts()).unwrap_err();
        }
        let gpu = Some(Device::Cuda(1));
        assert_eq!(
            choose(Wanted::TensorRtRtx, gpu, &facts()).unwrap().engine,
            Chosen::TensorRt(Flavour::Rtx, Device::Cuda(1))
        );
        assert_eq!(choose(Wanted::OnnxRuntime, None, &none).unwrap().engine, Chosen::OnnxRuntime(Device::Cpu));
        // Never silently on the CPU: loading on the GPU that was asked for says what is wrong.
        assert_eq!(choose(Wanted::Auto, gpu, &none).unwrap().engine, Chosen::OnnxRuntime(Device::Cuda(1)));
    }

    #[test]
    fn devices_are_read_and_written() {
        for (text, device) in [
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(0)),
            ("cuda:3", Device::Cuda(3)),
            ("cuda:all", Device::AllCuda),
        ] {
            assert_eq!(text.parse(), Ok(device));
        }
        assert_eq!(Device::Cuda(2).to_string(), "cuda:2");
        assert!("gpu".parse::<Device>().unwrap_err().contains("cuda:N"));
    }
}
