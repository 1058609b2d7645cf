//! The parts of a layer that hold no state: normalization, linear maps, activations, the feed-forward network.

use super::Builder;
use crate::error::WeightsError;
use crate::onnx::{Attribute, Value};

/// An activation function, by what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// The tanh approximation of `Gelu`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `tanh(x)`.
    Tanh,
}

/// Transformers' names of the activation functions.
const ACTIVATIONS: [(&str, Activation); 11] = [
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("quick_gelu", Activation::QuickGelu),
    ("tanh", Activation::Tanh),
];

impl Activation {
    /// The activation of that name in transformers.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        ACTIVATIONS.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation)
    }

    /// All names that [`Activation::from_name`] knows, for messages.
    pub(crate) fn names() -> String {
        ACTIVATIONS.map(|(name, _)| name).join(", ")
    }
}

impl Builder<'_> {
    /// `[.., E]` f32 to `[.., E]` f32, with the scale and bias named `NAME.weight` and `NAME.bias`.
    pub(crate) fn layer_norm(
        &mut self,
        name: &str,
        x: &Value,
        hidden: u64,
        epsilon: f32,
    ) -> Result<Value, WeightsError> {
        let scale = self.vector_f32(&format!("{name}.weight"), hidden)?;
        let bias = self.vector_f32(&format!("{name}.bias"), hidden)?;
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", epsilon)];
        Ok(self.graph.node("LayerNormalization", &[x, &scale, &bias], &attributes))
    }

    /// `x W + b`: `[.., from]` to `[.., to]`, both in the computing precision; the matrix is stored `[from, to]`.
    pub(crate) fn linear(&mut self, name: &str, x: &Value, from: u64, to: u64) -> Result<Value, WeightsError> {
        let matrix = self.matrix(&format!("{name}.weight"), &[from, to])?;
        let bias = self.matrix(&format!("{name}.bias"), &[to])?;
        let product = self.graph.node("MatMul", &[x, &matrix], &[]);
        Ok(self.graph.node("Add", &[&product, &bias], &[]))
    }

    /// The activation of every element.
    pub(crate) fn activate(&mut self, activation: Activation, x: &Value) -> Value {
        match activation {
            Activation::Gelu => self.graph.node("Gelu", &[x], &[Attribute::Text("approximate", "none")]),
            Activation::GeluTanh => self.graph.node("Gelu", &[x], &[Attribute::Text("approximate", "tanh")]),
            Activation::Relu => self.graph.node("Relu", &[x], &[]),
            Activation::Tanh => self.graph.node("Tanh", &[x], &[]),
            Activation::Silu => {
                let gate = self.graph.node("Sigmoid", &[x], &[]);
                self.graph.node("Mul", &[x, &gate], &[])
            }
            Activation::QuickGelu => {
                let slope = self.scalar(1.702);
                let scaled = self.graph.node("Mul", &[x, &slope], &[]);
                let gate = self.graph.node("Sigmoid", &[&scaled], &[]);
                self.graph.node("Mul", &[x, &gate], &[])
            }
        }
    }

    /// The residual sum: f32 `x` plus `update` in the computing precision, as f32.
    pub(crate) fn residual(&mut self, x: &Value, update: Value) -> Value {
        let update = self.widen(update);
        self.graph.node("Add", &[x, &update], &[])
    }

    /// A constant of no dimensions in the computing precision.
    fn scalar(&mut self, value: f32) -> Value {
        let element = self.compute();
        self.graph.scalar(value, element)
    }
}
