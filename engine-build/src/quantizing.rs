//! Weight matrices in 4 or 8 bits, for ONNX's `DequantizeLinear`.
//!
//! A matrix W `[inputs, outputs]` is stored as `q`, in W's own order, with f16 scales: in 8 bits one for each output,
//! in 4 bits one for each output and block of inputs. W[i, o] is about `q[i, o] * scale[i / block, o]`. In 4 bits the
//! scale is the one of a few with which the block loses least. A runtime multiplies in f16, so only the weights lose
//! by it. A matrix is read some rows at a time, so memory does not grow with it.
//!
//! TensorRT-RTX 1.7.1 computes W of both in the kernel that multiplies. With blocks in 8 bits, it would write W in f16
//! first, and read it again.

use half::f16;

use crate::checkpoint::Weights;
use crate::checkpoint::error::WeightsError;
use crate::onnx::{Element, Source};
use crate::packing::{BLOCK_ELEMENTS, Block};

/// The sizes of blocks that there are, in inputs.
pub(crate) const BLOCKS: [u32; 3] = [32, 64, 128];

/// Parts of the scale at which nothing is cut off: in 4 bits a smaller scale often loses less.
const SHRUNK: [f32; 8] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72];

/// Added to and subtracted from a small number, it leaves the nearest integer, the even one of two.
const ROUNDING: f32 = 12_582_912.0;

/// Bits of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bits {
    Four,
    Eight,
}

impl Bits {
    /// The smallest and the largest integer.
    fn range(self) -> (f32, f32) {
        match self {
            Self::Four => (-8.0, 7.0),
            Self::Eight => (-127.0, 127.0),
        }
    }

    /// The nearest integer that there is.
    fn nearest(self, value: f32) -> f32 {
        let (least, most) = self.range();
        (value.clamp(least, most) + ROUNDING) - ROUNDING
    }
}

/// A matrix in few bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    /// Inputs that share a scale: a divisor of `inputs`, or all of them.
    pub(crate) block: u64,
    pub(crate) bits: Bits,
}

impl Blocks {
    /// A matrix in 8 bits, or in 4 with the largest blocks of at most `block` inputs. `None` for one that has to stay
    /// as it is: no block divides its inputs, or its rows are no whole bytes.
    pub(crate) fn of([inputs, outputs]: [u64; 2], bits: Bits, block: u32) -> Option<Self> {
        if bits == Bits::Eight {
            return Some(Self { inputs, outputs, block: inputs, bits });
        }
        let fits = |size: &u64| *size <= u64::from(block) && inputs.is_multiple_of(*size);
        let block = BLOCKS.map(u64::from).into_iter().rev().find(fits).filter(|_| outputs.is_multiple_of(2))?;
        Some(Self { inputs, outputs, block, bits })
    }

    /// The type of the integers.
    pub(crate) fn element(&self) -> Element {
        match self.bits {
            Bits::Four => Element::I4,
            Bits::Eight => Element::I8,
        }
    }

    /// The shape of the integers.
    pub(crate) fn shape(&self) -> [u64; 2] {
        [self.inputs, self.outputs]
    }

    /// The shape of the scales.
    pub(crate) fn shape_scales(&self) -> Vec<u64> {
        if self.is_whole() { vec![self.outputs] } else { vec![self.inputs / self.block, self.outputs] }
    }

    /// Whether each output has one scale.
    pub(crate) fn is_whole(&self) -> bool {
        self.bits == Bits::Eight
    }

    /// Hands the integers to `emit` in order and in pieces. Returns the scales.
    pub(crate) fn pack<E: From<WeightsError>>(
        &self,
        source: &Source,
        weights: &Weights,
        mut emit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let (mut scales, mut packed) = (Vec::new(), Vec::new());
        let mut write = |values: &[f32], scales: &[f32]| {
            packed.clear();
            self.quantize(values, scales, &mut packed);
            emit(&packed)
        };
        if self.is_whole() {
            let mut whole = vec![0.0; self.outputs as usize];
            self.read(source, weights, 1, |rows| {
                self.widen(&mut whole, rows);
                Ok::<_, E>(())
            })?;
            scales = whole.into_iter().map(nearest_scale).collect();
            self.read(source, weights, 1, |rows| write(rows, &scales))?;
        } else {
            self.read(source, weights, self.block, |rows| {
                for block in rows.chunks((self.block * self.outputs) as usize) {
                    let of_block = self.scales(block);
                    write(block, &of_block)?;
                    scales.extend(of_block);
                }
                Ok::<_, E>(())
            })?;
        }
        Ok(scales)
    }

