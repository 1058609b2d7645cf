//! The additional parts of an encoder-decoder: the encoder's attention, and the decoder's attention over its outputs.
//!
//! A source is encoded once. The keys and values of every decoder layer's cross-attention are kept; they are outputs of
//! the encoder's graph and inputs of the decoder's.

use super::attention::{Heads, Mask};
use super::projection::Linear;
use super::{Attention, Builder, Step};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Dim, Element, Value};

/// The name of the only dimension of a source's tensors that is known at run time.
const SOURCE: &str = "source";

/// The encoder outputs that the decoder reads for its rows.
#[derive(Debug)]
pub(crate) struct SourceKv {
    /// Keys and values of each layer, `[B, H, T, D]` each.
    layers: Vec<[Value; 2]>,
    /// What is added to the products, `[B, 1, S, T]` in the computing precision: nothing where it is the row's own
    /// source, a large negative number where it is padding. Not flags: with those TensorRT-RTX 1.7.1 builds no
    /// attention over inputs whose heads are no multiple of 8 wide.
    mask: Value,
}

/// A layer's attention over its source.
#[derive(Clone, Debug)]
pub(crate) struct CrossAttention {
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    /// Factor of every query-key product.
    pub(crate) scale: f32,
    pub(crate) queries: Linear,
    pub(crate) out: Linear,
}

impl Builder<'_> {
    /// Declares the encoder's input, `input_ids`, i64 `[1, T]`. A source is read alone, so none is ever padded.
    pub(crate) fn source_ids(&mut self) -> Value {
        self.graph.input("input_ids", Element::I64, &[Dim::Fixed(1), Dim::Named(SOURCE)])
    }

    /// The encoder's self-attention: from the normalized input `[1, T, E]` to the update `[1, T, E]`. `bias` is added
    /// to the products, `[1, H, T, T]` in the computing precision.
    pub(crate) fn encoder_attention(
        &mut self,
        x: &Value,
        attention: &Attention,
        bias: &Value,
    ) -> Result<Value, WeightsError> {
        let qkv = self.linear(&attention.qkv, x)?;
        let [queries, keys, values] = self.split_heads(&qkv, attention);
        let mixed = self.mix([&queries, &keys, &values], Mask::Biases(bias), attention.all_heads());
        self.linear(&attention.out, &mixed)
    }

    /// Declares the outputs `cross_k_LAYER` and `cross_v_LAYER`, `[1, H, T, D]`, from the encoder's result `[1, T, E]`;
    /// `map` gives keys and values side by side.
    pub(crate) fn source_outputs(
        &mut self,
        layer: u32,
        x: &Value,
        map: &Linear,
        (heads, head_dim): (u32, u32),
    ) -> Result<(), WeightsError> {
        let both = self.linear(map, x)?;
        let element = self.compute();
        let graph = &mut self.graph;
        let shape = graph.integers(&[4], &[0, 0, 2 * i64::from(heads), i64::from(head_dim)]);
        let split = graph.node("Reshape", &[&both, &shape], &[]);
        let split = graph.node("Transpose", &[&split], &[Attribute::Ints("perm", &[0, 2, 1, 3])]);
        let sizes = graph.integers(&[2], &[i64::from(heads); 2]);
        let names = ['k', 'v'].map(|kind| cross_name(kind, layer));
        let attributes = [Attribute::Int("axis", 1)];
        let outputs: [Value; 2] = graph.named("Split", &[&split, &sizes], &attributes, names.each_ref().map(|n| &**n));
        for output in &outputs {
            graph.output(
                output,
                element,
                &[Dim::Fixed(1), Dim::Fixed(heads), Dim::Named(SOURCE), Dim::Fixed(head_dim)],
            );
        }
        Ok(())
    }

    /// Declares the decoder's inputs `source_len`, i64 `[B]`, and each layer's `cross_k_LAYER` and `cross_v_LAYER`, of
    /// at least one layer.
    pub(crate) fn source_inputs(&mut self, step: &Step, layers: u32, (heads, head_dim): (u32, u32)) -> SourceKv {
        let element = self.compute();
        let graph = &mut self.graph;
        graph.scope("source");
        let source_len = graph.input("source_len", Element::I64, &[Dim::Named("batch")]);
        let dims = [Dim::Named("batch"), Dim::Fixed(heads), Dim::Named(SOURCE), Dim::Fixed(head_dim)];
        let mut input = |kind, layer| graph.input(&cross_name(kind, layer), element, &dims);
        let layers: Vec<[Value; 2]> = (0..layers).map(|layer| [input('k', layer), input('v', layer)]).collect();

        let (axis_0, axes_1_3) = (graph.integers(&[1], &[0]), graph.integers(&[3], &[1, 2, 3]));
        let (zero, one) = (graph.integers(&[], &[0]), graph.integers(&[], &[1]));
        let one_dim = |graph: &mut crate::onnx::Graph, of: &Value, start| {
            graph.node("Shape", &[of], &[Attribute::Int("start", start), Attribute::Int("end", start + 1)])
        };
        let width = one_dim(graph, &layers[0][0], 2);
        let width = graph.node("Squeeze", &[&width, &axis_0], &[]); // []
        let slots = graph.node("Range", &[&zero, &width, &one], &[]); // [T]
        let lengths = graph.node("Unsqueeze", &[&source_len, &axes_1_3], &[]); // [B, 1, 1, 1]
        let own = graph.node("Less", &[&slots, &lengths], &[]); // [B, 1, 1, T]
        let ones = graph.integers(&[1], &[1]);
        let tokens = one_dim(graph, &step.input_ids, 1); // [1]
        let shape = graph.node("Concat", &[&ones, &ones, &tokens, &ones], &[Attribute::Int("axis", 0)]);
        let nothing = graph.scalar(0.0, Element::F32);
        let hidden = self.hidden_slot();
        let mask = self.graph.node("Where", &[&own, &nothing, &hidden], &[]);
        let mask = self.narrow(mask);
        SourceKv { layers, mask: self.graph.node("Expand", &[&mask, &shape], &[]) }
    }

    /// From the normalized input `[B, S, E]` to the update `[B, S, E]` by attention over layer `layer`'s keys and
    /// values of the source.
    pub(crate) fn cross_attention(
        &mut self,
        layer: u32,
        x: &Value,
        attention: &CrossAttention,
        source: &SourceKv,
    ) -> Result<Value, WeightsError> {
        let &CrossAttention { heads, head_dim, scale, .. } = attention;
        let queries = self.linear(&attention.queries, x)?;
        let shape = self.graph.integers(&[4], &[0, 0, i64::from(heads), i64::from(head_dim)]);
        let queries = self.graph.node("Reshape", &[&queries, &shape], &[]);
        let queries = self.graph.node("Transpose", &[&queries], &[Attribute::Ints("perm", &[0, 2, 1, 3])]);
        let [keys, values] = &source.layers[layer as usize];
        let heads = Heads { heads, kv_heads: heads, head_dim, scale };
        let mixed = self.mix([&queries, keys, values], Mask::Biases(&source.mask), heads);
        self.linear(&attention.out, &mixed)
    }
}

fn cross_name(kind: char, layer: u32) -> String {
    format!("cross_{kind}_{layer}")
}
