//! The traits between kernels and instruction sets: [`Isa`] has the vector operations, [`Op`] is a kernel.
//!
//! A kernel is an [`Op`], generic over [`Isa`], and all `#[inline(always)]`. `CpuLevel::run` enters it through a
//! function that is compiled for the instruction set and inlines the whole kernel. A closure would not be inlined, and
//! so would be compiled without the instruction set.

use crate::tile::{F32Tile, Int8Tile};
use crate::vector::Vector;

/// A kernel that runs on any instruction set.
pub(crate) trait Op {
    /// The kernel's result.
    type Output;
    /// The kernel, marked `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has `S`; the kernel's own conditions hold.
    unsafe fn run<S: Isa>(self) -> Self::Output;
}

/// Vectors, and tiles that fit its registers.
///
/// # Safety
/// As [`Vector`]; the tile's pointers are valid for the lengths beside them.
pub(crate) trait Isa: Vector {
    /// Computes a tile of `height` rows, one of the heights that `CpuLevel::height` chooses.
    unsafe fn f32_tile(height: usize, tile: &F32Tile);
    /// As [`Isa::f32_tile`].
    unsafe fn int8_tile(height: usize, tile: &Int8Tile);
}
