//! A decoder layer put together: normalization, attention and feed-forward network around the residual stream.

use super::{Attention, Builder, Cache, Layer, Mlp, Norm};
use crate::error::WeightsError;
use crate::onnx::Value;

/// In which order a layer normalizes and adds. `N1` and `N2` are its normalizations, `A` the attention, `M` the
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// `x += A(N1(x)); x += M(N2(x))`, with the second normalization's name.
    Sequential(&'static str),
    /// `x += A(N1(x)) + M(N2(x))`, with the second normalization's name.
    Parallel(&'static str),
    /// `x += A(n) + M(n)` where `n = N1(x)`.
    ParallelShared,
}

/// The parts of a layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerPlan {
    /// For the names of nodes, and put before those of the normalizations: `h.3.`.
    pub(crate) scope: String,
    /// Kind and settings of both normalizations.
    pub(crate) norm: Norm,
    /// The first normalization's name.
    pub(crate) first_norm: &'static str,
    pub(crate) order: Order,
    pub(crate) attention: Attention,
    pub(crate) mlp: Mlp,
}

impl Builder<'_> {
    /// One layer: the residual stream f32 `[B, S, E]` before and behind it, and its present cache.
    pub(crate) fn layer(&mut self, at: &Layer, x: &Value, plan: &LayerPlan) -> Result<(Value, Cache), WeightsError> {
        let LayerPlan { scope, norm, order, .. } = plan;
        self.graph.scope(format!("{scope}attention"));
        let normed = self.normed(norm, &format!("{scope}{}", plan.first_norm), x)?;
        let (attended, present) = self.attention(at, &normed, &plan.attention)?;
        let sum = self.residual(x, attended);

        self.graph.scope(format!("{scope}mlp"));
        let normed = match order {
            Order::Sequential(name) => self.normed(norm, &format!("{scope}{name}"), &sum)?,
            Order::Parallel(name) => self.normed(norm, &format!("{scope}{name}"), x)?,
            Order::ParallelShared => normed,
        };
        let update = self.mlp(&normed, &plan.mlp)?;
        Ok((self.residual(&sum, update), present))
    }
}
