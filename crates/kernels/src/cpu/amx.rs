//! AMX: registers that hold tiles of 16 rows of 64 bytes, and an instruction that multiplies two of them.
//!
//! A tile of weights is 16 quads of a panel; a tile of rows has the inputs of a row side by side. The results equal
//! those of [`tile`](crate::tile) bit for bit: integers within a group, then the groups in order.
//!
//! Rust has no stable intrinsics for tiles, so this file uses inline assembly. Compilers never allocate tile registers
//! by themselves, so no other code of the process changes them. The operating system saves them for each thread.

use std::mem::MaybeUninit;

use crate::layout::{GROUP, PANEL, QUAD};
use crate::prefetch::prefetch_far;
use crate::tile::{Int8Tile, MAX_HEIGHT, MAX_PANELS};
use crate::vector::{LANES, Vector};

/// Rows from which AMX is faster than vectors.
const MIN_ROWS: usize = 13;
/// Inputs that one instruction multiplies: bytes of a tile's row.
const DEPTH: usize = 64;
/// How far ahead weights are fetched, in bytes.
const AHEAD: usize = 8192;
/// Most tiles that are multiplied with the same weights: the nearest cache has room for their sums.
pub(crate) const MAX_TILES: usize = 4;
/// Bytes of a tile of weights.
const TILE: usize = DEPTH * PANEL;

/// Whether this machine has tiles of bytes, and the system lets this process use them.
pub(super) fn is_available() -> bool {
    static ALLOWED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| has_tiles() && ask());
    *ALLOWED
}

/// Rows of each tile that `rows` rows are cut into, if AMX is the best way to multiply them by a matrix of `inputs`
/// inputs.
pub(crate) fn height(rows: usize, inputs: usize) -> Option<usize> {
    (rows >= MIN_ROWS && inputs.is_multiple_of(DEPTH)).then(|| rows.div_ceil(rows.div_ceil(MAX_HEIGHT)))
}

/// Whether the processor has tiles and multiplies their bytes.
fn has_tiles() -> bool {
    const TILES_AND_INT8: u32 = 1 << 24 | 1 << 25;
    std::arch::x86_64::__cpuid(0).eax >= 7
        && std::arch::x86_64::__cpuid_count(7, 0).edx & TILES_AND_INT8 == TILES_AND_INT8
}

/// Asks the system for the tile registers, which it saves only for processes that asked.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

