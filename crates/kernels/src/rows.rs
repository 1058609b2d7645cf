//! Prepares the rows of a linear map: normalizes them, quantizes them for int8 weights, and lays them out as tiles read
//! them.

use crate::cpu::{CpuLevel, amx};
use crate::isa::{Isa, Op};
use crate::kernels::grow;
use crate::layout::GROUP;
use crate::shared::Shared;
use crate::vector::{LANES, Vector};
use crate::workers::Workers;

/// Most rows that a thread prepares at a time.
const PART: usize = 8;

/// A cache line of a prepared row: 16 numbers in f32, or 64 quantized ones. No two threads write to the same line, and
/// no vector crosses lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Line([f32; LANES]);
// A line has a group's quantized inputs.
const _: () = assert!(GROUP == size_of::<Line>());

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
    /// Rows of a tile, except the last one.
    pub(crate) height: usize,
    /// Rows of the last tile.
    last_height: usize,
    /// In tiles of AMX.
    pub(crate) amx: bool,
    pub(crate) tiles: usize,
    /// For f32 weights `[tiles, inputs / 16, height]`, for int8 weights `[tiles, groups, words, height]` (see
    /// [`Vector::words`]).
    lines: Vec<Line>,
    /// Lines of a row.
    row_lines: usize,
    /// `[tiles, height, groups]`
    pub(crate) scales: Vec<f32>,
    /// `[tiles, height, groups]`
    pub(crate) corrections: Vec<i32>,
    /// `[threads, inputs / 16 and more]`: the row that a thread prepares, in f32.
    scratch: Vec<Line>,
}

impl Rows {
    /// The first line of a tile.
    pub(crate) fn tile(&self, tile: usize) -> *const Line {
        self.lines[tile * self.row_lines * self.height..].as_ptr()
    }

    /// Rows of a tile. The last one may have more than there are.
    pub(crate) fn height(&self, tile: usize) -> usize {
        if tile + 1 < self.tiles { self.height } else { self.last_height }
    }

    /// The values of the first row, prepared for f32 weights.
    pub(crate) fn first(&self) -> impl Iterator<Item = f32> {
        self.lines.iter().step_by(self.height(0)).take(self.row_lines).flat_map(|line| line.0)
    }

    /// Prepares the rows of a call.
    pub(crate) fn prepare(&mut self, Workers { threads, level }: &Workers, input: Input) {
        let Input { x, inputs, count, row, norm, quantize } = input;
        norm.check(inputs);
        let amx = if quantize && *level == CpuLevel::Amx { amx::height(count, inputs) } else { None };
        self.amx = amx.is_some();
        self.height = amx.unwrap_or_else(|| level.height(count));
        self.tiles = count.div_ceil(self.height);
        let last = (self.tiles - 1) * self.height;
        self.last_height = amx.unwrap_or_else(|| level.height(count - last));
        let (vectors, groups) = (inputs.div_ceil(LANES), inputs.div_ceil(GROUP));
        self.row_lines = if quantize { groups * level.words() } else { vectors };
        let rows = last + self.last_height;
        // The padding of a tile keeps old values: nobody reads its results.
        grow(&mut self.lines, rows * self.row_lines);
        if quantize {
            grow(&mut self.scales, rows * groups);
            grow(&mut self.corrections, rows * groups);
        }
        // Two cache lines between the rows of two threads: a processor fetches lines in pairs.
        let own = vectors + 2;
        grow(&mut self.scratch, threads.count() * own);
        let (height, last_height, row_lines) = (self.height, self.last_height, self.row_lines);
        let to = Targets {
            lines: Shared::new(&mut self.lines),
            scales: Shared::new(&mut self.scales),
            corrections: Shared::new(&mut self.corrections),
            scratch: Shared::new(&mut self.scratch),
        };
        let one = |index: usize, thread: usize| {
            let from = row(index);
            let x = &x[from * inputs..(from + 1) * inputs];
            let first = index - index % height;
            let first_line = first * row_lines + index % height;
            let height = if first < last { height } else { last_height };
            // SAFETY: a thread's scratch is its own.
            let scratch = unsafe { to.scratch.slice_mut(thread * own, vectors) };
            let at = TileRow { index, first_line, height };
            // SAFETY: `Kernels` only holds levels that the machine has; `to` has room for every row of every tile, and
            // each is one part's.
            unsafe { level.run(Prepare { x, norm, quantize, scratch, at, to: &to }) }
        };
        // Every thread has as many.
        let part = count.div_ceil(count.div_ceil(PART).next_multiple_of(threads.count()));
        threads.run(count.div_ceil(part), &|at, thread| {
            for index in at * part..count.min((at + 1) * part) {
                one(index, thread);
            }
        });
    }
}

/// Where prepared rows go.
struct Targets {
    lines: Shared<Line>,
    scales: Shared<f32>,
    corrections: Shared<i32>,
    scratch: Shared<Line>,
}

/// Where the parts of one row are.
#[derive(Clone, Copy)]
struct TileRow {
    /// Among all rows.
    index: usize,
    first_line: usize,
    /// From one of its lines to the next.
    height: usize,
}

/// Prepares one row.
struct Prepare<'a> {
    x: &'a [f32],
    norm: Norm<'a>,
    quantize: bool,
    /// A line for each vector.
    scratch: &'a mut [Line],
    at: TileRow,
    to: &'a Targets,
}

