//! Times the kernels of a decoder step of GPT-2's 124M shape without a graph around them: a lower bound for an engine.
//!
//! usage: cargo run --release -p foretype-kernels --example step [-- THREADS [PAST...]]
//!
//! Environment: `LEVEL=avx2` selects another CPU level than the best. `BEAMS=5` makes groups of five rows share their
//! past positions. `FORMS=f32` leaves int8 out. The weight formats are timed in turns. With PAST, the example times
//! decode steps and prompt chunks after that many positions instead, in turns too.

use std::time::Instant;

use kernels::activation::Activation;
use kernels::attention::{self, Attention, Heads};
use kernels::head::{Distributions, Head};
use kernels::layout::{self, Matrix};
use kernels::linear::{Arguments, Linear, Norm};
use kernels::{CpuLevel, Kernels};

const LAYERS: usize = 12;
const HIDDEN: usize = 768;
const VOCAB: usize = 50_257;
const PADDED: usize = 50_264;
/// Positions behind a row where none are named.
const PAST: usize = 20;
const ROUNDS: usize = 30;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Rounds where steps are long.
const LONG_ROUNDS: usize = 9;

/// How weights are stored, and how many bytes a million of them take, in MB.
const FORMS: [(&str, f64); 2] = [("int8", 1.0), ("f32", 4.0)];

/// A matrix of numbers that don't matter.
struct Weights {
    form: &'static str,
    f32: Vec<f32>,
    int8: Vec<u8>,
    /// Where the first cache line begins in either: a bundle's weights are aligned.
    start: usize,
    scales: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

/// The matrices of layers, and of the head.
type Model = (Vec<[Weights; 4]>, Weights);

impl Weights {
    fn new(inputs: usize, outputs: usize, form: &'static str) -> Self {
        let (mut f32, mut int8) = (Vec::new(), Vec::new());
        let start = if form == "int8" {
            int8 = (0..layout::len_int8(inputs, outputs) + LINE).map(|i| (i % 251) as u8).collect();
            int8.as_ptr().align_offset(LINE)
        } else {
            let len = layout::len_f32(inputs, outputs) + LINE / size_of::<f32>();
            f32 = (0..len).map(|i| (i as f32 * 0.7).sin() * 0.02).collect();
            f32.as_ptr().align_offset(LINE)
        };
        let scales = vec![1e-4; layout::panels(outputs) * layout::PANEL];
        Self { form, f32, int8, start, scales, inputs, outputs }
    }

    fn model(form: &'static str) -> Model {
        let layer = |_| [(HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN), (4 * HIDDEN, HIDDEN)];
        let layers = (0..LAYERS).map(layer).map(|maps| maps.map(|(from, to)| Self::new(from, to, form)));
        (layers.collect(), Self::new(HIDDEN, VOCAB, form))
    }

