//! Linear maps: `y = activation(norm(x) W + bias) * factor + residual`.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::activation::Activation;
use crate::cpu::amx::{self, Tiles};
use crate::isa::{Isa, Op};
use crate::kernels::Kernels;
use crate::layout::{GROUP, Matrix, PANEL, QUAD, len_f32, len_int8, panels, quads};
pub use crate::rows::Norm;
use crate::rows::{Input, Rows};
use crate::shared::Shared;
use crate::tile::{F32Tile, Int8Tile, MAX_HEIGHT, MAX_PANELS, PREFETCH};
use crate::vector::LANES;
use crate::workers::Workers;

/// Most panels that a thread takes at a time: few enough that others can help a thread that is late.
const PART: usize = 2 * MAX_PANELS;
/// Parts have a multiple of so many panels: tiles that take several at once would compute the last one again.
const TOGETHER: usize = 2;

/// Bytes of the panels that several tiles are multiplied with at once: the second cache keeps them for the others.
const AT_ONCE: usize = 128 << 10;

/// A linear map, without its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// Packed `[inputs, outputs]`.
    pub weights: Matrix<'a>,
    /// Elements of a row of `x`.
    pub inputs: usize,
    /// Elements of a row of `y`.
    pub outputs: usize,
    /// Normalization of `x`.
    pub norm: Norm<'a>,
    /// `[outputs]`
    pub bias: Option<&'a [f32]>,
    /// Applied to the sums.
    pub activation: Activation,
}

/// What the results of a map are multiplied with.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// `[rows, outputs]`
    Given(&'a [f32]),
    /// The results of another map of the same normalized rows: a gate. It has no factor and no residual.
    Gate(&'a Linear<'a>),
}

/// The arguments of a call.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    /// `[rows, inputs]`
    pub x: &'a [f32],
    /// Multiplied with the results of the activation.
    pub factor: Option<Factor<'a>>,
    /// `[rows, outputs]`
    pub residual: Option<&'a [f32]>,
}

impl Linear<'_> {
    /// Computes `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn run(&self, kernels: &mut Kernels, arguments: Arguments, y: &mut [f32]) {
        let count = arguments.x.len() / self.inputs;
        assert_eq!(arguments.x.len(), count * self.inputs, "rows of x");
        assert_eq!(y.len(), count * self.outputs, "y");
        if count == 0 {
            return;
        }
        let Kernels { workers, rows, .. } = kernels;
        let (quantize, row) = (matches!(self.weights, Matrix::Int8(..)), |index| index);
        let input = Input { x: arguments.x, inputs: self.inputs, count, row: &row, norm: self.norm, quantize };
        rows.prepare(workers, input);
        let Arguments { factor, residual, .. } = arguments;
        self.multiply(workers, rows, Output { y, stride: self.outputs, count, factor, residual });
    }

    /// # Panics
    /// If the weights or the bias have another length than their shape.
    fn check(&self) {
        self.weights.check(self.inputs, self.outputs);
        assert!(self.bias.is_none_or(|bias| bias.len() == self.outputs), "a bias for each output");
    }

    /// Multiplies prepared rows.
    pub(crate) fn multiply(&self, workers: &Workers, rows: &Rows, output: Output) {
        let Output { y, stride, count, factor, residual } = output;
        self.check();
        if let Some(Factor::Gate(gate)) = factor {
            gate.check();
            let of = |map: &Linear| (map.inputs, map.outputs, matches!(map.weights, Matrix::Int8(..)));
            assert_eq!(of(gate), of(self), "a gate of the same shape");
        }
        assert!(y.len() >= (count - 1) * stride + self.outputs && stride >= self.outputs, "room for the result");
        let given = if let Some(Factor::Given(factor)) = factor { Some(factor) } else { None };
        for operand in [given, residual].into_iter().flatten() {
            assert_eq!(operand.len(), y.len(), "an operand of y's shape");
        }
        let y = Shared::new(y);
        let panels = panels(self.outputs);
        let Workers { threads, level } = workers;
        // Every thread has as many parts. A narrow map is one part, and so is the work of a thread without others.
        let is_shared = threads.count() > 1 && panels > PART;
        let parts = if is_shared { panels.div_ceil(PART).next_multiple_of(threads.count()) } else { 1 };
        let first = |part: usize| panels.min(part * panels.div_ceil(TOGETHER) / parts * TOGETHER);
        threads.run(parts, &|part, _| {
            let range = first(part)..first(part + 1);
            let op = Panels { linear: self, rows, count, factor, residual, y, stride, range };
            // SAFETY: `Kernels` only holds levels that the machine has; lengths were checked, and panels belong to one
            // part each.
            unsafe { level.run(op) }
        });
    }
}

