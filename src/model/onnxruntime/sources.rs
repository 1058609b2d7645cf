//! The encoder of an encoder-decoder: its session, the slots with what it has read, and what the rows of a forward see of them.
//!
//! The encoder writes straight into a slot. The decoder's graph wants the sources of all rows side by side, so what a row reads is
//! copied to its lane once and stays there until the lane reads another source. The lanes' sources are as wide as the longest one
//! that is read asks for, not as the longest that there may be.

use std::ffi::CString;

use engine_build::manifest::Manifest;
use ort::session::Session;

use super::raw::{Binding, Element, Memory, c_name};
use crate::model::{BackendError, Batch, SourceLimits, SourceSlot};
use crate::text::TokenId;

/// The lanes' sources are at least so wide.
const MIN_WIDTH: usize = 16;

/// The extents of what is kept of sources.
#[derive(Clone, Copy, Debug)]
pub struct SourceShape {
    /// Layers of the decoder.
    pub layers: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rows of a forward.
    pub lanes: usize,
    /// Slots, and the longest source.
    pub limits: SourceLimits,
}

impl SourceShape {
    /// Of a bundle; none where the model has no encoder.
    pub fn of(manifest: &Manifest, lanes: usize, element_bytes: usize) -> Option<Self> {
        let model = &manifest.model;
        let [layers, heads, head_dim] = [model.layers, model.kv_heads, model.head_dim].map(|size| size as usize);
        let tokens = model.source? as usize;
        let slot_bytes = 2 * layers * heads * head_dim * tokens * element_bytes;
        // As many as there can be rows, and one for warming up.
        let limits = SourceLimits { slots: lanes + 1, tokens, slot_bytes };
        Some(Self { layers, heads, head_dim, lanes, limits })
    }

    fn tensors(&self) -> usize {
        2 * self.layers
    }

    /// Elements of the longest source in one tensor.
    fn elements(&self) -> usize {
        self.heads * self.limits.tokens * self.head_dim
    }
}

/// What the encoder read.
struct Slot<T: Element> {
    /// One per layer and keys/values, in the order k0, v0, k1, v1, ...: `[heads, len, head_dim]`.
    tensors: Vec<Memory<T>>,
    /// Tokens of the source; 0 where nothing was read.
    len: usize,
    /// Which reading it was, of all.
    reading: u64,
}

/// See the module's documentation.
pub struct Sources<T: Element> {
    session: Session,
    shape: SourceShape,
    /// `cross_k_0`, `cross_v_0`, ...: the encoder's outputs and the decoder's inputs, in the order of the tensors.
    pub names: Vec<CString>,
    slots: Vec<Slot<T>>,
    readings: u64,
    /// `[1, tokens]`
    input_ids: Memory<i64>,
    /// In the order of the slots' tensors: `[lanes, heads, width, head_dim]`.
    pub lanes: Vec<Memory<T>>,
    /// Tokens of each lane's source. `[lanes]`
    pub lengths: Memory<i64>,
    /// Positions of a source in the lanes; it changes with what is read.
    pub width: usize,
    /// By lane: the reading that was copied there.
    copied: Vec<Option<u64>>,
}

impl<T: Element> Sources<T> {
    /// Empty slots of an encoder.
    pub fn new(session: Session, shape: SourceShape) -> Self {
        let tensors = |count: usize| (0..shape.tensors()).map(|_| Memory::zeroed(count * shape.elements())).collect();
        let names = (0..shape.layers).flat_map(|layer| ['k', 'v'].map(|kind| c_name(format!("cross_{kind}_{layer}"))));
        Self {
            names: names.collect(),
            slots: (0..shape.limits.slots).map(|_| Slot { tensors: tensors(1), len: 0, reading: 0 }).collect(),
            readings: 0,
            input_ids: Memory::zeroed(shape.limits.tokens),
            lanes: tensors(shape.lanes),
            lengths: Memory::zeroed(shape.lanes),
            width: MIN_WIDTH.min(shape.limits.tokens),
            copied: vec![None; shape.lanes],
            session,
            shape,
        }
    }

    /// Reads a source into a slot. The contract was checked.
    pub fn encode(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), ort::Error> {
        for (id, token) in self.input_ids.as_mut_slice().iter_mut().zip(tokens) {
            *id = i64::from(token.0);
        }
        let slot = &mut self.slots[slot.0];
        slot.len = 0;
        let SourceShape { heads, head_dim, .. } = self.shape;
        let mut binding = Binding::new(&self.session)?;
        binding.input(c"input_ids", &self.input_ids, &[1, tokens.len() as i64])?;
        for (name, memory) in self.names.iter().zip(&slot.tensors) {
            binding.output(name, memory, &[1, heads as i64, tokens.len() as i64, head_dim as i64])?;
        }
        binding.run(&mut self.session)?;
        self.readings += 1;
        (slot.len, slot.reading) = (tokens.len(), self.readings);
        Ok(())
    }

    /// Brings the lanes what their rows read. `width` may change.
    pub fn load(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let slots: Vec<usize> = batch.rows.iter().filter_map(|row| Some(row.source?.0)).collect();
        if let Some(empty) = slots.iter().find(|slot| self.slots[**slot].len == 0) {
            return Err(BackendError::Contract(format!("nothing was read into the source slot {empty}")));
        }
        let longest = slots.iter().map(|slot| self.slots[*slot].len).max().unwrap_or(0);
        let width = longest.next_power_of_two().max(MIN_WIDTH).min(self.shape.limits.tokens);
        // Somewhat too wide is cheaper than to copy all of them again.
        if width > self.width || 2 * width < self.width {
            self.width = width;
            self.copied.fill(None);
        }
        for (lane, slot) in slots.into_iter().enumerate() {
            let reading = self.slots[slot].reading;
            if self.copied[lane] != Some(reading) {
                self.copy(lane, slot);
                self.copied[lane] = Some(reading);
            }
        }
        Ok(())
    }

    fn copy(&mut self, lane: usize, slot: usize) {
        let SourceShape { heads, head_dim, .. } = self.shape;
        let slot = &self.slots[slot];
        let (from, to) = (slot.len * head_dim, self.width * head_dim);
        for (source, lanes) in slot.tensors.iter().zip(&mut self.lanes) {
            let source = source.as_slice()[..heads * from].chunks_exact(from);
            let lane = lanes.as_mut_slice()[lane * heads * to..].chunks_exact_mut(to);
            for (source, head) in source.zip(lane) {
                head[..from].copy_from_slice(source);
            }
        }
        self.lengths.as_mut_slice()[lane] = slot.len as i64;
    }
}
