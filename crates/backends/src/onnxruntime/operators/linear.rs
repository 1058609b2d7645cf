//! `Linear` and `LinearInt8`: `(x, weight, scale?, bias?, norm_scale?, norm_bias?, factor?, residual?, gate?,
//! gate_scale?) -> y`.

use std::sync::Arc;

use kernels::Kernels;
use kernels::activation::Activation;
use kernels::linear::{self, Arguments, Factor};
use ort::operator::{OperatorInput, OperatorOutput};

use super::context::{Call, Constant, Info, NormConstants, Weights, check_len};
use super::huge_pages::HugePages;
use super::{Compute, Definition, F32, Form, Observed, Observer, optional, required};

pub(super) struct LinearOperator(pub(super) Form, pub(super) Option<Observed>, pub(super) Option<Arc<HugePages>>);

impl Definition for LinearOperator {
    type Prepared = Prepared;

    fn name(&self) -> &'static str {
        self.0.name(["Linear", "LinearInt8"])
    }

    fn inputs(&self) -> Vec<OperatorInput> {
        let optional = (0..5).map(|_| optional(F32));
        let inputs = [required(F32)].into_iter().chain(self.0.inputs()).chain(optional);
        inputs.chain(self.0.optional_inputs()).collect()
    }

    fn outputs(&self) -> Vec<OperatorOutput> {
        vec![OperatorOutput::required(F32)]
    }

    fn prepare(&self, info: &Info) -> Result<Prepared, ort::Error> {
        let bias = 1 + self.0.inputs().len();
        let read = |index| Ok::<_, ort::Error>(Weights::read(info, index, self.0)?.copied(self.2.as_deref()));
        let gate = match info.has(bias + 5)? {
            true => Some(Gate { weights: read(bias + 5)?, activation: activation(info, "gate")? }),
            false => None,
        };
        let prepared = Prepared {
            weights: read(1)?,
            gate,
            inputs: info.extent("inputs")?,
            outputs: info.extent("outputs")?,
            norm: NormConstants::read(info, bias + 1)?,
            bias: info.constant(bias)?,
            activation: activation(info, "activation")?,
            factor: info.has(bias + 3)?.then_some(bias + 3),
            residual: info.has(bias + 4)?.then_some(bias + 4),
            observed: Observer::of(self.1.as_ref(), info)?,
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
