//! `Head` and `HeadInt8`: `(x, select, weight, scale?, bias?, norm_scale?, norm_bias?) -> logits, topv, topi, lse`.

use kernels::Kernels;
use kernels::activation::Activation;
use kernels::head::{self, Distributions};
use kernels::linear::Linear;
use ort::operator::{OperatorInput, OperatorOutput};

use super::context::{Call, Constant, Dims, Info, NormConstants, Weights};
use super::{Compute, Definition, F32, Form, I64, optional, required};

pub(super) struct HeadOperator(pub(super) Form);

impl Definition for HeadOperator {
    type Prepared = Prepared;

    fn name(&self) -> &'static str {
        self.0.name(["Head", "HeadInt8"])
    }

    fn inputs(&self) -> Vec<OperatorInput> {
        let optional = (0..3).map(|_| optional(F32));
        [required(F32), required(I64)].into_iter().chain(self.0.inputs()).chain(optional).collect()
    }

    fn outputs(&self) -> Vec<OperatorOutput> {
        [F32, F32, I64, F32].map(OperatorOutput::required).into()
    }

    fn prepare(&self, info: &Info) -> Result<Prepared, ort::Error> {
        let bias = 2 + self.0.inputs().len();
        let prepared = Prepared {
            weights: Weights::read(info, 2, self.0)?,
            inputs: info.size("inputs")?,
            vocab: info.size("outputs")?,
            padded: info.size("padded")?,
            top_k: info.size("top_k")?,
            bias: info.constant(bias)?,
            norm: NormConstants::read(info, bias + 1)?,
        };
        prepared.weights.matrix().check(prepared.inputs, prepared.vocab);
        Ok(prepared)
    }
}

pub(super) struct Prepared {
    weights: Weights,
    inputs: usize,
    vocab: usize,
    padded: usize,
    top_k: usize,
    bias: Option<Constant<f32>>,
    norm: NormConstants,
}

impl Compute for Prepared {
    fn compute(&mut self, kernels: &mut Kernels, call: &Call) -> Result<(), ort::Error> {
        let x = call.input::<f32>(0)?.elements; // [B, S, inputs]
        let select = call.input::<i64>(1)?.elements; // [R]
        let selected = select.len();
        let out = Distributions {
            logits: call.output(0, &Dims::new(&[selected, self.padded]))?,
            top_logits: call.output(1, &Dims::new(&[selected, self.top_k]))?,
            top_ids: call.output(2, &Dims::new(&[selected, self.top_k]))?,
            logsumexp: call.output(3, &Dims::new(&[selected, 1]))?,
        };
        let linear = Linear {
            weights: self.weights.matrix(),
            inputs: self.inputs,
            outputs: self.vocab,
            norm: self.norm.norm(),
            bias: self.bias.as_ref().map(Constant::get),
            activation: Activation::None,
        };
        let missing = |row| ort::Error::new(format!("the selected row {row} does not exist"));
        head::Head { linear, padded: self.padded, top_k: self.top_k }.run(kernels, x, select, out).map_err(missing)
    }
}
