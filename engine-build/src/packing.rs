//! Weight matrices in panels: the order in which the CPU kernels read them. They are mapped from the file and used
//! without a copy.
//!
//! A matrix W of inputs x outputs is used as `y = x W`. [`LANES`] outputs make a panel; the last panel is padded with
//! zeros.
//! * f32: `[panels, inputs, 16]`, element `[p, i, l] = W[i, 16 p + l]`.
//! * int8: u8 `[panels, ceil(inputs / 4), 16, 4]`, element `[p, j, l, c] = 128 + q[4 j + c, 16 p + l]`, and f32 scales
//!   `[16 panels]`: `W[i, o]` is about `q[i, o] * scale[o]`, with q in -127..=127.
//!
//! A matrix is read once, a block of panels at a time, so memory does not grow with it. Other files decide which
//! matrices are packed.

use std::num::NonZero;
use std::ops::Range;

use kernels::layout;

use crate::checkpoint::Weights;
use crate::checkpoint::error::WeightsError;
use crate::onnx::Source;
use crate::quantizing::Blocks;
use crate::rounding::{LARGEST, Reading, Row, round};

/// Outputs of a panel: a vector register of f32.
pub(crate) const LANES: u64 = layout::PANEL as u64;

/// Inputs that lie side by side in an int8 panel: what one instruction multiplies and adds up.
const GROUP: u64 = layout::QUAD as u64;

/// Zero, as int8 weights are stored.
const ZERO_POINT: i16 = 128;

/// Elements of a matrix that are in memory at once, 32 MiB; one panel is, whatever its size.
pub(crate) const BLOCK_ELEMENTS: u64 = 8 << 20;

/// The storage type of packed matrices.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    F32,
    /// Rounded for what the matrix reads, where that is known.
    Int8(Option<Reading>),
}

/// Which part of a source's matrix is packed, and how the source stores it, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panels {
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    /// The first output that is packed.
    pub(crate) first: u64,
    /// Outputs of the whole matrix.
    pub(crate) stored_outputs: u64,
    /// There is a row for each output, as in a vocabulary matrix; otherwise one for each input.
    pub(crate) output_rows: bool,
}

impl Panels {
    /// Panels of the matrix.
    pub(crate) fn count(&self) -> u64 {
        self.outputs.div_ceil(LANES)
    }

    /// The packed tensor's shape in f32.
    pub(crate) fn shape_f32(&self) -> Vec<u64> {
        vec![self.count(), self.inputs, LANES]
    }

    /// The packed tensor's shape in int8.
    pub(crate) fn shape_int8(&self) -> Vec<u64> {
        vec![self.count(), self.inputs.div_ceil(GROUP), LANES, GROUP]
    }

    /// The shape of the scales of an int8 matrix.
    pub(crate) fn shape_scales(&self) -> Vec<u64> {
        vec![self.count() * LANES]
    }

    fn panels_at_once(&self) -> u64 {
        (BLOCK_ELEMENTS / (LANES * self.inputs)).max(1)
    }

    fn pack<E: From<WeightsError>>(
        &self,
        form: &Form,
        (source, weights): (&Source, &Weights),
        panels_at_once: u64,
        mut emit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let inputs = self.inputs as usize;
        let mut scales = Vec::<f32>::new();
        self.each_block(source, weights, panels_at_once, |panels| match form {
            Form::F32 => panels.iter().try_for_each(|panel| emit(&panel.f32(inputs))),
            Form::Int8(reading) => {
                side_by_side(panels, |panel| panel.int8(inputs, reading.as_ref())).try_for_each(|(packed, of_panel)| {
                    scales.extend(of_panel);
                    emit(&packed)
                })
            }
        })?;
        Ok(scales)
    }

