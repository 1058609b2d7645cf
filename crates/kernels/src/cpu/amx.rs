//! AMX: registers that hold tiles of 16 rows of 64 bytes, and an instruction that multiplies two of them.
//!
//! A tile of weights is 16 quads of a panel; a tile of rows has the inputs of a row side by side. The results equal
//! those of [`tile`](crate::tile) bit for bit: integers within a group, then the groups in order.
//!
//! Rust has no stable intrinsics for tiles, so this file uses inline assembly. Compilers never allocate tile registers
//! by themselves, so no other code of the process changes them, and they keep their values from one assembly block to
//! the next. The operating system saves them for each thread.

use std::mem::MaybeUninit;

use crate::layout::{GROUP, PANEL, QUAD};
use crate::prefetch::prefetch;
use crate::tile::{CACHE_LINE, Int8Tile, MAX_HEIGHT, MAX_PANELS};
use crate::vector::{LANES, Vector};

/// Rows from which AMX is faster than vectors.
const MIN_ROWS: usize = 8;
/// Inputs that one instruction multiplies: bytes of a tile's row.
const DEPTH: usize = 64;
/// How far ahead weights are fetched, in bytes.
const AHEAD: usize = 8192;
/// Most tiles that are multiplied with the same weights: the nearest cache has room for their sums.
pub(crate) const MAX_TILES: usize = 4;
/// Bytes of a tile of weights.
const TILE: usize = DEPTH * PANEL;
/// Cache lines of a tile of weights.
const LINES: usize = TILE / CACHE_LINE;
// One instruction multiplies a whole group.
const _: () = assert!(GROUP == DEPTH);

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
    /// Sets up 0 to 3 for sums and 4 for rows, `height` of them; 5 to 7 for weights.
    ///
    /// # Safety
    /// [`is_available`], and `height` is from 1 to [`MAX_HEIGHT`].
    pub(crate) unsafe fn new(height: usize) -> Self {
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(DEPTH as u16);
        configuration.rows[..5].fill(height as u8);
        configuration.rows[5..8].fill((DEPTH / QUAD) as u8);
        // SAFETY: the machine has the instruction, which reads these 64 bytes.
        unsafe { std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Self { height }
    }

    /// Computes `count` consecutive tiles, whose `rows` are `[tiles, groups, height, 16]`, and whose `scales` and
    /// `corrections` are `[tiles, height, groups]`. The sums have the dimension `tiles` first, too.
    ///
    /// # Safety
    /// The machine has `S`; the inputs are a multiple of 64; the tile's pointers are valid for the lengths beside them.
    #[inline(always)]
    pub(crate) unsafe fn multiply<S: Vector>(&self, count: usize, tile: &Int8Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            if tile.panels > 2 {
                self.multiply_panels::<S, MAX_PANELS>(count, tile);
            } else {
                self.multiply_panels::<S, 2>(count, tile);
            }
        }
    }

    /// As [`Self::multiply`], of at most `P` panels.
    ///
    /// The tile registers multiply the next group while the vector registers scale the products of the last one and
    /// add them to the sums.
    ///
    /// # Safety
    /// As [`Self::multiply`].
    #[inline(always)]
    unsafe fn multiply_panels<S: Vector, const P: usize>(&self, count: usize, tile: &Int8Tile) {
        let height = self.height;
        let groups = tile.quads * QUAD / DEPTH;
        // Written before it is read.
        let mut products = MaybeUninit::<Products>::uninit();
        let products = products.as_mut_ptr().cast::<i32>();
        // SAFETY: the caller's promise; a panel beyond the last is replaced by the last, and `products` has room for
        // four tiles.
        unsafe {
            let panel = |p: usize| tile.weights.add(p.min(tile.panels - 1) * groups * TILE);
            let panels: [*const u8; P] = std::array::from_fn(panel);
            let multiply = |group: usize, index: usize| {
                let rows = tile.rows.cast::<u8>().add((index * groups + group) * height * DEPTH);
                multiply_group(rows, panels, group * TILE);
            };
            multiply(0, 0);
            store_products::<P>(products);
            // All tiles take a group's weights while the nearest cache has them.
            for group in 0..groups {
                let ahead = fetched_ahead::<P>(group, groups);
                for index in 0..count {
                    let (next_group, next) = if index + 1 < count { (group, index + 1) } else { (group + 1, 0) };
                    if next_group < groups {
                        multiply(next_group, next);
                    }
                    let of_rows = index * height * groups + group;
                    let sums = tile.sums.add(index * MAX_PANELS * height * LANES);
                    for r in 0..height {
                        fetch(panels, ahead, index * height + r);
                        let scale = S::splat(*tile.scales.add(of_rows + r * groups));
                        let correction = S::splat_i(*tile.corrections.add(of_rows + r * groups));
                        for p in 0..P {
                            let product = products.add((p * MAX_HEIGHT + r) * LANES);
                            let product = S::add_i(S::load_weights(product.cast()), correction);
                            let sum = sums.add((p * height + r) * LANES);
                            let before = if group == 0 { S::splat(0.0) } else { S::load(sum) };
                            S::store(sum, S::fma(S::to_f(product), scale, before));
                        }
                    }
                    if next_group < groups {
                        store_products::<P>(products);
                    }
                }
                (count * height..LINES).for_each(|line| fetch(panels, ahead, line));
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

/// Where the weights are that are fetched while a group is multiplied, in bytes from the start of each of `P` panels.
/// Behind the panels' end the next panels begin.
#[inline(always)]
fn fetched_ahead<const P: usize>(group: usize, groups: usize) -> usize {
    let ahead = group * TILE + AHEAD;
    if ahead < groups * TILE { ahead } else { ahead + (P - 1) * groups * TILE }
}

/// Fetches one cache line of each panel, unless that is behind the tile that is to be fetched.
#[inline(always)]
fn fetch<const P: usize>(panels: [*const u8; P], ahead: usize, line: usize) {
    if line < LINES {
        for panel in panels {
            prefetch(panel.wrapping_add(ahead + line * CACHE_LINE));
        }
    }
}

/// Multiplies a group of the rows by two or four panels, whose weights begin `at` bytes behind `panels`, and leaves the
/// i32 sums in the tile registers 0 to 3. Bytes of the rows are signed, bytes of the weights unsigned.
///
/// # Safety
/// The thread has [`Tiles`]; `rows` is valid for a tile of its height, and each panel for a tile.
#[inline(always)]
unsafe fn multiply_group<const P: usize>(rows: *const u8, panels: [*const u8; P], at: usize) {
    // SAFETY: reads what the caller promises. The tile registers are named as changed.
    unsafe {
        std::arch::asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tileloadd tmm4, [{rows} + {line}*1]",
            "tileloadd tmm5, [{a} + {line}*1]",
            "tdpbsud tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tdpbsud tmm1, tmm4, tmm6",
            rows = in(reg) rows,
            a = in(reg) panels[0].add(at),
            b = in(reg) panels[1].add(at),
            line = in(reg) DEPTH,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack, readonly)
        );
        if P > 2 {
            std::arch::asm!(
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm7, [{c} + {line}*1]",
                "tdpbsud tmm2, tmm4, tmm7",
                "tileloadd tmm5, [{d} + {line}*1]",
                "tdpbsud tmm3, tmm4, tmm5",
                c = in(reg) panels[2].add(at),
                d = in(reg) panels[3].add(at),
                line = in(reg) DEPTH,
                out("tmm2") _, out("tmm3") _, out("tmm5") _, out("tmm7") _,
                options(nostack, readonly)
            );
        }
    }
}

/// Stores the sums that [`multiply_group`] left.
///
/// # Safety
/// The thread has [`Tiles`]; `products` has room for `P` tiles.
#[inline(always)]
unsafe fn store_products<const P: usize>(products: *mut i32) {
    // SAFETY: writes what the caller promises.
    unsafe {
        std::arch::asm!(
            "tilestored [{products} + {line}*1], tmm0",
            "tilestored [{products} + {line}*1 + {tile}], tmm1",
            products = in(reg) products,
            line = in(reg) DEPTH,
            tile = const TILE,
            options(nostack)
        );
        if P > 2 {
            std::arch::asm!(
                "tilestored [{products} + {line}*1 + 2*{tile}], tmm2",
                "tilestored [{products} + {line}*1 + 3*{tile}], tmm3",
                products = in(reg) products,
                line = in(reg) DEPTH,
                tile = const TILE,
                options(nostack)
            );
        }
    }
}
