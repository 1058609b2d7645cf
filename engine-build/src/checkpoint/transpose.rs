//! Transposes matrices that are stored with a row per output into the graph's order, a row per input.
//!
//! Several matrices with the same inputs can be concatenated, and rows that are stored head by head can be put into the
//! order query, key, value. One band of columns is transposed at a time, so memory does not grow with the matrix; the
//! price is one positioned read per row and band.

use std::ops::Range;

use super::error::WeightsError;
use super::weights::{Tensor, Weights};

/// Elements of a band: 64 MiB of f32, so that even a row of a large matrix is read in pieces of kilobytes.
const BAND_ELEMENTS: usize = 16 << 20;

/// Rows that are read before they are turned: what a column of them fills is a few cache lines.
const TILE_ROWS: usize = 64;

/// Rows stored as `[heads, parts, head_dim]` that are wanted as `[parts, heads, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interleaved {
    pub(crate) parts: u64,
    pub(crate) heads: u64,
    pub(crate) head_dim: u64,
}

impl Interleaved {
    /// Index of the stored row that holds the wanted row `row`.
    pub(crate) fn stored(self, row: u64) -> u64 {
        let (part, in_part) = (row / (self.heads * self.head_dim), row % (self.heads * self.head_dim));
        let (head, element) = (in_part / self.head_dim, in_part % self.head_dim);
        (head * self.parts + part) * self.head_dim + element
    }
}

/// Matrices `[rows, columns]` of the same number of columns, one below the other. Vectors are matrices of one column.
#[derive(Clone, Debug)]
pub(crate) struct Stacked {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) columns: u64,
    /// The order in which the rows are wanted, where it is not that in which they are stored.
    pub(crate) order: Option<Interleaved>,
}

impl Stacked {
    /// Rows of all matrices together.
    pub(crate) fn rows(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements / self.columns).sum()
    }

    /// The matrix that holds the wanted row `row`, and which of its rows that is.
    fn locate(&self, row: u64) -> Option<(&Tensor, u64)> {
        let mut row = self.order.map_or(row, |order| order.stored(row));
        for tensor in &self.tensors {
            let rows = tensor.elements / self.columns;
            if row < rows {
                return Some((tensor, row));
            }
            row -= rows;
        }
        None
    }

    /// The matrix that holds the transposed matrix's element `index`, and the element's own index there.
    pub(crate) fn origin(&self, index: u64) -> Option<(&Tensor, u64)> {
        let (column, row) = (index / self.rows(), index % self.rows());
        self.locate(row).map(|(tensor, row)| (tensor, row * self.columns + column))
    }
}

