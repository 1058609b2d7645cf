//! Exponentials and functions of them, 16 numbers at a time.

use crate::vector::Vector;

/// `e^x` within 2 units in the last place for `-87 <= x <= 88`; smaller and larger `x` count as those. NaN stays NaN.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(crate) unsafe fn exp<S: Vector>(x: S::F) -> S::F {
    // The Taylor series of 2^r's exponent up to the sixth power is exact enough on |r| <= ln 2 / 2.
    const TERMS: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    // SAFETY: the caller's promise; no memory is touched.
    unsafe {
        // Of NaN and a number the operations keep the second operand: NaN.
        let x = S::min(S::splat(88.0), S::max(S::splat(-87.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        let whole = S::to_f(n);
        // ln 2 in two parts: the first has zeros behind, so that its product with a small integer is exact.
        let r = S::fma(whole, S::splat(-0.693_359_4), x);
        let r = S::fma(whole, S::splat(2.121_944_4e-4), r);
        let mut sum = S::splat(TERMS[0]);
        for term in &TERMS[1..] {
            sum = S::fma(sum, r, S::splat(*term));
        }
        sum = S::fma(sum, r, S::splat(1.0));
        S::mul(sum, S::power_of_two(n))
    }
}

/// `1 / (1 + e^-x)`.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Vector>(x: S::F) -> S::F {
    // SAFETY: the caller's promise; no memory is touched.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// `tanh(x) = 2 sigmoid(2x) - 1`.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Vector>(x: S::F) -> S::F {
    // SAFETY: the caller's promise; no memory is touched.
    unsafe { S::fma(S::splat(2.0), sigmoid::<S>(S::add(x, x)), S::splat(-1.0)) }
}

/// The error function, within 1e-6: formula 7.1.26 of Abramowitz and Stegun.
///
/// # Safety
/// The machine has `S`.
#[inline(always)]
pub(crate) unsafe fn erf<S: Vector>(x: S::F) -> S::F {
    const TERMS: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    // SAFETY: the caller's promise; no memory is touched.
    unsafe {
        let one = S::splat(1.0);
        let size = S::abs(x);
        let t = S::div(one, S::fma(S::splat(0.327_591_1), size, one));
        let mut sum = S::splat(TERMS[0]);
        for term in &TERMS[1..] {
            sum = S::fma(sum, t, S::splat(*term));
        }
        let tail = S::mul(S::mul(sum, t), exp::<S>(S::sub(S::splat(0.0), S::mul(size, size))));
        let value = S::sub(one, tail);
        // The sign of x: x / |x|, with 0 / 0 avoided by a number too small to matter.
        S::mul(value, S::div(x, S::max(size, S::splat(1e-30))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuLevel;
    use crate::isa::{Isa, Op};
    use crate::vector::LANES;

    type Function = fn(f64) -> f64;

    struct Apply<'a>(usize, &'a mut [f32; LANES]);

    impl Op for Apply<'_> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<S: Isa>(self) {
            // SAFETY: sixteen elements; the level was checked.
            unsafe {
                let x = S::load(self.1.as_ptr());
                let y = match self.0 {
                    0 => exp::<S>(x),
                    1 => sigmoid::<S>(x),
                    2 => tanh::<S>(x),
                    _ => erf::<S>(x),
                };
                S::store(self.1.as_mut_ptr(), y);
            }
        }
    }

    /// The error function by its power series.
    fn erf_exact(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        if x.abs() > 5.0 { x.signum() } else { sum * 2.0 / std::f64::consts::PI.sqrt() }
    }

    #[test]
    fn functions_are_near_the_exact_ones_on_every_instruction_set() {
        // The formula of erf is good for 1.5e-7, its sums in f32 for the rest.
        let allowed = [4e-7, 4e-7, 4e-7, 1e-6];
        let exact: [Function; 4] = [f64::exp, |x| 1.0 / (1.0 + (-x).exp()), f64::tanh, erf_exact];
        for level in CpuLevel::available() {
            for (which, exact) in exact.iter().enumerate() {
                for step in -400..400 {
                    let xs: [f32; LANES] = std::array::from_fn(|lane| step as f32 * 0.1 + lane as f32 * 0.006);
                    let mut ys = xs;
                    // SAFETY: available, as filtered.
                    unsafe { level.run(Apply(which, &mut ys)) };
                    for (x, y) in xs.into_iter().zip(ys) {
                        let wanted = exact(f64::from(x));
                        let error = (f64::from(y) - wanted).abs();
                        assert!(
                            error <= allowed[which] * wanted.abs().max(1.0),
                            "{level:?} function {which} of {x}: {y}, not {wanted}"
                        );
                    }
                }
            }
            let mut nan = [f32::NAN; LANES];
            // SAFETY: available, as filtered.
            unsafe { level.run(Apply(0, &mut nan)) };
            assert!(nan.iter().all(|x| x.is_nan()), "{level:?}");
        }
    }
}
