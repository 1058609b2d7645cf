//! Self-attention over a KV cache that is updated in place.
//!
//! The cache is a set of slots, each with the keys or values of one position. A table says which slot holds each
//! position of each row, so rows with a common prefix read the same memory, and the prefix is neither copied nor stored
//! twice.

use crate::attend::{BLOCK, Blocks, Cache, Output};
use crate::isa::{Isa, Op};
use crate::kernels::{Kernels, grow};
use crate::prefetch::prefetch;
use crate::shared::Shared;
pub use crate::slots::SlotError;
use crate::slots::{self, Table};
use crate::vector::{LANES, Vector};
use crate::workers::Workers;

/// Parts of the work per thread. With several, other threads can take over the parts of a delayed one.
const PARTS: usize = 6;
/// Tokens of one row that a thread takes together: the more, the less often a cache is read.
const PART: std::ops::RangeInclusive<usize> = 16..=64;
/// Blocks of queries of one head that share what is read of its cache.
const BLOCKS: usize = 16;
/// Positions whose keys and values are fetched before they are read.
const FETCHED: usize = 16;
/// Elements in a cache line.
const LINE: usize = 64 / size_of::<f32>();

/// Bytes that a thread works with at most, where heads are not read side by side.
pub fn scratch_bytes(context: usize, head_dim: usize) -> usize {
    room(context, head_dim).saturating_mul(size_of::<f32>())
}

/// Elements of the scores, factors and queries of the blocks of one head.
fn room(context: usize, head_dim: usize) -> usize {
    BLOCKS * BLOCK * (context.next_multiple_of(LANES) + 1 + head_dim)
}

/// Where a head's elements are in a row of projections: head `h` begins at `offset + h * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// `[rows, tokens, width]`
    pub values: &'a [f32],
    /// Elements from one token to the next.
    pub width: usize,
    /// Element of the first head.
    pub offset: usize,
    /// Elements from one head to the next.
    pub stride: usize,
}

/// Rotary position embedding.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[positions, dim / 2]`
    pub cos: &'a [f32],
    /// `[positions, dim / 2]`
    pub sin: &'a [f32],
    /// Elements of a head that are rotated: the first ones.
    pub dim: usize,
    /// Pairs are neighbours, not half of `dim` apart.
    pub interleaved: bool,
}

/// The attention, without its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Number of query heads.
    pub heads: usize,
    /// Heads of the cache, a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of every product of query and key.
    pub scale: f32,
    /// Applied to queries and keys.
    pub rotary: Option<Rotary<'a>>,
    /// Linear biases: from a product each head subtracts the distance in positions times its slope. `[heads]`, where
    /// every head has a cache of its own.
    pub slopes: Option<&'a [f32]>,
}

/// The arguments of a call.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// Projections of the queries, keys and values.
    pub heads: [Heads<'a>; 3],
    /// `[rows]`: positions that the cache holds already.
    pub past_len: &'a [i64],
    /// `[rows, context]`: the slot of each position of a row. Rows may share the slots that they only read; no other
    /// position has the slot of a new one.
    pub slots: &'a [i64],
    /// `[slots, kv_heads, head_dim]`
    pub keys: &'a mut [f32],
    /// The values, in the same layout as `keys`.
    pub values: &'a mut [f32],
}

