//! Attention against plain sums in f64, whatever slots its positions are in; and a prompt in chunks against one token
//! by token.

use kernels::attention::{Arguments, Attention, Heads, Rotary, SlotError};
use kernels::{CpuLevel, Kernels};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{levels, random};

/// Slots of the cache in these tests.
const SLOTS: usize = 230;

/// A table `[rows, context]` over so many slots in no order. Rows share the positions that they all have behind them
/// with the first row, or don't.
fn slots(rng: &mut ChaCha8Rng, context: usize, past_len: &[i64], share: bool) -> Vec<i64> {
    let mut all: Vec<i64> = (0..SLOTS as i64).collect();
    all.shuffle(rng);
    let mut table: Vec<i64> = all.into_iter().take(past_len.len() * context).collect();
    let common = past_len.iter().min().map_or(0, |past| *past as usize);
    let (first, others) = table.split_at_mut(context);
    for row in others.chunks_exact_mut(context).filter(|_| share) {
        row[..common].copy_from_slice(&first[..common]);
    }
    table
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

/// A head's vector at a position, in f64.
fn rotated(head: &[f32], rotary: Option<&Rotary>, position: usize) -> Vec<f64> {
    let mut to = wide(head);
    let Some(rotary) = rotary else { return to };
    let half = rotary.dim / 2;
    for pair in 0..half {
        let (a, b) = if rotary.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
        let at = position * half + pair;
        let (c, s) = (f64::from(rotary.cos[at]), f64::from(rotary.sin[at]));
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        (to[a], to[b]) = (x * c - y * s, y * c + x * s);
    }
    to
}

#[test]
fn attention_is_a_softmax_over_what_is_there() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for case in 0..40 {
        let (kv_heads, group, half) = (rng.random_range(1..4), rng.random_range(1..3), rng.random_range(1..40));
        // Some heads are rotated in part.
        let (heads, dim) = (kv_heads * group, 2 * half + [0, 6][case / 2 % 2]);
        let (rows, tokens, context) = (rng.random_range(1..4), [1, 1, 3, 37][case % 4], 50);
        let past_len: Vec<i64> = (0..rows).map(|_| rng.random_range(0..(context - tokens + 1) as i64)).collect();
        let width = (heads + 2 * kv_heads) * dim;
        let fused = random(&mut rng, rows * tokens * width);
        let part = |offset| Heads { values: &fused, width, offset, stride: dim };
        let (cos, sin) = (random(&mut rng, context * half), random(&mut rng, context * half));
        let interleaved = case % 2 == 0;
        let rotary = (case % 3 > 0).then_some(Rotary { cos: &cos, sin: &sin, dim: 2 * half, interleaved });
        let scale = 0.3;
        let slopes = random(&mut rng, heads);
        // Every head has a cache of its own then.
        let slopes = (group == 1 && case % 5 > 1).then_some(&slopes[..]);
        let attention = Attention { heads, kv_heads, head_dim: dim, scale, rotary, slopes };
        let cache = random(&mut rng, SLOTS * kv_heads * dim);
        let slots = slots(&mut rng, context, &past_len, case % 2 == 0);
        let rotate = |head: &[f32], position: usize| rotated(head, rotary.as_ref(), position);
        for level in levels() {
            let (mut keys, mut values) = (cache.clone(), cache.clone());
            let mut y = vec![f32::NAN; rows * tokens * heads * dim];
            let parts = [part(0), part(heads * dim), part((heads + kv_heads) * dim)];
            let arguments =
                Arguments { heads: parts, past_len: &past_len, slots: &slots, keys: &mut keys, values: &mut values };
            let mut kernels = Kernels::new(1 + case % 2, false, level);
            attention.run(&mut kernels, arguments, &mut y).expect("slots that there are");
            for (row, token, head) in
                (0..rows).flat_map(|r| (0..tokens).flat_map(move |t| (0..heads).map(move |h| (r, t, h))))
            {
                let past = past_len[row] as usize;
                let of = |token: usize, from: usize| &fused[(row * tokens + token) * width + from..][..dim];
                let slot = |position: usize| slots[row * context + position] as usize;
                let old = |position| &cache[(slot(position) * kv_heads + head / group) * dim..][..dim];
                let query = rotate(of(token, head * dim), past + token);
                let seen: Vec<(Vec<f64>, Vec<f64>)> = (0..=past + token)
                    .map(|position| match position.checked_sub(past) {
                        None => (wide(old(position)), wide(old(position))),
                        Some(new) => (
                            rotate(of(new, (heads + head / group) * dim), position),
                            wide(of(new, (heads + kv_heads + head / group) * dim)),
                        ),
                    })
                    .collect();
                let slope = slopes.map_or(0.0, |slopes| f64::from(slopes[head]));
                let weight = |(position, (key, _)): (usize, &(Vec<f64>, Vec<f64>))| {
                    let product = query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale);
                    (product - slope * (past + token - position) as f64).exp()
                };
                let weights: Vec<f64> = seen.iter().enumerate().map(weight).collect();
                let total: f64 = weights.iter().sum();
                for d in 0..dim {
                    let wanted =
                        seen.iter().zip(&weights).map(|((_, value), weight)| value[d] * weight).sum::<f64>() / total;
                    let found = f64::from(y[((row * tokens + token) * heads + head) * dim + d]);
                    assert!(
                        (found - wanted).abs() < 1e-5,
                        "{case} {level:?} [{row}, {token}, {head}, {d}]: {found}, not {wanted}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_prompt_in_chunks_is_the_prompt_token_by_token() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (group, dim) in [(1, 64), (2, 48), (3, 20)] {
        let (tokens, heads) = (150, 2 * group);
        let width = (heads + 4) * dim;
        let fused = random(&mut rng, tokens * width);
        let slopes = (group == 1).then(|| random(&mut rng, heads));
        let attention =
            Attention { heads, kv_heads: 2, head_dim: dim, scale: 0.2, rotary: None, slopes: slopes.as_deref() };
        let table = slots(&mut rng, 170, &[0], false);
        for level in levels() {
            let mut kernels = Kernels::new(2, false, level);
            // Tokens `chunk` at a time into a cache of more positions than they need.
            let mut read = |chunk: usize| {
                let (mut keys, mut values) = (vec![0.0; 2 * SLOTS * dim], vec![0.0; 2 * SLOTS * dim]);
                let mut y = vec![f32::NAN; tokens * heads * dim];
                for first in (0..tokens).step_by(chunk) {
                    let past = [first as i64];
                    let some = &fused[first * width..(first + chunk) * width];
                    let part = |offset| Heads { values: some, width, offset, stride: dim };
                    let heads_of = [part(0), part(heads * dim), part((heads + 2) * dim)];
                    let arguments = Arguments {
                        heads: heads_of,
                        past_len: &past,
                        slots: &table,
                        keys: &mut keys,
                        values: &mut values,
                    };
                    let out = &mut y[first * heads * dim..(first + chunk) * heads * dim];
                    attention.run(&mut kernels, arguments, out).expect("slots that there are");
                }
                y
            };
            let alone = read(1);
            for chunk in [2, 5, 10, 25, 75, 150] {
                assert!(read(chunk) == alone, "{level:?}, {group} heads a cache, {dim} elements, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn a_row_among_many_is_the_row_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    // Heads are read side by side where rows are many, and all by themselves where there is one.
    for (group, dim) in [(1, 64), (4, 48), (3, 20)] {
        let (rows, kv_heads, context) = (40, 6, 5);
        let heads = kv_heads * group;
        let past_len: Vec<i64> = (0..rows).map(|row| row % context as i64).collect();
        let slots = slots(&mut rng, context, &past_len, false);
        let width = (heads + 2 * kv_heads) * dim;
        let fused = random(&mut rng, rows as usize * width);
        let cache = random(&mut rng, SLOTS * kv_heads * dim);
        let slopes = (group == 1).then(|| random(&mut rng, heads));
        let attention =
            Attention { heads, kv_heads, head_dim: dim, scale: 0.2, rotary: None, slopes: slopes.as_deref() };
        for level in levels() {
            let run = |fused: &[f32], past_len: &[i64], slots: &[i64]| {
                let part = |offset| Heads { values: fused, width, offset, stride: dim };
                let parts = [part(0), part(heads * dim), part((heads + kv_heads) * dim)];
                let (mut keys, mut values) = (cache.clone(), cache.clone());
                let mut y = vec![f32::NAN; past_len.len() * heads * dim];
                let arguments = Arguments { heads: parts, past_len, slots, keys: &mut keys, values: &mut values };
                attention.run(&mut Kernels::new(2, false, level), arguments, &mut y).expect("slots that there are");
                y
            };
            let alone = fused.chunks_exact(width).zip(past_len.chunks_exact(1)).zip(slots.chunks_exact(context));
            let alone: Vec<f32> = alone.flat_map(|((fused, past), slots)| run(fused, past, slots)).collect();
            assert!(run(&fused, &past_len, &slots) == alone, "{level:?}, {group} heads a cache, {dim} elements");
        }
    }
}

/// One head of two elements, three tokens of ones for each row, over slots of 0.5.
fn ones(slots: &[i64], past_len: &[i64]) -> (Result<(), SlotError>, Vec<f32>, Vec<f32>) {
    let attention = Attention { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0, rotary: None, slopes: None };
    let values = vec![1.0; past_len.len() * 3 * 2];
    let part = Heads { values: &values, width: 2, offset: 0, stride: 2 };
    let (mut keys, mut mixed, mut y) = (vec![0.5; 6 * 2], vec![0.5; 6 * 2], vec![f32::NAN; values.len()]);
    let arguments = Arguments { heads: [part; 3], past_len, slots, keys: &mut keys, values: &mut mixed };
    let result = attention.run(&mut Kernels::new(2, false, CpuLevel::detect()), arguments, &mut y);
    (result, keys, y)
}

#[test]
fn tokens_beyond_the_context_are_left_out() {
    let (result, keys, y) = ones(&[3, 1, 5, 0], &[2]);
    result.expect("slots that there are");
    assert_eq!(keys, [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]);
    assert!(y.iter().all(|y| y.is_finite()));
}

#[test]
fn slots_that_cannot_be_are_refused_and_nothing_is_written() {
    let cases = [
        (&[0, 6, 2, 3][..], &[2][..], SlotError::Outside { row: 0, position: 1, slot: 6, slots: 6 }),
        (&[0, 1, -1, 3], &[2], SlotError::Outside { row: 0, position: 2, slot: -1, slots: 6 }),
        (&[0, 2, 2, 3], &[2], SlotError::Shared { row: 0, position: 1, slot: 2 }),
        (&[0, 1, 2, 2], &[2], SlotError::Shared { row: 0, position: 3, slot: 2 }),
        // The second row reads, or writes, what the first one writes.
        (&[0, 1, 2, 3, 0, 2, 4, 5], &[2, 2], SlotError::Shared { row: 1, position: 1, slot: 2 }),
        (&[0, 1, 2, 3, 0, 1, 4, 3], &[2, 2], SlotError::Shared { row: 1, position: 3, slot: 3 }),
    ];
    for (slots, past_len, error) in cases {
        let (result, keys, _) = ones(slots, past_len);
        assert_eq!(result, Err(error), "{slots:?}");
        assert_eq!(keys, [0.5; 12], "{slots:?}");
    }
    ones(&[0, 1, 2, 3, 0, 1, 4, 5], &[2, 2]).0.expect("rows may share what they only read");
    ones(&[0, 1, 7, 7], &[4]).0.expect_err("slots that are read");
    ones(&[0, 1, 2, 7], &[0]).0.expect("nobody asks where the last position is");
}

#[test]
fn a_refusal_leaves_no_mark() {
    let attention = Attention { heads: 1, kv_heads: 1, head_dim: 2, scale: 1.0, rotary: None, slopes: None };
    let (values, mut kernels) = ([1.0; 2 * 2], Kernels::new(1, false, CpuLevel::detect()));
    let part = Heads { values: &values, width: 2, offset: 0, stride: 2 };
    let mut run = |slots: &[i64]| {
        let (mut keys, mut mixed, mut y) = ([0.5; 6 * 2], [0.5; 6 * 2], [0.0; 2 * 2]);
        let arguments = Arguments { heads: [part; 3], past_len: &[1, 1], slots, keys: &mut keys, values: &mut mixed };
        attention.run(&mut kernels, arguments, &mut y)
    };
    for refused in [[0, 1, 2, 1], [0, 1, 1, 2], [0, 1, 0, 9]] {
        run(&refused).expect_err("slots that can't be");
        run(&[0, 2, 0, 1]).expect("no mark of the call before");
    }
}
