//! The inner loops of attention: `softmax(q K) V` for blocks of queries of adjacent heads that share the loads of keys
//! and values.
//!
//! A query's result does not depend on the other queries of its block: every product is summed in the same order.

use crate::math::exp;
use crate::vector::{LANES, Vector};

/// Queries that share loads.
pub(crate) const BLOCK: usize = 4;

/// A cache as one row sees it, from one head on.
#[derive(Clone, Copy)]
pub(crate) struct Cache<'a> {
    /// Keys of the head in slot 0.
    pub(crate) keys: *mut f32,
    /// Values of the head in slot 0.
    pub(crate) values: *mut f32,
    /// The slot of each position. `[context]`
    pub(crate) slots: &'a [i64],
    /// Elements from one slot to the next.
    pub(crate) width: usize,
}

impl Cache<'_> {
    /// Address of the first element of a position's key.
    #[inline(always)]
    pub(crate) fn key(&self, position: usize) -> *mut f32 {
        self.keys.wrapping_add(self.slots[position] as usize * self.width)
    }

    /// Address of the first element of a position's value.
    #[inline(always)]
    pub(crate) fn value(&self, position: usize) -> *mut f32 {
        self.values.wrapping_add(self.slots[position] as usize * self.width)
    }
}

/// Blocks of `Q` queries, 1 or [`BLOCK`], of each of some heads, and the cache that they see.
///
/// All heads and blocks read a slot before the next slot is read: memory is read once, in long runs.
pub(crate) struct Blocks<'a, const Q: usize> {
    /// `[heads, blocks, Q, head_dim]`
    pub(crate) queries: &'a [f32],
    /// Adjacent heads of the cache.
    pub(crate) heads: usize,
    /// The cache of the first of these heads.
    pub(crate) cache: Cache<'a>,
    /// Factor of every product of query and key.
    pub(crate) scale: f32,
    /// Subtracted from a product for each position between query and key. `[heads]`
    pub(crate) slopes: Option<&'a [f32]>,
    /// `[blocks]`: positions that each query sees, in rising order.
    pub(crate) lengths: &'a [[usize; Q]],
}

/// Scratch memory, and where the results go.
pub(crate) struct Output<'a, const Q: usize> {
    /// `[heads, blocks, Q, Blocks::stretch]`
    pub(crate) scores: &'a mut [f32],
    /// `[heads, blocks, Q]`
    pub(crate) factors: &'a mut [f32],
    /// `[blocks]`: where the results of the first head's queries are, `head_dim` elements each.
    pub(crate) y: &'a [[*mut f32; Q]],
    /// Elements from one head's result to the next one's.
    pub(crate) step: usize,
}

/// Vectors of a block's results.
#[derive(Clone, Copy)]
struct Span {
    at: At,
    /// Index within the head of the vectors' first element.
    element: usize,
}

/// A block of a head.
#[derive(Clone, Copy)]
struct At {
    head: usize,
    block: usize,
}

/// Consecutive positions.
#[derive(Clone, Copy)]
struct Positions<'a> {
    first: usize,
    /// Address of the first head's key, or value, of each position.
    starts: &'a [*const f32],
}

/// Slots whose values are read for all blocks in turn.
const SLOTS: usize = 16;

