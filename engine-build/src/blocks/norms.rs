//! Normalizations. They work in f32 in every graph: sums of squares are where f16 overflows first.

use super::Builder;
use crate::error::WeightsError;
use crate::onnx::{Attribute, Element, Source, Value};

/// Kind of a normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// Less the mean, divided by the standard deviation; with weight and bias.
    Layer,
    /// Divided by the root of the mean square; with weight.
    Rms,
}

/// A normalization over the last dimension; its tensors' name comes with each use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) kind: NormKind,
    pub(crate) hidden: u32,
    pub(crate) epsilon: f32,
}

impl Builder<'_> {
    /// f32 `[.., E]` to f32 `[.., E]`, with `NAME.weight` and, where the kind has one, `NAME.bias`.
    pub(crate) fn norm(&mut self, norm: &Norm, name: &str, x: &Value) -> Result<Value, WeightsError> {
        let hidden = u64::from(norm.hidden);
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", norm.epsilon)];
        let weight = self.vector_f32(&format!("{name}.weight"), hidden)?;
        match norm.kind {
            NormKind::Layer => {
                let bias = self.vector_f32(&format!("{name}.bias"), hidden)?;
                Ok(self.graph.node("LayerNormalization", &[x, &weight, &bias], &attributes))
            }
            NormKind::Rms => Ok(self.graph.node("RMSNormalization", &[x, &weight], &attributes)),
        }
    }

    /// [`Builder::norm`] in the computing precision: what linear maps take.
    pub(crate) fn normed(&mut self, norm: &Norm, name: &str, x: &Value) -> Result<Value, WeightsError> {
        let normed = self.norm(norm, name, x)?;
        Ok(self.narrow(normed))
    }

    /// An RMSNorm times a factor, which becomes part of its weight: f32 `[.., E]` to f32 `[.., E]`.
    pub(crate) fn scaled_norm(
        &mut self,
        norm: &Norm,
        name: &str,
        x: &Value,
        factor: f64,
    ) -> Result<Value, WeightsError> {
        let (name, shape) = (format!("{name}.weight"), [u64::from(norm.hidden)]);
        let source = Source::Scaled { tensor: self.tensor(&name, &shape)?, factor };
        let weight = self.graph.parameter(&name, &shape, Element::F32, source);
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", norm.epsilon)];
        Ok(self.graph.node("RMSNormalization", &[x, &weight], &attributes))
    }
}