/// Where the results of a call go, and what they are combined with.
pub(crate) struct Output<'a> {
    /// Row `i` begins at `y[i * stride]`.
    pub(crate) y: &'a mut [f32],
    pub(crate) stride: usize,
    /// Number of rows.
    pub(crate) count: usize,
    /// One that is given is in the layout of `y`.
    pub(crate) factor: Option<Factor<'a>>,
    /// Added to the output, or `None`; in the layout of `y`.
    pub(crate) residual: Option<&'a [f32]>,
}

/// Room for the sums of the largest tiles.
#[repr(align(64))]
struct Sums(#[expect(dead_code, reason = "room")] [f32; amx::MAX_TILES * MAX_PANELS * MAX_HEIGHT * LANES]);

/// All rows times some of the panels.
struct Panels<'a> {
    linear: &'a Linear<'a>,
    rows: &'a Rows,
    count: usize,
    factor: Option<Factor<'a>>,
    residual: Option<&'a [f32]>,
    y: Shared<f32>,
    stride: usize,
    range: Range<usize>,
}

/// What follows the sums of a map.
#[derive(Clone, Copy)]
struct Ending<'a> {
    map: &'a Linear<'a>,
    /// A gate's results are what `y` holds.
    factor: Option<Factor<'a>>,
    residual: Option<&'a [f32]>,
}

impl Op for Panels<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Isa>(self) {
        // Written before it is read.
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        // SAFETY: rows are only prepared for AMX where the machine has it, and in tiles of its heights.
        let amx = self.rows.amx.then(|| unsafe { Tiles::new(self.rows.height) });
        // Panels outside, rows inside: the weights are most of the memory, and are read once.
        let at_once = self.at_once();
        for first in self.range.clone().step_by(at_once) {
            let panels = first..self.range.end.min(first + at_once);
            // SAFETY: as `multiply` promises: rows and weights have the lengths of their shapes, and `sums` has room
            // for the largest tiles.
            unsafe {
                if let Some(Factor::Gate(map)) = self.factor {
                    let ending = Ending { map, factor: None, residual: None };
                    self.tiles::<S>(amx.as_ref(), panels.clone(), ending, sums);
                }
                let ending = Ending { map: self.linear, factor: self.factor, residual: self.residual };
                self.tiles::<S>(amx.as_ref(), panels, ending, sums);
            }
        }
    }
}

