//! The parts of a layer that hold no state: activations, the feed-forward network, the residual sum.

use super::Builder;
use super::projection::Linear;
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

/// Whether a feed-forward network's inner layer is gated.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    /// Without a gate: `act(up(x))`.
    None,
    /// The first `inner` outputs of `up`, activated, times the other `inner`: one product does both.
    First { inner: u32 },
    /// `act(gate(x)) * up(x)`.
    Own(Linear),
}

/// A feed-forward network.
#[derive(Clone, Debug)]
pub(crate) struct Mlp {
    /// The map to the inner layer, with the gate's where they are one product.
    pub(crate) up: Linear,
    pub(crate) gate: Gate,
    pub(crate) activation: Activation,
    pub(crate) down: Linear,
}

impl Builder<'_> {
    /// From the normalized input `[B, S, E]` to the network's update `[B, S, E]`, in the computing precision.
    pub(crate) fn mlp(&mut self, x: &Value, mlp: &Mlp) -> Result<Value, WeightsError> {
        let wide = self.inner_layer(x, mlp)?;
        self.linear(&mlp.down, &wide)
    }

    /// [`Builder::mlp`] with the last map in f32, and so the update, for models whose updates are beyond f16.
    pub(crate) fn mlp_widened(&mut self, x: &Value, mlp: &Mlp) -> Result<Value, WeightsError> {
        let wide = self.inner_layer(x, mlp)?;
        let wide = self.widen(wide);
        self.in_f32(|b| b.linear(&mlp.down, &wide))
    }

    fn inner_layer(&mut self, x: &Value, mlp: &Mlp) -> Result<Value, WeightsError> {
        let wide = self.linear(&mlp.up, x)?;
        let wide = match &mlp.gate {
            Gate::None => self.activate(mlp.activation, &wide),
            Gate::Own(gate) => {
                let gate = self.linear(gate, x)?;
                let gate = self.activate(mlp.activation, &gate);
                self.graph.node("Mul", &[&gate, &wide], &[])
            }
            Gate::First { inner } => {
                let inner = i64::from(*inner);
                let sizes = self.graph.integers(&[2], &[inner, inner]);
                let [gate, wide] = self.graph.node_n("Split", &[&wide, &sizes], &[Attribute::Int("axis", -1)]);
                let gate = self.activate(mlp.activation, &gate);
                self.graph.node("Mul", &[&gate, &wide], &[])
            }
        };
        Ok(wide)
    }

    /// The activation of `x`, of any shape, in the computing precision.
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