impl Attention<'_> {
    /// Writes keys and values into the cache behind `past_len`, then mixes the values for each query into `y` `[rows,
    /// tokens, heads * head_dim]`. A query sees the positions up to its own; what lies beyond the context is left out.
    ///
    /// # Errors
    /// See [`SlotError`]. Nothing is written then.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn run(&self, kernels: &mut Kernels, arguments: Arguments, y: &mut [f32]) -> Result<(), SlotError> {
        let (rows, tokens, context) = self.check(&arguments, y);
        let Kernels { workers: Workers { threads, level }, scores, written, .. } = kernels;
        let count = arguments.keys.len() / (self.kv_heads * self.head_dim);
        slots::check(Table { slots: arguments.slots, past_len: arguments.past_len, tokens }, count, written)?;
        let (caches, wanted) = (rows * self.kv_heads, threads.count() * PARTS);
        // Taking a part moves a cache line between cores, so a part is several caches where there are many.
        let together = (caches / wanted).max(1);
        // Several tokens read a cache several times, so it has to be small.
        let side_by_side = if tokens > 1 { 1 } else { largest_divisor(self.kv_heads, together) };
        let room = side_by_side * room(context, self.head_dim);
        grow(scores, threads.count() * room);
        let job = Job {
            attention: self,
            heads: arguments.heads,
            past_len: arguments.past_len,
            slots: arguments.slots,
            keys: Shared::new(arguments.keys),
            values: Shared::new(arguments.values),
            y: Shared::new(y),
            scores: Shared::new(scores),
            room,
            tokens,
            context,
            side_by_side,
        };
        let groups = caches / side_by_side;
        let part = tokens.div_ceil(wanted.div_ceil(caches)).clamp(*PART.start(), *PART.end());
        let parts = tokens.div_ceil(part);
        if parts == 1 {
            let together = (together / side_by_side).max(1);
            threads.run(groups.div_ceil(together), &|part, thread| {
                for at in part * together..groups.min((part + 1) * together) {
                    job.fetch(at);
                    // SAFETY: a row's new positions of one head are one part's to write, and no other row's to read, as
                    // was checked; `Kernels` only holds levels that the machine has.
                    unsafe {
                        level.run(Store { job: &job, at });
                        level.run(Mix { job: &job, at, tokens: 0..tokens, thread });
                    }
                }
            });
        } else {
            // SAFETY: as above; then the caches are only read, and each part writes its own queries' results.
            threads.run(groups, &|at, _| unsafe { level.run(Store { job: &job, at }) });
            threads.run(groups * parts, &|index, thread| {
                let from = index % parts * part;
                let op = Mix { job: &job, at: index / parts, tokens: from..tokens.min(from + part), thread };
                // SAFETY: as above.
                unsafe { level.run(op) }
            });
        }
        Ok(())
    }

    /// Rows, tokens of each and positions of the context.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    fn check(&self, arguments: &Arguments, y: &[f32]) -> (usize, usize, usize) {
        let rows = arguments.past_len.len();
        let width = self.heads * self.head_dim;
        assert!(rows > 0 && self.heads.is_multiple_of(self.kv_heads), "{self:?}");
        let (tokens, context) = (y.len() / (rows * width), arguments.slots.len() / rows);
        assert!(context > 0 && arguments.slots.len() == rows * context, "slots");
        assert!(arguments.keys.len().is_multiple_of(self.kv_heads * self.head_dim), "keys");
        assert_eq!(arguments.values.len(), arguments.keys.len(), "values");
        assert_eq!(y.len(), rows * tokens * width, "y");
        for (heads, count) in arguments.heads.iter().zip([self.heads, self.kv_heads, self.kv_heads]) {
            assert_eq!(heads.values.len(), rows * tokens * heads.width, "projections");
            assert!(heads.offset + (count - 1) * heads.stride + self.head_dim <= heads.width, "{count} heads in a row");
        }
        if let Some(slopes) = self.slopes {
            assert!(slopes.len() == self.heads && self.heads == self.kv_heads, "slopes");
        }
        if let Some(rotary) = &self.rotary {
            assert!(rotary.dim <= self.head_dim && rotary.dim.is_multiple_of(2) && rotary.dim > 0, "rotary");
            assert!(rotary.cos.len() >= rotary.dim / 2 && rotary.cos.len() == rotary.sin.len(), "rotary");
        }
        (rows, tokens, context)
    }
}

/// The largest divisor of `n` that is at most `most`, which is at least 1.
fn largest_divisor(n: usize, most: usize) -> usize {
    (1..=most.min(n)).rev().find(|divisor| n.is_multiple_of(*divisor)).unwrap_or(1)
}

struct Job<'a> {
    attention: &'a Attention<'a>,
    heads: [Heads<'a>; 3],
    past_len: &'a [i64],
    slots: &'a [i64],
    keys: Shared<f32>,
    values: Shared<f32>,
    y: Shared<f32>,
    /// `[threads, room]`
    scores: Shared<f32>,
    /// Elements that a thread works with: for each query of the blocks of each head its scores, a factor and the query
    /// itself.
    room: usize,
    tokens: usize,
    context: usize,
    /// Heads of a row's cache that are read together.
    side_by_side: usize,
}

