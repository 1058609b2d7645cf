//! The vocabulary head: logits of the selected rows, the best of each, and the logarithm of the sum of their exponentials.

use crate::Kernels;
use crate::isa::{Isa, LANES, Op};
use crate::linear::Linear;
use crate::math::exp;
use crate::threads::Shared;

/// The logit of an id that only pads the vocabulary. Finite, like the one in the standard graph.
const PAD: f32 = -1e30;

/// Logits that are looked at together, and whose maximum is kept while looking for the best in large vocabularies.
const BLOCK: usize = 4 * LANES;
/// With fewer blocks than so many for each of the best, the maxima of single vectors are kept: hardly a block could be left out.
const BLOCKS_PER_BEST: usize = 4;

/// The head, without its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// From hidden state to vocabulary; no activation.
    pub linear: Linear<'a>,
    /// Width of a row of logits, at least the vocabulary.
    pub padded: usize,
    /// Best ids that are reported.
    pub top_k: usize,
}

/// Results, row by row.
#[derive(Debug)]
pub struct Distributions<'a> {
    /// `[selected, padded]`
    pub logits: &'a mut [f32],
    /// `[selected, top_k]`: the best logits, largest first; among equals the lower id first.
    pub top_logits: &'a mut [f32],
    /// `[selected, top_k]`: their ids.
    pub top_ids: &'a mut [i64],
    /// `[selected]`
    pub logsumexp: &'a mut [f32],
}

/// Memory of the search for the best, used again.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// Logits that a maximum is of: those of a block or of a vector.
    width: usize,
    /// The largest logit of each block or vector.
    maxima: Vec<f32>,
    /// The same, in the order that selection leaves them.
    order: Vec<f32>,
    /// Logits that may be among the best, as [`key`]s.
    found: Vec<u64>,
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
        let Kernels { threads, level, rows, candidates, .. } = kernels;
        let quantize = matches!(self.linear.weights, crate::layout::Matrix::Int8(..));
        let row = |index: usize| select[index] as usize;
        rows.prepare((threads, *level), x, (inputs, count), &row, self.linear.norm, quantize);
        let to = (&mut *out.logits, self.padded);
        self.linear.multiply((threads, *level), rows, count, (None, None), to);

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

/// The logarithm of the sum of a row's exponentials; on the way, the largest logits among which the best are looked for.
struct Scan<'a> {
    logits: &'a [f32],
    top_k: usize,
    candidates: &'a mut Candidates,
}

impl Op for Scan<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Isa>(self) -> f32 {
        let Self { logits, top_k, candidates: Candidates { width, maxima, .. } } = self;
        maxima.clear();
        let (whole, rest) = logits.split_at(logits.len() / BLOCK * BLOCK);
        *width = if logits.len() / BLOCK < BLOCKS_PER_BEST * top_k { LANES } else { BLOCK };
        // SAFETY: every load is of 16 elements within a block.
        unsafe {
            for block in whole.chunks_exact(BLOCK) {
                let [a, b, c, d] = vectors::<S>(block);
                if *width == LANES {
                    maxima.extend([S::largest(a), S::largest(b), S::largest(c), S::largest(d)]);
                } else {
                    maxima.push(S::largest(S::max(S::max(a, b), S::max(c, d))));
                }
            }
            maxima.extend(rest.chunks(*width).map(|part| part.iter().copied().fold(f32::NEG_INFINITY, f32::max)));
            // Subtracted before exponentials are taken: logits are often all below -88, where every f32 exponential is 0.
            let largest = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut total = 0.0_f64;
            for block in whole.chunks_exact(BLOCK) {
                let [a, b, c, d] = vectors::<S>(block);
                let largest = S::splat(largest);
                let (a, b) = (exp::<S>(S::sub(a, largest)), exp::<S>(S::sub(b, largest)));
                let (c, d) = (exp::<S>(S::sub(c, largest)), exp::<S>(S::sub(d, largest)));
                total += f64::from(S::sum(S::add(S::add(a, b), S::add(c, d))));
            }
            total += rest.iter().map(|logit| f64::from(logit - largest).exp()).sum::<f64>();
            largest + total.ln() as f32
        }
    }
}

/// A block's vectors. Not a closure: those are compiled without the instruction set, unless they happen to be inlined.
///
/// # Safety
/// The machine has `S`; the block has [`BLOCK`] elements.
#[inline(always)]
unsafe fn vectors<S: Isa>(block: &[f32]) -> [S::F; BLOCK / LANES] {
    let from = block.as_ptr();
    // SAFETY: within the block.
    unsafe { [S::load(from), S::load(from.add(LANES)), S::load(from.add(2 * LANES)), S::load(from.add(3 * LANES))] }
}

impl Candidates {
    /// The `k` largest logits with their ids, in order; needs the maxima.
    ///
    /// The k-th largest maximum is no larger than the k-th largest logit, so only what reaches it is looked at.
    fn best(&mut self, logits: &[f32], k: usize) -> impl Iterator<Item = (f32, u32)> {
        let mut least = f32::NEG_INFINITY;
        if k > 0 && k < self.maxima.len() {
            self.order.clone_from(&self.maxima);
            let (_, kth, _) = self.order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            least = *kth;
        }
        self.found.clear();
        for (part, maximum) in self.maxima.iter().enumerate() {
            // Written so that a part with a NaN is looked at, too.
            if *maximum < least {
                continue;
            }
            let from = part * self.width;
            let ids = (from..logits.len().min(from + self.width)).map(|id| (logits[id], id as u32));
            let reaching = ids.filter(|(logit, _)| least == f32::NEG_INFINITY || *logit >= least);
            self.found.extend(reaching.map(|(logit, id)| key(logit, id)));
        }
        if k < self.found.len() {
            self.found.select_nth_unstable(k);
            self.found.truncate(k);
        }
        self.found.sort_unstable();
        // Logits that are no numbers compare with nothing; the logarithm of their sum says so, and the ids must only be valid.
        let none = std::iter::repeat((f32::NAN, 0));
        let found = self.found.iter().map(|&key| key as u32).map(|id| (logits[id as usize], id));
        found.chain(none).take(k)
    }
}

/// A number that is the smaller the earlier a logit comes: the larger logit in the total order of floats, then the lower id. The id
/// is its lower half.
fn key(logit: f32, id: u32) -> u64 {
    let bits = logit.to_bits();
    // Where the sign is set, the order of the other bits is reversed already.
    let order = if bits >> 31 == 0 { !bits & !(1 << 31) } else { bits };
    (u64::from(order) << 32) | u64::from(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_logits_and_then_of_ids() {
        let logits = [f32::INFINITY, 7.5, 1e-40, 0.0, -0.0, -1e-40, -3.0, -1e30, f32::NEG_INFINITY];
        assert!(logits.windows(2).all(|two| key(two[0], 9) < key(two[1], 3)), "larger first");
        assert!(key(-2.0, 3) < key(-2.0, 4) && key(f32::NAN, 0) < key(f32::INFINITY, 0));
        assert_eq!(key(-2.0, 77) as u32, 77);
    }
}
