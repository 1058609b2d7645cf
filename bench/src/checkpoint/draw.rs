//! Random values of tensors. They are drawn as the golden tests draw theirs (`tests/goldens/reference.py`): layers
//! outweigh what they add to, so that the output depends on the prompt. With the initialisation of training, every
//! prompt gets the same constant token.

use std::ops::Range;

use rand::{Rng, rngs::StdRng};
use rand_distr::StandardNormal;

/// Factor by which a layer's matrix scales its input.
pub(super) const GAIN: f32 = 2.5;
/// Standard deviation of the logits over the vocabulary.
const LOGIT_STD: f32 = 3.0;
/// Standard deviation of vectors around what they are without training.
const OFFSET_STD: f32 = 0.1;

/// What a tensor is, and so how its values are drawn.
#[derive(Clone, Debug)]
pub(super) enum Draw {
    /// A row for each token, or position.
    Table,
    /// The same for a head whose other rows are zero: tokens outside of the range are never the best.
    Words(Range<usize>),
    /// A matrix of a layer, `[in, out]`.
    ColumnsOut,
    /// A matrix of a layer, `[out, in]`.
    RowsOut {
        /// Factor by which the matrix scales its input.
        gain: f32,
    },
    /// Standard deviation 1.
    Plain,
    /// A vector near a constant.
    Around(f32),
}

impl Draw {
    /// The values of a tensor of this shape.
    pub(super) fn values(&self, rng: &mut StdRng, shape: &[usize]) -> Vec<f32> {
        let mut values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.sample(StandardNormal)).collect();
        let (rows, columns) = (shape[0], shape.get(1).copied().unwrap_or(1));
        match self {
            Self::Table => scale(&mut values, LOGIT_STD / (columns as f32).sqrt()),
            Self::Words(spoken) => {
                scale(&mut values, LOGIT_STD / (columns as f32).sqrt());
                values[..spoken.start * columns].fill(0.0);
                values[spoken.end * columns..].fill(0.0);
            }
            // Centred, or the mean of what an activation lets through becomes the same addition to every position.
            Self::RowsOut { gain } => {
                let factor = gain / (columns as f32).sqrt();
                for row in values.chunks_exact_mut(columns) {
                    let mean = row.iter().sum::<f32>() / columns as f32;
                    row.iter_mut().for_each(|value| *value = (*value - mean) * factor);
                }
            }
            Self::ColumnsOut => {
                let mut means = vec![0.0; columns];
                for row in values.chunks_exact(columns) {
                    means.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / rows as f32);
                }
                let factor = GAIN / (rows as f32).sqrt();
                for row in values.chunks_exact_mut(columns) {
                    row.iter_mut().zip(&means).for_each(|(value, mean)| *value = (*value - mean) * factor);
                }
            }
            Self::Plain => {}
            Self::Around(centre) => values.iter_mut().for_each(|value| *value = *value * OFFSET_STD + centre),
        }
        values
    }
}

fn scale(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn layers_are_centred_and_seeded() {
        let draw = |seed, draw: Draw| draw.values(&mut StdRng::seed_from_u64(seed), &[16, 4]);
        assert_eq!(draw(1, Draw::ColumnsOut), draw(1, Draw::ColumnsOut));
        assert_ne!(draw(1, Draw::ColumnsOut), draw(2, Draw::ColumnsOut));
        let column: f32 = draw(1, Draw::ColumnsOut).chunks_exact(4).map(|row| row[0]).sum();
        assert!(column.abs() < 1e-5, "{column}");
        let row: f32 = draw(1, Draw::RowsOut { gain: GAIN })[..4].iter().sum();
        assert!(row.abs() < 1e-5, "{row}");
    }

    #[test]
    fn what_is_not_spoken_has_no_weights() {
        let values = Draw::Words(2..5).values(&mut StdRng::seed_from_u64(1), &[6, 2]);
        let is_zero: Vec<bool> = values.chunks_exact(2).map(|row| row == [0.0, 0.0]).collect();
        assert_eq!(is_zero, [true, true, false, false, false, true]);
    }
}
