//! The kernels behind a graph's operators, with attributes and constants that no builder writes. A kernel may refuse by
//! a panic, which the operators make an error; what it must not do is read or write beyond its slices.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kernels::activation::Activation;
use kernels::attention::{self, Attention, Heads, Rotary};
use kernels::embedding::Embedding;
use kernels::head::{Distributions, Head};
use kernels::layout::{Matrix, PANEL, len_f32, len_int8, panels};
use kernels::linear::{Arguments, Linear, Norm};
use kernels::{CpuLevel, Kernels};

/// Most elements of a slice here.
const MAX_ELEMENTS: usize = 1 << 14;

/// An operator of a graph: the first byte says which, the others what it is given.
pub fn operators(data: &[u8]) {
    let mut input = Input(data);
    let run = match input.byte() % 4 {
        0 => linear,
        1 => embedding,
        2 => head,
        _ => attend,
    };
    // A refusal is fine.
    let _ = catch_unwind(AssertUnwindSafe(|| run(&mut input)));
}

fn linear(input: &mut Input) {
    let (inputs, outputs) = (input.size(), input.size());
    let weights = Weights::new(input, inputs, outputs);
    if !weights.matrix().fits(inputs, outputs) {
        return;
    }
    let (scale, bias, rows) = (input.floats(inputs), input.floats(outputs), input.byte() as usize % 5);
    let norm = match input.byte() % 3 {
        0 => Norm::None,
        1 => Norm::Layer { scale: &scale, bias: Some(&scale), epsilon: 1e-5 },
        _ => Norm::Rms { scale: &scale, epsilon: 1e-5 },
    };
    let bias = input.flag().then_some(bias.as_slice());
    let map = Linear { weights: weights.matrix(), inputs, outputs, norm, bias, activation: Activation::None };
    let (x, residual) = (input.floats(rows.saturating_mul(inputs)), input.floats(rows.saturating_mul(outputs)));
    let mut y = input.floats(rows.saturating_mul(outputs));
    let residual = input.flag().then_some(residual.as_slice());
    map.run(&mut kernels(), Arguments { x: &x, factor: None, residual }, &mut y);
}

fn embedding(input: &mut Input) {
    let (hidden, vocab) = (input.size(), input.size());
    let table = Weights::new(input, hidden, vocab);
    if !table.matrix().fits(hidden, vocab) {
        return;
    }
    let rows = input.byte() as usize % 5;
    let positions = input.floats(rows.saturating_mul(hidden));
    let (ids, past_len) = (input.integers(rows * 2), input.integers(rows));
    let mut y = input.floats(ids.len().saturating_mul(hidden));
    let positions = input.flag().then_some(positions.as_slice());
    let _ = Embedding { table: table.matrix(), hidden, vocab, positions }.run(&ids, &past_len, &mut y);
}

fn head(input: &mut Input) {
    let (inputs, outputs, padded, top_k) = (input.size(), input.size(), input.size(), input.size());
    let weights = Weights::new(input, inputs, outputs);
    if !weights.matrix().fits(inputs, outputs) {
        return;
    }
    let rows = input.byte() as usize % 5;
    let (x, select) = (input.floats(rows.saturating_mul(inputs)), input.integers(rows));
    let [mut logits, mut top_logits] = [padded, top_k].map(|width| input.floats(rows.saturating_mul(width)));
    let (mut top_ids, mut logsumexp) = (vec![0; top_logits.len()], vec![0.0; select.len()]);
    let activation = Activation::None;
    let linear = Linear { weights: weights.matrix(), inputs, outputs, norm: Norm::None, bias: None, activation };
    let out = Distributions {
        logits: &mut logits,
        top_logits: &mut top_logits,
        top_ids: &mut top_ids,
        logsumexp: &mut logsumexp,
    };
    let _ = Head { linear, padded, top_k }.run(&mut kernels(), &x, &select, out);
}

fn attend(input: &mut Input) {
    let (heads, kv_heads, head_dim) = (input.size(), input.size(), input.size());
    let (rows, tokens, context) = (1 + input.byte() as usize % 3, 1 + input.byte() as usize % 3, input.size());
    let values: [_; 3] = std::array::from_fn(|_| {
        let (width, offset, stride) = (input.size(), input.size(), input.size());
        (input.floats((rows * tokens).saturating_mul(width)), width, offset, stride)
    });
    let heads_of = values.each_ref().map(|(values, width, offset, stride)| Heads {
        values,
        width: *width,
        offset: *offset,
        stride: *stride,
    });
    let (dim, table) = (input.size(), input.size());
    let (cos, sin) = (input.floats(table), input.floats(table));
    let interleaved = input.flag();
    let rotary = input.flag().then_some(Rotary { cos: &cos, sin: &sin, dim, interleaved });
    let (past_len, slots) = (input.integers(rows), input.integers(rows.saturating_mul(context)));
    let cache = input.size().saturating_mul(kv_heads).saturating_mul(head_dim);
    let (mut keys, mut cached) = (input.floats(cache), input.floats(cache));
    let mut y = input.floats((rows * tokens).saturating_mul(heads).saturating_mul(head_dim));
    let arguments = attention::Arguments {
        heads: heads_of,
        past_len: &past_len,
        slots: &slots,
        keys: &mut keys,
        values: &mut cached,
    };
    let slopes = input.floats(heads);
    let slopes = input.flag().then_some(&slopes[..]);
    let attention = Attention { heads, kv_heads, head_dim, scale: 1.0, rotary, slopes };
    let _ = attention.run(&mut kernels(), arguments, &mut y);
}

fn kernels() -> Kernels {
    Kernels::new(1, false, CpuLevel::detect())
}

/// A packed matrix, of the right length or another.
enum Weights {
    F32(Vec<f32>),
    Int8(Vec<u8>, Vec<f32>),
}

impl Weights {
    fn new(input: &mut Input, inputs: usize, outputs: usize) -> Self {
        let small = inputs <= MAX_ELEMENTS && outputs <= MAX_ELEMENTS;
        if input.flag() {
            return Self::F32(input.floats(if small { len_f32(inputs, outputs) } else { 0 }));
        }
        let len = if small { len_int8(inputs, outputs) } else { 0 };
        let bytes = (0..input.len(len)).map(|index| (index % 251) as u8).collect();
        Self::Int8(bytes, input.floats(if small { panels(outputs) * PANEL } else { 0 }))
    }

    fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::F32(elements) => Matrix::F32(elements),
            Self::Int8(bytes, scales) => Matrix::Int8(bytes, scales),
        }
    }
}

/// The fuzzer's bytes; zeros once they are used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// An attribute: small as a rule, and at most what the operators let pass.
    fn size(&mut self) -> usize {
        match self.byte() {
            power @ 0xf0.. => 1 << (16 + usize::from(power & 0xf)),
            small => usize::from(small) % 40,
        }
    }

    /// A length: the right one as a rule.
    fn len(&mut self, right: usize) -> usize {
        let wrong = self.byte();
        if wrong < 0xf0 { right.min(MAX_ELEMENTS) } else { usize::from(wrong & 0xf) * 3 }
    }

    fn floats(&mut self, right: usize) -> Vec<f32> {
        (0..self.len(right)).map(|index| (index % 17) as f32 / 8.0 - 1.0).collect()
    }

    fn integers(&mut self, right: usize) -> Vec<i64> {
        (0..self.len(right)).map(|_| i64::from(self.byte()) - 2).collect()
    }
}
