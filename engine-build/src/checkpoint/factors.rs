//! Factors of a tensor's rows and columns: its elements are multiplied with them as they are read.

/// The axis of a matrix whose rows or columns get factors. A vector has columns only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Rows,
    Columns,
}

/// A factor for each row and one for each column of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    rows: Vec<f32>,
    columns: Vec<f32>,
}

impl Factors {
    /// The factors that change nothing; `None` for a tensor of more than two dimensions.
    pub(crate) fn ones(shape: &[u64]) -> Option<Self> {
        let ones = |size: u64| vec![1.0; usize::try_from(size).unwrap_or(0)];
        match *shape {
            [columns] => Some(Self { rows: vec![1.0], columns: ones(columns) }),
            [rows, columns] => Some(Self { rows: ones(rows), columns: ones(columns) }),
            _ => None,
        }
    }

    /// Multiplies the factors of an axis.
    pub(crate) fn multiply(&mut self, axis: Axis, by: &[f32]) {
        let factors = if axis == Axis::Rows { &mut self.rows } else { &mut self.columns };
        factors.iter_mut().zip(by).for_each(|(factor, by)| *factor *= by);
    }

    /// Multiplies the elements from `start` on, counted row by row.
    pub(crate) fn apply(&self, start: u64, mut values: &mut [f32]) {
        let width = self.columns.len().max(1);
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let (mut row, mut column) = (start / width, start % width);
        while !values.is_empty() {
            let (piece, rest) = values.split_at_mut((width - column).min(values.len()));
            let of_row = self.rows.get(row).copied().unwrap_or(1.0);
            for (value, of_column) in piece.iter_mut().zip(&self.columns[column..]) {
                *value *= of_row * of_column;
            }
            (values, row, column) = (rest, row + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_get_the_factors_of_their_row_and_column_wherever_reading_begins() {
        let mut factors = Factors::ones(&[2, 3]).expect("a matrix");
        factors.multiply(Axis::Rows, &[1.0, 10.0]);
        factors.multiply(Axis::Columns, &[1.0, 2.0, 3.0]);
        factors.multiply(Axis::Columns, &[1.0, 1.0, 2.0]);
        let wanted = [1.0, 2.0, 6.0, 10.0, 20.0, 60.0];
        for start in 0..6 {
            for end in start..=6 {
                let mut values = vec![1.0; end - start];
                factors.apply(start as u64, &mut values);
                assert_eq!(values, wanted[start..end]);
            }
        }
        assert!(Factors::ones(&[1, 2, 3]).is_none());
    }
}
