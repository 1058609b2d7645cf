//! The external weights file: every parameter of a graph, streamed from the checkpoint.
//!
//! Large tensors are always external, whatever the model's size. There is one path to test, memory does not grow with
//! the model, protobuf's limit of 2 GiB does not apply, and runtimes can map the file. Layout and precision are decided
//! elsewhere: in the graph and in `packing`.

use std::collections::HashMap;
use std::io::Write;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{Element, Parameter, Source};
use crate::checkpoint::Weights;
use crate::error::{BuildError, WeightsError};
use crate::progress::Progress;
use crate::resume::Resumable;

/// Elements that are encoded at a time: 1 MiB of f32, small enough to stay in cache between the steps.
const PIECE_ELEMENTS: usize = 256 << 10;

/// Writes the parameters in order, with zeros between them up to each one's offset. `file` is the whole weights file;
/// parameters that are in it already are left.
pub(crate) fn write_parameters(
    parameters: &[Parameter],
    weights: &Weights,
    file: &mut Resumable,
    progress: &dyn Progress,
) -> Result<(), BuildError> {
    let mut position_bytes = file.bytes();
    let mut writer = Writer { weights, file, progress, scales: HashMap::new() };
    for parameter in parameters {
        if parameter.offset_bytes < position_bytes {
            progress.advance(parameter.bytes());
            continue;
        }
        write_zeros(writer.file, parameter.offset_bytes - position_bytes)?;
        writer.write(parameter)?;
        position_bytes = parameter.offset_bytes + parameter.bytes();
        // Scales are known as long as this process lives: a build resumes only where none are outstanding.
        if writer.scales.is_empty() {
            writer.file.mark().map_err(BuildError::WriteWeights)?;
        }
    }
    Ok(())
}

struct Writer<'a> {
    weights: &'a Weights,
    file: &'a mut Resumable,
    progress: &'a dyn Progress,
    /// The scales of packed matrices that were written, until they are written themselves.
    scales: HashMap<&'a str, Vec<f32>>,
}

impl<'a> Writer<'a> {
    fn write(&mut self, parameter: &'a Parameter) -> Result<(), BuildError> {
        let Some(packing) = &parameter.packing else { return self.write_unpacked(parameter) };
        let scales = packing.pack(&parameter.source, self.weights, |packed| {
            if self.progress.is_cancelled() {
                return Err(BuildError::Cancelled);
            }
            self.file.write_all(packed).map_err(BuildError::WriteWeights)?;
            self.progress.advance(packed.len() as u64);
            Ok(())
        })?;
        if !scales.is_empty() {
            self.scales.insert(parameter.name.as_str(), scales);
        }
        Ok(())
    }

    fn write_unpacked(&mut self, parameter: &Parameter) -> Result<(), BuildError> {
        let weights = self.weights;
        let mut written = 0;
        let mut encoded = Vec::new();
        let mut write = |start: u64, values: &[f32]| {
            if self.progress.is_cancelled() {
                return Err(BuildError::Cancelled);
            }
            encode(parameter, start, values, &mut encoded)?;
            self.file.write_all(&encoded).map_err(BuildError::WriteWeights)?;
            written += values.len() as u64;
            self.progress.advance(encoded.len() as u64);
            Ok::<_, BuildError>(())
        };
        match &parameter.source {
            Source::Checkpoint(tensor) => weights.read(tensor, parameter.elements(), &mut write)?,
            Source::Centred { tensor, mean } => weights
                .read(tensor, parameter.elements(), |start, values| write(start, &less_mean(start, values, mean)))?,
            Source::Scaled { tensor, factor } => {
                weights.read(tensor, parameter.elements(), |start, values| write(start, &times(values, *factor)))?
            }
            Source::Padded { tensor, pad } => {
                weights.read(tensor, parameter.elements(), &mut write)?;
                let missing = parameter.elements().saturating_sub(tensor.elements);
                write(tensor.elements, &vec![*pad; missing as usize])?;
            }
            Source::Transposed(matrix) => {
                weights.read_transposed(matrix, |start, band| write_pieces(start, band, &mut write))?
            }
            Source::Computed(values) => write(0, values)?,
            Source::Scales(matrix) => {
                let scales = self.scales.remove(matrix.as_str()).unwrap_or_default();
                if scales.len() as u64 > parameter.elements() {
                    return Err(WeightsError::Changed.into());
                }
                write(0, &scales)?;
            }
        }
        self.fill(parameter.element.bytes(parameter.elements() - written))
    }

    /// Writes the zeros that fill up a parameter.
    fn fill(&mut self, bytes: u64) -> Result<(), BuildError> {
        write_zeros(self.file, bytes)?;
        self.progress.advance(bytes);
        Ok(())
    }
}

/// Writes many values a piece at a time: what is encoded is held a second time.
fn write_pieces(
    start: u64,
    values: &[f32],
    mut write: impl FnMut(u64, &[f32]) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    values.chunks(PIECE_ELEMENTS).zip((start..).step_by(PIECE_ELEMENTS)).try_for_each(|(piece, at)| write(at, piece))
}

/// Each value less its column's mean; `start` is the first value's position in row-major order.
fn less_mean(start: u64, values: &[f32], mean: &[f32]) -> Vec<f32> {
    let first_column = (start % mean.len() as u64) as usize;
    values.iter().zip(mean.iter().cycle().skip(first_column)).map(|(value, mean)| value - mean).collect()
}

/// Each value times a factor.
#[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
fn times(values: &[f32], factor: f64) -> Vec<f32> {
    values.iter().map(|value| (f64::from(*value) * factor) as f32).collect()
}

/// Little-endian bytes of `values` in the parameter's element type.
fn encode(parameter: &Parameter, start: u64, values: &[f32], encoded: &mut Vec<u8>) -> Result<(), BuildError> {
    encoded.clear();
    match parameter.element {
        Element::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            if let Some(at) = halves.iter().position(|half| half.is_infinite()) {
                let (tensor, index) = parameter.origin(start + at as u64);
                return Err(BuildError::Overflow { tensor, index, value: values[at] });
            }
            encoded.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        }
        // Integers are packed, or in the graph.
        Element::F32 | Element::I64 | Element::U8 | Element::I8 | Element::I4 => {
            encoded.resize(size_of_val(values), 0);
            for (bytes, value) in encoded.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *bytes = value.to_le_bytes();
            }
        }
    }
    Ok(())
}

fn write_zeros(file: &mut dyn Write, bytes: u64) -> Result<(), BuildError> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(ZEROS.len() as u64);
        file.write_all(&ZEROS[..count as usize]).map_err(BuildError::WriteWeights)?;
        left -= count;
    }
    Ok(())
}
