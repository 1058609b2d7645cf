//! `Head` and `HeadInt8`: `(x, select, weight, scale?, bias?, norm_scale?, norm_bias?) -> logits, topv, topi, lse`.

use kernels::Kernels;
use kernels::activation::Activation;
use kernels::head::{self, Distributions};
use kernels::linear::Linear;

use super::constants::{NormConstants, Weights};
use super::context::{Call, Constant, Dims, Info, check_len};
use super::{Compute, Form, Observer, Shared};

/// The width of the logits is a multiple of this.
const PADDING: usize = 8;

impl Prepared {
    pub(super) fn read(info: &Info, form: Form, shared: &Shared) -> Result<Self, ort::Error> {
        let bias = 2 + form.inputs();
        let prepared = Self {
            weights: Weights::read(info, 2, form)?.copied(shared.pages.as_ref()),
            inputs: info.extent("inputs")?,
            vocab: info.extent("outputs")?,
            padded: info.extent("padded")?,
            top_k: info.extent("top_k")?,
            bias: info.constant(bias)?,
            norm: NormConstants::read(info, bias + 1)?,
            observed: Observer::of(shared, info)?,
        };
        let Prepared { inputs, vocab, padded, top_k, .. } = prepared;
        prepared.weights.check(inputs, vocab)?;
        prepared.norm.check(inputs)?;
        check_len("the bias", prepared.bias.as_ref(), vocab)?;
        // Both size what a step returns.
        if padded != vocab.next_multiple_of(PADDING) || top_k > vocab {
            return Err(ort::Error::new(format!("`padded` {padded} or `top_k` {top_k} doesn't fit {vocab} tokens")));
        }
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
    observed: Option<Observer>,
}

impl Compute for Prepared {
    fn compute(&mut self, kernels: &mut Kernels, call: &Call) -> Result<(), ort::Error> {
        let x = call.input::<f32>(0)?; // [B, S, inputs]
        x.dims.check_width(self.inputs)?;
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
        head::Head { linear, padded: self.padded, top_k: self.top_k }
            .run(kernels, x.elements, select, out)
            .map_err(missing)?;
        if let Some(observer) = &self.observed {
            let rows = select.iter().map(|row| *row as usize);
            observer.note(|seen| linear.observe(kernels, x.elements, rows, seen));
        }
        Ok(())
    }
}
