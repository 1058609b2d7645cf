//! Weight matrices in 4 or 8 bits, for ONNX's `DequantizeLinear`: blocks of inputs share a scale for each output.
//!
//! A matrix W `[inputs, outputs]` is stored as `q`, in W's own order, with f16 scales `[inputs / block, outputs]`: W[i,
//! o] is about `q[i, o] * scale[i / block, o]`. A runtime multiplies in f16, so only the weights lose by it; in 4 bits
//! each scale is the one of a few with which its block loses least. A matrix is read some blocks at a time, so memory
//! does not grow with it.

use half::f16;

use crate::checkpoint::Weights;
use crate::checkpoint::error::WeightsError;
use crate::onnx::{Element, Source};
use crate::packing::{BLOCK_ELEMENTS, Block};

/// The sizes of blocks that there are, in inputs.
pub(crate) const BLOCKS: [u32; 3] = [32, 64, 128];

/// Parts of the scale at which nothing is cut off. In 4 bits a smaller scale often loses less.
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
}

/// A matrix in few bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    /// Inputs that share a scale: a divisor of `inputs`.
    pub(crate) block: u64,
    pub(crate) bits: Bits,
}

impl Blocks {
    /// The largest blocks of at most `block` inputs for a matrix. `None` for one that has to stay as it is: no block
    /// divides its inputs, or its rows are no whole bytes.
    pub(crate) fn of([inputs, outputs]: [u64; 2], bits: Bits, block: u32) -> Option<Self> {
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
    pub(crate) fn shape_scales(&self) -> [u64; 2] {
        [self.inputs / self.block, self.outputs]
    }

    /// Hands the integers to `emit` in order and in pieces. Returns the scales.
    pub(crate) fn pack<E: From<WeightsError>>(
        &self,
        source: &Source,
        weights: &Weights,
        mut emit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let at_once = (BLOCK_ELEMENTS / self.outputs / self.block).max(1) * self.block;
        let (mut values, mut scales, mut packed) = (Vec::new(), Vec::new(), Vec::new());
        for start in (0..self.inputs).step_by(at_once as usize) {
            let rows = start..self.inputs.min(start + at_once);
            Block { width: self.outputs, rows, columns: 0..self.outputs }.read(source, weights, &mut values)?;
            for block in values.chunks((self.block * self.outputs) as usize) {
                let of_block = self.scales(block);
                packed.clear();
                self.quantize(block, &of_block, &mut packed);
                scales.extend(of_block);
                emit(&packed)?;
            }
        }
        Ok(scales)
    }

    /// The scales of a block `[block, outputs]`, which are f16 numbers.
    fn scales(&self, values: &[f32]) -> Vec<f32> {
        let (outputs, (least, most)) = (self.outputs as usize, self.bits.range());
        let mut whole = vec![0.0_f32; outputs];
        for row in values.chunks_exact(outputs) {
            whole.iter_mut().zip(row).for_each(|(scale, value)| *scale = scale.max(value / most).max(value / least));
        }
        let candidates = if self.bits == Bits::Four { &SHRUNK[..] } else { &SHRUNK[..1] };
        let (mut best, mut least_lost) = (Vec::new(), vec![f32::INFINITY; outputs]);
        for part in candidates {
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

impl Bits {
    /// The nearest integer that there is.
    fn nearest(self, value: f32) -> f32 {
        let (least, most) = self.range();
        (value.clamp(least, most) + ROUNDING) - ROUNDING
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
            Bits::Four => packed.iter().flat_map(|byte| [(byte << 4).cast_signed() >> 4, byte.cast_signed() >> 4]).collect(),
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
            for (column, scale) in scales.iter().enumerate() {
                let (block, output) = (column / outputs, column % outputs);
                let at = |row: usize| (32 * block + row) * outputs + output;
                let lost: f32 = (0..32).map(|row| (read[at(row)] - values[at(row)]).powi(2)).sum();
                let (least, most) = bits.range();
                let largest = (0..32).map(|row| (values[at(row)] / most).max(values[at(row)] / least)).fold(0.0, f32::max);
                prop_assert!(lost.sqrt() <= 0.51 * largest * 32_f32.sqrt(), "{lost} with {scale}, {largest} is whole");
                if eight {
                    for row in 0..32 {
                        prop_assert!((read[at(row)] - values[at(row)]).abs() <= 0.57 * scale);
                    }
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
