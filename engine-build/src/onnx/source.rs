//! Where the bytes of a parameter come from: the checkpoint, or the builder.

use crate::checkpoint::{Stacked, Tensor};

/// Where the bytes of a parameter come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The leading elements of a checkpoint tensor; zeros where the parameter is larger.
    Checkpoint(Tensor),
    /// The rows of a checkpoint tensor, each less the same row; zeros where the parameter is larger.
    Centred { tensor: Tensor, mean: Vec<f32> },
    /// The elements of a checkpoint tensor, each times a factor.
    Scaled { tensor: Tensor, factor: f64 },
    /// The elements of a checkpoint tensor; `pad` where the parameter is larger.
    Padded { tensor: Tensor, pad: f32 },
    /// Checkpoint matrices on top of each other, transposed.
    Transposed(Stacked),
    /// Values that the family computed.
    Computed(Vec<f32>),
    /// The scales of the packed parameter of this name, which is written before.
    Scales(String),
}

impl Source {
    /// The checkpoint tensors that it takes.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        match self {
            Source::Checkpoint(tensor)
            | Source::Centred { tensor, .. }
            | Source::Scaled { tensor, .. }
            | Source::Padded { tensor, .. } => std::slice::from_ref(tensor),
            Source::Transposed(matrix) => &matrix.tensors,
            Source::Computed(_) | Source::Scales(_) => &[],
        }
    }
}
