//! Normalizations inside `Linear` and `Head`: each user of a normalization computes it again, which costs less than a
//! node.

use super::rewriter::{Rewriter, attribute, input, int};
use crate::onnx::Attribute;

/// A normalization over the last dimension.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    /// `layer` or `rms`.
    kind: &'static str,
    pub(crate) x: String,
    pub(crate) scale: String,
    pub(crate) bias: Option<String>,
    epsilon: f32,
}

impl Norm {
    /// The normalization of rows of this width that makes a value, if `takes` holds for every node that uses it.
    pub(crate) fn of(r: &Rewriter, value: &str, width: u64, takes: impl Fn(usize) -> bool) -> Option<Self> {
        let node = r.node(r.producer(value)?)?;
        let kind = match node.op_type.as_str() {
            "LayerNormalization" => "layer",
            "RMSNormalization" => "rms",
            _ => return None,
        };
        let users = r.inner_users(value);
        let bias = input(node, 2);
        let fits = int(node, "axis", -1) == -1
            && node.output.len() == 1
            && r.is_vector(input(node, 1)?, width)
            && bias.is_none_or(|bias| r.is_vector(bias, width))
            && !users.is_empty()
            && users.iter().all(|slot| takes(*slot));
        let epsilon = attribute(node, "epsilon").and_then(|attribute| attribute.f).unwrap_or(1e-5);
        fits.then(|| Self {
            kind,
            x: node.input[0].clone(),
            scale: node.input[1].clone(),
            bias: bias.map(str::to_owned),
            epsilon,
        })
    }

    /// The operators' attributes for this normalization or none.
    pub(crate) fn attributes(norm: Option<&Self>) -> Vec<Attribute<'static>> {
        let mut attributes = vec![Attribute::Text("norm", norm.map_or("none", |norm| norm.kind))];
        attributes.extend(norm.map(|norm| Attribute::Float("epsilon", norm.epsilon)));
        attributes
    }
}
