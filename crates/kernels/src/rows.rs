//! Prepares the rows of a linear map: normalizes them, quantizes them for int8 weights, and lays them out as tiles read
//! them.

use crate::cpu::{CpuLevel, amx};
use crate::isa::{Isa, Op};
use crate::kernels::grow;
use crate::layout::{GROUP, QUAD, quads};
use crate::shared::Shared;
use crate::vector::{LANES, Vector};
use crate::workers::Workers;

/// Most rows that a thread prepares for AMX at a time.
const AMX_PART: usize = 8;
/// Quads in a cache line. A vector that crosses lines takes two reads.
const LINE: usize = 16;

/// Normalization of a row.
#[derive(Clone, Copy, Debug, Default)]
pub enum Norm<'a> {
    /// No normalization.
    #[default]
    None,
    /// `(x - mean) / sqrt(variance + epsilon) * scale + bias`.
    Layer {
        /// `[inputs]`
        scale: &'a [f32],
        /// `[inputs]`, zeros if there is none.
        bias: Option<&'a [f32]>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// RMSNorm: `x / sqrt(mean of squares + epsilon) * scale`.
    Rms {
        /// `[inputs]`
        scale: &'a [f32],
        /// Added to the mean of squares.
        epsilon: f32,
    },
}

impl Norm<'_> {
    pub(crate) fn check(&self, inputs: usize) {
        match self {
            Norm::None => {}
            Norm::Layer { scale, bias, .. } => {
                assert_eq!(scale.len(), inputs, "the scale of a norm");
                assert!(bias.is_none_or(|bias| bias.len() == inputs), "the bias of a norm");
            }
            Norm::Rms { scale, .. } => assert_eq!(scale.len(), inputs, "the scale of a norm"),
        }
    }
}

/// Rows of a call, before they are prepared.
pub(crate) struct Input<'a> {
    /// Row `i` is `x[row(i) * inputs..]`.
    pub(crate) x: &'a [f32],
    pub(crate) inputs: usize,
    /// Number of rows.
    pub(crate) count: usize,
    pub(crate) row: &'a (dyn Fn(usize) -> usize + Sync),
    pub(crate) norm: Norm<'a>,
    /// The weights are int8.
    pub(crate) quantize: bool,
}

/// Prepared rows. The memory is reused from call to call.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Rows of a tile.
    pub(crate) height: usize,
    /// In AMX's layout: the quads of a row are side by side.
    pub(crate) amx: bool,
    pub(crate) tiles: usize,
    /// f32 `[tiles, inputs, height]`, for f32 weights.
    pub(crate) values: Vec<f32>,
    /// For int8 weights, four bytes in each, from the first aligned address on: `[tiles, quads, words, height]` (see
    /// [`Vector::quad`]), for AMX `[tiles, quads / 16, height, 16]`.
    quads: Vec<i32>,
    /// `[tiles, groups, height]`, for AMX `[tiles, height, groups]`.
    pub(crate) scales: Vec<f32>,
    /// In the order of `scales`.
    pub(crate) corrections: Vec<i32>,
    /// f32 `[threads, inputs rounded up and more]`: the row that a thread prepares.
    scratch: Vec<f32>,
}

impl Rows {
    /// The quads of the first row.
    pub(crate) fn quads(&self) -> *const i32 {
        self.quads[aligned(&self.quads)..].as_ptr()
    }

