//! Plain Rust for all other machines: arrays of 16, which the compiler turns into the vectors of the target.

use crate::isa::Isa;
use crate::tile::{F32Tile, Int8Tile, f32_tile, int8_tile};
use crate::vector::{LANES, Vector};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

impl Vector for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type Quad = [u8; 4];
    const WORDS: usize = 1;
    const REGISTERS: usize = 8;

    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the trait's condition: 16 elements at any alignment.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }
    unsafe fn store(to: *mut f32, x: Self::F) {
        // SAFETY: the trait's condition: 16 elements at any alignment.
        unsafe { to.cast::<Self::F>().write_unaligned(x) }
    }
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Rounded twice where there is no instruction for it: the library's own fma would be a hundred times slower.
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    unsafe fn abs(x: Self::F) -> Self::F {
        x.map(f32::abs)
    }
    unsafe fn sum(x: Self::F) -> f32 {
        x.iter().sum()
    }
    unsafe fn largest(x: Self::F) -> f32 {
        x.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    unsafe fn splat_i(x: i32) -> Self::I {
        [x; LANES]
    }
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }
    unsafe fn sum_i(x: Self::I) -> i32 {
        x.iter().sum()
    }
    unsafe fn round(x: Self::F) -> Self::I {
        x.map(|x| x.round_ties_even() as i32)
    }
    unsafe fn to_f(x: Self::I) -> Self::F {
        x.map(|x| x as f32)
    }
    unsafe fn power_of_two(n: Self::I) -> Self::F {
        n.map(|n| f32::from_bits(((n.wrapping_add(127)) << 23).cast_unsigned()))
    }

    unsafe fn words(x: Self::I) -> [[u8; LANES]; 2] {
        [x.map(|x| x as u8), [0; LANES]]
    }
    unsafe fn correction(_: Self::I) -> Self::I {
        [0; LANES]
    }
    unsafe fn quad(from: *const i32, _: usize) -> Self::Quad {
        // SAFETY: the trait's condition: a word.
        unsafe { *from }.to_ne_bytes()
    }
    unsafe fn load_weights(from: *const u8) -> Self::I {
        // SAFETY: the trait's condition: 64 bytes at any alignment.
        unsafe { from.cast::<Self::I>().read_unaligned() }
    }
    unsafe fn dot(sum: Self::I, weights: Self::I, x: Self::Quad) -> Self::I {
        std::array::from_fn(|lane| {
            let products = weights[lane].to_ne_bytes().into_iter().zip(x);
            sum[lane] + products.map(|(w, x)| (i32::from(w) - 128) * i32::from(x.cast_signed())).sum::<i32>()
        })
    }
}

impl Isa for Portable {
    unsafe fn f32_tile(height: usize, tile: &F32Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            match height {
                1 => f32_tile::<Self, 1, 1>(tile),
                _ => f32_tile::<Self, 4, 1>(tile),
            }
        }
    }
    unsafe fn int8_tile(height: usize, tile: &Int8Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            match height {
                1 => int8_tile::<Self, 1, 1>(tile),
                _ => int8_tile::<Self, 4, 1>(tile),
            }
        }
    }
}
