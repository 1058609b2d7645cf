//! The inner loops of linear maps: a few rows times a few panels, summed in registers.
//!
//! Products are added in the order of the inputs (int8: exactly within a group, then the groups in order), whatever the
//! tile's size. A row's result is therefore the same in every tile.

use crate::layout::{GROUP, PANEL, QUAD};
use crate::prefetch::prefetch;
use crate::vector::{LANES, Vector};

/// Rows times panels of an f32 matrix.
pub(crate) struct F32Tile {
    /// The rows' values. `[inputs / 16, height, 16]`
    pub(crate) rows: *const f32,
    pub(crate) inputs: usize,
    /// The first of the panels, `[inputs, 16]` each.
    pub(crate) weights: *const f32,
    /// Panels to compute, at most [`MAX_PANELS`]. Where they don't fill the tile's width, the last one is computed
    /// again.
    pub(crate) panels: usize,
    /// Where the sums of products go. `[panels, height, 16]`
    pub(crate) sums: *mut f32,
    /// How far ahead weights are fetched, in bytes.
    pub(crate) ahead: usize,
}

/// Rows times panels of an int8 matrix, scaled for the rows but not yet for the outputs.
pub(crate) struct Int8Tile {
    /// Quads of bytes. `[groups, words, height, 16]`
    pub(crate) rows: *const i32,
    /// Factor of the sums of each row and group. `[height, groups]`
    pub(crate) scales: *const f32,
    /// What is added to a group's products, see [`Vector::correction`]. `[height, groups]`
    pub(crate) corrections: *const i32,
    pub(crate) quads: usize,
    /// The first of the panels, `[quads, 16, 4]` each.
    pub(crate) weights: *const u8,
    /// Panels to compute, as in [`F32Tile::panels`].
    pub(crate) panels: usize,
    /// Where the sums of products go. `[panels, height, 16]`
    pub(crate) sums: *mut f32,
    /// As in [`F32Tile::ahead`]. AMX ignores it.
    pub(crate) ahead: usize,
}

/// Most panels of one call.
pub(crate) const MAX_PANELS: usize = 4;
/// Rows of the highest tiles: those of AVX-512 and AMX.
pub(crate) const MAX_HEIGHT: usize = 16;
/// How far ahead weights are fetched, in bytes: about what memory delivers during its latency.
pub(crate) const PREFETCH: usize = 4096;
/// Bytes of a cache line. It holds one input of an f32 panel, or one quad of an int8 panel.
pub(crate) const CACHE_LINE: usize = 64;

/// Stores the sums of the first `panels` panels, or of all.
///
/// # Safety
/// The machine has `S`; there is room for them.
#[inline(always)]
unsafe fn store<S: Vector, const R: usize, const P: usize>(sums: &[[S::F; R]; P], to: *mut f32, panels: usize) {
    // A loop up to `panels` would not be unrolled, and the sums would stay in memory instead of registers.
    for (p, rows) in sums.iter().enumerate().filter(|(p, _)| *p < panels) {
        for (r, sum) in rows.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { S::store(to.add((p * R + r) * LANES), *sum) };
        }
    }
}

/// # Safety
/// The machine has `S`; the tile's pointers are valid for the lengths beside them, with height `R`.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "rows and panels index several arrays each")]
pub(crate) unsafe fn f32_tile<S: Vector, const R: usize, const P: usize>(tile: &F32Tile) {
    // SAFETY: the caller's promise; every index is below the lengths that the fields state, because a panel beyond the
    // last is replaced by the last.
    unsafe {
        let panel = tile.inputs * PANEL;
        for first in (0..tile.panels).step_by(P) {
            let weights: [*const f32; P] =
                std::array::from_fn(|p| tile.weights.add((first + p).min(tile.panels - 1) * panel));
            let mut sums = [[S::splat(0.0); R]; P];
            for line in 0..tile.inputs.div_ceil(LANES) {
                let rows = tile.rows.add(line * R * LANES);
                for input in line * LANES..tile.inputs.min((line + 1) * LANES) {
                    for p in 0..P {
                        prefetch(weights[p].add(input * PANEL).cast::<u8>().wrapping_add(tile.ahead));
                    }
                    let columns: [S::F; P] = std::array::from_fn(|p| S::load(weights[p].add(input * PANEL)));
                    for r in 0..R {
                        let x = S::splat(*rows.add(r * LANES + input % LANES));
                        for p in 0..P {
                            sums[p][r] = S::fma(x, columns[p], sums[p][r]);
                        }
                    }
                }
            }
            store::<S, R, P>(&sums, tile.sums.add(first * R * LANES), tile.panels - first);
        }
    }
}

/// # Safety
/// As [`f32_tile`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "rows and panels index several arrays each")]
pub(crate) unsafe fn int8_tile<S: Vector, const R: usize, const P: usize>(tile: &Int8Tile) {
    const GROUP_QUADS: usize = GROUP / QUAD;
    const STEP: usize = PANEL * QUAD;
    // SAFETY: as in `f32_tile`.
    unsafe {
        let panel = tile.quads * STEP;
        for first in (0..tile.panels).step_by(P) {
            let weights: [*const u8; P] =
                std::array::from_fn(|p| tile.weights.add((first + p).min(tile.panels - 1) * panel));
            let mut sums = [[S::splat(0.0); R]; P];
            let groups = tile.quads.div_ceil(GROUP_QUADS);
            for group in 0..groups {
                let mut products = [[S::splat_i(0); R]; P];
                for r in 0..R {
                    let correction = S::splat_i(*tile.corrections.add(r * groups + group));
                    for p in 0..P {
                        products[p][r] = correction;
                    }
                }
                // Behind the end of these panels the next ones begin, not the one beside.
                let is_inside = group * GROUP * PANEL + tile.ahead < panel;
                let ahead = tile.ahead + if is_inside { 0 } else { (P - 1) * panel };
                let rows = tile.rows.add(group * S::WORDS * R * GROUP_QUADS);
                for quad in group * GROUP_QUADS..tile.quads.min((group + 1) * GROUP_QUADS) {
                    for p in 0..P {
                        prefetch(weights[p].wrapping_add(quad * STEP + ahead));
                    }
                    let columns: [S::I; P] = std::array::from_fn(|p| S::load_weights(weights[p].add(quad * STEP)));
                    for r in 0..R {
                        let x = S::quad(rows.add(r * GROUP_QUADS + quad % GROUP_QUADS), R * GROUP_QUADS);
                        for p in 0..P {
                            products[p][r] = S::dot(products[p][r], columns[p], x);
                        }
                    }
                }
                for r in 0..R {
                    let scale = S::splat(*tile.scales.add(r * groups + group));
                    for p in 0..P {
                        sums[p][r] = S::fma(S::to_f(products[p][r]), scale, sums[p][r]);
                    }
                }
            }
            store::<S, R, P>(&sums, tile.sums.add(first * R * LANES), tile.panels - first);
        }
    }
}