impl Panels<'_> {
    /// The panels that all tiles are multiplied with before the next ones.
    fn at_once(&self) -> usize {
        let panel = match self.linear.weights {
            Matrix::F32(_) => len_f32(self.linear.inputs, PANEL) * size_of::<f32>(),
            Matrix::Int8(..) => len_int8(self.linear.inputs, PANEL),
        };
        if self.rows.tiles == 1 || self.rows.amx { MAX_PANELS } else { (AT_ONCE / panel).clamp(1, MAX_PANELS) }
    }

    /// Computes some panels of a map for all tiles.
    ///
    /// # Safety
    /// As [`Op::run`]; `sums` has room for the largest tiles.
    #[inline(always)]
    unsafe fn tiles<S: Isa>(&self, amx: Option<&Tiles>, panels: Range<usize>, ending: Ending, sums: *mut f32) {
        let together = if amx.is_some() { amx::MAX_TILES } else { 1 };
        for tile in (0..self.rows.tiles).step_by(together) {
            let count = together.min(self.rows.tiles - tile);
            // SAFETY: passed on to the caller.
            unsafe {
                self.sum::<S>(amx, ending.map, tile..tile + count, panels.clone(), sums);
                for index in 0..count {
                    let panel = self.rows.height(tile + index) * LANES;
                    let sums = sums.add(index * MAX_PANELS * panel);
                    if panels.len() == MAX_PANELS {
                        self.finish::<S, MAX_PANELS>(ending, tile + index, panels.start, sums);
                        continue;
                    }
                    for at in 0..panels.len() {
                        self.finish::<S, 1>(ending, tile + index, panels.start + at, sums.add(at * panel));
                    }
                }
            }
        }
    }

    /// Computes the sums of one tile, or with AMX of up to [`amx::MAX_TILES`], `[tiles, 4 panels, height, 16]`.
    ///
    /// # Safety
    /// As [`Op::run`]; `sums` has room.
    #[inline(always)]
    unsafe fn sum<S: Isa>(
        &self,
        amx: Option<&Tiles>,
        map: &Linear,
        tiles: Range<usize>,
        panels: Range<usize>,
        sums: *mut f32,
    ) {
        let (rows, inputs) = (self.rows, map.inputs);
        let (tile, first, panels) = (tiles.start, panels.start, panels.len());
        let quads = quads(inputs);
        let height = rows.height(tile);
        // The other tiles find the weights in the second cache.
        let ahead = if tile == 0 { PREFETCH } else { 0 };
        // SAFETY: `Rows::prepare` made `tiles` of these stretches, and the matrix has the panels: `multiply` checked
        // its length.
        unsafe {
            let lines = rows.tile(tile);
            match map.weights {
                Matrix::F32(weights) => {
                    let weights = weights.as_ptr().add(first * inputs * PANEL);
                    let tile = F32Tile { rows: lines.cast(), inputs, weights, panels, sums, ahead };
                    S::f32_tile(height, &tile);
                }
                Matrix::Int8(weights, _) => {
                    let groups = inputs.div_ceil(GROUP) * rows.height;
                    let tile = Int8Tile {
                        rows: lines.cast(),
                        scales: rows.scales.as_ptr().add(tile * groups),
                        corrections: rows.corrections.as_ptr().add(tile * groups),
                        quads,
                        weights: weights.as_ptr().add(first * quads * PANEL * QUAD),
                        panels,
                        sums,
                        ahead,
                    };
                    match amx {
                        Some(amx) => amx.multiply::<S>(tiles.len(), &tile),
                        None => S::int8_tile(height, &tile),
                    }
                }
            }
        }
    }

    /// Applies scale, bias, activation, factor and residual to `P` panels of a tile, and writes them to `y`.
    ///
    /// # Safety
    /// As [`Op::run`]; `sums` holds `[P, height, 16]`, and so many panels begin with `panel`.
    #[inline(always)]
    unsafe fn finish<S: Isa, const P: usize>(&self, ending: Ending, tile: usize, panel: usize, sums: *const f32) {
        let Ending { map, factor, residual } = ending;
        let output = panel * PANEL;
        let width = (P * PANEL).min(map.outputs - output);
        let first = tile * self.rows.height;
        let at = first * self.stride + output;
        let height = self.rows.height(tile);
        // SAFETY: scales have a whole number of panels; rows below `count` are within `y` and its operands.
        unsafe {
            let (mut scale, mut bias) = ([S::splat(1.0); P], [S::splat(0.0); P]);
            for p in 0..P {
                if let Matrix::Int8(_, scales) = map.weights {
                    scale[p] = S::load(scales.as_ptr().add(output + p * PANEL));
                }
                if let Some(from) = map.bias {
                    let mut padded = [0.0_f32; LANES];
                    let from = &from[output + p * PANEL..];
                    let width = PANEL.min(from.len());
                    padded[..width].copy_from_slice(&from[..width]);
                    bias[p] = S::load(padded.as_ptr());
                }
            }
            let y = self.y.at(at);
            let factor = factor.map(|factor| match factor {
                Factor::Given(factor) => factor.as_ptr().add(at),
                Factor::Gate(_) => y.cast_const(),
            });
            let residual = residual.map(|residual| residual.as_ptr().add(at));
            let (activation, stride, panel) = (map.activation, self.stride, height * LANES);
            let results = Results { sums, panel, scale, bias, activation, factor, residual, y, stride };
            let rows = height.min(self.count - first);
            if width < P * LANES {
                results.write_cut::<S>(rows, width);
            } else if let Activation::None = map.activation {
                // A loop of its own: a map without an activation spends no time on choosing it.
                Results { activation: Activation::None, ..results }.write::<S>(rows);
            } else {
                results.write::<S>(rows);
            }
        }
    }
}

