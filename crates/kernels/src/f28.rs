//! f32 matrices in 28 bits a weight, without loss: one token's step takes as long as memory takes to deliver the weights, and an
//! eighth of them needn't be delivered.
//!
//! Of a float's 32 bits, the sign and the 23 of the fraction are as good as random, but the 8 of the exponent are not: the weights of
//! a panel have few different ones. Four bits name one of 16 exponents that the panel lists, the first of which is 0, for zeros. The
//! few weights with another exponent are stored as zero, and a list beside the matrix has them: their products are added last.
//!
//! A panel is a cache line with its header, then blocks of [`BLOCK_INPUTS`] inputs of seven cache lines each. A block holds four
//! pairs of inputs; of each, in three stretches for all pairs, the low 16 bits of its 32 weights, then their sign and the fraction's
//! other 7, then their codes, two in a byte, in the order in which AVX2's instructions put them together (see `Place`).

use std::ops::Range;

use crate::layout::PANEL;

/// Inputs of a block.
pub const BLOCK_INPUTS: usize = 8;
/// Bytes of a block: `8 * 16 * 28 / 8`.
pub const BLOCK_BYTES: usize = 448;
/// Bytes before a panel's first block.
pub const HEADER_BYTES: usize = 64;
/// Bytes of an exception.
pub const EXCEPTION_BYTES: usize = 8;

/// Exponents that a panel lists.
const CODES: usize = 16;
/// Bytes of a pair's low halves, of its high bytes and of its codes.
pub(crate) const LOW: usize = 64;
pub(crate) const HIGH: usize = 32;
pub(crate) const CODE: usize = 16;
/// Where a block's high bytes and codes begin.
pub(crate) const HIGH_AT: usize = 4 * LOW;
pub(crate) const CODE_AT: usize = HIGH_AT + 4 * HIGH;
/// The sign and the fraction of a float.
const SIGN_AND_FRACTION: u32 = 0x807f_ffff;

/// Whether a matrix of so many inputs can be stored so.
pub fn fits(inputs: usize) -> bool {
    inputs.is_multiple_of(BLOCK_INPUTS) && inputs > 0
}

/// Bytes of a panel.
pub fn panel_bytes(inputs: usize) -> usize {
    HEADER_BYTES + inputs / BLOCK_INPUTS * BLOCK_BYTES
}

/// Where a pair's weight is, from the beginning of the pair's part of a stretch.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of the low 16 bits, in units of two bytes.
    low: usize,
    high: usize,
    code: usize,
    /// How far the code is shifted to the left in its byte.
    shift: u32,
}

impl Place {
    /// For the first or second input (`0..2`) and one of the 16 outputs. 128 bits of low halves are four outputs of either input;
    /// the other stretches have the first and third of these groups in one half, and the second and fourth in the other.
    fn of(input: usize, output: usize) -> Self {
        let (group, at) = (output / 4, output % 4 + 4 * input);
        let (half, byte) = (group % 2, group / 2 * 8 + at);
        Self { low: group * 8 + at, high: half * 16 + byte, code: byte, shift: 4 * half as u32 }
    }
}

/// What a panel begins with: 16 exponents, then the range of its exceptions, as two u32.
#[derive(Clone, Debug)]
struct Header {
    exponents: [u8; CODES],
    exceptions: Range<u32>,
}

impl Header {
    fn write(&self, bytes: &mut Vec<u8>) {
        let end = bytes.len() + HEADER_BYTES;
        bytes.extend(self.exponents);
        bytes.extend(self.exceptions.start.to_le_bytes());
        bytes.extend(self.exceptions.end.to_le_bytes());
        bytes.resize(end, 0);
    }
}

/// A weight that a panel has as zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exception {
    /// Its input.
    pub input: usize,
    /// Its output within the panel.
    pub lane: usize,
    /// The weight.
    pub weight: f32,
}

impl Exception {
    /// Where it is in the panel, and the weight.
    fn encode(self) -> [u8; EXCEPTION_BYTES] {
        let at = (self.input * PANEL + self.lane) as u64;
        (at << 32 | u64::from(self.weight.to_bits())).to_le_bytes()
    }

    fn decode(bytes: [u8; EXCEPTION_BYTES]) -> Self {
        let bits = u64::from_le_bytes(bytes);
        let at = (bits >> 32) as usize;
        Self { input: at / PANEL, lane: at % PANEL, weight: f32::from_bits(bits as u32) }
    }
}

/// The exponents that a panel `[inputs, 16]` lists: 0, and its most frequent others. And how many weights have none of these.
fn exponents(panel: &[f32]) -> ([u8; CODES], usize) {
    let mut counts = [0_usize; 256];
    for weight in panel {
        counts[exponent(*weight) as usize] += 1;
    }
    let mut order: Vec<u8> = (1..=255).collect();
    order.sort_by_key(|&exponent| std::cmp::Reverse(counts[exponent as usize]));
    let mut listed = [0; CODES];
    listed[1..].copy_from_slice(&order[..CODES - 1]);
    (listed, order[CODES - 1..].iter().map(|&exponent| counts[exponent as usize]).sum())
}

fn exponent(weight: f32) -> u8 {
    (weight.to_bits() >> 23) as u8
}

/// Weights of a panel `[inputs, 16]` that would be exceptions.
pub fn count_exceptions(panel: &[f32]) -> usize {
    exponents(panel).1
}

