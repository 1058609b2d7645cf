//! What linear maps read. Whoever rounds weights to 8 bits chooses by it which errors matter.

use crate::kernels::Kernels;
use crate::linear::Linear;
use crate::rows::Input;

/// Rows that a matrix was multiplied with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Elements of a row.
    pub inputs: usize,
    /// `[rows, inputs]`
    pub values: Vec<f32>,
}

impl Linear<'_> {
    /// Adds to `seen` what the matrix is multiplied with for the given rows of `x`, `[_, inputs]`: the rows after the
    /// normalization.
    ///
    /// # Panics
    /// If a row doesn't exist.
    pub fn observe(&self, kernels: &mut Kernels, x: &[f32], rows: impl Iterator<Item = usize>, seen: &mut Seen) {
        let inputs = self.inputs;
        seen.inputs = inputs;
        let Kernels { workers, rows: prepared, .. } = kernels;
        for row in rows {
            let input = Input { x, inputs, count: 1, row: &|_| row, norm: self.norm, quantize: false };
            prepared.prepare(workers, input);
            seen.values.extend(prepared.first().take(inputs));
        }
    }
}
