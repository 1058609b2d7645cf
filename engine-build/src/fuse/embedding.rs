//! `Embedding`: the rows of the token ids plus, where the graph has them, the rows of their positions.

use super::rewriter::{Fused, Rewriter, input, int, other_input};
use super::step;
use crate::onnx::{Attribute, Element, Source};
use crate::packing::Panels;

/// Learned positions that are added.
struct Positions {
    slots: [usize; 2],
    /// The matrix, and its rows before position 0.
    matrix: String,
    offset: u64,
    output: String,
}

pub(crate) fn fuse(r: &mut Rewriter, vocab: u64) {
    for slot in 0..r.len() {
        replace(r, slot, vocab);
    }
}

fn replace(r: &mut Rewriter, slot: usize, vocab: u64) -> Option<()> {
    let node = r.operator(slot, "Gather")?;
    let (table, ids, tokens) = (input(node, 0)?.to_owned(), input(node, 1)?, node.output.first()?.clone());
    let parameter = r.parameter(&table)?;
    let [rows, inputs] = *parameter.shape.as_slice() else { return None };
    let fits = ids == step::INPUT_IDS && int(node, "axis", 0) == 0 && parameter.element == Element::F32;
    if !fits || rows < vocab {
        return None;
    }
    let mut slots = vec![slot];
    let mut output = tokens.clone();
    let mut positions = None;
    if let Some(found) = positions_added(r, &tokens, inputs) {
        let Positions { slots: added, matrix, offset, output: sum } = found;
        positions = Some(cut_rows(r, &matrix, offset)?);
        slots.extend(added);
        output = sum;
    }
    let panels = Panels { inputs, outputs: vocab, first: 0, stored_outputs: rows, output_rows: true };
    let weight = r.pack(&table, panels, None)?;
    let past_len = positions.is_some().then(|| step::PAST_LEN.to_owned());
    let mut inputs_given = vec![Some(step::INPUT_IDS.to_owned()), Some(weight.matrix)];
    inputs_given.extend(weight.scale.iter().cloned().map(Some));
    inputs_given.extend([positions, past_len]);
    let attributes =
        vec![Attribute::Int("inputs", inputs.cast_signed()), Attribute::Int("outputs", vocab.cast_signed())];
    let operator = if weight.scale.is_some() { "EmbeddingInt8" } else { "Embedding" };
    r.replace(&slots, &Fused { operator, inputs: inputs_given, outputs: vec![output], attributes });
    Some(())
}

/// The rows of the positions, if the tokens' rows are only used in a sum with them.
fn positions_added(r: &Rewriter, tokens: &str, width: u64) -> Option<Positions> {
    let sum = r.only_user(tokens)?;
    let added = other_input(r.operator(sum, "Add")?, tokens)?;
    let slot = r.producer(added).filter(|_| r.only_user(added) == Some(sum))?;
    let gather = r.operator(slot, "Gather")?;
    let (matrix, indices) = (input(gather, 0)?, input(gather, 1)?);
    let (offset, last) = offset_positions(r, indices)?;
    let parameter = r.parameter(matrix)?;
    let cut = offset == 0 || matches!(parameter.source, Source::Checkpoint(_));
    let whole = parameter.shape == [offset + u64::try_from(last).ok()? + 1, width];
    let fits = int(gather, "axis", 0) == 0 && parameter.element == Element::F32 && cut && whole;
    fits.then(|| Positions {
        slots: [slot, sum],
        matrix: matrix.to_owned(),
        offset,
        output: r.node(sum).map(|node| node.output[0].clone()).unwrap_or_default(),
    })
}

/// The offset that is added to positions, and the largest position.
pub(crate) fn offset_positions(r: &Rewriter, indices: &str) -> Option<(u64, i64)> {
    if let Some(last) = step::clipped_positions(r, indices) {
        return Some((0, last));
    }
    let sum = r.made_by(indices, "Add")?;
    let last = step::clipped_positions(r, input(sum, 0)?)?;
    match r.integers(input(sum, 1)?)?.as_slice() {
        [offset] => Some((u64::try_from(*offset).ok()?, last)),
        _ => None,
    }
}

/// The matrix without its first rows.
fn cut_rows(r: &mut Rewriter, matrix: &str, offset: u64) -> Option<String> {
    if offset == 0 {
        return Some(matrix.to_owned());
    }
    let parameter = r.parameter(matrix)?;
    let (Source::Checkpoint(tensor), [rows, width]) = (&parameter.source, parameter.shape.as_slice()) else {
        return None;
    };
    let (shape, source) = (vec![rows - offset, *width], Source::Checkpoint(tensor.without_first(offset * width)));
    r.derive(matrix, "rows", shape, source)
}
