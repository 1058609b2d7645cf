//! The kernels against plain sums in f64, on every instruction set that the machine has; and a row's result against
//! itself, alone and in company, on one thread and on several.

mod attention;

use kernels::activation::Activation;
use kernels::embedding::Embedding;
use kernels::head::{Distributions, Head};
use kernels::layout::{self, Matrix};
use kernels::linear::{self, Factor, Linear, Norm};
use kernels::{CpuLevel, Kernels};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The levels that this machine has. Says which of the others are not tested.
fn levels() -> impl Iterator<Item = CpuLevel> {
    static SAID: std::sync::Once = std::sync::Once::new();
    let missing = || CpuLevel::ALL.into_iter().filter(|level| !level.is_available());
    SAID.call_once(|| {
        missing().for_each(|level| require::absent(&format!("kernels at {level}"), "this CPU lacks the level"))
    });
    CpuLevel::available()
}

fn random(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    F32,
    Int8,
}

/// Every instruction set with every form of `packed`.
fn forms(packed: &Packed) -> impl Iterator<Item = (CpuLevel, Form, Matrix<'_>, &[f32])> {
    levels().flat_map(|level| [Form::F32, Form::Int8].map(|form| (level, form))).map(|(level, form)| {
        let (matrix, plain) = packed.matrix(form);
        (level, form, matrix, plain)
    })
}

/// A matrix in the packed forms, and as plain rows `[inputs, outputs]` for each.
struct Packed {
    plain: Vec<f32>,
    f32: Vec<f32>,
    int8: Vec<u8>,
    scales: Vec<f32>,
    /// What the int8 form stands for.
    rounded: Vec<f32>,
}

fn pack(rng: &mut ChaCha8Rng, inputs: usize, outputs: usize) -> Packed {
    let mut plain = random(rng, inputs * outputs);
    // Of many magnitudes.
    plain.iter_mut().step_by(29).for_each(|weight| *weight *= 10_f32.powi(-rng.random_range(0..35)));
    let mut packed = Packed {
        f32: vec![0.0; layout::len_f32(inputs, outputs)],
        int8: vec![128; layout::len_int8(inputs, outputs)],
        scales: vec![0.0; layout::panels(outputs) * layout::PANEL],
        rounded: vec![0.0; plain.len()],
        plain,
    };
    for o in 0..outputs {
        let largest = (0..inputs).map(|i| packed.plain[i * outputs + o].abs()).fold(0.0, f32::max);
        packed.scales[o] = largest / 127.0;
        for i in 0..inputs {
            let value = packed.plain[i * outputs + o];
            let q = (value / packed.scales[o]).round();
            packed.f32[layout::index_f32(inputs, i, o)] = value;
            packed.int8[layout::index_int8(inputs, i, o)] = (q + 128.0) as u8;
            packed.rounded[i * outputs + o] = q * packed.scales[o];
        }
    }
    packed
}

impl Packed {
    fn matrix(&self, form: Form) -> (Matrix<'_>, &[f32]) {
        match form {
            Form::F32 => (Matrix::F32(&self.f32), &self.plain),
            Form::Int8 => (Matrix::Int8(&self.int8, &self.scales), &self.rounded),
        }
    }
}

fn normalized(x: &[f32], norm: Norm) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let n = x.len() as f64;
    match norm {
        Norm::None => x,
        Norm::Layer { scale, bias, epsilon } => {
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let at = |(i, x): (usize, &f64)| {
                (x - mean) / (variance + f64::from(epsilon)).sqrt() * f64::from(scale[i])
                    + bias.map_or(0.0, |b| b[i].into())
            };
            x.iter().enumerate().map(at).collect()
        }
        Norm::Rms { scale, epsilon } => {
            let root = (x.iter().map(|x| x * x).sum::<f64>() / n + f64::from(epsilon)).sqrt();
            x.iter().zip(scale).map(|(x, scale)| x / root * f64::from(*scale)).collect()
        }
    }
}

/// What int8 does to a row: groups, each with the scale of its largest element.
fn quantized(x: &[f64]) -> Vec<f64> {
    x.chunks(layout::GROUP)
        .flat_map(|group| {
            let scale = group.iter().fold(0.0_f64, |largest, x| largest.max(x.abs())) / 127.0;
            group.iter().map(move |x| if scale > 0.0 { (x / scale).round_ties_even() * scale } else { 0.0 })
        })
        .collect()
}

fn activated(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Silu => x * sigmoid(x),
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Tanh => x.tanh(),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Gelu => {
            // The integral of the normal density, by Simpson's rule.
            let steps = 2000;
            let h = x / f64::from(steps);
            let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let sum: f64 = (0..=steps)
                .map(|i| {
                    density(f64::from(i) * h) * if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) }
                })
                .sum();
            x * (0.5 + sum * h / 3.0)
        }
    }
}