impl Op for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Isa>(self) {
        let Self { x, norm, quantize, scratch, at, to } = self;
        let vectors = scratch.len();
        // One address for all that reads and writes the scratch.
        let own = scratch.as_mut_ptr().cast::<f32>();
        // SAFETY: the machine has `S`, as the caller promises; `from` and `own` are `vectors` vectors; the others as
        // `Rows::prepare` promises.
        unsafe {
            let mut from = x.as_ptr();
            // A row of whole vectors is read where it is.
            if !x.len().is_multiple_of(LANES) {
                own.add((vectors - 1) * LANES).write_bytes(0, LANES);
                own.copy_from_nonoverlapping(from, x.len());
                from = own;
            }
            let row = normalize::<S>(from, x.len(), norm, own);
            if quantize {
                quantize_row::<S>(row, vectors * LANES, at, to);
            } else {
                for line in 0..vectors {
                    let vector = S::load(row.add(line * LANES));
                    S::store(to.lines.at(at.first_line + line * at.height).cast(), vector);
                }
            }
        }
    }
}

/// Normalizes the first `inputs` elements at `from`, up to a whole number of vectors with zeros behind, which stay so.
/// Returns where the normalized row is: in `to`, or without a norm where it was.
///
/// # Safety
/// The machine has `S`; whole vectors of `inputs` elements can be read at `from` and written at `to`, which may be the
/// same.
#[inline(always)]
unsafe fn normalize<S: Vector>(from: *const f32, inputs: usize, norm: Norm, to: *mut f32) -> *const f32 {
    let vectors = inputs.div_ceil(LANES);
    // SAFETY: as the caller promises; `scale` and `bias` were checked to have `inputs` elements.
    unsafe {
        let (shift, factor, scale, bias) = match norm {
            Norm::None => return from,
            Norm::Layer { scale, bias, epsilon } => {
                let mut sum = S::splat(0.0);
                for v in 0..vectors {
                    sum = S::add(sum, S::load(from.add(v * LANES)));
                }
                let mean = S::sum(sum) / inputs as f32;
                // Around the mean: the difference of two large sums of squares would lose its digits.
                let mut squares = S::splat(0.0);
                for v in 0..vectors {
                    let distance = S::sub(S::load(from.add(v * LANES)), S::splat(mean));
                    squares = S::fma(distance, distance, squares);
                }
                // Without the zeros that pad the row.
                let excess = (vectors * LANES - inputs) as f32 * mean * mean;
                let variance = (S::sum(squares) - excess) / inputs as f32;
                (mean, 1.0 / (variance.max(0.0) + epsilon).sqrt(), scale, bias)
            }
            Norm::Rms { scale, epsilon } => {
                let mut squares = S::splat(0.0);
                for v in 0..vectors {
                    let x = S::load(from.add(v * LANES));
                    squares = S::fma(x, x, squares);
                }
                (0.0, 1.0 / (S::sum(squares) / inputs as f32 + epsilon).sqrt(), scale, None)
            }
        };
        let whole = inputs / LANES;
        for v in 0..whole {
            let offset = v * LANES;
            let x = S::mul(S::sub(S::load(from.add(offset)), S::splat(shift)), S::splat(factor));
            let zero = S::splat(0.0);
            let bias = bias.map_or(zero, |bias| S::load(bias.as_ptr().add(offset)));
            S::store(to.add(offset), S::fma(x, S::load(scale.as_ptr().add(offset)), bias));
        }
        for input in whole * LANES..inputs {
            let bias = bias.map_or(0.0, |bias| bias[input]);
            *to.add(input) = (*from.add(input) - shift) * factor * scale[input] + bias;
        }
    }
    to
}

/// Quantizes a row in groups, each with the scale of its largest element.
///
/// # Safety
/// The machine has `S`; `row` has `len` elements, a multiple of 16; `at` is within `to`, and nobody else writes to it.
#[inline(always)]
unsafe fn quantize_row<S: Vector>(row: *const f32, len: usize, at: TileRow, to: &Targets) {
    let groups = len.div_ceil(GROUP);
    for group in 0..groups {
        let from = group * GROUP;
        let length = GROUP.min(len - from);
        // SAFETY: within the row and, as the caller promises, within `to`.
        unsafe {
            let mut largest = S::splat(0.0);
            for offset in (from..from + length).step_by(LANES) {
                largest = S::max(S::abs(S::load(row.add(offset))), largest);
            }
            let largest = S::largest(largest);
            let (scale, inverse) = if largest > 0.0 { (largest / 127.0, 127.0 / largest) } else { (0.0, 0.0) };
            let mut correction = S::splat_i(0);
            for offset in (0..length).step_by(LANES) {
                let rounded = S::round(S::mul(S::load(row.add(from + offset)), S::splat(inverse)));
                correction = S::add_i(correction, S::correction(rounded));
                let words = S::words(rounded);
                for (word, bytes) in words[..S::WORDS].iter().enumerate() {
                    let line = to.lines.at(at.first_line + (group * S::WORDS + word) * at.height);
                    *line.cast::<[u8; LANES]>().add(offset / LANES) = *bytes;
                }
            }
            *to.scales.at(at.index * groups + group) = scale;
            *to.corrections.at(at.index * groups + group) = S::sum_i(correction);
        }
    }
}
