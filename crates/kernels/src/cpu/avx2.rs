//! AVX2 with FMA: a vector is two registers.

use std::arch::x86_64::*;

use crate::isa::{Isa, Op};
use crate::tile::{F32Tile, Int8Tile, f32_tile, int8_tile};
use crate::vector::{LANES, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Enters `op` with the instruction set switched on.
///
/// # Safety
/// The machine has the features named here; `op`'s own conditions hold.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run<O: Op>(op: O) -> O::Output {
    // SAFETY: the caller's promise.
    unsafe { op.run::<Avx2>() }
}

/// Magnitudes of four inputs, and for each a mask that is XORed with a weight's byte. Where the input is not negative,
/// the mask is the top bit: it takes the bias of 128 away. Where it is negative, the mask has the other seven bits,
/// which give `-w - 1` for a weight `w`.
#[derive(Clone, Copy)]
pub(crate) struct Quad {
    magnitudes: __m256i,
    flips: __m256i,
}

/// Calls a 256-bit instruction for both halves.
macro_rules! halves {
    ($instruction:ident($($operand:ident),*)) => {
        // SAFETY: the trait's condition is that the machine has AVX2 and FMA; these instructions touch no memory.
        unsafe { [$instruction($($operand[0]),*), $instruction($($operand[1]),*)] }
    };
}

// SAFETY of every block below: the trait's condition is that the machine has AVX2 and FMA, which is what these
// instructions need; loads and stores are unaligned ones of exactly the lengths that the trait names.
impl Vector for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type Quad = Quad;
    const WORDS: usize = 2;
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        halves!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        halves!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    unsafe fn abs(x: Self::F) -> Self::F {
        // SAFETY: see above.
        let sign = unsafe { [_mm256_set1_ps(-0.0); 2] };
        halves!(_mm256_andnot_ps(sign, x))
    }
    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(x[0], x[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn largest(x: Self::F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_max_ps(x[0], x[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        halves!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn sum_i(x: Self::I) -> i32 {
        let mut lanes = [0_i32; LANES];
        // SAFETY: see above; the stores are of 8 lanes each.
        unsafe {
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(lanes.as_mut_ptr().add(8).cast(), x[1]);
        }
        lanes.iter().sum()
    }
    #[inline(always)]
    unsafe fn round(x: Self::F) -> Self::I {
        halves!(_mm256_cvtps_epi32(x))
    }
    #[inline(always)]
    unsafe fn to_f(x: Self::I) -> Self::F {
        halves!(_mm256_cvtepi32_ps(x))
    }
    #[inline(always)]
    unsafe fn power_of_two(n: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { n.map(|n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))) }
    }
    #[inline(always)]
    unsafe fn words(x: Self::I) -> [[u8; LANES]; 2] {
        let mut lanes = [0_i32; LANES];
        // SAFETY: see above; the stores are of 8 lanes each.
        unsafe {
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(lanes.as_mut_ptr().add(8).cast(), x[1]);
        }
        [lanes.map(|lane| lane.unsigned_abs() as u8), lanes.map(|lane| if lane < 0 { 0x7f } else { 0x80 })]
    }
    /// A negative input times `-w - 1` instead of `-w` is its magnitude too little.
    #[inline(always)]
    unsafe fn correction(x: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { x.map(|x| _mm256_max_epi32(_mm256_sub_epi32(_mm256_setzero_si256(), x), _mm256_setzero_si256())) }
    }
    #[inline(always)]
    unsafe fn quad(from: *const i32, distance: usize) -> Self::Quad {
        // SAFETY: see above; two words can be read.
        unsafe { Quad { magnitudes: _mm256_set1_epi32(*from), flips: _mm256_set1_epi32(*from.add(distance)) } }
    }
    #[inline(always)]
    unsafe fn load_weights(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, weights: Self::I, x: Self::Quad) -> Self::I {
        // SAFETY: see above. The instruction for bytes takes one side without a sign and adds pairs in 16 bits, where 2
        // * 127 * 128 fits. An exclusive or moves the signs, because the instruction for signs would wait for the same
        // units as the products.
        unsafe {
            let part = |half: usize| {
                let pairs = _mm256_maddubs_epi16(x.magnitudes, _mm256_xor_si256(weights[half], x.flips));
                _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
            };
            [part(0), part(1)]
        }
    }
}

impl Isa for Avx2 {
    // 16 registers: at most 5 rows of one panel. Fewer than 8 sums would wait for each other.
    #[inline(always)]
    unsafe fn f32_tile(height: usize, tile: &F32Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            match height {
                1 => f32_tile::<Self, 1, 4>(tile),
                2 => f32_tile::<Self, 2, 2>(tile),
                3 => f32_tile::<Self, 3, 2>(tile),
                4 => f32_tile::<Self, 4, 1>(tile),
                _ => f32_tile::<Self, 5, 1>(tile),
            }
        }
    }
    #[inline(always)]
    unsafe fn int8_tile(height: usize, tile: &Int8Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            match height {
                1 => int8_tile::<Self, 1, 2>(tile),
                2 => int8_tile::<Self, 2, 1>(tile),
                3 => int8_tile::<Self, 3, 1>(tile),
                4 => int8_tile::<Self, 4, 1>(tile),
                _ => int8_tile::<Self, 5, 1>(tile),
            }
        }
    }
}
