//! The vocabulary head: logits of the selected rows, the top k of each row, and its logsumexp.

use crate::best::Scan;
use crate::kernels::Kernels;
use crate::layout::Matrix;
use crate::linear::{Linear, Output};
use crate::rows::Input;
use crate::shared::Shared;
use crate::workers::Workers;

/// The logit of an id that only pads the vocabulary. Finite, like the one in the standard graph.
const PAD: f32 = -1e30;

/// The head, without its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// From hidden state to vocabulary; no activation.
    pub linear: Linear<'a>,
    /// Width of a row of logits, at least the vocabulary.
    pub padded: usize,
    /// Number of best ids that are reported.
    pub top_k: usize,
}

/// Where the head writes its results: one row for each selected position.
#[derive(Debug)]
pub struct Distributions<'a> {
    /// The logits. `[selected, padded]`
    pub logits: &'a mut [f32],
    /// `[selected, top_k]`: the best logits, largest first; among equals the lower id first.
    pub top_logits: &'a mut [f32],
    /// The ids of the best logits. `[selected, top_k]`
    pub top_ids: &'a mut [i64],
    /// Logarithm of the sum of the exponentials of all logits. `[selected]`
    pub logsumexp: &'a mut [f32],
}

impl Head<'_> {
    /// Computes the distributions after the rows `select` of `x` `[rows, inputs]`.
    ///
    /// # Errors
    /// A selected row that does not exist.
    ///
    /// # Panics
    /// If a slice has another length than its shape, or `top_k` is more than the vocabulary.
    pub fn run(&self, kernels: &mut Kernels, x: &[f32], select: &[i64], out: Distributions) -> Result<(), i64> {
        let (inputs, vocab, count) = (self.linear.inputs, self.linear.outputs, select.len());
        assert!(vocab <= self.padded && self.top_k <= vocab, "{} best of {vocab} in {}", self.top_k, self.padded);
        assert_eq!(out.logits.len(), count * self.padded, "logits");
        assert_eq!(out.top_logits.len(), count * self.top_k, "top_logits");
        assert_eq!(out.top_ids.len(), count * self.top_k, "top_ids");
        assert_eq!(out.logsumexp.len(), count, "logsumexp");
        let available = x.len() / inputs;
        if let Some(missing) =
            select.iter().find(|&&row| usize::try_from(row).is_ok_and(|row| row >= available) || row < 0)
        {
            return Err(*missing);
        }
        if count == 0 {
            return Ok(());
        }
        let Kernels { workers, rows, candidates, .. } = kernels;
        let Workers { threads, level } = &*workers;
        let quantize = matches!(self.linear.weights, Matrix::Int8(..));
        let row = |index: usize| select[index] as usize;
        rows.prepare(workers, Input { x, inputs, count, row: &row, norm: self.linear.norm, quantize });
        let y = &mut *out.logits;
        self.linear.multiply(workers, rows, Output { y, stride: self.padded, count, factor: None, residual: None });

        let logits = Shared::new(out.logits);
        let (top_logits, top_ids) = (Shared::new(out.top_logits), Shared::new(out.top_ids));
        let (sums, candidates) = (Shared::new(out.logsumexp), Shared::new(candidates.as_mut_slice()));
        threads.run(count, &|row, thread| {
            // SAFETY: rows are one part's each, candidates one thread's, and both were checked to be there.
            unsafe {
                let logits = logits.slice_mut(row * self.padded, self.padded);
                logits[vocab..].fill(PAD);
                let candidates = &mut candidates.slice_mut(thread, 1)[0];
                // The machine has the level, or `Kernels` would not hold it.
                *sums.at(row) = level.run(Scan { logits: &logits[..vocab], top_k: self.top_k, candidates });
                let best = candidates.best(&logits[..vocab], self.top_k);
                let to = top_logits.slice_mut(row * self.top_k, self.top_k).iter_mut();
                for ((logit, id), found) in to.zip(top_ids.slice_mut(row * self.top_k, self.top_k)).zip(best) {
                    (*logit, *id) = (found.0, i64::from(found.1));
                }
            }
        });
        Ok(())
    }
}
