//! The inner loops of attention: `softmax(q K) V` for one query, or for a few that share the loads of keys and values.
//!
//! A query's result is the same alone and in a block: every product is added up in the same order.

use crate::isa::{Isa, LANES};
use crate::math::exp;

/// Queries that share loads.
pub(crate) const BLOCK: usize = 4;

/// One head of a cache as one row sees it.
#[derive(Clone, Copy)]
pub(crate) struct Cache<'a> {
    /// Keys of the head in place 0.
    pub(crate) keys: *mut f32,
    /// Values of the head in place 0.
    pub(crate) values: *mut f32,
    /// `[context]`: where each position is.
    pub(crate) places: &'a [i64],
    /// Elements from one place to the next.
    pub(crate) width: usize,
}

impl Cache<'_> {
    /// Where the key of a position begins.
    #[inline(always)]
    pub(crate) fn key(&self, position: usize) -> *mut f32 {
        self.keys.wrapping_add(self.places[position] as usize * self.width)
    }

    /// Where the value of a position begins.
    #[inline(always)]
    pub(crate) fn value(&self, position: usize) -> *mut f32 {
        self.values.wrapping_add(self.places[position] as usize * self.width)
    }
}

/// `Q` queries, 1 or [`BLOCK`], and the cache that they see.
pub(crate) struct Block<'a, const Q: usize> {
    /// `[Q, head_dim]`
    pub(crate) queries: &'a [f32],
    pub(crate) cache: Cache<'a>,
    /// Factor of every product of query and key.
    pub(crate) scale: f32,
    /// Positions that each query sees, in rising order.
    pub(crate) lengths: [usize; Q],
    /// Places for the scores of one query: the context, rounded up to 16.
    pub(crate) stretch: usize,
}

