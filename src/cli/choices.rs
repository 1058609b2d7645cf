//! What people choose, in the words of the command line.

use backends::choice::Wanted;
use backends::onnxruntime::CpuLevel;
use bundle::{Operators, Quantization};
use clap::ValueEnum;
use completion::text::Method;
use completion::typing::Tolerance;

/// Operators of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OperatorsChoice {
    /// The operators that suit the precision.
    Auto,
    /// ONNX's own, which every runtime knows.
    Onnx,
    /// foretype's fused ones: f32 or int8 on CPUs.
    Foretype,
}

impl From<OperatorsChoice> for Option<Operators> {
    fn from(choice: OperatorsChoice) -> Self {
        match choice {
            OperatorsChoice::Auto => None,
            OperatorsChoice::Onnx => Some(Operators::Onnx),
            OperatorsChoice::Foretype => Some(Operators::Foretype),
        }
    }
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuantizeChoice {
    /// In the graph's precision.
    None,
    /// In 8 bits.
    Int8,
    /// In 4 bits, for GPUs.
    Int4,
}

impl From<QuantizeChoice> for Quantization {
    fn from(choice: QuantizeChoice) -> Self {
        match choice {
            QuantizeChoice::None => Self::None,
            QuantizeChoice::Int8 => Self::Int8,
            QuantizeChoice::Int4 => Self::Int4,
        }
    }
}

/// Where a bundle will be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Hardware {
    /// On CPUs: f32, and foretype's own operators.
    Cpu,
    /// On NVIDIA GPUs: f16, and ONNX's operators.
    Gpu,
}

/// The engine of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// TensorRT, or TensorRT-RTX, where there is a GPU and the library; ONNX Runtime on the CPU elsewhere.
    Auto,
    /// ONNX Runtime, on the CPU or, with `--device cuda`, on a GPU.
    #[value(name = "onnxruntime")]
    OnnxRuntime,
    /// TensorRT; an error where it is missing.
    #[value(name = "tensorrt")]
    TensorRt,
    /// TensorRT-RTX; an error where it is missing.
    #[value(name = "tensorrt-rtx")]
    TensorRtRtx,
}

impl From<BackendChoice> for Wanted {
    fn from(choice: BackendChoice) -> Self {
        match choice {
            BackendChoice::Auto => Self::Auto,
            BackendChoice::OnnxRuntime => Self::OnnxRuntime,
            BackendChoice::TensorRt => Self::TensorRt,
            BackendChoice::TensorRtRtx => Self::TensorRtRtx,
        }
    }
}

/// How the end of the typed text, where a token may be half typed, is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MethodChoice {
    /// By the covering set: the right distribution over completions.
    Exact,
    /// By dropping the last token and constraining the next one to begin with its bytes ("token healing").
    Healed,
    /// Not at all: the model continues behind the typed text's tokens.
    Naive,
}

impl From<MethodChoice> for Method {
    fn from(choice: MethodChoice) -> Self {
        match choice {
            MethodChoice::Exact => Self::Exact,
            MethodChoice::Healed => Self::Healed,
            MethodChoice::Naive => Self::Naive,
        }
    }
}

/// What a typed text may be taken to mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ToleranceChoice {
    /// Exactly what was typed.
    Off,
    /// Also other letter case, width and accents.
    Case,
    /// Also typing errors.
    Auto,
}

impl From<ToleranceChoice> for Tolerance {
    fn from(choice: ToleranceChoice) -> Self {
        match choice {
            ToleranceChoice::Off => Self::Off,
            ToleranceChoice::Case => Self::Case,
            ToleranceChoice::Auto => Self::Auto,
        }
    }
}

/// The CPU level of that name, or the best one for `auto`.
///
/// # Errors
/// There is no such level, or this machine lacks it.
pub fn cpu_level(name: &str) -> Result<CpuLevel, String> {
    if name == "auto" {
        return Ok(CpuLevel::detect());
    }
    let list = |levels: &mut dyn Iterator<Item = CpuLevel>| levels.map(CpuLevel::name).collect::<Vec<_>>().join(", ");
    let mut all = CpuLevel::ALL.into_iter();
    match all.clone().find(|level| level.name() == name) {
        Some(level) if level.is_available() => Ok(level),
        Some(_) => Err(format!("this machine's CPU lacks it; it has {}", list(&mut CpuLevel::available()))),
        None => Err(format!("the levels are auto, {}", list(&mut all))),
    }
}

/// How many replicas are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRange {
    /// At least.
    pub least: usize,
    /// At most.
    pub most: usize,
}

/// A number of replicas, or a range of it: `N` or `MIN..MAX`.
///
/// # Errors
/// It is neither, or there would never be a replica.
pub fn replica_range(text: &str) -> Result<ReplicaRange, String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let (least, most) = (least.trim().parse(), most.trim().parse());
    match (least, most) {
        (Ok(least), Ok(most)) if least <= most && most > 0 => Ok(ReplicaRange { least, most }),
        _ => Err("it should be a number of at least 1, or MIN..MAX such as 0..2, whose MAX is at least 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_a_number_or_a_range() {
        let range = |text| replica_range(text).map(|ReplicaRange { least, most }| (least, most));
        assert_eq!((range("2"), range("0..2"), range("1 .. 1")), (Ok((2, 2)), Ok((0, 2)), Ok((1, 1))));
        for wrong in ["0", "0..0", "2..1", "..2", "1..", "-1..2", "a", "", "1...2"] {
            assert!(range(wrong).is_err_and(|right| right.contains("MIN..MAX")), "{wrong}");
        }
    }

    #[test]
    fn a_cpu_level_is_one_that_this_machine_has() {
        assert_eq!(cpu_level("auto"), Ok(CpuLevel::detect()));
        for level in CpuLevel::ALL {
            match cpu_level(level.name()) {
                Ok(found) => assert!(found == level && level.is_available()),
                Err(reason) => assert!(!level.is_available() && reason.ends_with("portable"), "{reason}"),
            }
        }
        assert_eq!(cpu_level("sse"), Err("the levels are auto, amx, avx512, avx2, portable".to_owned()));
    }
}