/// The results of `P` panels for the rows of a tile. Row `i` of the operands and of `y` begins `i * stride` elements
/// behind the first.
struct Results<F, const P: usize> {
    /// `[P, height, 16]`
    sums: *const f32,
    /// Elements from one panel's sums to the next.
    panel: usize,
    scale: [F; P],
    bias: [F; P],
    activation: Activation,
    factor: Option<*const f32>,
    residual: Option<*const f32>,
    y: *mut f32,
    stride: usize,
}

impl<F: Copy, const P: usize> Results<F, P> {
    /// The results of a row for one panel.
    ///
    /// # Safety
    /// The machine has `S`; whole vectors can be read from the operands.
    #[inline(always)]
    unsafe fn row<S: Isa<F = F>>(
        &self,
        row: usize,
        p: usize,
        factor: Option<*const f32>,
        residual: Option<*const f32>,
    ) -> F {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = S::load(self.sums.add(p * self.panel + row * LANES));
            let mut value = self.activation.apply::<S>(S::fma(sum, self.scale[p], self.bias[p]));
            if let Some(factor) = factor {
                value = S::mul(value, S::load(factor));
            }
            if let Some(residual) = residual {
                value = S::add(value, S::load(residual));
            }
            value
        }
    }

    /// Writes whole panels.
    ///
    /// # Safety
    /// As [`Self::row`], and `height` rows of whole vectors can be written.
    #[inline(always)]
    unsafe fn write<S: Isa<F = F>>(&self, height: usize) {
        for row in 0..height {
            for p in 0..P {
                // SAFETY: the caller's promise.
                unsafe {
                    let offset = row * self.stride + p * LANES;
                    let at = |from: *const f32| from.add(offset);
                    let value = self.row::<S>(row, p, self.factor.map(at), self.residual.map(at));
                    S::store(self.y.add(offset), value);
                }
            }
        }
    }

    /// Writes the first `width` outputs.
    ///
    /// # Safety
    /// As [`Self::write`], with `width` elements instead of vectors.
    #[inline(always)]
    unsafe fn write_cut<S: Isa<F = F>>(&self, height: usize, width: usize) {
        for row in 0..height {
            for p in 0..P {
                let (mut factors, mut residuals, mut cut) = ([0.0_f32; LANES], [0.0_f32; LANES], [0.0_f32; LANES]);
                let (offset, width) = (row * self.stride + p * LANES, LANES.min(width.saturating_sub(p * LANES)));
                // SAFETY: the caller's promise; whole vectors are read from and written to copies.
                unsafe {
                    let copy = |from: *const f32, to: &mut [f32; LANES]| {
                        std::ptr::copy_nonoverlapping(from.add(offset), to.as_mut_ptr(), width);
                        to.as_ptr()
                    };
                    let factor = self.factor.map(|from| copy(from, &mut factors));
                    let residual = self.residual.map(|from| copy(from, &mut residuals));
                    S::store(cut.as_mut_ptr(), self.row::<S>(row, p, factor, residual));
                    std::ptr::copy_nonoverlapping(cut.as_ptr(), self.y.add(offset), width);
                }
            }
        }
    }
}