#[test]
fn linear_maps_are_the_sums_they_should_be() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let activations = ["none", "gelu", "gelu_tanh", "relu", "silu", "quick_gelu", "tanh"];
    for case in 0..60 {
        let (inputs, outputs, rows) = (rng.random_range(1..400), rng.random_range(1..400), rng.random_range(1..30));
        // Also the widths that AMX takes.
        let inputs = if case % 3 == 1 { rng.random_range(1..6) * 64 } else { inputs };
        let packed = pack(&mut rng, inputs, outputs);
        let (x, bias, scale) = (random(&mut rng, rows * inputs), random(&mut rng, outputs), random(&mut rng, inputs));
        let shift = random(&mut rng, inputs);
        let (factor, residual) = (random(&mut rng, rows * outputs), random(&mut rng, rows * outputs));
        let norm = match case % 3 {
            0 => Norm::None,
            1 => Norm::Layer { scale: &scale, bias: (case % 2 == 0).then_some(&shift[..]), epsilon: 1e-5 },
            _ => Norm::Rms { scale: &scale, epsilon: 1e-6 },
        };
        let activation = Activation::from_name(activations[case % 7]).expect("a name");
        for (level, form, weights, plain) in forms(&packed) {
            let int8 = form == Form::Int8;
            let bias = (case % 5 != 0).then_some(&bias[..]);
            let map = Linear { weights, inputs, outputs, norm, bias, activation };
            let arguments = linear::Arguments {
                x: &x,
                factor: (case % 4 == 0).then_some(Factor::Given(&factor)),
                residual: (case % 4 < 2).then_some(&residual[..]),
            };
            let mut y = vec![f32::NAN; rows * outputs];
            map.run(&mut Kernels::new(1 + case % 3, false, level), arguments, &mut y);
            for row in 0..rows {
                let exact = normalized(&x[row * inputs..(row + 1) * inputs], norm);
                let left = if int8 { quantized(&exact) } else { exact };
                for o in 0..outputs {
                    let sum: f64 = left.iter().enumerate().map(|(i, x)| x * f64::from(plain[i * outputs + o])).sum();
                    let mut wanted = activated(activation, sum + bias.map_or(0.0, |bias| bias[o].into()));
                    wanted *= if case % 4 == 0 { factor[row * outputs + o].into() } else { 1.0 };
                    wanted += arguments.residual.map_or(0.0, |residual| f64::from(residual[row * outputs + o]));
                    // int8: an element that lies between two steps may be rounded to the other one.
                    let allowed = if int8 { 0.03 } else { 3e-5 } * (1.0 + sum.abs());
                    let found = f64::from(y[row * outputs + o]);
                    assert!(
                        (found - wanted).abs() < allowed,
                        "{case} {level:?} {form:?} [{row}, {o}]: {found}, not {wanted}"
                    );
                }
            }
        }
    }
}

/// In one call or in two, every sum is the same.
#[test]
fn a_gate_is_the_factor_that_its_map_would_be() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for case in 0..40 {
        let (inputs, outputs, rows) = (64 * rng.random_range(1..5), rng.random_range(1..400), rng.random_range(1..50));
        let (gates, packed) = (pack(&mut rng, inputs, outputs), pack(&mut rng, inputs, outputs));
        let (x, residual) = (random(&mut rng, rows * inputs), random(&mut rng, rows * outputs));
        let (scale, bias) = (random(&mut rng, inputs), random(&mut rng, outputs));
        let norm = if case % 2 == 0 { Norm::Rms { scale: &scale, epsilon: 1e-6 } } else { Norm::None };
        for ((level, form, weights, _), (_, _, gate, _)) in forms(&packed).zip(forms(&gates)) {
            let mut kernels = Kernels::new(1 + case % 3, false, level);
            let bias = (case % 3 == 0).then_some(&bias[..]);
            let map = Linear { weights, inputs, outputs, norm, bias, activation: Activation::None };
            let gate = Linear { weights: gate, bias: None, activation: Activation::Silu, ..map };
            let residual = (case % 4 < 2).then_some(&residual[..]);
            let mut run = |map: Linear, factor, residual| {
                let mut y = vec![f32::NAN; rows * outputs];
                map.run(&mut kernels, linear::Arguments { x: &x, factor, residual }, &mut y);
                y
            };
            let factor = run(gate, None, None);
            let apart = run(map, Some(Factor::Given(&factor)), residual);
            let together = run(map, Some(Factor::Gate(&gate)), residual);
            assert!(apart == together, "{case} {level:?} {form:?}: {rows} x {inputs} x {outputs}");
        }
    }
}

