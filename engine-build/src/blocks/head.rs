//! The end of the graph: from hidden states at the selected positions to logits, top-k and logsumexp.

use super::{Builder, Step, Vocabulary};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Dim, Element, Source, Value};

/// The logit of an id that only pads the vocabulary. Finite, because infinities make NaN in some fused kernels.
const PAD_LOGIT: f32 = -1e30;

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
        let k = self.graph.integers(&[1], &[i64::from(spec.top_k)]);
        let sorted = [Attribute::Int("axis", -1), Attribute::Int("largest", 1), Attribute::Int("sorted", 1)];
        let [topv, topi] = self.graph.named("TopK", &[&logits, &k], &sorted, ["topv", "topi"]);
        let lse = self.log_sum_exp(&logits, &topv);

        let selected = Dim::Named("selected");
        self.graph.output(&logits, Element::F32, &[selected, Dim::Fixed(spec.vocab_padded)]);
        self.graph.output(&topv, Element::F32, &[selected, Dim::Fixed(spec.top_k)]);
        self.graph.output(&topi, Element::I64, &[selected, Dim::Fixed(spec.top_k)]);
        self.graph.output(&lse, Element::F32, &[selected, Dim::Fixed(1)]);
        Ok(())
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
