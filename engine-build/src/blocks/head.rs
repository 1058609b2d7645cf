//! The end of the graph: from hidden states at the selected positions to logits, top-k and logsumexp.

use super::{Builder, Step, Vocabulary};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Dim, Element, Source, Value};

/// The logit of an id that only pads the vocabulary. Finite, because infinities make NaN in some fused kernels.
const PAD_LOGIT: f32 = -1e30;

/// The parts of a vocabulary that are searched side by side for its best tokens, in a graph for GPUs: for one row, one
/// of a GPU's many processors would search all of it.
const SEGMENTS: u32 = 8;

/// The smallest such part, in tokens. Below that, the second search costs more.
const LEAST_SEGMENT: u32 = 1024;

/// Sizes of the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadSpec {
    pub(crate) vocab: u32,
    pub(crate) vocab_padded: u32,
    pub(crate) top_k: u32,
    /// A tensor `[vocab]` that is added to the logits.
    pub(crate) bias: Option<&'static str>,
}

impl Builder<'_> {
    /// The rows of `x` `[B, S, E]` that `select` names: `[R, E]`. Everything after works on these rows only.
    pub(crate) fn select(&mut self, x: &Value, step: &Step, hidden: u32) -> Value {
        self.graph.scope("head");
        let shape = self.graph.integers(&[2], &[-1, i64::from(hidden)]);
        let rows = self.graph.node("Reshape", &[x, &shape], &[]);
        self.graph.node("Gather", &[&rows, &step.select], &[Attribute::Int("axis", 0)])
    }

    /// Declares `logits`, `topv`, `topi` and `lse` for the rows `x`, f32 `[R, E]`.
    pub(crate) fn head(&mut self, x: &Value, vocabulary: &Vocabulary, spec: &HeadSpec) -> Result<(), WeightsError> {
        let bias = self.head_bias(spec)?;
        let logits = self.token_products(vocabulary, x, bias.as_ref());
        let [topv, topi] = self.best(&logits, spec);
        let lse = self.log_sum_exp(&logits, &topv);

        let selected = Dim::Named("selected");
        self.graph.output(&logits, Element::F32, &[selected, Dim::Fixed(spec.vocab_padded)]);
        self.graph.output(&topv, Element::F32, &[selected, Dim::Fixed(spec.top_k)]);
        self.graph.output(&topi, Element::I64, &[selected, Dim::Fixed(spec.top_k)]);
        self.graph.output(&lse, Element::F32, &[selected, Dim::Fixed(1)]);
        Ok(())
    }

    /// `topv` and `topi`: the largest logits of each row and their tokens, of equal ones those with the smallest ids.
    ///
    /// A segment's best are in the order of their ids where they are equal, and so are the segments. So the second
    /// stage chooses as one stage would.
    fn best(&mut self, logits: &Value, spec: &HeadSpec) -> [Value; 2] {
        let (top_k, segment) = (i64::from(spec.top_k), spec.vocab_padded / SEGMENTS);
        let is_split = self.compute() == Element::F16 && segment >= LEAST_SEGMENT.max(spec.top_k);
        let graph = &mut self.graph;
        let k = graph.integers(&[1], &[top_k]);
        let sorted = [Attribute::Int("axis", -1), Attribute::Int("largest", 1), Attribute::Int("sorted", 1)];
        if !is_split || !spec.vocab_padded.is_multiple_of(SEGMENTS) {
            return graph.named("TopK", &[logits, &k], &sorted, ["topv", "topi"]);
        }
        let (segments, segment) = (i64::from(SEGMENTS), i64::from(segment));
        let split = graph.integers(&[3], &[0, segments, segment]);
        let parts = graph.node("Reshape", &[logits, &split], &[]); // [R, 8, V / 8]
        let [values, places] = graph.node_n("TopK", &[&parts, &k], &sorted); // [R, 8, K]
        let firsts: Vec<i64> = (0..segments).map(|index| index * segment).collect();
        let firsts = graph.integers(&[1, segments, 1], &firsts);
        let ids = graph.node("Add", &[&places, &firsts], &[]);
        let flat = graph.integers(&[2], &[0, segments * top_k]);
        let [values, ids] = [values, ids].map(|listed| graph.node("Reshape", &[&listed, &flat], &[])); // [R, 8 K]
        let [topv, winners] = graph.named("TopK", &[&values, &k], &sorted, ["topv", "head/winners"]);
        let [topi] = graph.named("GatherElements", &[&ids, &winners], &[Attribute::Int("axis", 1)], ["topi"]);
        [topv, topi]
    }

    /// f32 `[V]`: the model's own bias or zero for real ids, [`PAD_LOGIT`] for the others; none if it would be all
    /// zeros.
    fn head_bias(&mut self, spec: &HeadSpec) -> Result<Option<Value>, WeightsError> {
        let shape = [u64::from(spec.vocab_padded)];
        let (name, source) = match spec.bias {
            Some(name) => {
                let tensor = self.tensor(name, &[u64::from(spec.vocab)])?;
                (name, Source::Padded { tensor, pad: PAD_LOGIT })
            }
            None if spec.vocab == spec.vocab_padded => return Ok(None),
            None => {
                let pads = (0..spec.vocab_padded).map(|id| if id < spec.vocab { 0.0 } else { PAD_LOGIT }).collect();
                ("vocabulary.pad_bias", Source::Computed(pads))
            }
        };
        Ok(Some(self.graph.parameter(name, &shape, Element::F32, source)))
    }

    /// `lse`, f32 `[R, 1]`: the logarithm of the sum of the logits' exponentials.
    ///
    /// Not ONNX's `ReduceLogSumExp`: a runtime may compute that without subtracting the maximum, and GPT-2's logits are
    /// often all below -88, where every f32 exponential is 0. The maximum is already there: top-k is sorted.
    fn log_sum_exp(&mut self, logits: &Value, topv: &Value) -> Value {
        let graph = &mut self.graph;
        let (zero, one) = (graph.integers(&[1], &[0]), graph.integers(&[1], &[1]));
        let maximum = graph.node("Slice", &[topv, &zero, &one, &one], &[]); // [R, 1]
        let shifted = graph.node("Sub", &[logits, &maximum], &[]);
        let exponentials = graph.node("Exp", &[&shifted], &[]);
        let sum = graph.node("ReduceSum", &[&exponentials, &one], &[Attribute::Int("keepdims", 1)]);
        let logarithm = graph.node("Log", &[&sum], &[]);
        let [lse] = graph.named("Add", &[&logarithm, &maximum], &[], ["lse"]);
        lse
    }
}
