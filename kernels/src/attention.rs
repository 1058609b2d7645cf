//! Self-attention over a KV cache that is updated in place.

use crate::Kernels;
use crate::attend::{BLOCK, Block};
use crate::isa::{Isa, LANES, Op};
use crate::math::prefetch;
use crate::threads::Shared;

/// Parts for each thread, so that one that is held up leaves some to the others.
const PARTS: usize = 6;
/// Queries of one row that a thread takes together.
const PART: usize = 16;

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
    /// Query heads.
    pub heads: usize,
    /// Heads of the cache, a divisor of `heads`.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Factor of every product of query and key.
    pub scale: f32,
    /// Applied to queries and keys.
    pub rotary: Option<Rotary<'a>>,
}

/// The arguments of a call.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// Projections of the queries, keys and values.
    pub heads: [Heads<'a>; 3],
    /// `[rows]`: positions that the cache holds already.
    pub past_len: &'a [i64],
    /// `[rows, kv_heads, context, head_dim]`
    pub keys: &'a mut [f32],
    /// As `keys`.
    pub values: &'a mut [f32],
}

impl Attention<'_> {
    /// Writes keys and values into the cache at `past_len`, then mixes the values for each query into `y`
    /// `[rows, tokens, heads * head_dim]`. A query sees the positions up to its own; what lies beyond the cache is left out.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn run(&self, kernels: &mut Kernels, arguments: Arguments, y: &mut [f32]) {
        let rows = arguments.past_len.len();
        let cache = self.kv_heads * self.head_dim;
        let width = self.heads * self.head_dim;
        assert!(rows > 0 && self.heads.is_multiple_of(self.kv_heads), "{self:?}");
        let context = arguments.keys.len() / (rows * cache);
        let tokens = y.len() / (rows * width);
        assert_eq!(arguments.keys.len(), rows * cache * context, "keys");
        assert_eq!(arguments.values.len(), arguments.keys.len(), "values");
        assert_eq!(y.len(), rows * tokens * width, "y");
        for (heads, count) in arguments.heads.iter().zip([self.heads, self.kv_heads, self.kv_heads]) {
            assert_eq!(heads.values.len(), rows * tokens * heads.width, "projections");
            assert!(heads.offset + (count - 1) * heads.stride + self.head_dim <= heads.width, "{count} heads in a row");
        }
        if let Some(rotary) = &self.rotary {
            assert!(rotary.dim <= self.head_dim && rotary.dim.is_multiple_of(2) && rotary.dim > 0, "rotary");
            assert!(rotary.cos.len() >= rotary.dim / 2 && rotary.cos.len() == rotary.sin.len(), "rotary");
        }
        let Kernels { threads, level, scores, .. } = kernels;
        scores.resize(threads.count() * BLOCK * (context.next_multiple_of(LANES) + self.head_dim), 0.0);
        let job = Job {
            attention: self,
            heads: arguments.heads,
            past_len: arguments.past_len,
            keys: Shared::new(arguments.keys),
            values: Shared::new(arguments.values),
            y: Shared::new(y),
            scores: Shared::new(scores),
            tokens,
            context,
        };
        let caches = rows * self.kv_heads;
        let parts = tokens.div_ceil(PART);
        if parts == 1 {
            // Taking a part costs a cache line's way from core to core, so one part is several caches where there are many.
            let together = (caches / (threads.count() * PARTS)).max(1);
            threads.run(caches.div_ceil(together), &|part, thread| {
                for at in part * together..caches.min((part + 1) * together) {
                    // SAFETY: every cache is one part's; `Kernels` only holds levels that the machine has.
                    unsafe {
                        level.run(Store { job: &job, at });
                        level.run(Mix { job: &job, at, tokens: 0..tokens, thread });
                    }
                }
            });
        } else {
            // SAFETY: as above; then the caches are only read, and each part writes its own queries' results.
            threads.run(caches, &|at, _| unsafe { level.run(Store { job: &job, at }) });
            threads.run(caches * parts, &|index, thread| {
                let from = index % parts * PART;
                let op = Mix { job: &job, at: index / parts, tokens: from..tokens.min(from + PART), thread };
                // SAFETY: as above.
                unsafe { level.run(op) }
            });
        }
    }
}

struct Job<'a> {
    attention: &'a Attention<'a>,
    heads: [Heads<'a>; 3],
    past_len: &'a [i64],
    keys: Shared<f32>,
    values: Shared<f32>,
    y: Shared<f32>,
    /// `[threads, BLOCK * (scores + a query)]`
    scores: Shared<f32>,
    tokens: usize,
    context: usize,
}

