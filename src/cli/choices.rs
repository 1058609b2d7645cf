//! What people choose about a graph, in the words of the command line.

use clap::ValueEnum;
use engine_build::{Operators, Quantization};

/// Operators of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OperatorsChoice {
    /// Those that suit the precision.
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
    /// In 8 bits, with a scale for each output of a matrix.
    Int8,
}

impl From<QuantizeChoice> for Quantization {
    fn from(choice: QuantizeChoice) -> Self {
        match choice {
            QuantizeChoice::None => Self::None,
            QuantizeChoice::Int8 => Self::Int8,
        }
    }
}
