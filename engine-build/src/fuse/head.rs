//! `Head`: from the selected rows to logits, their top k, and their logsumexp.

use super::norm::Norm;
use super::rewriter::{Fused, Rewriter, input, int};
use super::step;
use crate::onnx::{Attribute, Element, Source};
use crate::packing::Panels;

/// Logits of padding are below this.
const PAD_BELOW: f32 = -1e29;

/// The nodes that become the operator.
struct Found {
    /// `[B, S, E]`, before selection and normalization.
    x: String,
    norm: Option<Norm>,
    matrix: String,
    bias: Bias,
    panels: Panels,
    padded: u64,
    top_k: i64,
    outputs: Vec<String>,
    slots: Vec<usize>,
}

/// The bias of the logits of real ids.
enum Bias {
    None,
    Stored(String),
    /// The stored one's values for real ids.
    Cut(String, Source),
}

pub(crate) fn fuse(r: &mut Rewriter, vocab: u64) {
    for slot in 0..r.len() {
        if let Some(found) = find(r, slot, vocab) {
            replace(r, found);
        }
    }
}

/// `slot` is that of the top-k.
fn find(r: &Rewriter, slot: usize, vocab: u64) -> Option<Found> {
    let top = r.operator(slot, "TopK")?;
    let (logits, [topv, topi]) = (input(top, 0)?, top.output.as_slice()) else { return None };
    let top_k = *r.integers(input(top, 1)?)?.first()?;
    let best_first = int(top, "largest", 1) == 1 && int(top, "sorted", 1) == 1 && int(top, "axis", -1) == -1;
    let (lse, mut slots) = log_sum_exp(r, logits, topv).filter(|_| best_first)?;

    let product_slot = r.producer(logits)?;
    let product = r.operator(product_slot, "Gemm")?;
    let (rows, matrix) = (input(product, 0)?, input(product, 1)?);
    let parameter = r.parameter(matrix)?;
    let [padded, inputs] = *parameter.shape.as_slice() else { return None };
    let plain = int(product, "transB", 0) == 1 && product.attribute.len() == 1 && parameter.element == Element::F32;
    if !plain || padded < vocab {
        return None;
    }
    let bias = real_bias(r, input(product, 2), vocab, padded)?;
    let norm = Norm::of(r, rows, inputs, |user| user == product_slot);
    let selected = norm.as_ref().map_or(rows, |norm| &norm.x);
    let x = unselected(r, selected, inputs)?;
    slots.extend([slot, product_slot]);
    Some(Found {
        x,
        norm,
        matrix: matrix.to_owned(),
        bias,
        panels: Panels { inputs, outputs: vocab, first: 0, stored_outputs: padded, output_rows: true },
        padded,
        top_k,
        outputs: vec![logits.to_owned(), topv.clone(), topi.clone(), lse],
        slots,
    })
}

/// `lse` of the logits, whose largest ones are `topv`: its name, and the nodes that compute it.
fn log_sum_exp(r: &Rewriter, logits: &str, topv: &str) -> Option<(String, Vec<usize>)> {
    let [slice] = *r.users(topv) else { return None };
    let sliced = r.operator(slice, "Slice")?;
    let bounds: Vec<_> = (1..=3).map(|at| r.integers(input(sliced, at)?)).collect::<Option<_>>()?;
    let maximum = sliced.output.first()?;
    let shift = r.users(logits).iter().copied().find(|user| r.operator(*user, "Sub").is_some())?;
    let shifted = r.node(shift)?;
    let is_shift = shifted.input[0] == logits && shifted.input[1] == *maximum && r.users(logits).len() == 2;

    let next = |value: &str, operator| r.only_user(value).filter(|slot| r.operator(*slot, operator).is_some());
    let output = |slot: usize| r.node(slot)?.output.first().map(String::as_str);
    let exponential = next(output(shift)?, "Exp")?;
    let sum = next(output(exponential)?, "ReduceSum")?;
    let over_ids = r.integers(input(r.node(sum)?, 1)?)? == [1] && int(r.node(sum)?, "keepdims", 1) == 1;
    let logarithm = next(output(sum)?, "Log")?;
    let total = next(output(logarithm)?, "Add")?;
    let total_node = r.node(total)?;
    let unshifted = total_node.input[0] == output(logarithm)? && total_node.input[1] == *maximum;
    let maximum_only = r.inner_users(maximum).len() == 2 && bounds == [vec![0], vec![1], vec![1]];
    let found = is_shift && over_ids && unshifted && maximum_only;
    found.then(|| Some((output(total)?.to_owned(), vec![slice, shift, exponential, sum, logarithm, total])))?
}

/// What is added to the logits of real ids, if the padding's are made as low as the operator makes them.
fn real_bias(r: &Rewriter, bias: Option<&str>, vocab: u64, padded: u64) -> Option<Bias> {
    let Some(bias) = bias else { return (vocab == padded).then_some(Bias::None) };
    let parameter = r.parameter(bias).filter(|_| r.is_vector(bias, padded))?;
    match &parameter.source {
        Source::Computed(values) => {
            let (real, pads) = values.split_at_checked(usize::try_from(vocab).ok()?)?;
            let zero = real.iter().all(|value| *value == 0.0);
            let bias = if zero { Bias::None } else { Bias::Cut(bias.to_owned(), Source::Computed(real.to_vec())) };
            pads.iter().all(|pad| *pad < PAD_BELOW).then_some(bias)
        }
        Source::Padded { tensor, pad } if vocab < padded && tensor.elements == vocab => {
            (*pad < PAD_BELOW).then(|| Bias::Cut(bias.to_owned(), Source::Checkpoint(tensor.clone())))
        }
        _ => (vocab == padded).then(|| Bias::Stored(bias.to_owned())),
    }
}

/// The rows `[B, S, width]` that `select` picks from.
fn unselected(r: &Rewriter, selected: &str, width: u64) -> Option<String> {
    let gather = r.made_by(selected, "Gather")?;
    let flat = r.made_by(input(gather, 0)?, "Reshape")?;
    let by_select = input(gather, 1)? == step::SELECT && int(gather, "axis", 0) == 0;
    let shape = r.integers(input(flat, 1)?)?;
    (by_select && shape == [-1, i64::try_from(width).ok()?]).then(|| flat.input[0].clone())
}

fn replace(r: &mut Rewriter, found: Found) {
    let reading = r.reading("Head", &found.slots, found.panels.inputs);
    let Some(weight) = r.pack(&found.matrix, found.panels, reading) else { return };
    let bias = match found.bias {
        Bias::None => None,
        Bias::Stored(bias) => Some(bias),
        Bias::Cut(bias, source) => r.derive(&bias, "real", vec![found.panels.outputs], source),
    };
    let mut attributes = vec![
        Attribute::Int("inputs", found.panels.inputs.cast_signed()),
        Attribute::Int("outputs", found.panels.outputs.cast_signed()),
        Attribute::Int("padded", found.padded.cast_signed()),
        Attribute::Int("top_k", found.top_k),
    ];
    attributes.extend(Norm::attributes(found.norm.as_ref()));
    let (norm_scale, norm_bias) = found.norm.map(|norm| (norm.scale, norm.bias)).unzip();
    let mut inputs = vec![Some(found.x), Some(step::SELECT.to_owned()), Some(weight.matrix)];
    inputs.extend(weight.scale.iter().cloned().map(Some));
    inputs.extend([bias, norm_scale, norm_bias.flatten()]);
    let operator = if weight.scale.is_some() { "HeadInt8" } else { "Head" };
    r.replace(&found.slots, &Fused { operator, inputs, outputs: found.outputs, attributes });
}
