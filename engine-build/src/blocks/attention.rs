//! Self-attention over a static KV cache that is updated in place.

use super::projection::Linear;
use super::{Builder, Layer, Step};
use crate::error::WeightsError;
use crate::onnx::{Attribute, Dim, Element, Value};

/// An attention layer: its maps, heads and scale.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) heads: u32,
    /// Heads of keys and values: a divisor of `heads`.
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    /// Factor of every query-key product.
    pub(crate) scale: f32,
    /// Queries, keys and values side by side: `heads + 2 * kv_heads` heads.
    pub(crate) qkv: Linear,
    pub(crate) out: Linear,
}

impl Attention {
    pub(super) fn all_heads(&self) -> Heads {
        let &Self { heads, kv_heads, head_dim, scale, .. } = self;
        Heads { heads, kv_heads, head_dim, scale }
    }
}

/// Heads of queries and of keys and values, and the factor of their products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) scale: f32,
}

/// Extents of a KV cache but for the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheShape {
    pub(crate) kv_heads: u32,
    pub(crate) context: u32,
    pub(crate) head_dim: u32,
}

impl CacheShape {
    fn dims(self) -> [Dim; 4] {
        [Dim::Named("batch"), Dim::Fixed(self.kv_heads), Dim::Fixed(self.context), Dim::Fixed(self.head_dim)]
    }
}

/// A layer's keys and values, `[B, KV heads, C, D]` each: graph inputs as past, graph outputs as present.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) keys: Value,
    pub(crate) values: Value,
}

/// The product of an invisible position: finite, because infinities give NaN in some fused kernels.
const HIDDEN: f32 = -1e30;

/// The usual scale: one by the root of the head size.
#[expect(clippy::cast_possible_truncation, reason = "the graph's attribute is an f32")]
pub(crate) fn root_scale(head_dim: u32) -> f32 {
    f64::from(head_dim).sqrt().recip() as f32
}