impl Job<'_> {
    /// Places for the scores of one query.
    #[inline(always)]
    fn stretch(&self) -> usize {
        self.context.next_multiple_of(LANES)
    }

    /// The position of a row's token in its cache.
    #[inline(always)]
    fn position(&self, row: usize, token: usize) -> usize {
        usize::try_from(self.past_len[row]).unwrap_or(0) + token
    }

    /// A head of the projections `which`.
    #[inline(always)]
    fn head(&self, which: usize, row: usize, token: usize, head: usize) -> &[f32] {
        let heads = &self.heads[which];
        let start = (row * self.tokens + token) * heads.width + heads.offset + head * heads.stride;
        &heads.values[start..start + self.attention.head_dim]
    }

    /// `head`, rotated for its position, into `to`.
    #[inline(always)]
    fn rotate(&self, head: &[f32], position: usize, to: &mut [f32]) {
        to.copy_from_slice(head);
        let Some(Rotary { cos, sin, dim, interleaved }) = self.attention.rotary else { return };
        let half = dim / 2;
        let row = position.min(cos.len() / half - 1) * half;
        for pair in 0..half {
            let (first, second) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
            let (cos, sin) = (cos[row + pair], sin[row + pair]);
            to[first] = head[first] * cos - head[second] * sin;
            to[second] = head[second] * cos + head[first] * sin;
        }
    }
}

/// Writes one cache's new keys and values.
struct Store<'a> {
    job: &'a Job<'a>,
    /// `row * kv_heads + head`
    at: usize,
}

impl Op for Store<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Isa>(self) {
        let Self { job, at } = self;
        let Attention { kv_heads, head_dim, .. } = *job.attention;
        let (row, head) = (at / kv_heads, at % kv_heads);
        // All that this cache holds will be read once, from a place that the machine can't guess.
        let held = job.position(row, 0).min(job.context) * head_dim;
        for element in (0..held).step_by(LANES) {
            let start = at * job.context * head_dim + element;
            prefetch(job.keys.at(start).cast());
            prefetch(job.values.at(start).cast());
        }
        for token in 0..job.tokens {
            let position = job.position(row, token);
            if position >= job.context {
                break;
            }
            let start = (at * job.context + position) * head_dim;
            // SAFETY: within the cache; this cache is one part's.
            unsafe {
                job.rotate(job.head(1, row, token, head), position, job.keys.slice_mut(start, head_dim));
                job.values.slice_mut(start, head_dim).copy_from_slice(job.head(2, row, token, head));
            }
        }
    }
}

/// Mixes one cache's values for some of the tokens and all query heads that share the cache.
struct Mix<'a> {
    job: &'a Job<'a>,
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
        let blocks = count / BLOCK;
        // SAFETY: `S` as promised; each query's result is written once.
        unsafe {
            for block in 0..blocks {
                self.block::<S, BLOCK>(block * BLOCK, group);
            }
            for query in blocks * BLOCK..count {
                self.block::<S, 1>(query, group);
            }
        }
    }
}

impl Mix<'_> {
    /// Mixes for `Q` queries from `first` on, counted through the heads of each token in turn.
    ///
    /// # Safety
    /// The machine has `S`; nobody writes to the cache or touches the queries' results meanwhile.
    #[inline(always)]
    unsafe fn block<S: Isa, const Q: usize>(&self, first: usize, group: usize) {
        let job = self.job;
        let Attention { heads, kv_heads, head_dim, scale, .. } = *job.attention;
        let (row, kv_head) = (self.at / kv_heads, self.at % kv_heads);
        let stretch = job.stretch();
        let room = BLOCK * (stretch + head_dim);
        // SAFETY: a thread's part of the scores is its own, and `Attention::run` made it so long.
        let (scores, queries) = unsafe { job.scores.slice_mut(self.thread * room, room) }.split_at_mut(BLOCK * stretch);
        let mut lengths = [0; Q];
        let mut starts = [0; Q];
        for q in 0..Q {
            let (token, head) = (self.tokens.start + (first + q) / group, kv_head * group + (first + q) % group);
            let position = job.position(row, token);
            let query = &mut queries[q * head_dim..(q + 1) * head_dim];
            job.rotate(job.head(0, row, token, head), position, query);
            lengths[q] = (position + 1).min(job.context);
            starts[q] = ((row * job.tokens + token) * heads + head) * head_dim;
        }
        // SAFETY: the cache is not written while it is mixed; a query's result is its own.
        unsafe {
            let cache = self.at * job.context * head_dim;
            let block = Block {
                queries: &queries[..Q * head_dim],
                keys: job.keys.slice(cache, job.context * head_dim),
                values: job.values.slice(cache, job.context * head_dim),
                scale,
                lengths,
                stretch,
            };
            block.attend::<S>(&mut scores[..Q * stretch], starts.map(|start| job.y.slice_mut(start, head_dim)));
        }
    }
}
