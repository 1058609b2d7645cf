//! Relative position biases: a number for each head and bucket of distances, added to every query-key product.
//!
//! Near distances have buckets of their own. Farther ones share buckets of growing width; all distances beyond a limit
//! share the last.

use super::{Builder, Step};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Element, Value};

/// A table of biases, `[buckets, heads]`.
#[derive(Clone, Debug)]
pub(crate) struct RelativeBias {
    /// The tensor's name in the checkpoint.
    pub(crate) name: String,
    pub(crate) heads: u32,
    pub(crate) buckets: u32,
    /// Distance in positions from which on all distances share a bucket.
    pub(crate) max_distance: u32,
}

impl RelativeBias {
    /// The bucket of a key by its distance in positions from its query.
    fn causal_bucket(&self, distance: u32) -> u32 {
        bucket(distance, self.buckets, self.max_distance)
    }

    /// The bucket of a key at `offset` from its query: half of the buckets are for keys behind it.
    fn bidirectional_bucket(&self, offset: i64) -> u32 {
        let half = self.buckets / 2;
        let distance = u32::try_from(offset.unsigned_abs()).unwrap_or(u32::MAX);
        bucket(distance, half, self.max_distance) + if offset > 0 { half } else { 0 }
    }
}

/// The bucket of a distance among `buckets`, of which the first half hold one distance each.
///
/// In f32 and in this order, because where a bucket ends is a matter of rounding.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "as the reference computes it")]
fn bucket(distance: u32, buckets: u32, max_distance: u32) -> u32 {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    let range = (f64::from(max_distance) / f64::from(exact)).ln() as f32;
    let steps = (distance as f32 / exact as f32).ln() / range * (buckets - exact) as f32;
    (exact + steps as u32).min(buckets - 1)
}