impl<const Q: usize> Block<'_, Q> {
    /// Writes the queries' results, `head_dim` elements each. `scores`: `[Q, stretch]`, for use meanwhile.
    ///
    /// # Safety
    /// The machine has `S`; the places of the positions that the queries see are there, and nobody writes to them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn attend<S: Isa>(&self, scores: &mut [f32], mut y: [&mut [f32]; Q]) {
        let dim = self.queries.len() / Q;
        let whole = dim / LANES * LANES;
        self.check(scores, &y);
        // SAFETY: the lengths of all slices were checked, and the caller promises the places; each function reads and writes
        // within them.
        unsafe {
            self.scores::<S>(scores);
            let mut factors = [0.0; Q];
            for (q, length) in self.lengths.into_iter().enumerate() {
                let scores = &mut scores[q * self.stretch..][..length.next_multiple_of(LANES)];
                // What fills up the last vector has no weight.
                scores[length..].fill(f32::NEG_INFINITY);
                factors[q] = 1.0 / softmax::<S>(scores);
            }
            // As many vectors at a time as there are registers for: sums that don't wait for each other.
            let mut d = 0;
            while S::REGISTERS >= 32 && d + 4 * LANES <= whole {
                self.mix::<S, 4>(scores, factors, d, &mut y);
                d += 4 * LANES;
            }
            while Q == 1 && d + 2 * LANES <= whole {
                self.mix::<S, 2>(scores, factors, d, &mut y);
                d += 2 * LANES;
            }
            while d < whole {
                self.mix::<S, 1>(scores, factors, d, &mut y);
                d += LANES;
            }
            for (q, y) in y.iter_mut().enumerate() {
                let weights = &scores[q * self.stretch..][..self.lengths[q]];
                for d in whole..dim {
                    let products = weights.iter().enumerate().map(|(at, weight)| weight * *self.cache.value(at).add(d));
                    y[d] = products.sum::<f32>() * factors[q];
                }
            }
        }
    }

    /// # Panics
    /// If a slice is shorter than what will be read or written.
    #[inline(always)]
    fn check(&self, scores: &[f32], y: &[&mut [f32]; Q]) {
        let (dim, last) = (self.queries.len() / Q, self.lengths[Q - 1]);
        assert!(self.lengths[0] > 0 && self.lengths.is_sorted() && last <= self.stretch, "{:?}", self.lengths);
        assert!(self.cache.places.len() >= last, "a cache of {last} positions");
        assert!(self.stretch.is_multiple_of(LANES) && scores.len() == Q * self.stretch, "scores");
        assert!(y.iter().all(|y| y.len() == dim), "results");
    }

    /// Products of queries and keys. Those of keys that a query doesn't see are there too, and mean nothing.
    ///
    /// # Safety
    /// As for [`Block::attend`]; the lengths are those that [`Block::check`] asks for.
    #[inline(always)]
    unsafe fn scores<S: Isa>(&self, scores: &mut [f32]) {
        let dim = self.queries.len() / Q;
        let whole = dim / LANES * LANES;
        let last = self.lengths[Q - 1];
        let positions = LANES / Q;
        for first in (0..last).step_by(positions) {
            // SAFETY: positions are below `last`, elements below `whole`; a query's scores end within its stretch, a multiple of
            // 16 and so of `positions`.
            unsafe {
                let mut sums = [S::splat(0.0); LANES];
                // Where positions are missing, the last one stands in.
                let keys: [_; LANES] = std::array::from_fn(|n| self.cache.key((first + n).min(last - 1)).cast_const());
                for d in (0..whole).step_by(LANES) {
                    for n in 0..positions {
                        let key = S::load(keys[n].add(d));
                        for q in 0..Q {
                            let query = S::load(self.queries.as_ptr().add(q * dim + d));
                            sums[q * positions + n] = S::fma(query, key, sums[q * positions + n]);
                        }
                    }
                }
                let mut found = [0.0_f32; LANES];
                S::store(found.as_mut_ptr(), S::sums(sums));
                for (q, found) in found.chunks_exact_mut(positions).enumerate() {
                    let rest = &self.queries[q * dim + whole..(q + 1) * dim];
                    for (n, score) in found.iter_mut().enumerate() {
                        let key = std::slice::from_raw_parts(keys[n].add(whole), dim - whole);
                        *score = (*score + rest.iter().zip(key).map(|(q, k)| q * k).sum::<f32>()) * self.scale;
                    }
                    scores[q * self.stretch + first..][..positions].copy_from_slice(found);
                }
            }
        }
    }

    /// `N` vectors of the results, from element `d` on.
    ///
    /// # Safety
    /// As for [`Block::attend`]; `d + 16 N <= head_dim`; the lengths are those that [`Block::check`] asks for.
    #[inline(always)]
    unsafe fn mix<S: Isa, const N: usize>(
        &self,
        weights: &[f32],
        factors: [f32; Q],
        d: usize,
        y: &mut [&mut [f32]; Q],
    ) {
        // SAFETY: positions are below the lengths, elements below `head_dim`.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; Q];
            for position in 0..self.lengths[0] {
                let from = self.cache.value(position).add(d);
                let mut values = [S::splat(0.0); N];
                for (n, value) in values.iter_mut().enumerate() {
                    *value = S::load(from.add(n * LANES));
                }
                for (q, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.as_ptr().add(q * self.stretch + position));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = S::fma(weight, value, *sum);
                    }
                }
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                for position in self.lengths[0]..self.lengths[q] {
                    let from = self.cache.value(position).add(d);
                    let weight = S::splat(*weights.as_ptr().add(q * self.stretch + position));
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = S::fma(weight, S::load(from.add(n * LANES)), *sum);
                    }
                }
                for (n, sum) in sums.iter().enumerate() {
                    S::store(y[q].as_mut_ptr().add(d + n * LANES), S::mul(*sum, S::splat(factors[q])));
                }
            }
        }
    }
}

/// Makes scores weights that add up to the number returned.
///
/// # Safety
/// The machine has `S`; the length is a multiple of 16.
#[inline(always)]
unsafe fn softmax<S: Isa>(scores: &mut [f32]) -> f32 {
    // SAFETY: whole vectors, as promised.
    unsafe {
        let mut largest = S::splat(f32::NEG_INFINITY);
        for at in (0..scores.len()).step_by(LANES) {
            largest = S::max(S::load(scores.as_ptr().add(at)), largest);
        }
        let largest = S::splat(S::largest(largest));
        let mut total = S::splat(0.0);
        for at in (0..scores.len()).step_by(LANES) {
            let weight = exp::<S>(S::sub(S::load(scores.as_ptr().add(at)), largest));
            S::store(scores.as_mut_ptr().add(at), weight);
            total = S::add(total, weight);
        }
        S::sum(total)
    }
}
