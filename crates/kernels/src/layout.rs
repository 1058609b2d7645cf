//! The order of packed weights in memory.
//!
//! Outputs are grouped in panels of [`PANEL`]. An f32 matrix is `[panels, inputs, 16]`. An int8 matrix is bytes
//! `[panels, ceil(inputs / 4), 16, 4]`. Each byte is the weight plus 128, because the instruction that multiplies four
//! pairs of bytes wants one unsigned operand. Padding outputs and inputs are zero.

/// Outputs of a panel.
pub const PANEL: usize = 16;

/// Inputs that one int8 multiplication takes together.
pub const QUAD: usize = 4;

/// Inputs that share a scale when activations are quantized.
///
/// A few channels of GPT-2's hidden state are a hundred times larger than the others. With a scale for the whole row
/// they would round the rest away; in groups they spoil only their own.
pub const GROUP: usize = 64;

/// Panels that `outputs` outputs fill.
pub fn panels(outputs: usize) -> usize {
    outputs.div_ceil(PANEL)
}

/// Number of quads that hold `inputs` inputs; the last one may be padded.
pub fn quads(inputs: usize) -> usize {
    inputs.div_ceil(QUAD)
}

/// Length of an f32 matrix, in elements.
pub fn len_f32(inputs: usize, outputs: usize) -> usize {
    panels(outputs) * inputs * PANEL
}

/// Bytes of a packed int8 matrix `[inputs, outputs]`, padding included.
pub fn len_int8(inputs: usize, outputs: usize) -> usize {
    panels(outputs) * quads(inputs) * PANEL * QUAD
}

/// Index of the f32 element for `input` and `output`.
pub fn index_f32(inputs: usize, input: usize, output: usize) -> usize {
    (output / PANEL * inputs + input) * PANEL + output % PANEL
}

/// Index of the int8 byte for `input` and `output`.
pub fn index_int8(inputs: usize, input: usize, output: usize) -> usize {
    ((output / PANEL * quads(inputs) + input / QUAD) * PANEL + output % PANEL) * QUAD + input % QUAD
}

/// A matrix `[inputs, outputs]` in packed order.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Elements `[panels, inputs, 16]`.
    F32(&'a [f32]),
    /// Bytes, and a factor for each output (zero for those that fill up).
    Int8(&'a [u8], &'a [f32]),
}

impl Matrix<'_> {
    /// Whether the lengths are those of a packed `[inputs, outputs]`. Any two numbers may be asked for.
    pub fn fits(&self, inputs: usize, outputs: usize) -> bool {
        let wide = |size: usize| size as u128;
        let padded = wide(outputs.div_ceil(PANEL)) * wide(PANEL);
        match self {
            Matrix::F32(elements) => wide(elements.len()) == padded * wide(inputs),
            Matrix::Int8(bytes, scales) => {
                wide(bytes.len()) == padded * wide(quads(inputs)) * wide(QUAD) && wide(scales.len()) == padded
            }
        }
    }

    /// Checks the lengths.
    ///
    /// # Panics
    /// If they are not those of a packed `[inputs, outputs]`.
    pub fn check(&self, inputs: usize, outputs: usize) {
        assert!(self.fits(inputs, outputs), "a packed matrix of {inputs} inputs and {outputs} outputs");
    }
}