    /// Hands the matrix to `take`, a multiple of so many rows at a time.
    fn read<E: From<WeightsError>>(
        &self,
        source: &Source,
        weights: &Weights,
        multiple: u64,
        mut take: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let at_once = (BLOCK_ELEMENTS / self.outputs / multiple).max(1) * multiple;
        let mut values = Vec::new();
        for start in (0..self.inputs).step_by(at_once as usize) {
            let rows = start..self.inputs.min(start + at_once);
            Block { width: self.outputs, rows, columns: 0..self.outputs }.read(source, weights, &mut values)?;
            take(&values)?;
        }
        Ok(())
    }

    /// Raises the outputs' scales to those at which nothing of these rows is cut off.
    fn widen(&self, scales: &mut [f32], values: &[f32]) {
        let (least, most) = self.bits.range();
        for row in values.chunks_exact(scales.len()) {
            scales.iter_mut().zip(row).for_each(|(scale, value)| *scale = scale.max(value / most).max(value / least));
        }
    }

    /// The scales of a block `[block, outputs]`, which are f16 numbers.
    fn scales(&self, values: &[f32]) -> Vec<f32> {
        let outputs = self.outputs as usize;
        let mut whole = vec![0.0_f32; outputs];
        self.widen(&mut whole, values);
        let (mut best, mut least_lost) = (Vec::new(), vec![f32::INFINITY; outputs]);
        for part in SHRUNK {
            let scales: Vec<f32> = whole.iter().map(|scale| nearest_scale(scale * part)).collect();
            if best.is_empty() {
                best.clone_from(&scales);
            }
            let mut lost = vec![0.0_f32; outputs];
            for row in values.chunks_exact(outputs) {
                for ((lost, value), scale) in lost.iter_mut().zip(row).zip(&scales) {
                    let difference = self.bits.nearest(value / scale) * scale - value;
                    *lost += difference * difference;
                }
            }
            for (index, lost) in lost.into_iter().enumerate() {
                if lost < least_lost[index] {
                    (best[index], least_lost[index]) = (scales[index], lost);
                }
            }
        }
        best
    }

    #[expect(clippy::cast_possible_truncation, reason = "integers of 4 or 8 bits")]
    fn quantize(&self, values: &[f32], scales: &[f32], packed: &mut Vec<u8>) {
        for row in values.chunks_exact(scales.len()) {
            let integer = |at: usize| (self.bits.nearest(row[at] / scales[at]) as i8).cast_unsigned();
            match self.bits {
                Bits::Eight => packed.extend((0..row.len()).map(integer)),
                Bits::Four => {
                    packed.extend((0..row.len()).step_by(2).map(|at| integer(at) & 15 | integer(at + 1) << 4));
                }
            }
        }
    }
}

