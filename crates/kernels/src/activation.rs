//! Activation functions.

use crate::math::{erf, sigmoid, tanh};
use crate::vector::Vector;

/// The activation that a linear map applies to each sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// No activation: `x`.
    #[default]
    None,
    /// `x * (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// The tanh approximation of `Gelu`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `tanh(x)`.
    Tanh,
}

const NAMES: [(&str, Activation); 7] = [
    ("none", Activation::None),
    ("gelu", Activation::Gelu),
    ("gelu_tanh", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("silu", Activation::Silu),
    ("quick_gelu", Activation::QuickGelu),
    ("tanh", Activation::Tanh),
];

impl Activation {
    /// The activation of that name in a graph.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation)
    }

    /// # Safety
    /// The machine has `S`.
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Vector>(self, x: S::F) -> S::F {
        // SAFETY: the caller's promise; no memory is touched.
        unsafe {
            let half = S::splat(0.5);
            match self {
                Activation::None => x,
                Activation::Gelu => {
                    let erf = erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
                    S::mul(S::mul(half, x), S::add(S::splat(1.0), erf))
                }
                Activation::GeluTanh => {
                    let cubed = S::mul(S::mul(x, x), x);
                    let inner = S::mul(S::splat(0.797_884_6), S::fma(S::splat(0.044_715), cubed, x));
                    S::mul(S::mul(half, x), S::add(S::splat(1.0), tanh::<S>(inner)))
                }
                Activation::Relu => S::max(S::splat(0.0), x),
                Activation::Silu => S::mul(x, sigmoid::<S>(x)),
                Activation::QuickGelu => S::mul(x, sigmoid::<S>(S::mul(S::splat(1.702), x))),
                Activation::Tanh => tanh::<S>(x),
            }
        }
    }
}
