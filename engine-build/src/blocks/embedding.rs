//! The start of every decoder step: the token inputs, positions, the attention mask, and the embeddings.

use super::Builder;
use crate::error::WeightsError;
use crate::onnx::{Attribute, Dim, Element, Value};

/// The inputs of a step, and what all layers derive from them once.
#[derive(Debug)]
pub(crate) struct Step {
    /// Token ids, i64 `[B, S]`.
    pub(crate) input_ids: Value,
    /// i64 `[B]`: positions of each row that the cache already holds.
    pub(crate) past_len: Value,
    /// i64 `[R]`: flat positions `b * S + s` whose next token is wanted.
    pub(crate) select: Value,
    /// i64 `[B, S]`: the position of each token, at most C - 1.
    pub(crate) positions: Value,
    /// bool `[B, 1, S, A]`: which cache slots each token may see.
    pub(crate) mask: Value,
    /// Whether the mask is instead what a family adds to products, `[B, H, S, A]` in the computing precision.
    pub(crate) has_biases: bool,
    /// i64 `[A]`: 0, 1, ..., in graphs in which attention reads the first A slots of a cache. It reads all C in others.
    pub(crate) slots: Option<Value>,
    /// i64 `[1]`: A, in the same graphs.
    pub(crate) attended: Option<Value>,
    /// C: positions of a cache.
    pub(crate) context: u32,
}

/// A matrix of position embeddings, `[offset + positions, E]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LearnedPositions {
    /// The tensor's name in the checkpoint.
    pub(crate) name: &'static str,
    pub(crate) positions: u32,
    pub(crate) hidden: u32,
    /// Rows before that of position 0.
    pub(crate) offset: u32,
}

impl Builder<'_> {
    /// Declares the token inputs and derives positions and mask.
    ///
    /// The cache is filled to a different length in every row, and only an explicit mask means the same to ONNX Runtime
    /// and TensorRT then. `is_causal` counts from different corners, and TensorRT's parser drops `nonpad_kv_seqlen`.
    /// Slots behind a row's own tokens are never visible, so right padding needs no mask of its own.
    ///
    /// With `slots`, a step's cost follows the positions that are there and not the context.
    pub(crate) fn step(&mut self, context: u32, slots: bool) -> Step {
        self.graph.scope("step");
        let graph = &mut self.graph;
        let input_ids = graph.input("input_ids", Element::I64, &[Dim::Named("batch"), Dim::Named("tokens")]);
        let past_len = graph.input("past_len", Element::I64, &[Dim::Named("batch")]);
        let select = graph.input("select", Element::I64, &[Dim::Named("selected")]);
        let given = slots.then(|| graph.input("slots", Element::I64, &[Dim::Named("attended")]));

        let slots = i64::from(context);
        let (axis_0, axis_1) = (graph.integers(&[1], &[0]), graph.integers(&[1], &[1]));
        let (zero, one) = (graph.integers(&[], &[0]), graph.integers(&[], &[1]));
        let tokens = graph.node("Shape", &[&input_ids], &[Attribute::Int("start", 1), Attribute::Int("end", 2)]);
        let tokens = graph.node("Squeeze", &[&tokens, &axis_0], &[]); // []
        let offsets = graph.node("Range", &[&zero, &tokens, &one], &[]); // [S]
        let starts = graph.node("Unsqueeze", &[&past_len, &axis_1], &[]); // [B, 1]
        let unclipped = graph.node("Add", &[&starts, &offsets], &[]); // [B, S]

        let last = graph.integers(&[], &[slots - 1]);
        let slots = match &given {
            Some(given) => {
                let axes = graph.integers(&[3], &[0, 1, 2]);
                graph.node("Unsqueeze", &[given, &axes], &[])
            }
            None => graph.integers(&[1, 1, 1, slots], &(0..slots).collect::<Vec<_>>()),
        }; // [1, 1, 1, A]
        let attended = given.as_ref().map(|given| graph.node("Shape", &[given], &[]));
        let axes_1_3 = graph.integers(&[2], &[1, 3]);
        let queries = graph.node("Unsqueeze", &[&unclipped, &axes_1_3], &[]); // [B, 1, S, 1]
        let mask = graph.node("LessOrEqual", &[&slots, &queries], &[]); // [B, 1, S, A]

        // Right padding may run past the cache; its results are never read, but its lookups must stay in range.
        let positions = graph.node("Min", &[&unclipped, &last], &[]); // [B, S]
        Step { input_ids, past_len, select, positions, mask, has_biases: false, slots: given, attended, context }
    }

    /// The slots of a cache that attention reads, i64 `[A]`: 0, 1, ...
    pub(super) fn slots(&mut self, step: &Step) -> Value {
        let all: Vec<i64> = (0..step.context.into()).collect();
        step.slots.clone().unwrap_or_else(|| self.graph.integers(&[step.context.into()], &all))
    }

    /// Adds learned position embeddings to the token embeddings `rows`, f32 `[B, S, E]`.
    pub(crate) fn add_positions(
        &mut self,
        step: &Step,
        rows: &Value,
        learned: &LearnedPositions,
    ) -> Result<Value, WeightsError> {
        let LearnedPositions { name, offset, .. } = *learned;
        let [positions, hidden] = [learned.positions, learned.hidden].map(u64::from);
        let [stored, kept] = [positions, u64::from(step.context)].map(|rows| rows + u64::from(offset));
        let matrix = self.parameter(name, &[stored, hidden], &[kept, hidden], Element::F32)?;
        let indices = if offset == 0 {
            step.positions.clone()
        } else {
            let offset = self.graph.integers(&[], &[i64::from(offset)]);
            self.graph.node("Add", &[&step.positions, &offset], &[])
        };
        let position = self.graph.node("Gather", &[&matrix, &indices], &[Attribute::Int("axis", 0)]);
        Ok(self.graph.node("Add", &[rows, &position], &[]))
    }
}