impl Job<'_> {
    /// The row, and the first of the heads that are read together, of the part `at`: those parts are counted through
    /// all rows.
    #[inline(always)]
    fn row_and_head(&self, at: usize) -> (usize, usize) {
        let first = at * self.side_by_side;
        (first / self.attention.kv_heads, first % self.attention.kv_heads)
    }

    /// The position of a row's token in its cache.
    #[inline(always)]
    fn position(&self, row: usize, token: usize) -> usize {
        usize::try_from(self.past_len[row]).unwrap_or(0) + token
    }

    /// The cache from a head on, as a row sees it.
    #[inline(always)]
    fn cache(&self, row: usize, head: usize) -> Cache<'_> {
        let Attention { kv_heads, head_dim, .. } = *self.attention;
        Cache {
            keys: self.keys.at(head * head_dim),
            values: self.values.at(head * head_dim),
            slots: &self.slots[row * self.context..(row + 1) * self.context],
            width: kv_heads * head_dim,
        }
    }

    /// Fetches the keys and values of the last positions of the part `at`, where rows seldom share them: all at once,
    /// instead of one after the other as they are needed.
    #[inline(always)]
    fn fetch(&self, at: usize) {
        let (row, first) = self.row_and_head(at);
        let cache = self.cache(row, first);
        let end = (self.position(row, 0) + 1).min(self.context);
        for position in end.saturating_sub(FETCHED)..end {
            for element in (0..self.side_by_side * self.attention.head_dim).step_by(LINE) {
                prefetch(cache.key(position).wrapping_add(element).cast());
                prefetch(cache.value(position).wrapping_add(element).cast());
            }
        }
    }

    /// A head of the projections `which`.
    #[inline(always)]
    fn head(&self, which: usize, row: usize, token: usize, head: usize) -> &[f32] {
        let heads = &self.heads[which];
        let start = (row * self.tokens + token) * heads.width + heads.offset + head * heads.stride;
        &heads.values[start..start + self.attention.head_dim]
    }

    /// `head`, rotated for its position, into `to`.
    ///
    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    unsafe fn rotate<S: Vector>(&self, head: &[f32], position: usize, to: &mut [f32]) {
        let Some(Rotary { cos, sin, dim, interleaved }) = self.attention.rotary else {
            to.copy_from_slice(head);
            return;
        };
        let half = dim / 2;
        let row = position.min(cos.len() / half - 1) * half;
        let (cos, sin) = (&cos[row..row + half], &sin[row..row + half]);
        let (from, rest) = head.split_at(dim);
        let (to, to_rest) = to.split_at_mut(dim);
        to_rest.copy_from_slice(rest);
        let whole = if interleaved { 0 } else { half / LANES * LANES };
        let (a, b) = from.split_at(half);
        let (to_a, to_b) = to.split_at_mut(half);
        for at in (0..whole).step_by(LANES) {
            // SAFETY: the caller's promise; all of these slices have `half` elements.
            unsafe {
                let (cos, sin) = (S::load(cos.as_ptr().add(at)), S::load(sin.as_ptr().add(at)));
                let (x, y) = (S::load(a.as_ptr().add(at)), S::load(b.as_ptr().add(at)));
                S::store(to_a.as_mut_ptr().add(at), S::sub(S::mul(x, cos), S::mul(y, sin)));
                S::store(to_b.as_mut_ptr().add(at), S::add(S::mul(y, cos), S::mul(x, sin)));
            }
        }
        for pair in whole..half {
            let (first, second) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
            let (cos, sin) = (cos[pair], sin[pair]);
            to[first] = from[first] * cos - from[second] * sin;
            to[second] = from[second] * cos + from[first] * sin;
        }
    }
}

/// Writes new keys and values of some heads of a row.
struct Store<'a> {
    job: &'a Job<'a>,
    /// Index of the row and its group of heads: see [`Job::row_and_head`].
    at: usize,
}