    fn each_block<E: From<WeightsError>>(
        &self,
        source: &Source,
        weights: &Weights,
        panels_at_once: u64,
        mut take: impl FnMut(&[Panel]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut values = Vec::new();
        let (mut first, end) = (self.first, self.first + self.outputs);
        while first < end {
            let outputs = first..end.min(first + panels_at_once * LANES);
            let block = if self.output_rows {
                Block { width: self.inputs, rows: outputs.clone(), columns: 0..self.inputs }
            } else {
                Block { width: self.stored_outputs, rows: 0..self.inputs, columns: outputs.clone() }
            };
            block.read(source, weights, &mut values)?;
            let count = (outputs.end - outputs.start) as usize;
            let (by_input, by_output) = if self.output_rows { (1, self.inputs as usize) } else { (count, 1) };
            let panel = |start: usize| {
                let lanes = (count - start).min(LANES as usize);
                Panel { values: &values[start * by_output..], by_input, by_output, lanes }
            };
            take(&(0..count).step_by(LANES as usize).map(panel).collect::<Vec<_>>())?;
            first = outputs.end;
        }
        Ok(())
    }
}

/// The results of each panel, in order, computed on all processors.
fn side_by_side<T: Send>(panels: &[Panel], compute: impl Fn(&Panel) -> T + Sync) -> impl Iterator<Item = T> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let compute = &compute;
    let results: Vec<Vec<T>> = std::thread::scope(|scope| {
        let parts = panels.chunks(panels.len().div_ceil(threads).max(1));
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().map(compute).collect())).collect();
        parts.into_iter().map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    results.into_iter().flatten()
}

/// How a matrix is packed.
#[derive(Clone, Debug)]
pub(crate) enum Packing {
    /// In panels, for the CPU kernels.
    Panels(Panels, Form),
    /// In its own order and fewer bits, for ONNX's `DequantizeLinear`.
    Blocks(Blocks),
}

impl Packing {
    /// Hands the packed matrix to `emit` in order and in pieces. Returns its scales; panels of f32 have none.
    pub(crate) fn pack<E: From<WeightsError>>(
        &self,
        source: &Source,
        weights: &Weights,
        emit: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        match self {
            Self::Panels(panels, form) => panels.pack(form, (source, weights), panels.panels_at_once(), emit),
            Self::Blocks(blocks) => blocks.pack(source, weights, emit),
        }
    }
}

/// One panel's values, where they lie in a block.
struct Panel<'a> {
    values: &'a [f32],
    /// Distance from one input to the next, and from one output to the next.
    by_input: usize,
    by_output: usize,
    /// Outputs that are there; the panel's other lanes are zero.
    lanes: usize,
}

impl Panel<'_> {
    fn at(&self, input: usize, lane: usize) -> f32 {
        self.values[input * self.by_input + lane * self.by_output]
    }

    /// `[inputs, 16]`
    fn rows(&self, inputs: usize) -> Vec<Row> {
        let row = |input| std::array::from_fn(|lane| if lane < self.lanes { self.at(input, lane) } else { 0.0 });
        (0..inputs).map(row).collect()
    }

    fn f32(&self, inputs: usize) -> Vec<u8> {
        self.rows(inputs).iter().flatten().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// The panel in int8, and each output's scale: its largest weight becomes 127.
    #[expect(clippy::cast_possible_truncation, reason = "rounded and within -127..=127")]
    fn int8(&self, inputs: usize, reading: Option<&Reading>) -> (Vec<u8>, Row) {
        let mut rows = self.rows(inputs);
        let mut scales = [0.0_f32; LANES as usize];
        for row in &rows {
            scales.iter_mut().zip(row).for_each(|(scale, weight)| *scale = scale.max(weight.abs() / LARGEST));
        }
        round(&mut rows, &scales, reading);
        rows.resize(inputs.next_multiple_of(GROUP as usize), Row::default());
        let mut packed = Vec::with_capacity(rows.len() * LANES as usize);
        for quad in rows.chunks(GROUP as usize) {
            for lane in 0..LANES as usize {
                packed.extend(quad.iter().map(|row| (ZERO_POINT + row[lane] as i16) as u8));
            }
        }
        (packed, scales)
    }
}

