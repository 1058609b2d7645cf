//! Tensors that aren't stored row by row, such as transposed ones: they are copied into a temporary file in that order.
//!
//! Everything else reads tensors row by row. A copy costs space on a disk, but no memory that grows with the tensor.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Elements that are put in order at a time.
const BLOCK_ELEMENTS: u64 = 4 << 20;

/// Most elements of a row, that is of a tensor's part at one first index.
const ROW_LIMIT: u64 = 1 << 26;

/// How far apart elements of a run may lie to be read at once, in elements.
const NEAR: u64 = 8;

/// How the elements of a tensor lie in its storage, without the dimensions of one index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    sizes: Vec<u64>,
    /// Elements of the storage from one index to the next.
    strides: Vec<u64>,
}

impl Strided {
    /// `None` for a tensor that is stored row by row.
    pub(super) fn of(shape: &[u64], strides: &[u64]) -> Option<Self> {
        let (sizes, strides): (Vec<u64>, Vec<u64>) = shape.iter().zip(strides).filter(|(size, _)| **size != 1).unzip();
        let strided = Self { sizes, strides };
        let in_rows = strided.row_strides() == strided.strides || strided.sizes.contains(&0);
        (!in_rows).then_some(strided)
    }

    /// Strides of a tensor of the same sizes that is stored row by row.
    fn row_strides(&self) -> Vec<u64> {
        let mut strides = vec![1; self.sizes.len()];
        for index in (1..self.sizes.len()).rev() {
            strides[index - 1] = strides[index] * self.sizes[index];
        }
        strides
    }

    pub(crate) fn elements(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// Writes the elements, of `width` bytes each, row by row; the first is at `offset_bytes` of `from`.
    pub(crate) fn copy(&self, from: &File, offset_bytes: u64, width: usize, to: &mut impl Write) -> io::Result<()> {
        let rows = self.row_strides();
        let (Some(&first), Some(&row)) = (self.sizes.first(), rows.first()) else { return Ok(()) };
        if row > ROW_LIMIT {
            return Err(io::Error::other("a tensor that isn't stored row by row has too large rows"));
        }
        let height = (BLOCK_ELEMENTS / row).clamp(1, first);
        let mut block = Vec::new();
        let mut start = 0;
        while start < first {
            let count = height.min(first - start);
            block.resize(index(count * row) * width, 0);
            let sizes = [&[count], &self.sizes[1..]].concat();
            let offset = offset_bytes + start * self.strides[0] * width as u64;
            Block { sizes, strides: &self.strides, rows: &rows, width }.read(from, offset, &mut block)?;
            to.write_all(&block)?;
            start += count;
        }
        Ok(())
    }
}

/// Some rows of a tensor.
struct Block<'a> {
    sizes: Vec<u64>,
    /// In the storage.
    strides: &'a [u64],
    /// In the block.
    rows: &'a [u64],
    /// Bytes of an element.
    width: usize,
}

impl Block<'_> {
    /// Reads the elements in the order in which they lie in the file, and puts each in its place.
    fn read(&self, file: &File, offset_bytes: u64, block: &mut [u8]) -> io::Result<()> {
        let mut order: Vec<usize> = (0..self.sizes.len()).collect();
        order.sort_by_key(|&dimension| std::cmp::Reverse((self.strides[dimension], self.sizes[dimension])));
        let Some((&last, outer)) = order.split_last() else { return Ok(()) };
        let runs: u64 = outer.iter().map(|&dimension| self.sizes[dimension]).product();
        let (mut raw, width) = (Vec::new(), self.width as u64);
        for run in 0..runs {
            let (mut rest, mut from, mut to) = (run, 0, 0);
            for &dimension in outer.iter().rev() {
                let at = rest % self.sizes[dimension];
                rest /= self.sizes[dimension];
                from += at * self.strides[dimension];
                to += at * self.rows[dimension];
            }
            let (count, stride) = (self.sizes[last], self.strides[last]);
            // Elements far apart are read one by one, others together with what lies between them.
            let (reads, each) = if stride <= NEAR { (1, count) } else { (count, 1) };
            for read in 0..reads {
                raw.resize(index((each - 1) * stride + 1) * self.width, 0);
                file.read_exact_at(&mut raw, offset_bytes + (from + read * stride) * width)?;
                for element in 0..each {
                    let at = index(element * stride) * self.width;
                    let place = index(to + (read + element) * self.rows[last]) * self.width;
                    block[place..place + self.width].copy_from_slice(&raw[at..at + self.width]);
                }
            }
        }
        Ok(())
    }
}

/// A place in memory: sizes are checked against those of the file.
fn index(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