    /// Prepares the rows of a call.
    pub(crate) fn prepare(&mut self, Workers { threads, level }: &Workers, input: Input) {
        let Input { x, inputs, count, row, norm, quantize } = input;
        norm.check(inputs);
        let amx = if quantize && *level == CpuLevel::Amx { amx::height(count, inputs) } else { None };
        self.amx = amx.is_some();
        self.height = amx.unwrap_or_else(|| level.height(count));
        self.tiles = count.div_ceil(self.height);
        let (padded, groups) = (inputs.next_multiple_of(LANES), inputs.div_ceil(GROUP));
        let rows = self.tiles * self.height;
        if quantize {
            // The padding of a tile or a quad keeps old values: nobody reads its results.
            grow(&mut self.quads, rows * quads(inputs) * level.words() + LINE);
            grow(&mut self.scales, rows * groups);
            grow(&mut self.corrections, rows * groups);
        } else {
            grow(&mut self.values, rows * inputs);
        }
        // Two cache lines between the rows of two threads: a processor fetches lines in pairs.
        let own = padded + 2 * LINE;
        grow(&mut self.scratch, threads.count() * own);
        let (height, amx) = (self.height, self.amx);
        let start = aligned(&self.quads);
        let to = Targets {
            values: Shared::new(&mut self.values),
            quads: Shared::new(&mut self.quads[start..]),
            scales: Shared::new(&mut self.scales),
            corrections: Shared::new(&mut self.corrections),
            scratch: Shared::new(&mut self.scratch),
        };
        let one = |index: usize, thread: usize| {
            let from = row(index);
            let x = &x[from * inputs..(from + 1) * inputs];
            // SAFETY: a thread's scratch is its own.
            let scratch = unsafe { to.scratch.slice_mut(thread * own, padded) };
            let at = TileRow { tile: index / height, row: index % height, height, amx };
            // SAFETY: `Kernels` only holds levels that the machine has; `to` has room for every row of every tile, and
            // each is one part's.
            unsafe { level.run(Prepare { x, norm, quantize, scratch, at, to: &to }) }
        };
        // One thread writes the rows that share cache lines. For AMX none do, and every thread has as many.
        let part =
            if amx { count.div_ceil(count.div_ceil(AMX_PART).next_multiple_of(threads.count())) } else { height };
        threads.run(count.div_ceil(part), &|at, thread| {
            for index in at * part..count.min((at + 1) * part) {
                one(index, thread);
            }
        });
    }
}

/// Index of the first element of `quads` that begins a cache line; their length if there is none.
fn aligned(quads: &[i32]) -> usize {
    quads.as_ptr().align_offset(LINE * size_of::<i32>()).min(quads.len())
}

/// Where prepared rows go.
struct Targets {
    values: Shared<f32>,
    quads: Shared<i32>,
    scales: Shared<f32>,
    corrections: Shared<i32>,
    scratch: Shared<f32>,
}

/// One row of a tile, as the tile's layout stores it.
#[derive(Clone, Copy)]
struct TileRow {
    tile: usize,
    row: usize,
    height: usize,
    /// Whether the layout is AMX's; see [`Rows`].
    amx: bool,
}

/// Prepares one row.
struct Prepare<'a> {
    x: &'a [f32],
    norm: Norm<'a>,
    quantize: bool,
    /// `[inputs rounded up to 16]`
    scratch: &'a mut [f32],
    at: TileRow,
    to: &'a Targets,
}

impl Op for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Isa>(self) {
        let Self { x, norm, quantize, scratch, at, to } = self;
        scratch[..x.len()].copy_from_slice(x);
        scratch[x.len()..].fill(0.0);
        // SAFETY: the machine has `S`, as the caller promises; the scratch is a whole number of vectors.
        unsafe { normalize::<S>(scratch, x.len(), norm) };
        // SAFETY: as `Rows::prepare` promises.
        unsafe {
            if quantize {
                quantize_row::<S>(scratch, x.len(), at, to);
            } else {
                let start = to.values.at((at.tile * x.len()) * at.height + at.row);
                for (input, value) in scratch[..x.len()].iter().enumerate() {
                    *start.add(input * at.height) = *value;
                }
            }
        }
    }
}

