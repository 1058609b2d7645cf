//! Self-attention over a KV cache that is updated in place.
//!
//! The cache is a set of places, each with the keys or values of one position, and a table says which place each position of each
//! row is in. So rows that begin alike read the same memory, and what they share is neither copied nor held twice.

use crate::Kernels;
use crate::attend::{BLOCK, Block, Cache};
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
    /// `[rows, context]`: where each position of a row is. Rows may share the places that they only read; the place of a new
    /// position is that position's alone.
    pub places: &'a [i64],
    /// `[places, kv_heads, head_dim]`
    pub keys: &'a mut [f32],
    /// As `keys`.
    pub values: &'a mut [f32],
}

/// A table of places that can't be: why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// A position is nowhere.
    Outside {
        /// The row.
        row: usize,
        /// The position.
        position: usize,
        /// What the table says.
        place: i64,
        /// Places that there are.
        places: usize,
    },
    /// The place of a new position is another position's, too.
    Shared {
        /// The other's row.
        row: usize,
        /// The other position.
        position: usize,
        /// What the table says.
        place: i64,
    },
}

impl std::fmt::Display for PlaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlaceError::Outside { row, position, place, places } => {
                write!(f, "position {position} of row {row} is in place {place} of {places}")
            }
            PlaceError::Shared { row, position, place } => {
                write!(f, "position {position} of row {row} is in place {place}, to which another position is written")
            }
        }
    }
}

impl std::error::Error for PlaceError {}

impl Attention<'_> {
    /// Writes keys and values into the cache behind `past_len`, then mixes the values for each query into `y`
    /// `[rows, tokens, heads * head_dim]`. A query sees the positions up to its own; what lies beyond the context is left out.
    ///
    /// # Errors
    /// See [`PlaceError`]. Nothing is written then.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn run(&self, kernels: &mut Kernels, arguments: Arguments, y: &mut [f32]) -> Result<(), PlaceError> {
        let rows = arguments.past_len.len();
        let width = self.heads * self.head_dim;
        assert!(rows > 0 && self.heads.is_multiple_of(self.kv_heads), "{self:?}");
        let context = arguments.places.len() / rows;
        let tokens = y.len() / (rows * width);
        assert_eq!(arguments.places.len(), rows * context, "places");
        assert!(arguments.keys.len().is_multiple_of(self.kv_heads * self.head_dim), "keys");
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
        let Kernels { threads, level, scores, written, .. } = kernels;
        let count = arguments.keys.len() / (self.kv_heads * self.head_dim);
        check_places(&arguments, (tokens, context), count, written)?;
        scores.resize(threads.count() * BLOCK * (context.next_multiple_of(LANES) + self.head_dim), 0.0);
        let job = Job {
            attention: self,
            heads: arguments.heads,
            past_len: arguments.past_len,
            places: arguments.places,
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
                    // SAFETY: a row's new positions of one head are one part's to write, and no other row's to read, as was
                    // checked; `Kernels` only holds levels that the machine has.
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
        Ok(())
    }
}

/// Says whether every position is in one of the `count` places, and those of new positions are nobody else's: what lets threads
/// write to them while others read. `written` is all false, and is so again afterwards.
fn check_places(
    arguments: &Arguments,
    (tokens, context): (usize, usize),
    count: usize,
    written: &mut Vec<bool>,
) -> Result<(), PlaceError> {
    if written.len() < count {
        written.resize(count, false);
    }
    let rows = || arguments.places.chunks_exact(context).zip(arguments.past_len).enumerate();
    let new = |past: i64| {
        let past = usize::try_from(past).unwrap_or(0);
        past.min(context)..(past + tokens).min(context)
    };
    let outside = |row, position, place| PlaceError::Outside { row, position, place, places: count };
    let mut result = Ok(());
    let mut marked = 0;
    'rows: for (row, (table, &past)) in rows() {
        for position in new(past) {
            let place = table[position];
            result = match usize::try_from(place).ok().filter(|place| *place < count) {
                None => Err(outside(row, position, place)),
                Some(at) if std::mem::replace(&mut written[at], true) => {
                    Err(PlaceError::Shared { row, position, place })
                }
                Some(_) => Ok(()),
            };
            if result.is_err() {
                break 'rows;
            }
            marked += 1;
        }
    }
    if result.is_ok() {
        result = rows().try_for_each(|(row, (table, &past))| {
            table[..new(past).start].iter().enumerate().try_for_each(|(position, &place)| {
                match usize::try_from(place).ok().and_then(|at| written[..count].get(at)) {
                    None => Err(outside(row, position, place)),
                    Some(true) => Err(PlaceError::Shared { row, position, place }),
                    Some(false) => Ok(()),
                }
            })
        });
    }
    let places = rows().flat_map(|(_, (table, &past))| &table[new(past)]);
    for place in places.take(marked) {
        written[*place as usize] = false;
    }
    result
}

struct Job<'a> {
    attention: &'a Attention<'a>,
    heads: [Heads<'a>; 3],
    past_len: &'a [i64],
    places: &'a [i64],
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

    /// A head of the cache, as a row sees it.
    #[inline(always)]
    fn cache(&self, row: usize, head: usize) -> Cache<'_> {
        let Attention { kv_heads, head_dim, .. } = *self.attention;
        Cache {
            keys: self.keys.at(head * head_dim),
            values: self.values.at(head * head_dim),
            places: &self.places[row * self.context..(row + 1) * self.context],
            width: kv_heads * head_dim,
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
        let cache = job.cache(row, head);
        // All that the row holds will be read once, from places that the machine can't guess.
        for position in 0..job.position(row, 0).min(job.context) {
            for element in (0..head_dim).step_by(LANES) {
                prefetch(cache.key(position).wrapping_add(element).cast());
                prefetch(cache.value(position).wrapping_add(element).cast());
            }
        }
        for token in 0..job.tokens {
            let position = job.position(row, token);
            if position >= job.context {
                break;
            }
            // SAFETY: the place is one that there is, and this position's alone, as was checked; this head of it is one part's.
            let (key, value) = unsafe {
                let slice = |start| std::slice::from_raw_parts_mut(start, head_dim);
                (slice(cache.key(position)), slice(cache.value(position)))
            };
            job.rotate(job.head(1, row, token, head), position, key);
            value.copy_from_slice(job.head(2, row, token, head));
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
        let block =
            Block { queries: &queries[..Q * head_dim], cache: job.cache(row, kv_head), scale, lengths, stretch };
        // SAFETY: the places are those that there are, and are not written while they are mixed; a query's result is its own.
        unsafe { block.attend::<S>(&mut scores[..Q * stretch], starts.map(|start| job.y.slice_mut(start, head_dim))) };
    }
}