    fn map<'a>(&'a self, norm: Norm<'a>, activation: Activation) -> Linear<'a> {
        let (inputs, outputs, start) = (self.inputs, self.outputs, self.start);
        let weights = match self.form {
            "int8" => Matrix::Int8(&self.int8[start..start + layout::len_int8(inputs, outputs)], &self.scales),
            _ => Matrix::F32(&self.f32[start..start + layout::len_f32(inputs, outputs)]),
        };
        Linear { weights, inputs, outputs, norm, bias: None, activation }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let threads = arguments.next().unwrap_or(2);
    let pasts: Vec<usize> = arguments.collect();
    let level =
        std::env::var("LEVEL").ok().and_then(|name| CpuLevel::ALL.into_iter().find(|level| level.name() == name));
    let mut kernels = Kernels::new(threads, false, level.unwrap_or_else(CpuLevel::detect));
    println!("{}, {threads} threads; fastest and median, ms", kernels.level());
    let asked = std::env::var("FORMS").unwrap_or_else(|_| "int8,f32".to_owned());
    let forms = FORMS.iter().filter(|(form, _)| asked.split(',').any(|asked| asked == *form));
    let elements = LAYERS * 12 * HIDDEN * HIDDEN + VOCAB * HIDDEN;
    let models: Vec<(&str, Model)> = forms
        .map(|(form, bytes)| {
            println!("{form}: {:.0} MB", elements as f64 * bytes / 1e6);
            (*form, Weights::model(form))
        })
        .collect();
    if pasts.is_empty() {
        for (rows, tokens) in
            [(1, 1), (2, 1), (4, 1), (10, 1), (16, 1), (32, 1), (64, 1), (1, 8), (1, 32), (10, 8), (10, 32)]
        {
            time(&mut kernels, &models, &Shape { rows, tokens, pasts: &[PAST], rounds: ROUNDS });
        }
    } else {
        for (rows, tokens) in [(1, 1), (10, 1), (1, 64)] {
            time(&mut kernels, &models, &Shape { rows, tokens, pasts: &pasts, rounds: LONG_ROUNDS });
        }
    }
}

/// Steps that are timed together.
struct Shape<'a> {
    rows: usize,
    /// Tokens of each row.
    tokens: usize,
    /// Past positions of each row, one case each.
    pasts: &'a [usize],
    rounds: usize,
}

/// Times the steps of one shape with each model in turn, and prints a line for each case.
fn time(kernels: &mut Kernels, models: &[(&str, Model)], shape: &Shape) {
    let &Shape { rows, tokens, pasts, rounds } = shape;
    let cases: Vec<_> = models.iter().flat_map(|model| pasts.iter().map(move |past| (model, *past))).collect();
    let mut times = vec![[vec![], vec![], vec![], vec![]]; cases.len()];
    let mut memory = Memory::new(rows, tokens, pasts.iter().copied().max().unwrap_or(0));
    for _ in 0..rounds {
        for (((_, model), past), parts) in cases.iter().zip(&mut times) {
            let took = step(kernels, model, &mut memory, *past);
            parts.iter_mut().zip(took).for_each(|(part, time)| part.push(time));
        }
    }
    let show = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        format!("{:7.2} {:7.2}", times[0], times[times.len() / 2])
    };
    for (((form, _), past), [all, linear, mixing, heads]) in cases.iter().zip(&mut times) {
        println!(
            "{form:4} {rows:3} x {tokens:2} behind {past:4}: {}   linear {}   attention {}   head {}",
            show(all),
            show(linear),
            show(mixing),
            show(heads)
        );
    }
}

/// The arguments of a map with nothing beside.
fn alone(x: &[f32]) -> Arguments<'_> {
    Arguments { x, factor: None, residual: None }
}

/// The arguments of a map whose result is added to `residual`.
fn onto<'a>(x: &'a [f32], residual: &'a [f32]) -> Arguments<'a> {
    Arguments { x, factor: None, residual: Some(residual) }
}

/// What a step works on, made once: memory that the system hands out for the first time would be timed too.
struct Memory {
    rows: usize,
    tokens: usize,
    context: usize,
    x: Vec<f32>,
    /// `[rows, context]`
    slots: Vec<i64>,
    keys: Vec<f32>,
    values: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    y: Vec<f32>,
    wide: Vec<f32>,
    logits: Vec<f32>,
    top_logits: Vec<f32>,
    top_ids: Vec<i64>,
    logsumexp: Vec<f32>,
}

