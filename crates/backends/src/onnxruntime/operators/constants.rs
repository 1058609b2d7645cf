//! What an operator's constants stand for: packed matrices and normalizations.

use kernels::layout::Matrix;
use kernels::linear::Norm;

use super::Form;
use super::context::{Constant, Element, Info, check_len};
use super::huge_pages::{Copied, HugePages};

/// A packed matrix among the constants.
#[derive(Debug)]
pub(super) enum Weights {
    F32(Elements<f32>),
    Int8(Elements<u8>, Constant<f32>),
}

/// The elements of a matrix.
#[derive(Debug)]
pub(super) enum Elements<T> {
    /// Where ONNX Runtime has them.
    Constant(Constant<T>),
    /// In huge pages.
    Copied(Copied<T>),
}

impl<T: Element> Elements<T> {
    fn get(&self) -> &[T] {
        match self {
            Elements::Constant(constant) => constant.get(),
            Elements::Copied(copied) => copied.get(),
        }
    }

    fn copied(self, pages: Option<&HugePages>) -> Self {
        pages.and_then(|pages| pages.copy(self.get())).map_or(self, Elements::Copied)
    }
}

impl Weights {
    /// Reads the matrix at `index`, and what belongs to it behind it.
    pub(super) fn read(info: &Info, index: usize, form: Form) -> Result<Self, ort::Error> {
        Ok(match form {
            Form::F32 => Weights::F32(Elements::Constant(info.needed(index)?)),
            Form::Int8 => Weights::Int8(Elements::Constant(info.needed(index)?), info.needed(index + 1)?),
        })
    }

    /// The matrix in huge pages, if there are any.
    pub(super) fn copied(self, pages: Option<&HugePages>) -> Self {
        match self {
            Weights::F32(elements) => Weights::F32(elements.copied(pages)),
            Weights::Int8(bytes, scales) => Weights::Int8(bytes.copied(pages), scales),
        }
    }

    /// Checks that the matrix has the sizes of the attributes.
    pub(super) fn check(&self, inputs: usize, outputs: usize) -> Result<(), ort::Error> {
        if self.matrix().fits(inputs, outputs) {
            return Ok(());
        }
        let found = match self {
            Weights::F32(elements) => elements.get().len(),
            Weights::Int8(bytes, _) => bytes.get().len(),
        };
        let reason =
            format!("the weights have {found} elements, which are not `inputs` {inputs} x `outputs` {outputs}");
        Err(ort::Error::new(reason))
    }

    pub(super) fn matrix(&self) -> Matrix<'_> {
        match self {
            Weights::F32(elements) => Matrix::F32(elements.get()),
            Weights::Int8(bytes, scales) => Matrix::Int8(bytes.get(), scales.get()),
        }
    }
}

/// A normalization among the attributes and constants.
#[derive(Debug)]
pub(super) enum NormConstants {
    None,
    Layer { scale: Constant<f32>, bias: Option<Constant<f32>>, epsilon: f32 },
    Rms { scale: Constant<f32>, epsilon: f32 },
}

impl NormConstants {
    /// Reads the scale at `index` and the bias behind it.
    pub(super) fn read(info: &Info, index: usize) -> Result<Self, ort::Error> {
        Ok(match info.text("norm")?.as_str() {
            "none" => NormConstants::None,
            "layer" => NormConstants::Layer {
                scale: info.needed(index)?,
                bias: info.constant(index + 1)?,
                epsilon: info.float("epsilon")?,
            },
            "rms" => NormConstants::Rms { scale: info.needed(index)?, epsilon: info.float("epsilon")? },
            other => return Err(ort::Error::new(format!("the norm `{other}` is unknown"))),
        })
    }

    /// Checks that scale and bias are of rows of `inputs`.
    pub(super) fn check(&self, inputs: usize) -> Result<(), ort::Error> {
        match self {
            NormConstants::None => Ok(()),
            NormConstants::Layer { scale, bias, .. } => check_len("the norm's scale", Some(scale), inputs)
                .and_then(|()| check_len("the norm's bias", bias.as_ref(), inputs)),
            NormConstants::Rms { scale, .. } => check_len("the norm's scale", Some(scale), inputs),
        }
    }

    pub(super) fn norm(&self) -> Norm<'_> {
        match self {
            NormConstants::None => Norm::None,
            NormConstants::Layer { scale, bias, epsilon } => {
                Norm::Layer { scale: scale.get(), bias: bias.as_ref().map(Constant::get), epsilon: *epsilon }
            }
            NormConstants::Rms { scale, epsilon } => Norm::Rms { scale: scale.get(), epsilon: *epsilon },
        }
    }
}
