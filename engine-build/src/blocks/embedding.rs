//! What every decoder step begins with: the token inputs, positions, the attention mask, and the embeddings.

use super::{Builder, Vocabulary};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Dim, Element, Value};

/// The inputs of a step, and what all layers derive from them once.
#[derive(Debug)]
pub(crate) struct Step {
    /// i64 `[B, S]`.
    pub(crate) input_ids: Value,
    /// i64 `[B]`: positions of each row that the cache already holds.
    pub(crate) past_len: Value,
    /// i64 `[R]`: flat positions `b * S + s` whose next token is wanted.
    pub(crate) select: Value,
    /// i64 `[B, S]`: the position of each token, at most C - 1.
    pub(crate) positions: Value,
    /// bool `[B, 1, S, C]`: which cache slots each token may see.
    pub(crate) mask: Value,
}

impl Builder<'_> {
    /// Declares the token inputs and derives positions and mask.
    ///
    /// The mask is explicit because it is the one form that ONNX Runtime and TensorRT agree on for a cache that is
    /// filled to a different length in every row (`is_causal` counts from different corners, and TensorRT's parser
    /// drops `nonpad_kv_seqlen`). Slots behind a row's own tokens are never visible, so right padding needs no mask of its own.
    pub(crate) fn step(&mut self, context: u32) -> Step {
        self.graph.scope("step");
        let graph = &mut self.graph;
        let input_ids = graph.input("input_ids", Element::I64, &[Dim::Named("batch"), Dim::Named("tokens")]);
        let past_len = graph.input("past_len", Element::I64, &[Dim::Named("batch")]);
        let select = graph.input("select", Element::I64, &[Dim::Named("selected")]);

        let context = i64::from(context);
        let (axis_0, axis_1) = (graph.integers(&[1], &[0]), graph.integers(&[1], &[1]));
        let (zero, one) = (graph.integers(&[], &[0]), graph.integers(&[], &[1]));
        let tokens = graph.node("Shape", &[&input_ids], &[Attribute::Int("start", 1), Attribute::Int("end", 2)]);
        let tokens = graph.node("Squeeze", &[&tokens, &axis_0], &[]); // []
        let offsets = graph.node("Range", &[&zero, &tokens, &one], &[]); // [S]
        let starts = graph.node("Unsqueeze", &[&past_len, &axis_1], &[]); // [B, 1]
        let unclipped = graph.node("Add", &[&starts, &offsets], &[]); // [B, S]

        let slots: Vec<i64> = (0..context).collect();
        let slots = graph.integers(&[1, 1, 1, context], &slots);
        let axes_1_3 = graph.integers(&[2], &[1, 3]);
        let queries = graph.node("Unsqueeze", &[&unclipped, &axes_1_3], &[]); // [B, 1, S, 1]
        let mask = graph.node("LessOrEqual", &[&slots, &queries], &[]); // [B, 1, S, C]

        // Right padding may run past the cache; its results are never read, but its lookups must stay in range.
        let last = graph.integers(&[], &[context - 1]);
        let positions = graph.node("Min", &[&unclipped, &last], &[]); // [B, S]
        Step { input_ids, past_len, select, positions, mask }
    }

    /// The first `context` rows of a matrix of learned position embeddings, f32 `[C, E]`.
    pub(crate) fn position_matrix(
        &mut self,
        name: &str,
        (positions, context): (u64, u64),
        hidden: u64,
    ) -> Result<Value, WeightsError> {
        self.parameter(name, &[positions, hidden], &[context, hidden], Element::F32)
    }

    /// The residual stream's beginning: token plus position embedding, f32 `[B, S, E]`.
    pub(crate) fn embed(&mut self, step: &Step, tokens: &Vocabulary, positions: &Value) -> Value {
        self.graph.scope("embedding");
        let token = self.token_rows(tokens, &step.input_ids);
        let position = self.graph.node("Gather", &[positions, &step.positions], &[Attribute::Int("axis", 0)]);
        self.graph.node("Add", &[&token, &position], &[])
    }
}
