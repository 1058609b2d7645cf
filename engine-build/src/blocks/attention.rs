//! Self-attention over a static KV cache that is updated in place.

use super::{Builder, Step};
use crate::onnx::{Attribute, Dim, Value};

/// Shape and scale of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionSpec {
    pub(crate) heads: u32,
    pub(crate) head_dim: u32,
    /// Positions of the KV cache.
    pub(crate) context: u32,
    /// Factor of every query-key product.
    pub(crate) scale: f32,
}

impl AttentionSpec {
    fn cache_dims(&self) -> [Dim; 4] {
        [Dim::Named("batch"), Dim::Fixed(self.heads), Dim::Fixed(self.context), Dim::Fixed(self.head_dim)]
    }
}

/// A layer's keys and values, `[B, H, C, D]` each: graph inputs as past, graph outputs as present.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) keys: Value,
    pub(crate) values: Value,
}

impl Builder<'_> {
    /// Declares the inputs `past_k_LAYER` and `past_v_LAYER`.
    pub(crate) fn past(&mut self, layer: u32, spec: &AttentionSpec) -> Cache {
        let (element, dims) = (self.compute(), spec.cache_dims());
        let keys = self.graph.input(&format!("past_k_{layer}"), element, &dims);
        let values = self.graph.input(&format!("past_v_{layer}"), element, &dims);
        Cache { keys, values }
    }

    /// Declares the outputs of a layer's cache.
    pub(crate) fn present(&mut self, present: &Cache, spec: &AttentionSpec) {
        let (element, dims) = (self.compute(), spec.cache_dims());
        self.graph.output(&present.keys, element, &dims);
        self.graph.output(&present.values, element, &dims);
    }

    /// Splits queries, keys and values that one linear map made: `[B, S, 3 E]` to three `[B, H, S, D]`.
    pub(crate) fn split_heads(&mut self, qkv: &Value, spec: &AttentionSpec) -> [Value; 3] {
        let graph = &mut self.graph;
        let (heads, head_dim) = (i64::from(spec.heads), i64::from(spec.head_dim));
        let shape = graph.integers(&[5], &[0, 0, 3, heads, head_dim]);
        let split = graph.node("Reshape", &[qkv, &shape], &[]); // [B, S, 3, H, D]
        let split = graph.node("Transpose", &[&split], &[Attribute::Ints("perm", &[2, 0, 3, 1, 4])]);
        let (sizes, axis) = (graph.integers(&[3], &[1, 1, 1]), graph.integers(&[1], &[0]));
        let parts: [Value; 3] = graph.node_n("Split", &[&split, &sizes], &[Attribute::Int("axis", 0)]);
        parts.map(|part| graph.node("Squeeze", &[&part, &axis], &[]))
    }

    /// Writes keys and values into the cache at `past_len` and attends over it: `[B, S, E]`, and the present cache.
    ///
    /// `TensorScatter` is the form that both runtimes do in place when past and present share their memory.
    pub(crate) fn attend(
        &mut self,
        layer: u32,
        [queries, keys, values]: [Value; 3],
        (past, step): (&Cache, &Step),
        spec: &AttentionSpec,
    ) -> (Value, Cache) {
        let graph = &mut self.graph;
        let mut update = |past: &Value, new: &Value, kind: char| {
            let name = format!("present_{kind}_{layer}");
            let attributes = [Attribute::Int("axis", -2), Attribute::Text("mode", "linear")];
            let [present] = graph.named("TensorScatter", &[past, new, &step.past_len], &attributes, [&name]);
            present
        };
        let present = Cache { keys: update(&past.keys, &keys, 'k'), values: update(&past.values, &values, 'v') };
        let inputs = [&queries, &present.keys, &present.values, &step.mask];
        let mixed = graph.node("Attention", &inputs, &[Attribute::Float("scale", spec.scale)]); // [B, H, S, D]
        let mixed = graph.node("Transpose", &[&mixed], &[Attribute::Ints("perm", &[0, 2, 1, 3])]);
        let hidden = i64::from(spec.heads) * i64::from(spec.head_dim);
        let shape = graph.integers(&[3], &[0, 0, hidden]);
        (graph.node("Reshape", &[&mixed, &shape], &[]), present)
    }
}
