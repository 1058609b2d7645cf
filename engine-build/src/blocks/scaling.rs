//! Factors of a linear map's inputs and outputs, given to the checkpoint's tensors in the order in which they store
//! them.

use super::projection::{Layout, Linear};
use crate::checkpoint::{Axis, Weights};
use crate::error::WeightsError;

impl Linear {
    /// The largest magnitude of each input's weights. `[from]`
    pub(crate) fn largest_by_input(&self, weights: &Weights, prefix: &str) -> Result<Vec<f32>, WeightsError> {
        let mut largest = vec![0.0_f32; self.from as usize];
        for (name, to) in &self.parts {
            let (shape, by_row) = match self.layout {
                Layout::OutIn => ([*to, self.from], false),
                Layout::InOut => ([self.from, *to], true),
            };
            let tensor = weights.tensor(&format!("{prefix}{name}.weight"), &shape)?;
            weights.read(&tensor, tensor.elements, |start, values| {
                for (index, value) in (start..).zip(values) {
                    let input = if by_row { index / shape[1] } else { index % shape[1] } as usize;
                    largest[input] = largest[input].max(value.abs());
                }
                Ok::<_, WeightsError>(())
            })?;
        }
        Ok(largest)
    }

    /// Multiplies what belongs to each input.
    pub(crate) fn scale_inputs(&self, weights: &mut Weights, prefix: &str, by: &[f32]) {
        let axis = if self.layout == Layout::OutIn { Axis::Columns } else { Axis::Rows };
        for (name, _) in &self.parts {
            weights.scale(&format!("{prefix}{name}.weight"), axis, by);
        }
    }

    /// Multiplies what belongs to the outputs from `first` on, of all parts side by side: weights and biases.
    pub(crate) fn scale_outputs(&self, weights: &mut Weights, prefix: &str, first: usize, by: &[f32]) {
        let total: u64 = self.parts.iter().map(|(_, to)| to).sum();
        let mut stored = vec![1.0; total as usize];
        for (output, by) in (first as u64..total).zip(by) {
            stored[self.order.map_or(output, |order| order.stored(output)) as usize] = *by;
        }
        let axis = if self.layout == Layout::OutIn { Axis::Rows } else { Axis::Columns };
        let mut rest = stored.as_slice();
        for (name, to) in &self.parts {
            let (own, others) = rest.split_at(*to as usize);
            weights.scale(&format!("{prefix}{name}.weight"), axis, own);
            if self.bias {
                weights.scale(&format!("{prefix}{name}.bias"), Axis::Columns, own);
            }
            rest = others;
        }
    }
}
