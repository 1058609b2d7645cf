//! Vectors of 16 numbers, as three instruction sets have them.
//!
//! A kernel is an `Op`, generic over `Isa`, all `#[inline(always)]`; `CpuLevel::run` enters it through a function compiled for
//! the instruction set, into which everything is inlined. A closure is not: it would be compiled without.

#[cfg_attr(not(target_arch = "x86_64"), path = "no_amx.rs")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::tile::{F32Tile, Int8Tile};

/// Numbers in a vector.
pub const LANES: usize = crate::layout::PANEL;

/// The instructions that kernels use, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuLevel {
    /// What the compiler makes of plain Rust.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 with VNNI: Intel since Cascade Lake, AMD since Zen 4.
    Avx512,
    /// AVX-512 with VNNI, and AMX for rows times int8 weights: Intel since Sapphire Rapids.
    Amx,
}

impl CpuLevel {
    /// All levels, best first.
    pub const ALL: [Self; 4] = [Self::Amx, Self::Avx512, Self::Avx2, Self::Portable];

    /// The levels that this machine has, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// The best level that this machine has.
    pub fn detect() -> Self {
        Self::available().next().unwrap_or(Self::Portable)
    }

    /// The level's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            CpuLevel::Amx => CpuLevel::Avx512.is_available() && amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            CpuLevel::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && CpuLevel::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            CpuLevel::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            CpuLevel::Avx512 | CpuLevel::Avx2 => false,
            CpuLevel::Portable => true,
        }
    }

    /// Runs a kernel with this instruction set.
    ///
    /// # Safety
    /// The machine has it ([`CpuLevel::is_available`]), and what the kernel itself asks for holds.
    pub(crate) unsafe fn run<O: Op>(self, op: O) -> O::Output {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                CpuLevel::Amx | CpuLevel::Avx512 => avx512::run(op),
                #[cfg(target_arch = "x86_64")]
                CpuLevel::Avx2 => avx2::run(op),
                #[cfg(not(target_arch = "x86_64"))]
                CpuLevel::Amx | CpuLevel::Avx512 | CpuLevel::Avx2 => op.run::<portable::Portable>(),
                CpuLevel::Portable => op.run::<portable::Portable>(),
            }
        }
    }

    /// As [`Isa::WORDS`].
    pub(crate) fn words(self) -> usize {
        struct Words;
        impl Op for Words {
            type Output = usize;
            #[inline(always)]
            unsafe fn run<S: Isa>(self) -> usize {
                S::WORDS
            }
        }
        // SAFETY: `Kernels` only holds levels that the machine has; nothing else is asked for.
        unsafe { self.run(Words) }
    }

    /// Rows of the tiles of vectors that `rows` rows are cut into, all of the same height: few tiles, and few rows that only fill up.
    pub(crate) fn height(self, rows: usize) -> usize {
        let heights: &[usize] = match self {
            CpuLevel::Amx | CpuLevel::Avx512 => &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
            CpuLevel::Avx2 => &[1, 2, 3, 4, 5],
            CpuLevel::Portable => &[1, 4],
        };
        // Reading a tile's weights costs about as much as a row.
        let cost = |height: usize| rows.div_ceil(height) * (height + 1);
        heights.iter().rev().copied().min_by_key(|&height| cost(height)).unwrap_or(1)
    }
}

impl std::fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel that runs on any instruction set.
pub(crate) trait Op {
    /// What it returns.
    type Output;
    /// The kernel, marked `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has `S`; the kernel's own conditions hold.
    unsafe fn run<S: Isa>(self) -> Self::Output;
}

/// The vector operations that kernels are written in. `F` is 16 f32, `I` is 16 i32.
///
/// # Safety
/// Every function: the machine has the instruction set. Pointers: valid for as many elements as the name says, at any alignment.
pub(crate) trait Isa: Copy {
    type F: Copy;
    type I: Copy;
    /// Four quantized inputs of a row as [`Isa::dot`] takes them, the same in every lane.
    type Quad: Copy;
    /// Words of four bytes in which [`Isa::quad`] finds them, 1 or 2.
    const WORDS: usize;
    /// Vectors' worth of registers that kernels may count on, 32 or fewer.
    const REGISTERS: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, x: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger of each pair; `b` where either is not a number.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of each pair; `b` where either is not a number.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(x: Self::F) -> Self::F;
    /// The sum of the lanes, always in the same order.
    unsafe fn sum(x: Self::F) -> f32;
    /// Lane by lane the sum of one of the vectors, all in one order, which may be another than [`Isa::sum`]'s.
    #[inline(always)]
    unsafe fn sums(x: [Self::F; LANES]) -> Self::F {
        let mut sums = [0.0; LANES];
        // SAFETY: the trait's condition; 16 elements are there to load.
        unsafe {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = Self::sum(x);
            }
            Self::load(sums.as_ptr())
        }
    }
    unsafe fn largest(x: Self::F) -> f32;

    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sum_i(x: Self::I) -> i32;
    /// To the nearest integer, halves to even.
    unsafe fn round(x: Self::F) -> Self::I;
    unsafe fn to_f(x: Self::I) -> Self::F;
    /// `2^n` for `-126 <= n <= 127`.
    unsafe fn power_of_two(n: Self::I) -> Self::F;

    /// The bytes of each of the words for 16 inputs quantized to -127 to 127.
    unsafe fn words(x: Self::I) -> [[u8; LANES]; 2];
    /// What [`Isa::dot`] leaves out of the sums of such inputs, whatever the weights; of any of the lanes.
    unsafe fn correction(x: Self::I) -> Self::I;
    /// The quad whose words are at `from` and as many words behind it as the height says.
    unsafe fn quad(from: *const i32, height: usize) -> Self::Quad;
    /// 64 bytes of weights, as they lie: 128 more than what they stand for.
    unsafe fn load_weights(from: *const u8) -> Self::I;
    /// `sum[lane] += sum over c of weight[lane][c] * x[c]`, less the inputs' correction.
    unsafe fn dot(sum: Self::I, weights: Self::I, x: Self::Quad) -> Self::I;

    /// Runs a tile of the given height, one of [`CpuLevel::height`]'s.
    unsafe fn f32_tile(height: usize, tile: &F32Tile);
    /// As [`Isa::f32_tile`].
    unsafe fn int8_tile(height: usize, tile: &Int8Tile);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_waste_little() {
        for (level, rows, height) in [
            (CpuLevel::Avx512, 1, 1),
            (CpuLevel::Avx512, 3, 3),
            (CpuLevel::Avx512, 10, 10),
            (CpuLevel::Avx512, 15, 8),
            (CpuLevel::Avx512, 24, 12),
            (CpuLevel::Avx512, 64, 13),
            (CpuLevel::Avx512, 320, 14),
            (CpuLevel::Avx2, 10, 5),
            (CpuLevel::Avx2, 12, 4),
            (CpuLevel::Avx2, 32, 4),
            (CpuLevel::Avx2, 320, 5),
            (CpuLevel::Portable, 3, 4),
        ] {
            assert_eq!(level.height(rows), height, "{level:?} {rows}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn tiles_are_for_many_rows_of_whole_lines() {
        for (rows, inputs, height) in [
            (1, 768, None),
            (12, 768, None),
            (13, 768, Some(13)),
            (40, 768, Some(14)),
            (320, 64, Some(16)),
            (40, 100, None),
        ] {
            assert_eq!(amx::height(rows, inputs), height, "{rows} {inputs}");
        }
    }
}
