//! The inputs of a step, and the values that `blocks` derives from them: positions and the causal mask. The fused
//! operators derive both themselves from `past_len`, so this file accepts exactly these forms.

use super::rewriter::{Rewriter, attribute, input};

/// The input with the token ids, i64 `[B, S]`.
pub(crate) const INPUT_IDS: &str = "input_ids";
/// The input with the number of cached positions of each row, i64 `[B]`.
pub(crate) const PAST_LEN: &str = "past_len";
/// i64 `[B, context]`, of graphs whose attention is rewritten: the place of each position.
pub(crate) const PLACES: &str = "kv_places";
/// The input with the positions whose logits are wanted, i64 `[R]`.
pub(crate) const SELECT: &str = "select";

/// The largest position, if the value is the position of each token, at most that: `Min(past_len[b] + s, last)`, `[B,
/// S]`.
pub(crate) fn clipped_positions(r: &Rewriter, value: &str) -> Option<i64> {
    let clip = r.made_by(value, "Min")?;
    let (positions, last) = (input(clip, 0)?, input(clip, 1)?);
    match r.integers(last)?.as_slice() {
        [last] if is_positions(r, positions) => Some(*last),
        _ => None,
    }
}

/// Whether the value is bool `[B, 1, S, context]`: true where the slot is at most the token's position.
pub(crate) fn is_causal_mask(r: &Rewriter, value: &str, context: i64) -> bool {
    let found = || {
        let compare = r.made_by(value, "LessOrEqual")?;
        let slots = r.integers(input(compare, 0)?)?;
        let queries = r.made_by(input(compare, 1)?, "Unsqueeze")?;
        let axes = r.integers(input(queries, 1)?)?;
        let positions = is_positions(r, input(queries, 0)?);
        Some(positions && axes == [1, 3] && slots.into_iter().eq(0..context))
    };
    found().unwrap_or(false)
}

/// The slopes of the heads, a parameter, if the value is f32 `[B, H, S, context]`: the distance of each visible slot
/// from the token's position times the head's slope, and a large negative number for the others.
pub(crate) fn linear_biases(r: &Rewriter, value: &str, context: i64) -> Option<String> {
    let visible = r.made_by(value, "Where")?;
    let biases = r.made_by(input(visible, 1)?, "Mul")?;
    let distances = r.made_by(r.made_by(input(biases, 0)?, "Cast").and_then(|cast| input(cast, 0))?, "Sub")?;
    let queries = r.made_by(input(distances, 1)?, "Unsqueeze")?;
    let slopes = input(biases, 1)?;
    let right = is_causal_mask(r, input(visible, 0)?, context)
        && r.scalar(input(visible, 2)?)? <= -1e30
        && r.integers(input(distances, 0)?)?.into_iter().eq(0..context)
        && r.integers(input(queries, 1)?)? == [1, 3]
        && clipped_positions(r, input(queries, 0)?)? + 1 == context
        && r.parameter(slopes).is_some();
    right.then(|| slopes.to_owned())
}

/// Whether the value is `past_len[b] + s`, i64 `[B, S]`.
fn is_positions(r: &Rewriter, value: &str) -> bool {
    let found = || {
        let sum = r.made_by(value, "Add")?;
        let starts = r.made_by(input(sum, 0)?, "Unsqueeze")?;
        let offsets = r.made_by(input(sum, 1)?, "Range")?;
        let starts_right = input(starts, 0)? == PAST_LEN && r.integers(input(starts, 1)?)? == [1];
        let counts_tokens = r.integers(input(offsets, 0)?)? == [0]
            && is_token_count(r, input(offsets, 1)?)
            && r.integers(input(offsets, 2)?)? == [1];
        Some(starts_right && counts_tokens)
    };
    found().unwrap_or(false)
}

/// Whether the value is S, of no dimensions.
fn is_token_count(r: &Rewriter, value: &str) -> bool {
    let found = || {
        let scalar = r.made_by(value, "Squeeze")?;
        let shape = r.made_by(input(scalar, 0)?, "Shape")?;
        let bound = |name| attribute(shape, name).and_then(|attribute| attribute.i);
        Some(input(shape, 0)? == INPUT_IDS && bound("start") == Some(1) && bound("end") == Some(2))
    };
    found().unwrap_or(false)
}