#[test]
fn the_largest_int8_products_are_summed_without_overflow() {
    // Rows enough for AMX.
    let (inputs, rows) = (2 * layout::GROUP, 9);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    // Signs that agree, that differ, and any.
    let x: Vec<f32> = (0..rows * inputs).map(|i| if i / inputs < 3 || rng.random() { 1.0 } else { -1.0 }).collect();
    let signs: Vec<f32> = (0..layout::PANEL * inputs)
        .map(|i| match i / inputs {
            0 => 1.0,
            1 => -1.0,
            _ if rng.random() => 1.0,
            _ => -1.0,
        })
        .collect();
    let mut int8 = vec![0; layout::len_int8(inputs, layout::PANEL)];
    for (i, sign) in signs.iter().enumerate() {
        int8[layout::index_int8(inputs, i % inputs, i / inputs)] = (128.0 + 127.0 * sign) as u8;
    }
    for negated in [false, true] {
        let x: Vec<f32> = x.iter().map(|x| if negated { -x } else { *x }).collect();
        for level in levels() {
            let weights = Matrix::Int8(&int8, &[1.0 / 127.0; layout::PANEL]);
            let (activation, bias) = (Activation::None, None);
            let map = Linear { weights, inputs, outputs: layout::PANEL, norm: Norm::None, bias, activation };
            let mut y = vec![0.0; rows * layout::PANEL];
            let arguments = linear::Arguments { x: &x, factor: None, residual: None };
            map.run(&mut Kernels::new(1, false, level), arguments, &mut y);
            for (at, found) in y.iter().enumerate() {
                let (row, o) = (at / layout::PANEL, at % layout::PANEL);
                let wanted: f32 = (0..inputs).map(|i| x[row * inputs + i] * signs[o * inputs + i]).sum();
                assert!((found - wanted).abs() < 1e-3, "{level:?} [{row}, {o}]: {found}, not {wanted}");
            }
        }
    }
}

#[test]
fn a_row_has_the_result_that_it_has_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    // Some that AMX takes and some that it doesn't; rows for more of its tiles than take turns.
    for (inputs, outputs, rows) in [(200, 70, 40), (192, 70, 80), (320, 200, 20)] {
        alone_and_in_company(&mut rng, inputs, outputs, rows);
    }
}

fn alone_and_in_company(rng: &mut ChaCha8Rng, inputs: usize, outputs: usize, rows: usize) {
    let packed = pack(rng, inputs, outputs);
    let (x, scale) = (random(rng, rows * inputs), random(rng, inputs));
    // AMX and AVX-512 add up in the same order.
    let mut int8_result: Option<Vec<f32>> = None;
    for (level, form, weights, _) in forms(&packed) {
        let norm = Norm::Layer { scale: &scale, bias: None, epsilon: 1e-5 };
        let map = Linear { weights, inputs, outputs, norm, bias: None, activation: Activation::GeluTanh };
        let run = |x: &[f32], threads: usize| {
            let mut y = vec![0.0; x.len() / inputs * outputs];
            map.run(
                &mut Kernels::new(threads, false, level),
                linear::Arguments { x, factor: None, residual: None },
                &mut y,
            );
            y
        };
        let alone: Vec<f32> = x.chunks_exact(inputs).flat_map(|row| run(row, 1)).collect();
        if form == Form::Int8 && matches!(level, CpuLevel::Amx | CpuLevel::Avx512) {
            assert_eq!(int8_result.get_or_insert_with(|| alone.clone()), &alone, "{level:?}");
        }
        for count in 1..=rows {
            for threads in [1, 3] {
                assert_eq!(
                    run(&x[..count * inputs], threads),
                    alone[..count * outputs],
                    "{level:?} {form:?} {count} {threads}"
                );
            }
        }
    }
}