/// A thread's configured tile registers. Dropping it releases them, so that the system needn't save them.
pub(crate) struct Tiles {
    height: usize,
}

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// Sets up 0 to 3 for sums and 4 for rows, `height` of them; 6 and 7 for weights.
    ///
    /// # Safety
    /// [`is_available`], and `height` is from 1 to [`MAX_HEIGHT`].
    pub(crate) unsafe fn new(height: usize) -> Self {
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(DEPTH as u16);
        configuration.rows[..6].fill(height as u8);
        configuration.rows[6..8].fill((DEPTH / QUAD) as u8);
        // SAFETY: the machine has the instruction, which reads these 64 bytes.
        unsafe { std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Self { height }
    }

    /// Computes `count` consecutive tiles, whose `rows` are `[tiles, quads / 16, height, 16]`. The other fields have
    /// the dimension `tiles` first, too.
    ///
    /// # Safety
    /// The machine has `S`; the inputs are a multiple of 64; the tile's pointers are
    /// valid for the lengths beside them.
    #[inline(always)]
    pub(crate) unsafe fn multiply<S: Vector>(&self, count: usize, tile: &Int8Tile) {
        let height = self.height;
        let steps = tile.quads * QUAD / DEPTH;
        let groups = steps.div_ceil(GROUP / DEPTH);
        // Written before it is read.
        let mut products = MaybeUninit::<Products>::uninit();
        let products = products.as_mut_ptr().cast::<i32>();
        // SAFETY: the caller's promise; a panel beyond the last is replaced by the last, and `products` has room for
        // four tiles.
        unsafe {
            let panel = |p: usize| tile.weights.add(p.min(tile.panels - 1) * tile.quads * PANEL * QUAD);
            let weights: [*const u8; MAX_PANELS] = std::array::from_fn(panel);
            // All tiles take a group's weights while the nearest cache has them.
            for group in 0..groups {
                let step = group * (GROUP / DEPTH);
                for index in 0..count {
                    let rows = tile.rows.add(index * height * tile.quads).cast::<u8>().add(step * height * DEPTH);
                    let steps = (steps - step).min(GROUP / DEPTH);
                    if index == 0 {
                        fetch(weights, tile.quads * PANEL * QUAD, step * TILE + AHEAD);
                    }
                    sum_group(rows, height, weights.map(|panel| panel.add(step * TILE)), steps, products);
                    let at = (index * groups + group) * height;
                    let sums = tile.sums.add(index * MAX_PANELS * height * LANES);
                    for r in 0..height {
                        let scale = S::splat(*tile.scales.add(at + r));
                        let correction = S::splat_i(*tile.corrections.add(at + r));
                        for p in 0..MAX_PANELS {
                            let product = products.add((p * MAX_HEIGHT + r) * LANES);
                            let product = S::add_i(S::load_weights(product.cast()), correction);
                            let sum = sums.add((p * height + r) * LANES);
                            let before = if group == 0 { S::splat(0.0) } else { S::load(sum) };
                            S::store(sum, S::fma(S::to_f(product), scale, before));
                        }
                    }
                }
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the machine has the instruction, as it had the one in `new`; it touches no memory.
        unsafe { std::arch::asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// `[panels, 16 rows, 16]`
#[repr(align(64))]
struct Products(#[expect(dead_code, reason = "room")] [i32; MAX_PANELS * MAX_HEIGHT * LANES]);

/// Fetches a group of weights that is needed later: `ahead` bytes from the start of each panel. Behind the panels' end
/// the next panels begin.
#[inline(always)]
fn fetch(weights: [*const u8; MAX_PANELS], panel_bytes: usize, ahead: usize) {
    let ahead = if ahead < panel_bytes { ahead } else { ahead + (MAX_PANELS - 1) * panel_bytes };
    for panel in weights {
        for line in 0..GROUP * PANEL / DEPTH {
            prefetch_far(panel.wrapping_add(ahead + line * DEPTH));
        }
    }
}

/// Multiplies `height` rows by four panels over `steps` tiles of 64 inputs, and stores the i32 sums in `products`.
/// Bytes of the rows are signed, bytes of the weights unsigned.
///
/// # Safety
/// The thread has [`Tiles`] of this height; `rows` and each panel's weights are valid for `steps` tiles; `products` has
/// room for [`Products`].
#[inline(always)]
unsafe fn sum_group(
    rows: *const u8,
    height: usize,
    weights: [*const u8; MAX_PANELS],
    steps: usize,
    products: *mut i32,
) {
    let [a, b, c, d] = weights;
    // SAFETY: reads what the caller promises and writes four tiles to `products`; prefetches may go anywhere. The tile
    // registers are named as changed.
    unsafe {
        std::arch::asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{rows} + {line}*1]",
            "tileloadd tmm6, [{a} + {line}*1]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {line}*1]",
            "tdpbsud tmm1, tmm4, tmm7",
            "tileloadd tmm6, [{c} + {line}*1]",
            "tdpbsud tmm2, tmm4, tmm6",
            "tileloadd tmm7, [{d} + {line}*1]",
            "tdpbsud tmm3, tmm4, tmm7",
            "add {rows}, {size}",
            "add {a}, {tile}",
            "add {b}, {tile}",
            "add {c}, {tile}",
            "add {d}, {tile}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{products} + {line}*1], tmm0",
            "tilestored [{products} + {line}*1 + {tile}], tmm1",
            "tilestored [{products} + {line}*1 + 2*{tile}], tmm2",
            "tilestored [{products} + {line}*1 + 3*{tile}], tmm3",
            rows = inout(reg) rows => _,
            size = in(reg) height * DEPTH,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            c = inout(reg) c => _,
            d = inout(reg) d => _,
            steps = inout(reg) steps => _,
            line = in(reg) PANEL * QUAD,
            products = in(reg) products,
            tile = const TILE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}
