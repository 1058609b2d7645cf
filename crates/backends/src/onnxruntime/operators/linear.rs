//! `Linear` and `LinearInt8`: `(x, weight, scale?, bias?, norm_scale?, norm_bias?, factor?, residual?, gate?,
//! gate_scale?) -> y`.

use kernels::Kernels;
use kernels::activation::Activation;
use kernels::linear::{self, Arguments, Factor};

use super::constants::{NormConstants, Weights};
use super::context::{Call, Constant, Info, check_len};
use super::{Compute, Form, Observer, Shared};

impl Prepared {
    pub(super) fn read(info: &Info, form: Form, shared: &Shared) -> Result<Self, ort::Error> {
        let bias = 1 + form.inputs();
        let read = |index| Ok::<_, ort::Error>(Weights::read(info, index, form)?.copied(shared.pages.as_ref()));
        let gate = match info.has(bias + 5) {
            true => Some(Gate { weights: read(bias + 5)?, activation: activation(info, "gate")? }),
            false => None,
        };
        let prepared = Self {
            weights: read(1)?,
            gate,
            inputs: info.extent("inputs")?,
            outputs: info.extent("outputs")?,
            norm: NormConstants::read(info, bias + 1)?,
            bias: info.constant(bias)?,
            activation: activation(info, "activation")?,
            factor: info.has(bias + 3).then_some(bias + 3),
            residual: info.has(bias + 4).then_some(bias + 4),
            observed: Observer::of(shared, info)?,
        };
        for weights in std::iter::once(&prepared.weights).chain(prepared.gate.as_ref().map(|gate| &gate.weights)) {
            weights.check(prepared.inputs, prepared.outputs)?;
        }
        if prepared.gate.is_some() && prepared.factor.is_some() {
            return Err(ort::Error::new("a map has a gate or a factor, not both"));
        }
        prepared.norm.check(prepared.inputs)?;
        check_len("the bias", prepared.bias.as_ref(), prepared.outputs)?;
        Ok(prepared)
    }
}

/// The activation that an attribute names.
fn activation(info: &Info, attribute: &str) -> Result<Activation, ort::Error> {
    let name = info.text(attribute)?;
    Activation::from_name(&name).ok_or_else(|| ort::Error::new(format!("the activation `{name}` is unknown")))
}

/// A map of the same rows whose results are the factor.
struct Gate {
    weights: Weights,
    activation: Activation,
}

pub(super) struct Prepared {
    weights: Weights,
    gate: Option<Gate>,
    inputs: usize,
    outputs: usize,
    norm: NormConstants,
    bias: Option<Constant<f32>>,
    activation: Activation,
    /// Index of the node's input `factor`, if it has one. `residual` likewise.
    factor: Option<usize>,
    residual: Option<usize>,
    observed: Option<Observer>,
}

impl Compute for Prepared {
    fn compute(&mut self, kernels: &mut Kernels, call: &Call) -> Result<(), ort::Error> {
        let x = call.input::<f32>(0)?; // [.., inputs]
        x.dims.check_width(self.inputs)?;
        let factor = self.factor.map(|index| call.input::<f32>(index)).transpose()?;
        let residual = self.residual.map(|index| call.input::<f32>(index)).transpose()?;
        let y = call.output::<f32>(0, &x.dims.with_last(self.outputs))?;
        let map = linear::Linear {
            weights: self.weights.matrix(),
            inputs: self.inputs,
            outputs: self.outputs,
            norm: self.norm.norm(),
            bias: self.bias.as_ref().map(Constant::get),
            activation: self.activation,
        };
        if let Some(observer) = &self.observed {
            observer.note(|seen| map.observe(kernels, x.elements, 0..x.elements.len() / self.inputs, seen));
        }
        let gate = self.gate.as_ref().map(|Gate { weights, activation }| linear::Linear {
            weights: weights.matrix(),
            bias: None,
            activation: *activation,
            ..map
        });
        let factor = factor.map(|view| Factor::Given(view.elements)).or(gate.as_ref().map(Factor::Gate));
        map.run(kernels, Arguments { x: x.elements, factor, residual: residual.map(|view| view.elements) }, y);
        Ok(())
    }
}