impl Builder<'_> {
    /// What is added in a decoder's step, `[B, H, S, A]` in the computing precision: the bias of each slot that a token
    /// may see, and a large negative number for the others.
    pub(crate) fn causal_bias(&mut self, bias: &RelativeBias, step: &Step) -> Result<Value, WeightsError> {
        self.graph.scope("bias");
        let ids: Vec<i64> = (0..step.context).map(|distance| bias.causal_bucket(distance).into()).collect();
        let table = self.bias_table(bias, &ids)?; // [C, H]
        let (hidden, slots) = (self.hidden_slot(), self.slots(step));
        let graph = &mut self.graph;
        let (axis_2, zero) = (graph.integers(&[1], &[2]), graph.integers(&[], &[0]));
        let positions = graph.node("Unsqueeze", &[&step.positions, &axis_2], &[]); // [B, S, 1]
        let distances = graph.node("Sub", &[&positions, &slots], &[]); // [B, S, A]
        let distances = graph.node("Max", &[&distances, &zero], &[]);
        let biases = graph.node("Gather", &[&table, &distances], &[Attribute::Int("axis", 0)]); // [B, S, A, H]
        let biases = graph.node("Transpose", &[&biases], &[Attribute::Ints("perm", &[0, 3, 1, 2])]);
        let biases = graph.node("Where", &[&step.mask, &biases, &hidden], &[]); // [B, H, S, A]
        Ok(self.narrow(biases))
    }

    /// What is added in an encoder, `[1, H, T, T]` in the computing precision, for `ids` `[1, T]` of at most `longest`
    /// tokens.
    pub(crate) fn bidirectional_bias(
        &mut self,
        bias: &RelativeBias,
        ids: &Value,
        longest: u32,
    ) -> Result<Value, WeightsError> {
        self.graph.scope("bias");
        let last = i64::from(longest) - 1;
        let buckets: Vec<i64> = (-last..=last).map(|offset| bias.bidirectional_bucket(offset).into()).collect();
        let table = self.bias_table(bias, &buckets)?; // [2 longest - 1, H]
        let graph = &mut self.graph;
        let (axis_0, axis_1) = (graph.integers(&[1], &[0]), graph.integers(&[1], &[1]));
        let (zero, one, last) = (graph.integers(&[], &[0]), graph.integers(&[], &[1]), graph.integers(&[], &[last]));
        let tokens = graph.node("Shape", &[ids], &[Attribute::Int("start", 1), Attribute::Int("end", 2)]);
        let tokens = graph.node("Squeeze", &[&tokens, &axis_0], &[]); // []
        let positions = graph.node("Range", &[&zero, &tokens, &one], &[]); // [T]
        let queries = graph.node("Unsqueeze", &[&positions, &axis_1], &[]); // [T, 1]
        let offsets = graph.node("Sub", &[&positions, &queries], &[]); // [T, T]
        let offsets = graph.node("Add", &[&offsets, &last], &[]);
        let biases = graph.node("Gather", &[&table, &offsets], &[Attribute::Int("axis", 0)]); // [T, T, H]
        let biases = graph.node("Transpose", &[&biases], &[Attribute::Ints("perm", &[2, 0, 1])]);
        let biases = graph.node("Unsqueeze", &[&biases, &axis_0], &[]); // [1, H, T, T]
        Ok(self.narrow(biases))
    }

    /// The rows of the table for a list of buckets, f32 `[buckets, H]`.
    fn bias_table(&mut self, bias: &RelativeBias, buckets: &[i64]) -> Result<Value, WeightsError> {
        let shape = [bias.buckets, bias.heads].map(u64::from);
        let table = self.parameter(&bias.name, &shape, &shape, Element::F32)?;
        let buckets = self.graph.integers(&[buckets.len() as i64], buckets);
        Ok(self.graph.node("Gather", &[&table, &buckets], &[Attribute::Int("axis", 0)]))
    }

    /// The bias of invisible positions: finite, because infinities give NaN in some fused kernels.
    pub(super) fn hidden_slot(&mut self) -> Value {
        let low = if self.compute() == Element::F16 { -60_000.0 } else { -1e30 };
        self.graph.scalar(low, Element::F32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bias(buckets: u32, max_distance: u32) -> RelativeBias {
        RelativeBias { name: String::new(), heads: 1, buckets, max_distance }
    }

    /// Distances at which the next bucket begins.
    fn beginnings(bucket: impl Fn(u32) -> u32) -> Vec<u32> {
        (1..600).filter(|&distance| bucket(distance) != bucket(distance - 1)).collect()
    }

    /// The numbers are those of transformers' `T5Attention._relative_position_bucket`.
    #[test]
    fn buckets_begin_where_the_reference_begins_them() {
        let causal = |buckets, farthest| {
            let bias = bias(buckets, farthest);
            beginnings(move |distance| bias.causal_bucket(distance))
        };
        let behind = |buckets, farthest| {
            let bias = bias(buckets, farthest);
            beginnings(move |distance| bias.bidirectional_bucket(distance.into()))
        };
        let near = |until| (1..=until).collect::<Vec<u32>>();
        let far = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113];
        assert_eq!(causal(32, 128), [&near(16)[..], &far].concat());
        assert_eq!(behind(32, 128), [&near(8)[..], &[12, 16, 23, 32, 46, 64, 91]].concat());
        assert_eq!(causal(10, 23), [1, 2, 3, 4, 5, 7, 10, 13, 17]);
        assert_eq!(behind(10, 23), [1, 2, 5, 11]);
        let far = [21, 27, 35, 45, 59, 76, 98, 127, 164, 213, 275, 356, 461, 597];
        assert_eq!(causal(32, 1000), [&near(16)[..], &far].concat());
        assert_eq!(behind(6, 100), [1, 10]);
    }

    #[test]
    fn half_of_the_buckets_are_for_what_comes_behind() {
        let bias = bias(32, 128);
        assert_eq!([-500, -1, 0, 1, 500].map(|offset| bias.bidirectional_bucket(offset)), [15, 1, 0, 17, 31]);
        assert_eq!(bias.causal_bucket(500), 31);
    }
}