impl Weights {
    /// Hands the values of the transposed matrix, `[columns, rows]`, to `each`, in order and in pieces, together with
    /// the index of the piece's first element. Fails on a value that is not finite.
    pub(crate) fn read_transposed<E: From<WeightsError>>(
        &self,
        matrix: &Stacked,
        each: impl FnMut(u64, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read_in_bands(matrix, BAND_ELEMENTS, each)
    }

    fn read_in_bands<E: From<WeightsError>>(
        &self,
        matrix: &Stacked,
        band_elements: usize,
        mut each: impl FnMut(u64, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (rows, columns) = (to_usize(matrix.rows()), to_usize(matrix.columns));
        let band_columns = (band_elements / rows.max(1)).clamp(1, columns.max(1));
        let mut band = Vec::new();
        for first in (0..columns).step_by(band_columns) {
            let width = band_columns.min(columns - first);
            band.resize(width * rows, 0.0);
            let columns = (first as u64)..(first + width) as u64;
            self.read_transposed_block(matrix, columns, 0..matrix.rows(), &mut band)?;
            each((first * rows) as u64, &band)?;
        }
        Ok(())
    }

    /// Fills `block`, `[columns, rows]`, with a rectangle of the transposed matrix. Fails on a value that is not
    /// finite.
    pub(crate) fn read_transposed_block(
        &self,
        matrix: &Stacked,
        columns: Range<u64>,
        rows: Range<u64>,
        block: &mut [f32],
    ) -> Result<(), WeightsError> {
        let (width, count) = (to_usize(columns.end - columns.start), to_usize(rows.end - rows.start));
        let (mut raw, mut tile) = (Vec::new(), vec![0.0; TILE_ROWS * width]);
        for start in (0..count).step_by(TILE_ROWS) {
            let end = count.min(start + TILE_ROWS);
            for (row, slice) in (rows.start + start as u64..).zip(tile[..(end - start) * width].chunks_exact_mut(width))
            {
                if let Some((tensor, row)) = matrix.locate(row) {
                    self.read_slice(tensor, row * matrix.columns + columns.start, slice, &mut raw)?;
                }
            }
            for (column, turned) in block.chunks_exact_mut(count).enumerate() {
                let values = tile[column..].iter().step_by(width);
                for (to, value) in turned[start..end].iter_mut().zip(values) {
                    *to = *value;
                }
            }
        }
        Ok(())
    }
}

/// Dimensions are below 2^24 and their products below 2^48: they fit wherever this runs.
fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::checkpoint::Folder;

    /// A checkpoint of matrices of these numbers of rows, in f32 or f16, whose elements are 0, 1, 2, ... over all of
    /// them.
    fn checkpoint(rows: &[usize], columns: usize, half: bool) -> (tempfile::TempDir, Weights, Vec<Tensor>) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut next = 0_u16;
        let bytes: Vec<Vec<u8>> = rows
            .iter()
            .map(|rows| {
                let values = (next..).take(rows * columns).map(f32::from);
                next += u16::try_from(rows * columns).expect("a small matrix");
                if half {
                    values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect()
                } else {
                    values.flat_map(f32::to_le_bytes).collect()
                }
            })
            .collect();
        let dtype = if half { Dtype::F16 } else { Dtype::F32 };
        let views = rows.iter().zip(&bytes).enumerate().map(|(i, (rows, bytes))| {
            (format!("m{i}"), TensorView::new(dtype, vec![*rows, columns], bytes).expect("a tensor"))
        });
        safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).expect("written");
        let weights = Weights::open(&Folder::open(folder.path()).expect("a folder")).expect("weights");
        let tensor = |(i, rows): (usize, &usize)| {
            weights.tensor(&format!("m{i}"), &[*rows as u64, columns as u64]).expect("a tensor")
        };
        let tensors = rows.iter().enumerate().map(tensor).collect();
        (folder, weights, tensors)
    }

    fn read(weights: &Weights, matrix: &Stacked, band_elements: usize) -> Vec<f32> {
        let mut all = Vec::new();
        weights
            .read_in_bands(matrix, band_elements, |start, piece| {
                assert_eq!(start, all.len() as u64);
                all.extend_from_slice(piece);
                Ok::<_, WeightsError>(())
            })
            .expect("read");
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Values up to 2047 are exact in f16. More than 64 rows make more than one tile.
        #[test]
        fn any_stack_is_transposed_in_bands_of_any_size(
            rows in proptest::collection::vec(1..80usize, 1..4),
            columns in 1..9usize,
            band_elements in 1..700usize,
            half in any::<bool>(),
        ) {
            let (_folder, weights, tensors) = checkpoint(&rows, columns, half);
            let matrix = Stacked { tensors, columns: columns as u64, order: None };
            let total = rows.iter().sum::<usize>();
            prop_assert_eq!(matrix.rows(), total as u64);
            let found = read(&weights, &matrix, band_elements);
            for (index, value) in found.iter().enumerate() {
                let (column, row) = (index / total, index % total);
                prop_assert_eq!(*value, (row * columns + column) as f32);
            }
            prop_assert_eq!(found.len(), total * columns);
        }

        #[test]
        fn interleaved_rows_come_part_by_part_and_know_their_origin(
            heads in 1..5usize,
            parts in 1..4usize,
            head_dim in 1..6usize,
            columns in 1..5usize,
            band_elements in 1..200usize,
        ) {
            let rows = heads * parts * head_dim;
            let (_folder, weights, tensors) = checkpoint(&[rows], columns, false);
            let order = Interleaved { parts: parts as u64, heads: heads as u64, head_dim: head_dim as u64 };
            let matrix = Stacked { tensors, columns: columns as u64, order: Some(order) };
            let mut expected = Vec::new();
            for column in 0..columns {
                for part in 0..parts {
                    for head in 0..heads {
                        for element in 0..head_dim {
                            let stored = ((head * parts + part) * head_dim + element) * columns + column;
                            expected.push(stored as f32);
                        }
                    }
                }
            }
            for (index, stored) in expected.iter().enumerate() {
                prop_assert_eq!(matrix.origin(index as u64).map(|(_, at)| at as f32), Some(*stored));
            }
            prop_assert_eq!(read(&weights, &matrix, band_elements), expected);
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_named_by_its_place_in_its_own_tensor() {
        let folder = tempfile::tempdir().expect("a folder");
        let values = [0.0, 1.0, 2.0, f32::NAN, 4.0, 5.0_f32];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, vec![3, 2], &bytes).expect("a tensor");
        safetensors::serialize_to_file([("m", view)], None, &folder.path().join("model.safetensors")).expect("written");
        let weights = Weights::open(&Folder::open(folder.path()).expect("a folder")).expect("weights");
        let tensors = vec![weights.tensor("m", &[3, 2]).expect("a tensor")];
        let matrix = Stacked { tensors, columns: 2, order: None };
        let error = weights.read_transposed(&matrix, |_, _| Ok::<_, WeightsError>(())).expect_err("NaN").to_string();
        assert!(error.contains("tensor m") && error.contains("index 3"), "{error}");
    }
}
