//! Attention with linear biases (ALiBi): from every query-key product a head subtracts the distance in positions times
//! its slope. There are no other position embeddings then.

use super::{Builder, Step};
use crate::onnx::{Attribute, Element, Source, Value};

/// The slopes of the heads, as the method's authors chose them: a geometric sequence for a power of two heads, and
/// every other member of the next finer one for the heads beyond it.
#[expect(clippy::cast_possible_truncation, reason = "the reference's slopes are f32")]
pub(crate) fn slopes(heads: u32) -> Vec<f32> {
    let power = 1 << heads.max(1).ilog2();
    let sequence = |power: u32, step: usize| {
        let base = (-8.0 / f64::from(power)).exp2();
        (1..=i32::MAX).step_by(step).map(move |n| base.powi(n) as f32)
    };
    let beyond = sequence(2 * power, 2).take((heads - power) as usize);
    sequence(power, 1).take(power as usize).chain(beyond).collect()
}

impl Builder<'_> {
    /// What is added in a step, `[B, H, S, A]` in the computing precision: the bias of each slot that a token may see,
    /// and a large negative number for the others.
    ///
    /// The distance counts from the query: the numbers of near slots are small then, which f16 holds exactly.
    pub(crate) fn linear_biases(&mut self, heads: u32, step: &Step) -> Value {
        self.graph.scope("bias");
        let hidden = self.hidden_slot();
        let slots = self.slots(step);
        let graph = &mut self.graph;
        let shape = [1, u64::from(heads), 1, 1];
        let slopes = graph.parameter("alibi.slopes", &shape, Element::F32, Source::Computed(slopes(heads)));
        let axes_1_3 = graph.integers(&[2], &[1, 3]);
        let queries = graph.node("Unsqueeze", &[&step.positions, &axes_1_3], &[]); // [B, 1, S, 1]
        let distances = graph.node("Sub", &[&slots, &queries], &[]); // [B, 1, S, A], not above 0 where visible
        let distances = graph.node("Cast", &[&distances], &[Attribute::Int("to", Element::F32.data_type() as i64)]);
        let biases = graph.node("Mul", &[&distances, &slopes], &[]); // [B, H, S, A]
        let biases = graph.node("Where", &[&step.mask, &biases, &hidden], &[]);
        self.narrow(biases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of transformers' `build_alibi_tensor`.
    #[test]
    fn slopes_are_those_of_the_reference() {
        let halves = |from: i32, count: i32| (0..count).map(move |n| 2f32.powi(-(from + n)));
        assert_eq!(slopes(8), halves(1, 8).collect::<Vec<_>>());
        let near = |found: &[f32], expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-7), "{found:?}");
        };
        near(&slopes(1), &[0.003_906_25]);
        near(&slopes(3), &[0.0625, 0.003_906_25, 0.25]);
        near(&slopes(6), &[0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
    }
}
