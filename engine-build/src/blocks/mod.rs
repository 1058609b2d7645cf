//! Building blocks of decoder graphs, shared by the families.
//!
//! Every block appends ONNX nodes and returns values. Shapes stand beside them, with these letters: B = batch, S =
//! tokens per row, R = selected positions, C = context (positions of the KV cache), T = tokens of a source. E = hidden
//! size, H = query heads, D = head size, V = padded vocabulary. Attention reads the first A of the C positions. The
//! family's own file decides which blocks make up a model, and in which order.
//!
//! In an f16 graph the matrices, the attention and the KV cache are f16. The residual stream, every normalization and
//! the logits stay f32: there f16 overflows, or loses the small differences that decide the ranking. The matrices of
//! linear maps may be stored in fewer bits, and attention may be f32 all the same.

mod alibi;
mod attention;
mod cross;
mod decoder;
mod embedding;
mod head;
mod layers;
mod norms;
mod projection;
mod relative;
mod rotary;
mod scaling;
mod vocabulary;

pub(crate) use attention::{Attention, Cache, CacheShape, root_scale};
pub(crate) use cross::{CrossAttention, SourceKv};
pub(crate) use decoder::{LayerPlan, Order};
pub(crate) use embedding::{LearnedPositions, Step};
pub(crate) use head::HeadSpec;
pub(crate) use layers::{Activation, Gate, Mlp};
pub(crate) use norms::{Norm, NormKind};
pub(crate) use projection::Linear;
pub(crate) use relative::RelativeBias;
pub(crate) use rotary::{Rotary, RotaryTables};
pub(crate) use vocabulary::Vocabulary;

use crate::checkpoint::{Tensor, Weights};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Element, Graph, Source, Value};
use crate::quantizing::Bits;
use bundle::manifest::Dtype;

/// The inputs of a layer beside the residual stream.
#[derive(Debug)]
pub(crate) struct Layer<'a> {
    /// Number of the layer, from 0.
    pub(crate) index: u32,
    pub(crate) step: &'a Step,
    /// The layer's KV cache before the step.
    pub(crate) past: &'a Cache,
    /// Turns queries and keys, in models that have it.
    pub(crate) rotary: Option<&'a RotaryTables>,
    /// The inputs of its cross-attention, in models that have one.
    pub(crate) source: Option<&'a SourceKv>,
}

/// The graph under construction, the weights it takes, and the precision it computes in.
pub(crate) struct Builder<'a> {
    pub(crate) graph: Graph,
    weights: &'a Weights,
    /// Put before every tensor name (`transformer.`), or empty.
    prefix: &'static str,
    precision: Precision,
}

/// Precision of a graph's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Precision {
    /// Of matrices, attention and KV cache.
    pub(crate) dtype: Dtype,
    /// Bits in which an f16 graph stores the matrices of linear maps, and the most inputs that share a scale.
    pub(crate) stored: Option<(Bits, u32)>,
    /// Attention in f32, in an f16 graph too.
    pub(crate) f32_attention: bool,
}

impl From<Dtype> for Precision {
    fn from(dtype: Dtype) -> Self {
        Self { dtype, stored: None, f32_attention: false }
    }
}

impl<'a> Builder<'a> {
    pub(crate) fn new(weights: &'a Weights, prefix: &'static str, precision: impl Into<Precision>) -> Self {
        Self { graph: Graph::default(), weights, prefix, precision: precision.into() }
    }

    /// Runs `build` with tensor names taken as they are.
    pub(crate) fn without_prefix<T>(&mut self, build: impl FnOnce(&mut Self) -> T) -> T {
        let prefix = std::mem::take(&mut self.prefix);
        let built = build(self);
        self.prefix = prefix;
        built
    }

    /// Runs `build` with everything in f32: what it computes is beyond f16 in some models.
    pub(crate) fn in_f32<T>(&mut self, build: impl FnOnce(&mut Self) -> T) -> T {
        let precision = std::mem::replace(&mut self.precision, Dtype::F32.into());
        let built = build(self);
        self.precision = precision;
        built
    }

    /// Element type of matrices, attention and KV cache.
    pub(crate) fn compute(&self) -> Element {
        match self.precision.dtype {
            Dtype::F32 => Element::F32,
            Dtype::F16 => Element::F16,
        }
    }

    /// A checkpoint tensor in f32, whatever the graph's precision.
    fn vector_f32(&mut self, name: &str, size: u64) -> Result<Value, WeightsError> {
        self.parameter(name, &[size], &[size], Element::F32)
    }

    /// A checkpoint tensor of shape `stored`, cut or padded with zero rows to `shape`.
    fn parameter(
        &mut self,
        name: &str,
        stored: &[u64],
        shape: &[u64],
        element: Element,
    ) -> Result<Value, WeightsError> {
        let tensor = self.tensor(name, stored)?;
        Ok(self.graph.parameter(name, shape, element, Source::Checkpoint(tensor)))
    }

    fn tensor(&self, name: &str, shape: &[u64]) -> Result<Tensor, WeightsError> {
        self.weights.tensor(&format!("{}{name}", self.prefix), shape)
    }

    /// f32 to the computing precision: what a normalization hands to a linear map.
    pub(crate) fn narrow(&mut self, x: Value) -> Value {
        match self.precision.dtype {
            Dtype::F32 => x,
            Dtype::F16 => self.cast(&x, Element::F16),
        }
    }

    /// The computing precision to f32.
    pub(crate) fn widen(&mut self, x: Value) -> Value {
        match self.precision.dtype {
            Dtype::F32 => x,
            Dtype::F16 => self.cast(&x, Element::F32),
        }
    }

    fn cast(&mut self, x: &Value, to: Element) -> Value {
        self.graph.node("Cast", &[x], &[Attribute::Int("to", to.data_type() as i64)])
    }
}
