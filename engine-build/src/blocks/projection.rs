//! Linear maps: one `MatMul` with a matrix `[from, to]`, and an `Add` where there is a bias.
//!
//! The graph has this one form for every storage format of a checkpoint. Maps of the same input are concatenated into
//! one when the weights are written, because at small batches the fixed cost of a product dominates.

use super::Builder;
use crate::checkpoint::{Interleaved, Stacked};
use crate::error::WeightsError;
use crate::onnx::{Element, Source, Value};
use crate::quantizing::Blocks;

/// How the checkpoint stores a map's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[from, to]`, as GPT-2's Conv1D.
    InOut,
    /// `[to, from]`, as PyTorch's Linear.
    OutIn,
}

/// A linear map, by the names of its tensors.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    /// The maps side by side: the name of each, without `.weight` and `.bias`, and its number of outputs.
    pub(super) parts: Vec<(String, u64)>,
    pub(super) from: u64,
    pub(super) bias: bool,
    pub(super) layout: Layout,
    pub(super) order: Option<Interleaved>,
}

impl Linear {
    /// PyTorch's Linear with a bias.
    pub(crate) fn new(name: impl Into<String>, from: u32, to: u32) -> Self {
        Self::stacked([(name.into(), to)], from)
    }

    /// Several of PyTorch's `Linear` with biases: their outputs side by side.
    pub(crate) fn stacked(parts: impl IntoIterator<Item = (String, u32)>, from: u32) -> Self {
        let parts = parts.into_iter().map(|(name, to)| (name, u64::from(to))).collect();
        Self { parts, from: u64::from(from), bias: true, layout: Layout::OutIn, order: None }
    }

    /// GPT-2's Conv1D, which has a bias.
    pub(crate) fn conv1d(name: impl Into<String>, from: u32, to: u32) -> Self {
        Self { layout: Layout::InOut, ..Self::new(name, from, to) }
    }

    /// With a bias or without.
    pub(crate) fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// Outputs that the checkpoint stores head by head, and the graph wants part by part (query, key, value).
    pub(crate) fn interleaved(self, parts: u32, heads: u32, head_dim: u32) -> Self {
        let [parts, heads, head_dim] = [parts, heads, head_dim].map(u64::from);
        Self { order: Some(Interleaved { parts, heads, head_dim }), ..self }
    }

    fn to(&self) -> u64 {
        self.parts.iter().map(|(_, to)| to).sum()
    }

    /// The parameter's name: `a.q_proj.weight`, or `a.q_proj+k_proj.weight` for maps side by side.
    fn name(&self, kind: &str) -> String {
        let mut names = self.parts.iter().map(|(name, _)| name.as_str());
        let mut joined = names.next().unwrap_or_default().to_owned();
        for name in names {
            joined.push('+');
            joined.push_str(name.rsplit('.').next().unwrap_or(name));
        }
        format!("{joined}.{kind}")
    }
}

impl Builder<'_> {
    /// `x W + b`: `[.., from]` to `[.., to]`, both in the computing precision.
    pub(crate) fn linear(&mut self, linear: &Linear, x: &Value) -> Result<Value, WeightsError> {
        let matrix = self.map_matrix(linear)?;
        let product = |b: &mut Self| b.graph.node("MatMul", &[x, &matrix], &[]);
        if !linear.bias {
            return Ok(product(self));
        }
        let (source, element) = (self.stacked(linear, "bias", 1)?, self.compute());
        let bias = self.graph.parameter(&linear.name("bias"), &[linear.to()], element, source);
        let product = product(self);
        Ok(self.graph.node("Add", &[&product, &bias], &[]))
    }

    fn map_matrix(&mut self, linear: &Linear) -> Result<Value, WeightsError> {
        let (shape, name) = ([linear.from, linear.to()], linear.name("weight"));
        let source = match linear.layout {
            Layout::InOut => Source::Checkpoint(self.tensor(&name, &shape)?),
            Layout::OutIn => self.stacked(linear, "weight", linear.from)?,
        };
        let element = self.compute();
        let stored = self.precision.stored.filter(|_| element == Element::F16);
        let blocks = stored.and_then(|(bits, block)| Blocks::of(shape, bits, block));
        Ok(match blocks {
            Some(blocks) => self.graph.quantized(&name, source, blocks),
            None => self.graph.parameter(&name, &shape, element, source),
        })
    }

    /// The tensors `PART.KIND` of a map, `[to, columns]` or `[to]` each, stacked and transposed.
    fn stacked(&self, linear: &Linear, kind: &str, columns: u64) -> Result<Source, WeightsError> {
        let tensor = |(name, to): &(String, u64)| {
            let stored = [*to, columns];
            let dimensions = if kind == "bias" { 1 } else { 2 };
            self.tensor(&format!("{name}.{kind}"), &stored[..dimensions])
        };
        let tensors = linear.parts.iter().map(tensor).collect::<Result<_, _>>()?;
        Ok(Source::Transposed(Stacked { tensors, columns, order: linear.order }))
    }
}
