//! AVX-512 with VNNI: a vector is one register.

use std::arch::x86_64::*;

use crate::isa::{Isa, Op};
use crate::tile::{F32Tile, Int8Tile, f32_tile, int8_tile};
use crate::vector::{LANES, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Runs `op` compiled with AVX-512 and VNNI.
///
/// # Safety
/// The machine has the features named here; `op`'s own conditions hold.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn run<O: Op>(op: O) -> O::Output {
    // SAFETY: the caller's promise.
    unsafe { op.run::<Avx512>() }
}

/// Calls the tile function of a height. Low tiles take more panels together, for enough independent sums. High ones
/// take one: a product then reads its inputs from memory. Where two products share them, an instruction of its own
/// loads them, and on Zen 4 takes time from the products.
macro_rules! by_height {
    ($tile:expr, $function:ident, $height:expr) => {
        match $height {
            1 => $function::<Self, 1, 4>($tile),
            2 => $function::<Self, 2, 4>($tile),
            3 => $function::<Self, 3, 2>($tile),
            4 => $function::<Self, 4, 2>($tile),
            5 => $function::<Self, 5, 2>($tile),
            6 => $function::<Self, 6, 2>($tile),
            7 => $function::<Self, 7, 1>($tile),
            8 => $function::<Self, 8, 1>($tile),
            9 => $function::<Self, 9, 1>($tile),
            10 => $function::<Self, 10, 1>($tile),
            11 => $function::<Self, 11, 1>($tile),
            12 => $function::<Self, 12, 1>($tile),
            13 => $function::<Self, 13, 1>($tile),
            14 => $function::<Self, 14, 1>($tile),
            15 => $function::<Self, 15, 1>($tile),
            _ => $function::<Self, 16, 1>($tile),
        }
    };
}

// SAFETY of every block below: the trait's condition is that the machine has AVX-512 VNNI, which is what these
// instructions need; loads and stores are unaligned ones of exactly the lengths that the trait names.
impl Vector for Avx512 {
    type F = __m512;
    type I = __m512i;
    type Quad = __m512i;
    const WORDS: usize = 1;
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(x: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_abs_ps(x) }
    }
    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(x) }
    }
    #[inline(always)]
    unsafe fn sums(x: [__m512; LANES]) -> __m512 {
        // Two vectors become one of both, four times over: the lanes of every vector are added up in the same order.
        // SAFETY: see above.
        unsafe {
            let mut fours = [_mm512_setzero_ps(); 4];
            for (n, four) in fours.iter_mut().enumerate() {
                let (a, b, c, d) = (x[4 * n], x[4 * n + 1], x[4 * n + 2], x[4 * n + 3]);
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                *four = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
            }
            let [a, b, c, d] = fours;
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd))
        }
    }
    #[inline(always)]
    unsafe fn largest(x: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(x) }
    }

    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sum_i(x: __m512i) -> i32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_epi32(x) }
    }
    #[inline(always)]
    unsafe fn round(x: __m512) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_cvtps_epi32(x) }
    }
    #[inline(always)]
    unsafe fn to_f(x: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(x) }
    }
    #[inline(always)]
    unsafe fn power_of_two(n: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127)))) }
    }
    #[inline(always)]
    unsafe fn words(x: __m512i) -> [[u8; LANES]; 2] {
        let mut bytes = [0; LANES];
        // SAFETY: see above; the store is of 16 bytes.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x)) };
        [bytes, [0; LANES]]
    }
    /// The bias of 128 in each weight.
    #[inline(always)]
    unsafe fn correction(x: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(x)) }
    }
    #[inline(always)]
    unsafe fn quad(from: *const i32, _: usize) -> Self::Quad {
        // SAFETY: see above; a word can be read.
        unsafe { _mm512_set1_epi32(*from) }
    }

    #[inline(always)]
    unsafe fn load_weights(from: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, weights: __m512i, x: Self::Quad) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(sum, weights, x) }
    }
}

impl Isa for Avx512 {
    // 32 registers: 16 sums, beside which those of the groups before stay in registers in int8 tiles. More sums are
    // put aside and are no faster than two tiles.
    #[inline(always)]
    unsafe fn f32_tile(height: usize, tile: &F32Tile) {
        // SAFETY: passed on to the caller.
        unsafe { by_height!(tile, f32_tile, height) }
    }
    #[inline(always)]
    unsafe fn int8_tile(height: usize, tile: &Int8Tile) {
        // SAFETY: passed on to the caller.
        unsafe { by_height!(tile, int8_tile, height) }
    }
}
