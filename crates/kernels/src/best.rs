//! The top k of a row of logits, and its logsumexp.

use crate::isa::{Isa, Op};
use crate::math::exp;
use crate::vector::LANES;

/// Logits of a block. In large vocabularies the search keeps one maximum for each block.
const BLOCK: usize = 4 * LANES;
/// Below this many blocks for each of the top k, the search keeps a maximum for each vector: block maxima would prune
/// little.
const BLOCKS_PER_BEST: usize = 4;

/// Memory of the search for the top k, reused from row to row.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// Logits that share a maximum: a block's or a vector's.
    width: usize,
    /// The largest logit of each block or vector.
    maxima: Vec<f32>,
    /// The maxima as the selection reorders them.
    order: Vec<f32>,
    /// Logits that may be among the top k, as [`key`]s.
    found: Vec<u64>,
}

/// Computes the logarithm of the sum of a row's exponentials, and the maxima that [`Candidates::best`] needs.
pub(crate) struct Scan<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) top_k: usize,
    pub(crate) candidates: &'a mut Candidates,
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
            // Subtracted before exponentials are taken: logits are often all below -88, where every f32 exponential is
            // 0.
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
    /// The `k` largest logits with their ids, in order, after a [`Scan`].
    ///
    /// The k-th largest maximum is no larger than the k-th largest logit, so blocks with a smaller maximum are skipped.
    pub(crate) fn best(&mut self, logits: &[f32], k: usize) -> impl Iterator<Item = (f32, u32)> {
        let mut least = f32::NEG_INFINITY;
        if k > 0 && k < self.maxima.len() {
            self.order.clone_from(&self.maxima);
            let (_, kth, _) = self.order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            least = *kth;
        }
        self.found.clear();
        for (part, maximum) in self.maxima.iter().enumerate() {
            // This comparison does not skip a NaN.
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
        // A NaN reaches no threshold. The logarithm of the sum shows it; the ids only have to be valid.
        let none = std::iter::repeat((f32::NAN, 0));
        let found = self.found.iter().map(|&key| key as u32).map(|id| (logits[id as usize], id));
        found.chain(none).take(k)
    }
}

/// A sort key: larger logits first in the total order of floats, then lower ids. The id is the lower half.
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