/// Which keys a query sees. It spreads over `[B, H, S, T]`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mask<'a> {
    /// Whether it does.
    Flags(&'a Value),
    /// What is added to the product, in the computing precision; a large negative number where it doesn't.
    Biases(&'a Value),
}

impl Builder<'_> {
    /// Declares the inputs `past_k_LAYER` and `past_v_LAYER`.
    pub(crate) fn past(&mut self, layer: u32, shape: CacheShape) -> Cache {
        let (element, dims) = (self.compute(), shape.dims());
        let keys = self.graph.input(&format!("past_k_{layer}"), element, &dims);
        let values = self.graph.input(&format!("past_v_{layer}"), element, &dims);
        Cache { keys, values }
    }

    /// Declares the outputs of a layer's cache.
    pub(crate) fn present(&mut self, present: &Cache, shape: CacheShape) {
        let (element, dims) = (self.compute(), shape.dims());
        self.graph.output(&present.keys, element, &dims);
        self.graph.output(&present.values, element, &dims);
    }

    /// From the normalized input `[B, S, E]` to the layer's update `[B, S, E]`, and the present cache.
    pub(crate) fn attention(
        &mut self,
        at: &Layer,
        x: &Value,
        attention: &Attention,
    ) -> Result<(Value, Cache), WeightsError> {
        let qkv = self.linear(&attention.qkv, x)?;
        let [mut queries, mut keys, values] = self.split_heads(&qkv, attention);
        if let Some(tables) = at.rotary {
            queries = self.rotate(&queries, tables, at.step, attention.head_dim);
            keys = self.rotate(&keys, tables, at.step, attention.head_dim);
        }
        let (mixed, present) = self.attend(at, [queries, keys, values], attention);
        Ok((self.linear(&attention.out, &mixed)?, present))
    }

    /// Queries `[B, H, S, D]`, keys and values `[B, KV heads, S, D]` from `[B, S, (H + 2 KV heads) D]`.
    pub(super) fn split_heads(&mut self, qkv: &Value, attention: &Attention) -> [Value; 3] {
        let graph = &mut self.graph;
        let [heads, kv_heads, head_dim] = [attention.heads, attention.kv_heads, attention.head_dim].map(i64::from);
        let shape = graph.integers(&[4], &[0, 0, heads + 2 * kv_heads, head_dim]);
        let split = graph.node("Reshape", &[qkv, &shape], &[]);
        let split = graph.node("Transpose", &[&split], &[Attribute::Ints("perm", &[0, 2, 1, 3])]);
        let sizes = graph.integers(&[3], &[heads, kv_heads, kv_heads]);
        graph.node_n("Split", &[&split, &sizes], &[Attribute::Int("axis", 1)])
    }

    /// Writes keys and values into the cache at `past_len` and attends over it: `[B, S, H D]`, and the present cache.
    ///
    /// `TensorScatter` is the form that both runtimes do in place when past and present share their memory.
    fn attend(&mut self, at: &Layer, [queries, keys, values]: [Value; 3], attention: &Attention) -> (Value, Cache) {
        let graph = &mut self.graph;
        let Step { past_len, mask, .. } = at.step;
        let mut update = |past: &Value, new: &Value, kind: char| {
            let name = format!("present_{kind}_{}", at.index);
            let attributes = [Attribute::Int("axis", -2), Attribute::Text("mode", "linear")];
            let [present] = graph.named("TensorScatter", &[past, new, past_len], &attributes, [&name]);
            present
        };
        let present = Cache { keys: update(&at.past.keys, &keys, 'k'), values: update(&at.past.values, &values, 'v') };
        let heads = attention.all_heads();
        let [keys, values] = [&present.keys, &present.values].map(|cache| self.attended(cache, at.step));
        let mask = if at.step.has_biases { Mask::Biases(mask) } else { Mask::Flags(mask) };
        (self.mix([&queries, &keys, &values], mask, heads), present)
    }

    /// The part of a cache that attention reads: `[B, KV heads, A, D]`.
    fn attended(&mut self, cache: &Value, step: &Step) -> Value {
        let Some(attended) = &step.attended else { return cache.clone() };
        let (zero, axis_2) = (self.graph.integers(&[1], &[0]), self.graph.integers(&[1], &[2]));
        self.graph.node("Slice", &[cache, &zero, attended, &axis_2], &[])
    }

    /// Attends: queries `[B, H, S, D]` over keys and values `[B, KV heads, T, D]`. Gives the heads side by side,
    /// `[B, S, H D]`.
    pub(super) fn mix(&mut self, [queries, keys, values]: [&Value; 3], mask: Mask, heads: Heads) -> Value {
        let mixed = if self.precision.f32_attention {
            self.attend_in_f32([queries, keys, values], mask, heads)
        } else {
            let (Mask::Flags(mask) | Mask::Biases(mask)) = mask;
            let inputs = [queries, keys, values, mask];
            self.graph.node("Attention", &inputs, &[Attribute::Float("scale", heads.scale)])
        }; // [B, H, S, D]
        let graph = &mut self.graph;
        let mixed = graph.node("Transpose", &[&mixed], &[Attribute::Ints("perm", &[0, 2, 1, 3])]);
        let width = i64::from(heads.heads) * i64::from(heads.head_dim);
        let shape = graph.integers(&[3], &[0, 0, width]);
        graph.node("Reshape", &[&mixed, &shape], &[])
    }

    /// Products, softmax and sums in f32, of f16 inputs: `[B, H, S, D]` in f16.
    ///
    /// In single operators, because TensorRT-RTX 1.7.1 crashes on an `Attention` in f32. The query heads of a key-value
    /// head lie behind each other, as if they were more tokens.
    fn attend_in_f32(&mut self, inputs: [&Value; 3], mask: Mask, of: Heads) -> Value {
        let [heads, kv_heads, head_dim] = [of.heads, of.kv_heads, of.head_dim].map(i64::from);
        let [queries, keys, values] = inputs.map(|x| self.widen(x.clone()));
        let scale = self.graph.scalar(of.scale, Element::F32);
        let graph = &mut self.graph;
        let queries = graph.node("Mul", &[&queries, &scale], &[]);
        let stacked = graph.integers(&[4], &[0, kv_heads, -1, 0]);
        let queries = graph.node("Reshape", &[&queries, &stacked], &[]); // [B, KV heads, (H / KV heads) S, D]
        let keys = graph.node("Transpose", &[&keys], &[Attribute::Ints("perm", &[0, 1, 3, 2])]);
        let products = graph.node("MatMul", &[&queries, &keys], &[]);
        let by_head = graph.integers(&[4], &[0, heads, -1, 0]);
        let products = graph.node("Reshape", &[&products, &by_head], &[]); // [B, H, S, A]
        let products = match mask {
            Mask::Flags(flags) => {
                let hidden = self.graph.scalar(HIDDEN, Element::F32);
                self.graph.node("Where", &[flags, &products, &hidden], &[])
            }
            Mask::Biases(biases) => {
                let biases = self.widen(biases.clone());
                self.graph.node("Add", &[&products, &biases], &[])
            }
        };
        let graph = &mut self.graph;
        let shares = graph.node("Softmax", &[&products], &[Attribute::Int("axis", -1)]);
        let shares = graph.node("Reshape", &[&shares, &stacked], &[]);
        let mixed = graph.node("MatMul", &[&shares, &values], &[]);
        let by_head = graph.integers(&[4], &[0, heads, -1, head_dim]);
        let mixed = graph.node("Reshape", &[&mixed, &by_head], &[]);
        self.narrow(mixed)
    }
}
