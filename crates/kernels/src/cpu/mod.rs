//! The CPU levels: which instructions this machine has, and how a kernel is compiled and entered for each of them.

#[cfg_attr(not(target_arch = "x86_64"), path = "no_amx.rs")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use crate::isa::{Isa, Op};
use crate::tile::MAX_HEIGHT;

/// The vector instructions that kernels are compiled for, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuLevel {
    /// Plain Rust, compiled for the target's base instruction set.
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

    /// As [`Vector::WORDS`](crate::vector::Vector::WORDS).
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

    /// Rows of a tile of vectors, where so many are left: the highest tile that they fill.
    pub(crate) fn height(self, rows: usize) -> usize {
        match self {
            CpuLevel::Amx | CpuLevel::Avx512 => rows.min(MAX_HEIGHT),
            CpuLevel::Avx2 => rows.min(5),
            CpuLevel::Portable if rows == 1 => 1,
            CpuLevel::Portable => 4,
        }
    }
}

impl std::fmt::Display for CpuLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tiles_but_the_last_are_full() {
        for (level, rows, expected) in [
            (CpuLevel::Avx512, 1, &[1][..]),
            (CpuLevel::Avx512, 16, &[16]),
            (CpuLevel::Avx512, 17, &[16, 1]),
            (CpuLevel::Avx512, 40, &[16, 16, 8]),
            (CpuLevel::Avx2, 12, &[5, 5, 2]),
            (CpuLevel::Portable, 1, &[1]),
            (CpuLevel::Portable, 5, &[4, 1]),
            (CpuLevel::Portable, 6, &[4, 4]),
        ] {
            let (mut left, mut heights) = (rows, Vec::new());
            while left > 0 {
                heights.push(level.height(left));
                left = left.saturating_sub(level.height(left));
            }
            assert_eq!(heights, expected, "{level:?} {rows}");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn tiles_are_for_many_rows_of_whole_lines() {
        for (rows, inputs, height) in [
            (1, 768, None),
            (7, 768, None),
            (8, 768, Some(8)),
            (40, 768, Some(14)),
            (320, 64, Some(16)),
            (40, 100, None),
        ] {
            assert_eq!(amx::height(rows, inputs), height, "{rows} {inputs}");
        }
    }
}