/// Normalizes the first `inputs` of `row`, whose others are zero and stay so.
///
/// # Safety
/// The machine has `S`; the row's length is a multiple of 16.
#[inline(always)]
unsafe fn normalize<S: Vector>(row: &mut [f32], inputs: usize, norm: Norm) {
    let vectors = row.len() / LANES;
    let at = row.as_mut_ptr();
    // SAFETY: as the caller promises; `scale` and `bias` were checked to have `inputs` elements.
    unsafe {
        let (shift, factor, scale, bias) = match norm {
            Norm::None => return,
            Norm::Layer { scale, bias, epsilon } => {
                let mut sum = S::splat(0.0);
                for v in 0..vectors {
                    sum = S::add(sum, S::load(at.add(v * LANES)));
                }
                let mean = S::sum(sum) / inputs as f32;
                // Around the mean: the difference of two large sums of squares would lose its digits.
                let mut squares = S::splat(0.0);
                for v in 0..vectors {
                    let distance = S::sub(S::load(at.add(v * LANES)), S::splat(mean));
                    squares = S::fma(distance, distance, squares);
                }
                // Without the zeros that pad the row.
                let excess = (row.len() - inputs) as f32 * mean * mean;
                let variance = (S::sum(squares) - excess) / inputs as f32;
                (mean, 1.0 / (variance.max(0.0) + epsilon).sqrt(), scale, bias)
            }
            Norm::Rms { scale, epsilon } => {
                let mut squares = S::splat(0.0);
                for v in 0..vectors {
                    let x = S::load(at.add(v * LANES));
                    squares = S::fma(x, x, squares);
                }
                (0.0, 1.0 / (S::sum(squares) / inputs as f32 + epsilon).sqrt(), scale, None)
            }
        };
        let whole = inputs / LANES;
        for v in 0..whole {
            let offset = v * LANES;
            let x = S::mul(S::sub(S::load(at.add(offset)), S::splat(shift)), S::splat(factor));
            let zero = S::splat(0.0);
            let bias = bias.map_or(zero, |bias| S::load(bias.as_ptr().add(offset)));
            S::store(at.add(offset), S::fma(x, S::load(scale.as_ptr().add(offset)), bias));
        }
        for input in whole * LANES..inputs {
            row[input] = (row[input] - shift) * factor * scale[input] + bias.map_or(0.0, |bias| bias[input]);
        }
    }
}

/// Quantizes a row in groups, each with the scale of its largest element.
///
/// # Safety
/// The machine has `S`; `at` is within `to`, and nobody else writes to it; the row's length is a multiple of 16.
#[inline(always)]
unsafe fn quantize_row<S: Vector>(row: &[f32], inputs: usize, at: TileRow, to: &Targets) {
    let TileRow { tile, row: row_of_tile, height, amx } = at;
    let (quads, groups) = (quads(inputs), inputs.div_ceil(GROUP));
    for group in 0..groups {
        let from = group * GROUP;
        let length = GROUP.min(row.len() - from);
        // SAFETY: within the row and, as the caller promises, within `to`.
        unsafe {
            let mut largest = S::splat(0.0);
            for offset in (from..from + length).step_by(LANES) {
                largest = S::max(S::abs(S::load(row.as_ptr().add(offset))), largest);
            }
            let largest = S::largest(largest);
            let (scale, inverse) = if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
            let mut correction = S::splat_i(0);
            for offset in (from..from + length).step_by(LANES) {
                let rounded = S::round(S::mul(S::load(row.as_ptr().add(offset)), S::splat(inverse)));
                correction = S::add_i(correction, S::correction(rounded));
                let words = S::words(rounded);
                let first = offset / QUAD;
                if amx {
                    // A vector's four quads are in one line: AMX takes only inputs that are a multiple of a line.
                    let line = (first / LINE * height + row_of_tile) * LINE + first % LINE;
                    to.quads.at(tile * quads * height + line).cast::<[u8; LANES]>().write_unaligned(words[0]);
                    continue;
                }
                for (word, bytes) in words[..S::WORDS].iter().enumerate() {
                    for (quad, bytes) in (first..quads).zip(bytes.as_chunks::<QUAD>().0) {
                        let index = ((tile * quads + quad) * S::WORDS + word) * height + row_of_tile;
                        *to.quads.at(index) = i32::from_ne_bytes(*bytes);
                    }
                }
            }
            // For AMX, several threads prepare the rows of a tile: their scales must not share cache lines.
            let index = if amx {
                (tile * height + row_of_tile) * groups + group
            } else {
                (tile * groups + group) * height + row_of_tile
            };
            *to.scales.at(index) = scale;
            *to.corrections.at(index) = S::sum_i(correction);
        }
    }
}
