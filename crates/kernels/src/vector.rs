//! The vector operations that kernels use. Each instruction set implements them in `cpu`.

use crate::layout::PANEL;

/// Numbers in a vector.
pub(crate) const LANES: usize = PANEL;

/// Vectors of 16 numbers: `F` of f32, `I` of i32.
///
/// # Safety
/// Every function: the machine has the instruction set. Pointers: valid for as many elements as the name says, at any
/// alignment.
pub(crate) trait Vector: Copy {
    type F: Copy;
    type I: Copy;
    /// Four quantized inputs of a row as [`Vector::dot`] takes them, the same in every lane.
    type Quad: Copy;
    /// Words of four bytes from which [`Vector::quad`] loads them, 1 or 2.
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
    /// Lane by lane the sum of one of the vectors, all in one order, which may be another than [`Vector::sum`]'s.
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
    /// What [`Vector::dot`] leaves out of the sums of such inputs, whatever the weights; of any of the lanes.
    unsafe fn correction(x: Self::I) -> Self::I;
    /// The quad whose words are at `from` and `distance` words behind it.
    unsafe fn quad(from: *const i32, distance: usize) -> Self::Quad;
    /// 64 bytes of weights as stored: each 128 more than the weight.
    unsafe fn load_weights(from: *const u8) -> Self::I;
    /// `sum[lane] += sum over c of weight[lane][c] * x[c]`, less the inputs' correction.
    unsafe fn dot(sum: Self::I, weights: Self::I, x: Self::Quad) -> Self::I;
}