impl Memory {
    /// For rows of so many tokens behind at most `past` positions.
    fn new(rows: usize, tokens: usize, past: usize) -> Self {
        let (count, context) = (rows * tokens, (past + tokens).next_multiple_of(128));
        let cache = vec![0.1; LAYERS * rows * context * HIDDEN];
        Self {
            rows,
            tokens,
            context,
            slots: slots(rows, context, past),
            x: (0..count * HIDDEN).map(|i| (i % 13) as f32 * 0.1 - 0.6).collect(),
            values: cache.clone(),
            keys: cache,
            qkv: vec![0.0; count * 3 * HIDDEN],
            mixed: vec![0.0; count * HIDDEN],
            y: vec![0.0; count * HIDDEN],
            wide: vec![0.0; count * 4 * HIDDEN],
            logits: vec![0.0; rows * PADDED],
            top_logits: vec![0.0; rows * 64],
            top_ids: vec![0; rows * 64],
            logsumexp: vec![0.0; rows],
        }
    }
}

/// Where the rows' positions are: in an order as allocating and freeing leaves it, and `BEAMS` rows at a time share
/// what all of them have behind them.
fn slots(rows: usize, context: usize, past: usize) -> Vec<i64> {
    let beams = std::env::var("BEAMS").ok().and_then(|beams| beams.parse().ok()).unwrap_or(1);
    let count = (rows * context) as i64;
    // A step that has no factor in common with the number of slots visits all of them.
    let step = (1..).map(|n| 7919 + 2 * n).find(|step| gcd(*step, count) == 1).unwrap_or(1);
    let mut slots: Vec<i64> = (0..count).map(|i| i * step % count).collect();
    for row in (0..rows).filter(|row| row % beams != 0) {
        let first = row / beams * beams * context;
        slots.copy_within(first..first + past, row * context);
    }
    slots
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Milliseconds in all, in linear maps, in attention, in the head.
fn step(kernels: &mut Kernels, (layers, head): &Model, memory: &mut Memory, past: usize) -> [f64; 4] {
    let Memory { rows, tokens, context, x, slots, keys, values, qkv, mixed, y, wide, .. } = memory;
    let Memory { logits, top_logits, top_ids, logsumexp, .. } = memory;
    let (rows, tokens, context) = (*rows, *tokens, *context);
    let (scale, past_len) = (vec![1.0; HIDDEN], vec![past as i64; rows]);
    let norm = Norm::Layer { scale: &scale, bias: None, epsilon: 1e-5 };
    let select: Vec<i64> = (0..rows).map(|row| (row * tokens + tokens - 1) as i64).collect();
    let cache = rows * context * HIDDEN;
    let started = Instant::now();
    let mut mixing = 0.0;
    for (layer, [to_qkv, from_mixed, to_wide, from_wide]) in layers.iter().enumerate() {
        to_qkv.map(norm, Activation::None).run(kernels, alone(x), qkv);
        let part = |offset| Heads { values: qkv, width: 3 * HIDDEN, offset, stride: 64 };
        let attention = Attention { heads: 12, kv_heads: 12, head_dim: 64, scale: 0.125, rotary: None, slopes: None };
        let arguments = attention::Arguments {
            heads: [part(0), part(HIDDEN), part(2 * HIDDEN)],
            past_len: &past_len,
            slots,
            keys: &mut keys[layer * cache..(layer + 1) * cache],
            values: &mut values[layer * cache..(layer + 1) * cache],
        };
        let before = Instant::now();
        attention.run(kernels, arguments, mixed).expect("slots that there are");
        mixing += before.elapsed().as_secs_f64();
        from_mixed.map(Norm::None, Activation::None).run(kernels, onto(mixed, x), y);
        to_wide.map(norm, Activation::GeluTanh).run(kernels, alone(y), wide);
        from_wide.map(Norm::None, Activation::None).run(kernels, onto(wide, y), x);
    }
    let before = Instant::now();
    let head = Head { linear: head.map(norm, Activation::None), padded: PADDED, top_k: 64 };
    let out = Distributions { logits, top_logits, top_ids, logsumexp };
    head.run(kernels, x, &select, out).expect("rows that exist");
    let (heads, all) = (before.elapsed().as_secs_f64(), started.elapsed().as_secs_f64());
    [all, all - mixing - heads, mixing, heads].map(|seconds| seconds * 1e3)
}