/// A rectangle of a matrix of `width` columns.
pub(crate) struct Block {
    pub(crate) width: u64,
    pub(crate) rows: Range<u64>,
    pub(crate) columns: Range<u64>,
}

impl Block {
    /// Reads the rectangle row by row; the source's padding beyond its last value.
    pub(crate) fn read(&self, source: &Source, weights: &Weights, values: &mut Vec<f32>) -> Result<(), WeightsError> {
        let Self { width, rows, columns } = self;
        let count = (columns.end - columns.start) as usize;
        values.clear();
        let padding = if let Source::Padded { pad, .. } = source { *pad } else { 0.0 };
        values.resize((rows.end - rows.start) as usize * count, padding);
        if let Source::Transposed(matrix) = source {
            return weights.read_transposed_block(matrix, rows.clone(), columns.clone(), values);
        }
        // Whole rows lie one behind the other.
        let run = if *columns == (0..*width) { values.len() } else { count };
        let mut raw = Vec::new();
        for (row, piece) in values.chunks_mut(run.max(1)).enumerate() {
            let start = (rows.start + row as u64) * width + columns.start;
            match source {
                Source::Checkpoint(tensor)
                | Source::Centred { tensor, .. }
                | Source::Scaled { tensor, .. }
                | Source::Padded { tensor, .. } => {
                    let there = (piece.len() as u64).min(tensor.elements.saturating_sub(start)) as usize;
                    weights.read_slice(tensor, start, &mut piece[..there], &mut raw)?;
                }
                Source::Computed(computed) => {
                    let there = computed.get(start as usize..).unwrap_or_default();
                    let there = &there[..there.len().min(piece.len())];
                    piece[..there.len()].copy_from_slice(there);
                }
                Source::Transposed(_) | Source::Scales(_) => {}
            }
        }
        if let Source::Scaled { factor, .. } = source {
            values.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        }
        if let Source::Centred { mean, .. } = source {
            for row in values.chunks_mut(count) {
                row.iter_mut().zip(&mean[columns.start as usize..]).for_each(|(value, mean)| *value -= mean);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::checkpoint::Folder;

    /// A checkpoint with one matrix, row by row.
    fn checkpoint(values: &[f32], shape: [u64; 2]) -> (tempfile::TempDir, Weights, Source) {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = TensorView::new(Dtype::F32, shape.map(|size| size as usize).to_vec(), &bytes).expect("a tensor");
        safetensors::serialize_to_file([("m", view)], None, &folder.path().join("model.safetensors")).expect("written");
        let weights = Weights::open(&Folder::open(folder.path()).expect("a folder")).expect("weights");
        let source = Source::Checkpoint(weights.tensor("m", &shape).expect("the matrix"));
        (folder, weights, source)
    }

    fn pack(panels: Panels, form: Form, weights: (&Source, &Weights), at_once: u64) -> (Vec<u8>, Vec<f32>) {
        let mut packed = Vec::new();
        let scales = panels.pack(&form, weights, at_once, |piece| {
            packed.extend_from_slice(piece);
            Ok::<_, WeightsError>(())
        });
        (packed, scales.expect("packed"))
    }

    /// The shape in which a matrix is stored.
    fn stored_shape(panels: &Panels) -> [u64; 2] {
        let Panels { inputs, stored_outputs, output_rows, .. } = *panels;
        if output_rows { [stored_outputs, inputs] } else { [inputs, stored_outputs] }
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// A matrix with some columns of zeros and some values of other magnitudes.
    fn matrices() -> impl Strategy<Value = (Panels, Vec<f32>)> {
        (1..11_u64, 1..40_u64, any::<bool>(), 0..100_u64, 0..100_u64).prop_flat_map(
            |(inputs, stored_outputs, output_rows, from, to)| {
                let first = from % stored_outputs;
                let outputs = 1 + to % (stored_outputs - first);
                let panels = Panels { inputs, outputs, first, stored_outputs, output_rows };
                let value = prop_oneof![4 => -2.0..2.0_f32, 1 => Just(0.0), 1 => -1e-30..1e-30_f32];
                let values = proptest::collection::vec(value, (inputs * stored_outputs) as usize);
                let zeroed = (values, any::<proptest::sample::Index>()).prop_map(move |(mut values, column)| {
                    let column = column.index(stored_outputs as usize) as u64;
                    (0..inputs).for_each(|input| values[index(&panels, input, column)] = 0.0);
                    values
                });
                (Just(panels), zeroed)
            },
        )
    }

    /// Where the source has an element.
    fn index(panels: &Panels, input: u64, output: u64) -> usize {
        let index =
            if panels.output_rows { output * panels.inputs + input } else { input * panels.stored_outputs + output };
        index as usize
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn f32_panels_hold_every_element_in_its_place(
            matrix in matrices(),
            at_once in 1..4_u64,
            stored in any::<bool>(),
        ) {
            let (panels, values) = matrix;
            let (_folder, weights, checkpoint) = checkpoint(&values, stored_shape(&panels));
            let source = if stored { checkpoint } else { Source::Computed(values.clone()) };
            let (packed, scales) = pack(panels, Form::F32, (&source, &weights), at_once);
            prop_assert!(scales.is_empty());
            prop_assert_eq!(packed.len() as u64, 4 * panels.shape_f32().iter().product::<u64>());
            let floats = floats(&packed);
            for p in 0..panels.count() {
                for i in 0..panels.inputs {
                    for l in 0..LANES {
                        let output = 16 * p + l;
                        let at = || index(&panels, i, panels.first + output);
                        let expected = if output < panels.outputs { values[at()] } else { 0.0 };
                        prop_assert_eq!(floats[((p * panels.inputs + i) * LANES + l) as usize], expected);
                    }
                }
            }
        }

        /// Every weight is within half a step of its scale, the largest of an output is 127 steps, and the rest is
        /// zero.
        #[test]
        fn int8_panels_are_within_half_a_step(matrix in matrices(), at_once in 1..4_u64) {
            let (panels, values) = matrix;
            let (_folder, weights, source) = checkpoint(&values, stored_shape(&panels));
            let (packed, scales) = pack(panels, Form::Int8(None), (&source, &weights), at_once);
            prop_assert_eq!(packed.len() as u64, panels.shape_int8().iter().product::<u64>());
            prop_assert_eq!(scales.len() as u64, panels.shape_scales()[0]);
            let groups = panels.inputs.div_ceil(4);
            for o in 0..16 * panels.count() {
                let (mut largest, scale) = (0, scales[o as usize]);
                for i in 0..4 * groups {
                    let (p, l, j, c) = (o / 16, o % 16, i / 4, i % 4);
                    let q = i16::from(packed[(((p * groups + j) * LANES + l) * GROUP + c) as usize]) - 128;
                    largest = largest.max(q.abs());
                    let there = o < panels.outputs && i < panels.inputs;
                    let expected = if there { values[index(&panels, i, panels.first + o)] } else { 0.0 };
                    let difference = (f32::from(q) * scale - expected).abs();
                    prop_assert!(difference <= 0.5001 * scale, "{q} * {scale} is not {expected}");
                }
                prop_assert_eq!(largest, if scale > 0.0 { 127 } else { 0 });
            }
        }
    }

    #[test]
    fn rows_beyond_the_source_are_zeros() {
        let (_folder, weights, source) = checkpoint(&[1.0, 2.0, 3.0, 4.0], [2, 2]);
        let panels = Panels { inputs: 2, outputs: 3, first: 0, stored_outputs: 8, output_rows: true };
        let (packed, scales) = pack(panels, Form::Int8(None), (&source, &weights), 9);
        assert_eq!(packed[..12], [192, 255, 128, 128, 223, 255, 128, 128, 128, 128, 128, 128]);
        assert_eq!(scales[..3], [2.0 / 127.0, 4.0 / 127.0, 0.0]);
    }
}
