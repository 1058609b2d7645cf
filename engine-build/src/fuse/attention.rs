//! `Attention`: splits rows into heads, applies rotary embeddings, writes the cache and attends over it.
//!
//! The caches of a rewritten graph are `[places, kv_heads, head_dim]`. Its input `kv_places`, i64 `[B, context]`, maps
//! each position of a row to a place. All layers share this table, so either all of them are rewritten or none.

use super::forms::Forms;
use super::rewriter::{Fused, Rewriter, attribute, input, int, text};
use super::step;
use super::view::{Axis, View};
use crate::onnx::proto::NodeProto;
use crate::onnx::{Attribute, Dim, Element};

/// Queries, keys or values `[B, heads, S, head_dim]`, by the rows they come from.
struct Heads {
    source: String,
    offset: u64,
    stride: u64,
    heads: u64,
    head_dim: u64,
    rotary: Option<Rotary>,
}

/// The position embedding of queries and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rotary {
    cosines: String,
    sines: String,
    /// Elements of a head that are turned.
    size: u64,
    interleaved: i64,
}

/// A write into the cache.
struct Scatter {
    slot: usize,
    past: String,
    new: Heads,
}

/// Everything that becomes one operator.
struct Found {
    queries: Heads,
    keys: Scatter,
    values: Scatter,
    present: [String; 2],
    scale: f32,
    /// The parameter with the heads' slopes of linear biases, if there are any.
    slopes: Option<String>,
    /// Indices of three nodes: the attention, and the transposition and the reshape behind it.
    slots: [usize; 3],
    output: String,
}

pub(crate) fn fuse(r: &mut Rewriter, forms: &Forms) {
    let found: Vec<Found> = (0..r.len()).filter_map(|slot| find(r, forms, slot)).collect();
    let writes = (0..r.len()).filter(|slot| r.operator(*slot, "TensorScatter").is_some()).count();
    let Some(context) = found.first().and_then(|first| first.context(r)) else { return };
    if writes != 2 * found.len() || found.iter().any(|other| other.context(r) != Some(context)) {
        return;
    }
    r.add_input(step::PLACES, Element::I64, &[Dim::Named("batch"), Dim::Fixed(context)]);
    found.into_iter().for_each(|found| replace(r, found));
}

fn find(r: &Rewriter, forms: &Forms, slot: usize) -> Option<Found> {
    let node = r.operator(slot, "Attention")?;
    let [queries, keys, values, mask] = node.input.as_slice() else { return None };
    let [attention] = node.output.as_slice() else { return None };
    // Anything but a scale, such as soft caps, is another function.
    let scale = attribute(node, "scale")?.f.filter(|_| node.attribute.len() == 1)?;

    let transpose = r.only_user(attention)?;
    let transposed = r.operator(transpose, "Transpose")?;
    let reshape = r.only_user(transposed.output.first()?)?;
    let reshaped = r.operator(reshape, "Reshape")?;
    let shape = r.integers(input(reshaped, 1)?)?;

    let mut found = Found {
        queries: heads(r, forms, queries)?,
        keys: scatter(r, forms, keys, slot)?,
        values: scatter(r, forms, values, slot)?,
        present: [keys.clone(), values.clone()],
        scale,
        slopes: None,
        slots: [slot, transpose, reshape],
        output: reshaped.output.first()?.clone(),
    };
    let width = i64::try_from(found.queries.heads * found.queries.head_dim).ok()?;
    let side_by_side = attribute(transposed, "perm")?.ints == [0, 2, 1, 3] && shape == [0, 0, width];
    let context = found.context(r)?.into();
    if !step::is_causal_mask(r, mask, context) {
        found.slopes = Some(step::linear_biases(r, mask, context)?);
    }
    (side_by_side && found.is_consistent(r)).then_some(found)
}

impl Found {
    /// Positions of its caches.
    fn context(&self, r: &Rewriter) -> Option<u32> {
        u32::try_from(r.input_dim(&self.keys.past, 2)?).ok()
    }

    fn is_consistent(&self, r: &Rewriter) -> bool {
        let (queries, keys, values) = (&self.queries, &self.keys.new, &self.values.new);
        queries.head_dim == keys.head_dim
            && keys.head_dim == values.head_dim
            && keys.heads == values.heads
            && queries.heads.is_multiple_of(keys.heads)
            && queries.rotary == keys.rotary
            && values.rotary.is_none()
            && self.slopes.as_ref().is_none_or(|slopes| {
                // Each head has a cache of its own.
                let shape = r.parameter(slopes).map(|slopes| slopes.shape.as_slice());
                queries.heads == keys.heads && shape == Some(&[1, queries.heads, 1, 1])
            })
    }
}