impl<const Q: usize> Blocks<'_, Q> {
    /// Elements for the scores of one query: the positions that are seen, rounded up to whole vectors.
    #[inline(always)]
    pub(crate) fn stretch(&self) -> usize {
        self.last().next_multiple_of(LANES)
    }

    /// Positions that are seen at all.
    #[inline(always)]
    fn last(&self) -> usize {
        self.lengths.last().map_or(0, |lengths| lengths[Q - 1])
    }

    #[inline(always)]
    fn dim(&self) -> usize {
        self.queries.len() / (self.heads * self.lengths.len() * Q)
    }

    /// Index of a block's first query.
    #[inline(always)]
    fn query(&self, at: At) -> usize {
        (at.head * self.lengths.len() + at.block) * Q
    }

    fn all(&self) -> impl Iterator<Item = At> {
        let blocks = self.lengths.len();
        (0..self.heads).flat_map(move |head| (0..blocks).map(move |block| At { head, block }))
    }

    /// Writes the queries' results.
    ///
    /// # Safety
    /// The machine has `S`; the slots of the positions that the queries see exist with all heads, and nobody writes to
    /// them meanwhile; the results' memory exists, and nobody else uses it.
    #[inline(always)]
    pub(crate) unsafe fn attend<S: Vector>(&self, output: Output<'_, Q>) {
        let (dim, stretch) = (self.dim(), self.stretch());
        let whole = dim / LANES * LANES;
        self.check(&output);
        // SAFETY: the lengths of all slices were checked, and the caller promises the slots and the results; each
        // function reads and writes within them.
        unsafe {
            for first in (0..self.last()).step_by(LANES / Q) {
                let mut keys = [std::ptr::null(); LANES];
                for (n, key) in keys[..LANES / Q].iter_mut().enumerate() {
                    // The last position stands in for those behind it.
                    *key = self.cache.key((first + n).min(self.last() - 1)).cast_const();
                }
                for at in self.all().filter(|at| first < self.lengths[at.block][Q - 1]) {
                    self.scores::<S>(output.scores, at, Positions { first, starts: &keys });
                }
            }
            for (at, (scores, factor)) in output.scores.chunks_exact_mut(stretch).zip(&mut *output.factors).enumerate()
            {
                let length = self.lengths[at / Q % self.lengths.len()][at % Q];
                let scores = &mut scores[..length.next_multiple_of(LANES)];
                // The padding of the last vector has no weight.
                scores[length..].fill(f32::NEG_INFINITY);
                *factor = 1.0 / softmax::<S>(scores);
            }
            for first in (0..self.last()).step_by(SLOTS) {
                let mut values = [std::ptr::null(); SLOTS];
                for (value, position) in values.iter_mut().zip(first..self.last()) {
                    *value = self.cache.value(position).cast_const();
                }
                for at in self.all().filter(|at| first < self.lengths[at.block][0]) {
                    let positions =
                        Positions { first, starts: &values[..(self.lengths[at.block][0] - first).min(SLOTS)] };
                    // As many independent sums at a time as there are registers for.
                    let mut d = 0;
                    while S::REGISTERS >= 32 && d + 4 * LANES <= whole {
                        self.mix::<S, 4>(&output, positions, Span { at, element: d });
                        d += 4 * LANES;
                    }
                    while Q == 1 && d + 2 * LANES <= whole {
                        self.mix::<S, 2>(&output, positions, Span { at, element: d });
                        d += 2 * LANES;
                    }
                    while d < whole {
                        self.mix::<S, 1>(&output, positions, Span { at, element: d });
                        d += LANES;
                    }
                }
            }
            if whole < dim {
                self.mix_rest(&output, whole);
            }
        }
    }

    /// # Panics
    /// If a slice is shorter than what will be read or written.
    #[inline(always)]
    fn check(&self, output: &Output<'_, Q>) {
        let count = self.heads * self.lengths.len() * Q;
        let lengths = self.lengths.as_flattened();
        assert!(lengths.is_sorted() && lengths.first() > Some(&0), "{lengths:?}");
        assert!(self.heads > 0 && self.queries.len() == count * self.dim(), "queries");
        assert!(self.cache.slots.len() >= self.last(), "a cache of {} positions", self.last());
        assert!(output.scores.len() == count * self.stretch() && output.factors.len() == count, "scores");
        assert_eq!(output.y.len(), self.lengths.len(), "results");
        assert!(self.slopes.is_none_or(|slopes| slopes.len() == self.heads), "slopes");
    }

    /// Writes the products of a block's queries and 16 / `Q` keys, including meaningless ones with keys that a query
    /// doesn't see.
    ///
    /// # Safety
    /// As for [`Blocks::attend`]; the lengths are those that [`Blocks::check`] asks for.
    #[inline(always)]
    unsafe fn scores<S: Vector>(&self, scores: &mut [f32], at: At, keys: Positions) {
        let Positions { first, starts: keys } = keys;
        let (dim, stretch) = (self.dim(), self.stretch());
        let whole = dim / LANES * LANES;
        let positions = LANES / Q;
        let queries = &self.queries[self.query(at) * dim..][..Q * dim];
        // SAFETY: elements are below `whole` of a head; a query's scores end within its stretch, a multiple of 16 and
        // so of `positions`.
        unsafe {
            let mut sums = [S::splat(0.0); LANES];
            for d in (0..whole).step_by(LANES) {
                for n in 0..positions {
                    let key = S::load(keys[n].add(at.head * dim + d));
                    for q in 0..Q {
                        let query = S::load(queries.as_ptr().add(q * dim + d));
                        sums[q * positions + n] = S::fma(query, key, sums[q * positions + n]);
                    }
                }
            }
            let mut found = [0.0_f32; LANES];
            S::store(found.as_mut_ptr(), S::sums(sums));
            for (q, found) in found.chunks_exact_mut(positions).enumerate() {
                let rest = &queries[q * dim + whole..(q + 1) * dim];
                for (n, score) in found.iter_mut().enumerate() {
                    let key = std::slice::from_raw_parts(keys[n].add(at.head * dim + whole), dim - whole);
                    *score = (*score + rest.iter().zip(key).map(|(q, k)| q * k).sum::<f32>()) * self.scale;
                }
                if let Some(slopes) = self.slopes {
                    let query = self.lengths[at.block][q] - 1;
                    for (n, score) in found.iter_mut().enumerate() {
                        // Keys behind the query count for nothing.
                        *score -= slopes[at.head] * query.saturating_sub(first + n) as f32;
                    }
                }
                scores[(self.query(at) + q) * stretch + first..][..positions].copy_from_slice(found);
            }
        }
    }

    /// Adds the weighted values of positions that all queries of a block see to `N` vectors of their results; after the
    /// last of these positions also those that only some of the queries see.
    ///
    /// # Safety
    /// As for [`Blocks::attend`]; the vectors end within the head; the lengths are those that [`Blocks::check`] asks
    /// for; positions come in order.
    #[inline(always)]
    unsafe fn mix<S: Vector, const N: usize>(&self, output: &Output<'_, Q>, positions: Positions, span: Span) {
        let Span { at, element: d } = span;
        let (offset, stretch) = (at.head * self.dim() + d, self.stretch());
        let lengths = self.lengths[at.block];
        // SAFETY: positions are below the lengths, elements below `head_dim`.
        unsafe {
            let weights = output.scores.as_ptr().add(self.query(at) * stretch);
            let y = output.y[at.block].map(|y| y.add(at.head * output.step + d));
            let mut sums = [[S::splat(0.0); N]; Q];
            if positions.first > 0 {
                for (sums, y) in sums.iter_mut().zip(y) {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = S::load(y.add(n * LANES));
                    }
                }
            }
            for (position, from) in (positions.first..).zip(positions.starts) {
                let from = from.add(offset);
                let mut values = [S::splat(0.0); N];
                for (n, value) in values.iter_mut().enumerate() {
                    *value = S::load(from.add(n * LANES));
                }
                for (q, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.add(q * stretch + position));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = S::fma(weight, value, *sum);
                    }
                }
            }
            if positions.first + positions.starts.len() < lengths[0] {
                for (sums, y) in sums.iter().zip(y) {
                    for (n, sum) in sums.iter().enumerate() {
                        S::store(y.add(n * LANES), *sum);
                    }
                }
                return;
            }
            for (q, sums) in sums.iter_mut().enumerate() {
                for position in lengths[0]..lengths[q] {
                    let from = self.cache.value(position).add(offset);
                    let weight = S::splat(*weights.add(q * stretch + position));
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = S::fma(weight, S::load(from.add(n * LANES)), *sum);
                    }
                }
                let factor = S::splat(output.factors[self.query(at) + q]);
                for (n, sum) in sums.iter().enumerate() {
                    S::store(y[q].add(n * LANES), S::mul(*sum, factor));
                }
            }
        }
    }

    /// Mixes the values into the elements of the results from `whole` on, which fill no vector.
    ///
    /// # Safety
    /// As for [`Blocks::attend`]; the lengths are those that [`Blocks::check`] asks for.
    #[inline(always)]
    unsafe fn mix_rest(&self, output: &Output<'_, Q>, whole: usize) {
        let (dim, stretch) = (self.dim(), self.stretch());
        for (at, q) in self.all().flat_map(|at| (0..Q).map(move |q| (at, q))) {
            let query = self.query(at) + q;
            for d in whole..dim {
                let weights = output.scores[query * stretch..][..self.lengths[at.block][q]].iter().enumerate();
                // SAFETY: positions are below the lengths, elements below `head_dim`.
                unsafe {
                    let products = weights.map(|(p, weight)| weight * *self.cache.value(p).add(at.head * dim + d));
                    *output.y[at.block][q].add(at.head * output.step + d) =
                        products.sum::<f32>() * output.factors[query];
                }
            }
        }
    }
}

/// Replaces scores by their exponentials, relative to the largest; returns the sum of these.
///
/// # Safety
/// The machine has `S`; the length is a multiple of 16.
#[inline(always)]
unsafe fn softmax<S: Vector>(scores: &mut [f32]) -> f32 {
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
