//! Encoder outputs in device memory: the slots that the encoder writes, and the lanes that the decoder reads.
//!
//! [`Readings`] decides which lane gets which slot, as on the CPU. The address of a tensor depends neither on the
//! length of a source nor on the width of the lanes, so an engine is given each address once.

use std::sync::Arc;

use super::kv::ALIGNMENT;
use crate::cuda::{CudaError, DeviceMemory, Extent, Pinned, Region, Stream};
use crate::readings::{Fill, Readings, SourceShape};
use completion::text::TokenId;
use scheduler::backend::{BackendError, Batch, SourceSlot};

impl SourceShape {
    /// Memory of slots, lanes and the source that is being read.
    pub fn device_bytes(&self) -> usize {
        let sources = self.limits.slots * self.slot_stride() + self.tensors() * self.lane_tensor_bytes();
        sources + self.limits.tokens * size_of::<i64>()
    }

    /// Bytes of one source's tensor, at most.
    fn slot_tensor_bytes(&self) -> usize {
        (self.elements() * self.element_bytes).next_multiple_of(ALIGNMENT)
    }

    /// Bytes from one slot to the next.
    fn slot_stride(&self) -> usize {
        self.tensors() * self.slot_tensor_bytes()
    }

    /// Bytes of a tensor of the lanes, at most.
    fn lane_tensor_bytes(&self) -> usize {
        (self.lanes * self.elements() * self.element_bytes).next_multiple_of(ALIGNMENT)
    }
}

/// Encoder outputs in device memory: the slots, and the lanes that the decoder reads.
pub struct DeviceSources {
    shape: SourceShape,
    readings: Readings,
    stream: Arc<Stream>,
    /// `[slots, 2 * layers]` tensors `[heads, len, head_dim]`, in the order k0, v0, k1, v1, ...; each begins aligned.
    slots: DeviceMemory,
    /// `[2 * layers]` tensors `[lanes, heads, width, head_dim]`, in the same order, each aligned.
    lanes: DeviceMemory,
    /// `[1, tokens]`
    ids: DeviceMemory,
    staged_ids: Pinned<i64>,
}

impl DeviceSources {
    /// Empty slots, zeroed: a NaN behind a source would give NaN out.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(stream: &Arc<Stream>, shape: SourceShape) -> Result<Self, CudaError> {
        let tokens = shape.limits.tokens;
        Ok(Self {
            shape,
            readings: Readings::new(&shape),
            stream: Arc::clone(stream),
            slots: DeviceMemory::new(stream, shape.limits.slots * shape.slot_stride())?,
            lanes: DeviceMemory::new(stream, shape.tensors() * shape.lane_tensor_bytes())?,
            ids: DeviceMemory::new(stream, tokens * size_of::<i64>())?,
            staged_ids: Pinned::new(stream, tokens)?,
        })
    }

    /// The stream of every copy and run.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The extents of a source and its slots.
    pub fn shape(&self) -> SourceShape {
        self.shape
    }

    /// Positions of a source in the lanes.
    pub fn width(&self) -> usize {
        self.readings.width()
    }

    /// Tokens of the source in a slot.
    pub(super) fn len(&self, slot: SourceSlot) -> usize {
        self.readings.len(slot)
    }

    /// Address of the encoder's input, a source as i64 `[1, len]`.
    pub fn ids(&self) -> u64 {
        self.ids.address()
    }

    /// Where the encoder puts a tensor, `[1, heads, len, head_dim]`; by the order k0, v0, k1, v1, ...
    pub fn in_slot(&self, slot: SourceSlot, tensor: usize) -> u64 {
        self.slots.address() + self.slot_offset(slot.0, tensor) as u64
    }

    /// Address of tensor `tensor` of the lanes, `[lanes, heads, width, head_dim]`, in the order of the slots.
    pub fn in_lanes(&self, tensor: usize) -> u64 {
        self.lanes.address() + (tensor * self.shape.lane_tensor_bytes()) as u64
    }

    fn slot_offset(&self, slot: usize, tensor: usize) -> usize {
        slot * self.shape.slot_stride() + tensor * self.shape.slot_tensor_bytes()
    }

    /// Brings a source to the device; what its slot had is gone.
    pub(super) fn begin(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), CudaError> {
        self.readings.begin(slot);
        for (id, token) in self.staged_ids.as_mut_slice().iter_mut().zip(tokens) {
            *id = i64::from(token.0);
        }
        self.stream.upload(&self.ids, &mut self.staged_ids, tokens.len())
    }

    /// Records that the encoder wrote a source of `len` tokens into a slot.
    pub(super) fn finish(&mut self, slot: SourceSlot, len: usize) {
        self.readings.finish(slot, len);
    }

    /// Puts the copies on the stream that bring the lanes what their rows read.
    pub(super) fn load(&mut self, batch: &Batch) -> Result<(), BackendError> {
        for fill in self.readings.fill(batch)? {
            if let Err(error) = self.copy(fill) {
                self.readings.forget_lanes();
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn copy(&self, Fill { lane, slot, len }: Fill) -> Result<(), CudaError> {
        let SourceShape { heads, head_dim, element_bytes, .. } = self.shape;
        let row = |positions: usize| positions * head_dim * element_bytes;
        let (from, to) = (row(len), row(self.width()));
        let extent = Extent { width: from, height: heads, depth: 1 };
        for tensor in 0..self.shape.tensors() {
            let source = Region { offset: self.slot_offset(slot, tensor), pitch: from, rows: heads };
            let offset = tensor * self.shape.lane_tensor_bytes() + lane * heads * to;
            self.stream.copy(
                (&self.lanes, Region { offset, pitch: to, rows: heads }),
                (&self.slots, source),
                extent,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::backend::SourceLimits;

    #[test]
    fn memory_is_what_slots_and_lanes_take_and_each_tensor_begins_aligned() {
        let limits = SourceLimits { slots: 0, tokens: 48, slot_bytes: 0 };
        let shape = SourceShape { layers: 3, heads: 3, head_dim: 14, element_bytes: 2, lanes: 0, limits };
        let shape = shape.with_lanes(5);
        assert_eq!((shape.lanes, shape.limits.slots), (5, 6));
        // 3 x 48 x 14 of 2 bytes are 4032, and five of them 20160.
        assert_eq!((shape.slot_tensor_bytes(), shape.lane_tensor_bytes()), (4096, 20_224));
        assert_eq!(shape.device_bytes(), 6 * (6 * 4096) + 6 * 20_224 + 48 * 8);
    }
}