/// The write that makes a present cache, if only the graph and the attention in `user` use that.
fn scatter(r: &Rewriter, forms: &Forms, present: &str, user: usize) -> Option<Scatter> {
    let slot = r.producer(present)?;
    let node = r.operator(slot, "TensorScatter")?;
    let [past, new, past_len] = node.input.as_slice() else { return None };
    let linear = matches!(text(node, "mode"), b"linear" | b"") && int(node, "axis", -2) == -2;
    let alone = r.users(present) == [user] && r.is_output(present) && r.users(past) == [slot];
    let new = (linear && alone && past_len == step::PAST_LEN).then(|| heads(r, forms, new))??;
    Some(Scatter { slot, past: past.clone(), new })
}

fn heads(r: &Rewriter, forms: &Forms, value: &str) -> Option<Heads> {
    let rotated = r.made_by(value, "RotaryEmbedding");
    let rotary = match rotated {
        Some(node) => Some(rotary(r, node)?),
        None => None,
    };
    let view = View::trace(r, forms, rotated.map_or(Some(value), |node| input(node, 0))?)?;
    let [Axis::Batch, Axis::Row { size: heads, stride }, Axis::Tokens, Axis::Row { size: head_dim, stride: 1 }] =
        *view.axes
    else {
        return None;
    };
    if rotary.as_ref().is_some_and(|rotary| rotary.size > head_dim) {
        return None;
    }
    Some(Heads { source: view.source, offset: view.offset, stride, heads, head_dim, rotary })
}

fn rotary(r: &Rewriter, node: &NodeProto) -> Option<Rotary> {
    let [_, cosines, sines, positions] = node.input.as_slice() else { return None };
    let (table, other) = (r.parameter(cosines)?, r.parameter(sines)?);
    let [rows, pairs] = *table.shape.as_slice() else { return None };
    let last = step::clipped_positions(r, positions)?;
    let size = int(node, "rotary_embedding_dim", 0).unsigned_abs();
    let fits = other.shape == table.shape && last + 1 == i64::try_from(rows).ok()? && (size == 0 || size == 2 * pairs);
    fits.then(|| Rotary {
        cosines: cosines.clone(),
        sines: sines.clone(),
        size: 2 * pairs,
        interleaved: int(node, "interleaved", 0),
    })
}

fn replace(r: &mut Rewriter, found: Found) {
    let Found { queries, keys, values, present: [present_keys, present_values], scale, slopes, slots, output } = found;
    let cache = [Dim::Named("places"), Dim::Fixed(keys.new.heads as u32), Dim::Fixed(keys.new.head_dim as u32)];
    for name in [&keys.past, &present_keys, &values.past, &present_values] {
        r.reshape(name, Element::F32, &cache);
    }
    let signed = u64::cast_signed;
    let parts = [&queries, &keys.new, &values.new];
    let (offsets, strides) = (parts.map(|part| signed(part.offset)), parts.map(|part| signed(part.stride)));
    let rotary = queries.rotary;
    let attributes = vec![
        Attribute::Int("heads", signed(queries.heads)),
        Attribute::Int("kv_heads", signed(keys.new.heads)),
        Attribute::Int("head_dim", signed(queries.head_dim)),
        Attribute::Float("scale", scale),
        Attribute::Ints("offsets", &offsets),
        Attribute::Ints("strides", &strides),
        Attribute::Int("rotary_dim", rotary.as_ref().map_or(0, |rotary| signed(rotary.size))),
        Attribute::Int("interleaved", rotary.as_ref().map_or(0, |rotary| rotary.interleaved)),
    ];
    let (cosines, sines) = rotary.map(|rotary| (rotary.cosines, rotary.sines)).unzip();
    let sources = [queries.source, keys.new.source, values.new.source, keys.past, values.past];
    let positions = [step::PAST_LEN, step::PLACES].map(str::to_owned);
    let inputs = sources.into_iter().chain(positions).map(Some).chain([cosines, sines, slopes]).collect();
    let outputs = vec![output, present_keys, present_values];
    let all = [slots[0], slots[1], slots[2], keys.slot, values.slot];
    r.replace(&all, &Fused { operator: "Attention", inputs, outputs, attributes });
}
