//! Optimization profiles: the range of shapes that an engine accepts, and the shapes that it is optimized for. Plain
//! data.

use crate::error::Error;
use crate::types::{Shape, TensorName};

/// One of a profile's three shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The smallest that is taken.
    Min,
    /// The one to be quick at.
    Opt,
    /// The largest that is taken.
    Max,
}

impl Selector {
    /// All selectors, in the order of the sizes that they name.
    pub const ALL: [Self; 3] = [Self::Min, Self::Opt, Self::Max];

    pub(crate) fn raw(self) -> i32 {
        self as i32
    }
}

/// The shapes of one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeRange {
    /// The smallest shape.
    pub min: Shape,
    /// The shape that kernels are chosen for.
    pub opt: Shape,
    /// The largest shape.
    pub max: Shape,
}

impl ShapeRange {
    /// # Errors
    /// More than eight dimensions.
    pub fn new(min: &[i64], opt: &[i64], max: &[i64]) -> Result<Self, Error> {
        Ok(Self { min: Shape::new(min)?, opt: Shape::new(opt)?, max: Shape::new(max)? })
    }

    /// The shape that `selector` names.
    pub fn at(&self, selector: Selector) -> Shape {
        match selector {
            Selector::Min => self.min,
            Selector::Opt => self.opt,
            Selector::Max => self.max,
        }
    }
}

/// The shapes of all inputs that have dynamic ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "IOptimizationProfile")]
pub struct OptimizationProfile {
    inputs: Vec<(TensorName, ShapeRange)>,
}

impl OptimizationProfile {
    /// A profile without inputs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input's shapes.
    pub fn set(&mut self, input: TensorName, range: ShapeRange) {
        self.inputs.push((input, range));
    }

    /// The inputs, in the order in which they were added.
    pub fn inputs(&self) -> &[(TensorName, ShapeRange)] {
        &self.inputs
    }
}
