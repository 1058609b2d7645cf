//! The encoder of an encoder-decoder: its session, the slots with its outputs, and the lanes that a forward reads them
//! from.
//!
//! The encoder writes directly into a slot. [`Readings`] decides which lane gets which slot.

use std::ffi::CString;

use ort::session::Session;

use super::raw::{Binding, Element, Memory, NoMemory, c_name};
use crate::readings::{Fill, Readings, SourceShape};
use completion::text::TokenId;
use scheduler::backend::{BackendError, Batch, SourceSlot};

/// What the encoder read, one per layer and keys/values, in the order k0, v0, k1, v1, ...: `[heads, len, head_dim]`.
type Slot<T> = Vec<Memory<T>>;

/// See the module's documentation.
pub struct Sources<T: Element> {
    session: Session,
    shape: SourceShape,
    /// `cross_k_0`, `cross_v_0`, ...: the encoder's outputs and the decoder's inputs, in the order of the tensors.
    pub names: Vec<CString>,
    slots: Vec<Slot<T>>,
    readings: Readings,
    /// `[1, tokens]`
    input_ids: Memory<i64>,
    /// In the order of the slots' tensors: `[lanes, heads, width, head_dim]`.
    pub lanes: Vec<Memory<T>>,
    /// Tokens of each lane's source. `[lanes]`
    pub lengths: Memory<i64>,
}

impl<T: Element> Sources<T> {
    /// Empty slots of an encoder.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(session: Session, shape: SourceShape) -> Result<Self, NoMemory> {
        let tensor = |count: usize| Memory::zeroed(count.saturating_mul(shape.elements()));
        let tensors = |count: usize| (0..shape.tensors()).map(|_| tensor(count)).collect::<Result<_, _>>();
        Ok(Self {
            names: shape.names().map(c_name).collect(),
            slots: (0..shape.limits.slots).map(|_| tensors(1)).collect::<Result<_, _>>()?,
            readings: Readings::new(&shape),
            input_ids: Memory::zeroed(shape.limits.tokens)?,
            lanes: tensors(shape.lanes)?,
            lengths: Memory::zeroed(shape.lanes)?,
            session,
            shape,
        })
    }

    /// Reads a source into a slot. The contract was checked.
    pub fn encode(&mut self, slot: SourceSlot, tokens: &[TokenId]) -> Result<(), ort::Error> {
        for (id, token) in self.input_ids.as_mut_slice().iter_mut().zip(tokens) {
            *id = i64::from(token.0);
        }
        self.readings.begin(slot);
        let SourceShape { heads, head_dim, .. } = self.shape;
        let mut binding = Binding::new(&self.session)?;
        binding.input(c"input_ids", &self.input_ids, &[1, tokens.len() as i64])?;
        for (name, memory) in self.names.iter().zip(&self.slots[slot.0]) {
            binding.output(name, memory, &[1, heads as i64, tokens.len() as i64, head_dim as i64])?;
        }
        // SAFETY: made for this session, over memory of this encoder alone, of which no slice is alive; `&mut self`
        // keeps other threads out.
        unsafe { binding.run(&mut self.session) }?;
        self.readings.finish(slot, tokens.len());
        Ok(())
    }

    /// Positions of a source in the lanes.
    pub fn width(&self) -> usize {
        self.readings.width()
    }

    /// Brings the lanes what their rows read.
    pub fn load(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.readings.fill(batch)?.into_iter().for_each(|fill| self.copy(fill));
        Ok(())
    }

    fn copy(&mut self, Fill { lane, slot, len }: Fill) {
        let SourceShape { heads, head_dim, .. } = self.shape;
        let (from, to) = (len * head_dim, self.readings.width() * head_dim);
        for (source, lanes) in self.slots[slot].iter().zip(&mut self.lanes) {
            let source = source.as_slice()[..heads * from].chunks_exact(from);
            let lane = lanes.as_mut_slice()[lane * heads * to..].chunks_exact_mut(to);
            for (source, head) in source.zip(lane) {
                head[..from].copy_from_slice(source);
            }
        }
        self.lengths.as_mut_slice()[lane] = len as i64;
    }
}