#[test]
fn the_head_finds_the_best_and_their_normalizer() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for case in 0..30 {
        let inputs = rng.random_range(1..80);
        let vocab = [5, 63, 200, 5003][case % 4];
        let (padded, top_k) = (usize::next_multiple_of(vocab, 8), [1, 5, 64][case % 3].min(vocab));
        let packed = pack(&mut rng, inputs, vocab);
        // Some logits alike, to see which comes first.
        let x: Vec<f32> =
            random(&mut rng, 6 * inputs).into_iter().map(|x| if case % 5 == 0 { 0.0 } else { 20.0 * x }).collect();
        let select = [4, 0, 5, 4];
        for level in levels() {
            let linear = Linear {
                weights: packed.matrix(Form::F32).0,
                inputs,
                outputs: vocab,
                norm: Norm::None,
                bias: None,
                activation: Activation::None,
            };
            let (mut logits, mut top_logits) = (vec![0.0; 4 * padded], vec![0.0; 4 * top_k]);
            let (mut top_ids, mut logsumexp) = (vec![0; 4 * top_k], vec![0.0; 4]);
            let mut kernels = Kernels::new(2, false, level);
            let out = Distributions {
                logits: &mut logits,
                top_logits: &mut top_logits,
                top_ids: &mut top_ids,
                logsumexp: &mut logsumexp,
            };
            Head { linear, padded, top_k }.run(&mut kernels, &x, &select, out).expect("rows that exist");
            for (r, from) in select.iter().enumerate() {
                let row = &logits[r * padded..(r + 1) * padded];
                assert!(row[vocab..].iter().all(|pad| *pad == -1e30));
                let product = |o: usize| -> f64 {
                    (0..inputs)
                        .map(|i| f64::from(x[*from as usize * inputs + i]) * f64::from(packed.plain[i * vocab + o]))
                        .sum()
                };
                assert!((0..vocab).all(|o| (f64::from(row[o]) - product(o)).abs() < 1e-3));
                let mut order: Vec<usize> = (0..vocab).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
                for k in 0..top_k {
                    assert_eq!(top_ids[r * top_k + k], order[k] as i64, "{case} {level:?}");
                    assert_eq!(top_logits[r * top_k + k], row[order[k]]);
                }
                let largest = f64::from(row[order[0]]);
                let exact = largest + row[..vocab].iter().map(|x| (f64::from(*x) - largest).exp()).sum::<f64>().ln();
                assert!(
                    (f64::from(logsumexp[r]) - exact).abs() < 2e-6 * exact.abs().max(1.0),
                    "{} {exact}",
                    logsumexp[r]
                );
            }
        }
    }
}

#[test]
fn what_is_no_number_shows_in_the_normalizer() {
    for (level, vocab) in levels().flat_map(|level| [(level, 5), (level, 300)]) {
        let weights = vec![1.0; layout::len_f32(1, vocab)];
        let linear = Linear {
            weights: Matrix::F32(&weights),
            inputs: 1,
            outputs: vocab,
            norm: Norm::None,
            bias: None,
            activation: Activation::None,
        };
        let (mut logits, mut top_logits, mut top_ids, mut logsumexp) = (vec![0.0; vocab], [0.0; 3], [0; 3], [0.0]);
        let out = Distributions {
            logits: &mut logits,
            top_logits: &mut top_logits,
            top_ids: &mut top_ids,
            logsumexp: &mut logsumexp,
        };
        let head = Head { linear, padded: vocab, top_k: 3 };
        head.run(&mut Kernels::new(1, false, level), &[f32::NAN], &[0], out).expect("a row that exists");
        assert!(logsumexp[0].is_nan(), "{level:?}");
        assert!(top_ids.iter().all(|id| (0..vocab as i64).contains(id)));
        let out = Distributions {
            logits: &mut logits,
            top_logits: &mut top_logits,
            top_ids: &mut top_ids,
            logsumexp: &mut logsumexp,
        };
        assert_eq!(head.run(&mut Kernels::new(1, false, CpuLevel::detect()), &[0.0], &[1], out), Err(1));
    }
}

#[test]
fn embeddings_are_columns_of_the_heads_matrix() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for hidden in [11, 24] {
        embeddings_of(&mut rng, hidden, 37);
    }
}

fn embeddings_of(rng: &mut ChaCha8Rng, hidden: usize, vocab: usize) {
    let packed = pack(rng, hidden, vocab);
    let positions = random(rng, 6 * hidden);
    let (ids, past_len) = ([3, 36, 0, 16, 15, 1], [0, 4]);
    for (_, _, table, plain) in forms(&packed) {
        let embedding = Embedding { table, hidden, vocab, positions: Some(&positions) };
        let mut y = vec![f32::NAN; ids.len() * hidden];
        embedding.run(&ids, &past_len, &mut y).expect("ids of the vocabulary");
        for (at, id) in ids.iter().enumerate() {
            let position = (past_len[at / 3] as usize + at % 3).min(5);
            for d in 0..hidden {
                let wanted = plain[d * vocab + *id as usize] + positions[position * hidden + d];
                assert!((y[at * hidden + d] - wanted).abs() < 1e-6);
            }
        }
        assert_eq!(embedding.run(&[37], &[0], &mut y[..hidden]), Err(37));
        assert_eq!(embedding.run(&[-1], &[0], &mut y[..hidden]), Err(-1));
    }
}