/// Appends a panel `[inputs, 16]` to a matrix, and its exceptions to that matrix's.
///
/// # Panics
/// If [`fits`] says no.
pub fn pack(panel: &[f32], bytes: &mut Vec<u8>, exceptions: &mut Vec<u8>) {
    assert!(panel.len().is_multiple_of(PANEL) && fits(panel.len() / PANEL), "{} weights of a panel", panel.len());
    let (exponents, _) = exponents(panel);
    let mut codes = [None; 256];
    for (code, exponent) in (0_u8..).zip(exponents) {
        codes[exponent as usize] = Some(code);
    }
    let first = exceptions.len();
    let mut blocks = Vec::with_capacity(panel.len() / BLOCK_INPUTS / PANEL * BLOCK_BYTES);
    for (number, block) in panel.chunks_exact(BLOCK_INPUTS * PANEL).enumerate() {
        let mut packed = [0; BLOCK_BYTES];
        for (at, &weight) in block.iter().enumerate() {
            let (input, lane) = (at / PANEL, at % PANEL);
            let (bits, code) = codes[exponent(weight) as usize].map_or((0, 0), |code| (weight.to_bits(), code));
            if code == 0 && bits != weight.to_bits() {
                exceptions.extend(Exception { input: number * BLOCK_INPUTS + input, lane, weight }.encode());
            }
            let (pair, place) = (input / 2, Place::of(input % 2, lane));
            packed[pair * LOW + 2 * place.low..][..2].copy_from_slice(&(bits as u16).to_le_bytes());
            packed[HIGH_AT + pair * HIGH + place.high] = (bits >> 24 & 0x80 | bits >> 16 & 0x7f) as u8;
            packed[CODE_AT + pair * CODE + place.code] |= code << place.shift;
        }
        blocks.extend(packed);
    }
    let number = |bytes: usize| (bytes / EXCEPTION_BYTES) as u32;
    Header { exponents, exceptions: number(first)..number(exceptions.len()) }.write(bytes);
    bytes.extend(blocks);
}

/// One weight of a panel, or zero for an exception.
pub(crate) fn panel_weight(panel: &[u8], input: usize, lane: usize) -> f32 {
    let (exponents, blocks) = (&panel[..CODES], &panel[HEADER_BYTES..]);
    weight(&blocks[input / BLOCK_INPUTS * BLOCK_BYTES..][..BLOCK_BYTES], exponents, input % BLOCK_INPUTS, lane)
}

/// One weight of a block.
#[inline(always)]
pub(crate) fn weight(block: &[u8], exponents: &[u8], input: usize, lane: usize) -> f32 {
    let (pair, place) = (input / 2, Place::of(input % 2, lane));
    let low = &block[pair * LOW + 2 * place.low..][..2];
    let high = u32::from(block[HIGH_AT + pair * HIGH + place.high]);
    let code = block[CODE_AT + pair * CODE + place.code] >> place.shift & 0xf;
    let bits = high << 24 | high << 16 | u32::from(low[1]) << 8 | u32::from(low[0]);
    f32::from_bits(bits & SIGN_AND_FRACTION | u32::from(exponents[code as usize]) << 23)
}

/// The exceptions of a panel among those of its matrix.
///
/// # Panics
/// If the matrix has fewer than the panel says.
pub(crate) fn exceptions<'a>(panel: &[u8], all: &'a [u8]) -> impl Iterator<Item = Exception> + use<'a> {
    let number = |at: usize| u32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]]) as usize;
    all.as_chunks().0[number(CODES)..number(CODES + 4)].iter().map(|&bytes| Exception::decode(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Weights as they are found, and others: of any bits, zeros of either sign, many of them or few.
    fn panels() -> impl Strategy<Value = Vec<f32>> {
        (1..5_usize, 0..3_usize).prop_flat_map(|(blocks, kind)| {
            let common = -1.0..1.0_f32;
            let weight = match kind {
                0 => prop_oneof![99 => common, 1 => any::<u32>().prop_map(f32::from_bits)].boxed(),
                1 => prop_oneof![5 => common, 5 => Just(0.0), 1 => Just(-0.0)].boxed(),
                _ => any::<u32>().prop_map(f32::from_bits).boxed(),
            };
            proptest::collection::vec(weight, blocks * BLOCK_INPUTS * PANEL)
        })
    }

    proptest! {
        #[test]
        fn no_bit_is_lost(first in panels(), second in panels()) {
            let (mut bytes, mut found) = (Vec::new(), Vec::new());
            for panel in [&first, &second] {
                let start = bytes.len();
                let before = found.len();
                pack(panel, &mut bytes, &mut found);
                let packed = &bytes[start..];
                prop_assert_eq!(packed.len(), panel_bytes(panel.len() / PANEL));
                prop_assert_eq!((found.len() - before) / EXCEPTION_BYTES, count_exceptions(panel));
                let mut unpacked: Vec<f32> = (0..panel.len()).map(|at| panel_weight(packed, at / PANEL, at % PANEL)).collect();
                for exception in exceptions(packed, &found) {
                    let to = &mut unpacked[exception.input * PANEL + exception.lane];
                    prop_assert_eq!(to.to_bits(), 0);
                    *to = exception.weight;
                }
                let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&unpacked), bits(panel));
            }
        }
    }

    #[test]
    fn frequent_exponents_are_listed_wherever_they_are() {
        let mut panel: Vec<f32> = (0..768 * PANEL).map(|i| (i as f32 * 0.7).sin()).collect();
        assert!(count_exceptions(&panel) < 10, "{}", count_exceptions(&panel));
        panel.iter_mut().step_by(100).for_each(|weight| *weight *= 1e-20);
        assert!(count_exceptions(&panel) < 30, "{}", count_exceptions(&panel));
        panel.iter_mut().enumerate().for_each(|(at, weight)| *weight *= 10_f32.powi(at as i32 % 40 - 20));
        assert!(count_exceptions(&panel) > panel.len() / 2, "{}", count_exceptions(&panel));
    }
}
