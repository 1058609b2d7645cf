//! The product of an adapter's two matrices, added to a weight piece by piece.

use std::fmt;

/// A matrix in memory.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// `[rows, columns]`
    pub(super) values: Vec<f32>,
}

impl Matrix {
    /// The values as `[columns, rows]`.
    fn turned(&self) -> Vec<f32> {
        let columns = size(self.columns);
        (0..columns).flat_map(|column| self.values[column..].iter().step_by(columns)).copied().collect()
    }
}

/// The matrices of one module: `a` is `[rank, in]`, `b` is `[out, rank]`.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) a: Matrix,
    pub(super) b: Matrix,
}

impl Pair {
    pub(super) fn rank(&self) -> u64 {
        self.a.rows
    }

    pub(super) fn shapes(&self) -> [[u64; 2]; 2] {
        [&self.a, &self.b].map(|matrix| [matrix.rows, matrix.columns])
    }
}

/// What an adapter adds to a weight of shape `[rows, columns]`: `left` times `right`.
pub(crate) struct LowRank {
    columns: usize,
    rank: usize,
    scale: f32,
    /// `[rows, rank]`, with the scale.
    left: Vec<f32>,
    /// `[rank, columns]`
    right: Vec<f32>,
}

impl LowRank {
    /// `None` where the matrices don't fit the weight's shape. A weight is stored as `[out, in]`, or as `[in, out]`;
    /// where the shape doesn't tell, `inputs_first` does.
    pub(super) fn new(pair: &Pair, shape: &[u64], inputs_first: bool, scale: f32) -> Option<Self> {
        let (inputs, outputs) = (pair.a.columns, pair.b.rows);
        let is_turned = match shape {
            [rows, columns] if (*rows, *columns) == (inputs, outputs) => inputs != outputs || inputs_first,
            [rows, columns] if (*rows, *columns) == (outputs, inputs) => false,
            _ => return None,
        };
        let (mut left, right, columns) = if is_turned {
            (pair.a.turned(), pair.b.turned(), outputs)
        } else {
            (pair.b.values.clone(), pair.a.values.clone(), inputs)
        };
        left.iter_mut().for_each(|value| *value *= scale);
        Some(Self { columns: size(columns), rank: size(pair.rank()), scale, left, right })
    }

    /// Adds to the weight's elements from `first` on.
    pub(crate) fn add_to(&self, first: u64, values: &mut [f32]) {
        let (mut at, mut rest) = (size(first), values);
        while !rest.is_empty() {
            let (row, column) = (at / self.columns, at % self.columns);
            let (part, behind) = rest.split_at_mut(rest.len().min(self.columns - column));
            for (k, factor) in self.left[row * self.rank..][..self.rank].iter().enumerate() {
                let right = &self.right[k * self.columns + column..][..part.len()];
                for (value, right) in part.iter_mut().zip(right) {
                    *value += factor * right;
                }
            }
            at += part.len();
            rest = behind;
        }
    }
}

/// The values are those of a file, which a build names beside this.
impl fmt::Debug for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LowRank({} of rank {}, {})", self.columns, self.rank, self.scale)
    }
}

/// Sizes are those of files that were read into memory.
fn size(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` is 2 x 3 and `b` 4 x 2, so the product `b a` is 4 x 3.
    fn pair() -> Pair {
        let matrix = |rows, columns, first: f32| {
            let values = (0..rows * columns).map(|index| first + index as f32).collect();
            Matrix { rows, columns, values }
        };
        Pair { a: matrix(2, 3, 1.0), b: matrix(4, 2, -3.0) }
    }

    #[test]
    fn any_piece_of_either_layout_gets_its_part_of_the_product() {
        let pair = pair();
        let product = |row: usize, column: usize| -> f32 {
            (0..2).map(|k| 0.5 * pair.b.values[row * 2 + k] * pair.a.values[k * 3 + column]).sum()
        };
        for (shape, turned) in [([4, 3], false), ([3, 4], true)] {
            let added = LowRank::new(&pair, &shape, turned, 0.5).expect("fits");
            for (first, count) in [(0, 12), (5, 4), (11, 1), (2, 7)] {
                let mut values = vec![100.0; count];
                added.add_to(first as u64, &mut values);
                for (index, value) in (first..).zip(values) {
                    let (row, column) = (index / shape[1] as usize, index % shape[1] as usize);
                    let expected = if turned { product(column, row) } else { product(row, column) };
                    assert_eq!(value, 100.0 + expected, "{shape:?} {first} {count} {index}");
                }
            }
        }
        assert!(LowRank::new(&pair, &[4, 4], false, 1.0).is_none());
        assert!(LowRank::new(&pair, &[12], false, 1.0).is_none());
    }

    #[test]
    fn a_square_weight_is_stored_as_the_configuration_says() {
        let matrix = |values: [f32; 2], rows, columns| Matrix { rows, columns, values: values.to_vec() };
        let pair = Pair { a: matrix([1.0, 3.0], 1, 2), b: matrix([10.0, 20.0], 2, 1) };
        let product = |inputs_first| {
            let mut values = [0.0; 4];
            LowRank::new(&pair, &[2, 2], inputs_first, 1.0).expect("fits").add_to(0, &mut values);
            values
        };
        assert_eq!(product(false), [10.0, 30.0, 20.0, 60.0]);
        assert_eq!(product(true), [10.0, 20.0, 30.0, 60.0]);
    }
}