impl Op for Store<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Isa>(self) {
        let Self { job, at } = self;
        let head_dim = job.attention.head_dim;
        let (row, first) = job.row_and_head(at);
        let cache = job.cache(row, first);
        for token in 0..job.tokens {
            let position = job.position(row, token);
            if position >= job.context {
                break;
            }
            for head in 0..job.side_by_side {
                // SAFETY: the slot exists and belongs to this position alone, as was checked; these heads of it belong
                // to one part.
                let (key, value) = unsafe {
                    let slice = |start: *mut f32| std::slice::from_raw_parts_mut(start.add(head * head_dim), head_dim);
                    (slice(cache.key(position)), slice(cache.value(position)))
                };
                // SAFETY: `S` as promised.
                unsafe { job.rotate::<S>(job.head(1, row, token, first + head), position, key) };
                value.copy_from_slice(job.head(2, row, token, first + head));
            }
        }
    }
}

/// Mixes the values of some heads of a row for some of the tokens and all query heads that share them.
struct Mix<'a> {
    job: &'a Job<'a>,
    /// Index of the row and its group of heads: see [`Job::row_and_head`].
    at: usize,
    tokens: std::ops::Range<usize>,
    thread: usize,
}

impl Op for Mix<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Isa>(self) {
        let group = self.job.attention.heads / self.job.attention.kv_heads;
        let count = self.tokens.len() * group;
        let whole = count / BLOCK * BLOCK;
        // SAFETY: `S` as promised; each query's result is written once.
        unsafe {
            for first in (0..whole).step_by(BLOCKS * BLOCK) {
                self.blocks::<S, BLOCK>(first..whole.min(first + BLOCKS * BLOCK));
            }
            if whole < count {
                self.blocks::<S, 1>(whole..count);
            }
        }
    }
}

impl Mix<'_> {
    /// Mixes for some queries of each head, counted through the query heads of each token in turn: a multiple of `Q`,
    /// and at most [`BLOCKS`] times that.
    ///
    /// # Safety
    /// The machine has `S`; nobody writes to the cache or touches the queries' results meanwhile.
    #[inline(always)]
    unsafe fn blocks<S: Isa, const Q: usize>(&self, queries: std::ops::Range<usize>) {
        let job = self.job;
        let Attention { heads, kv_heads, head_dim, scale, slopes, .. } = *job.attention;
        let (group, side_by_side) = (heads / kv_heads, job.side_by_side);
        let (row, kv_head) = job.row_and_head(self.at);
        let count = queries.len();
        // SAFETY: a thread's room is its own, and `Attention::run` made it so long.
        let room = unsafe { job.scores.slice_mut(self.thread * job.room, job.room) };
        let (rotated, rest) = room.split_at_mut(side_by_side * count * head_dim);
        let mut lengths = [[0; Q]; BLOCKS];
        let mut y = [[std::ptr::null_mut(); Q]; BLOCKS];
        for (at, query) in queries.enumerate() {
            let (token, in_group) = (self.tokens.start + query / group, query % group);
            let position = job.position(row, token);
            for head in 0..side_by_side {
                let to = &mut rotated[(head * count + at) * head_dim..][..head_dim];
                // SAFETY: `S` as promised.
                unsafe { job.rotate::<S>(job.head(0, row, token, (kv_head + head) * group + in_group), position, to) };
            }
            lengths[at / Q][at % Q] = (position + 1).min(job.context);
            y[at / Q][at % Q] = job.y.at(((row * job.tokens + token) * heads + kv_head * group + in_group) * head_dim);
        }
        let lengths = &lengths[..count / Q];
        let cache = job.cache(row, kv_head);
        let slopes = slopes.map(|slopes| &slopes[kv_head..kv_head + side_by_side]);
        let blocks = Blocks { queries: rotated, heads: side_by_side, cache, scale, slopes, lengths };
        let (factors, rest) = rest.split_at_mut(side_by_side * count);
        let scores = &mut rest[..side_by_side * count * blocks.stretch()];
        let output = Output { scores, factors, y: &y[..count / Q], step: group * head_dim };
        // SAFETY: the slots exist, as was checked, and are not written while they are mixed; a query's result is its
        // own, and within `y`, which holds all heads of all tokens.
        unsafe { blocks.attend::<S>(output) };
    }
}