/// The f16 number nearest to a scale; 1 where that is none to divide by. One that is too large for f16 stays as it is,
/// and is refused when it is written.
fn nearest_scale(scale: f32) -> f32 {
    match f16::from_f32(scale) {
        rounded if rounded.is_infinite() => scale,
        rounded if rounded > f16::ZERO => rounded.to_f32(),
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::Folder;

    fn no_weights() -> (tempfile::TempDir, Weights) {
        let folder = tempfile::tempdir().expect("a folder");
        let none: [(&str, safetensors::tensor::TensorView); 0] = [];
        safetensors::serialize_to_file(none, None, &folder.path().join("model.safetensors")).expect("written");
        let weights = Weights::open(&Folder::open(folder.path()).expect("a folder")).expect("weights");
        (folder, weights)
    }

    /// What a runtime makes of a packed matrix.
    fn unpacked(blocks: Blocks, values: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (_folder, weights) = no_weights();
        let mut packed = Vec::new();
        let scales = blocks.pack(&Source::Computed(values.to_vec()), &weights, |piece| {
            packed.extend_from_slice(piece);
            Ok::<_, WeightsError>(())
        });
        let scales = scales.expect("packed");
        assert_eq!(scales.len() as u64, blocks.shape_scales().iter().product::<u64>());
        let integers: Vec<i8> = match blocks.bits {
            Bits::Eight => packed.iter().map(|byte| byte.cast_signed()).collect(),
            Bits::Four => {
                packed.iter().flat_map(|byte| [(byte << 4).cast_signed() >> 4, byte.cast_signed() >> 4]).collect()
            }
        };
        assert_eq!(integers.len(), values.len());
        let outputs = blocks.outputs as usize;
        let scale = |at: usize| scales[at / outputs / blocks.block as usize * outputs + at % outputs];
        (integers.iter().enumerate().map(|(at, q)| f32::from(*q) * scale(at)).collect(), scales)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Nothing is further away than half a step, but for what a shrunk scale cuts off; and such a scale never loses
        /// more.
        #[test]
        fn what_is_read_back_is_near(
            blocks in 1..4_u64, half in 1..5_u64, eight in any::<bool>(),
            values in proptest::collection::vec(prop_oneof![4 => -2.0..2.0_f32, 1 => Just(0.0)], 4 * 32 * 10),
        ) {
            let bits = if eight { Bits::Eight } else { Bits::Four };
            let blocks = Blocks::of([32 * blocks, 2 * half], bits, 32).expect("blocks");
            let values = &values[..(blocks.inputs * blocks.outputs) as usize];
            let (read, scales) = unpacked(blocks, values);
            let outputs = blocks.outputs as usize;
            let rows = blocks.block as usize;
            for (column, scale) in scales.iter().enumerate() {
                let (block, output) = (column / outputs, column % outputs);
                let at = |row: usize| (rows * block + row) * outputs + output;
                let lost: f32 = (0..rows).map(|row| (read[at(row)] - values[at(row)]).powi(2)).sum();
                let (least, most) = bits.range();
                let whole = |row| (values[at(row)] / most).max(values[at(row)] / least);
                let largest = (0..rows).map(whole).fold(0.0, f32::max);
                prop_assert!(lost.sqrt() <= 0.51 * largest * (rows as f32).sqrt(), "{lost} with {scale}, {largest}");
                if eight {
                    // The scale is rounded to f16: up to 127 times its error more.
                    prop_assert!((0..rows).all(|row| (read[at(row)] - values[at(row)]).abs() <= 0.57 * scale));
                }
            }
        }
    }

    #[test]
    fn blocks_divide_the_inputs_and_rows_are_whole_bytes() {
        let block = |inputs, outputs, most| Blocks::of([inputs, outputs], Bits::Four, most).map(|blocks| blocks.block);
        assert_eq!([32, 64, 128].map(|most| block(768, 2304, most)), [Some(32), Some(64), Some(128)]);
        assert_eq!([32, 64, 128].map(|most| block(576, 960, most)), [Some(32), Some(64), Some(64)]);
        assert_eq!((block(48, 8, 128), block(64, 9, 128)), (None, None));
        let whole = Blocks::of([48, 9], Bits::Eight, 32).expect("any matrix");
        assert_eq!(whole.shape_scales(), [9]);
    }

    #[test]
    fn a_block_of_zeros_and_the_ends_of_the_range_are_exact() {
        let blocks = Blocks::of([32, 2], Bits::Four, 64).expect("blocks");
        let mut values = vec![0.0; 64];
        assert_eq!(unpacked(blocks, &values), (values.clone(), vec![1.0, 1.0]));
        // -8 to 7 times 0.25, and one value that is a whole block's.
        for step in 0..16_u8 {
            values[2 * usize::from(step)] = (f32::from(step) - 8.0) * 0.25;
        }
        values[7] = 3.5;
        assert_eq!(unpacked(blocks, &values), (values.clone(), vec![0.25, 0.5]));
    }
}
