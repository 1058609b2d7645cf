//! The memory of a step: inputs, results and their pinned staging copies, at fixed addresses.

use std::sync::Arc;

use super::kv::{ALIGNMENT, DeviceKv};
use super::sources::DeviceSources;
use crate::cuda::{CudaError, DeviceMemory, Extent, Pinned, Region, Stream};
use scheduler::backend::{Batch, Limits, Outputs};

/// Sizes of the tensors of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shapes {
    /// Rows, and so lanes.
    pub rows: usize,
    /// Tokens of each row, padding included.
    pub longest: usize,
    /// Selected positions.
    pub selected: usize,
    /// Positions of the rows' sources; 0 in models without an encoder.
    pub width: usize,
    /// Positions of the caches that attention reads; 0 where the graph has no such choice.
    pub attended: usize,
}

impl Shapes {
    /// A batch's, over sources of that width and so many positions of the caches. While every row has one token,
    /// positions that nobody asked for are selected, too, so that the extents depend on nothing but the number of rows,
    /// the width and these positions.
    pub fn of(batch: &Batch, width: usize, attended: usize) -> Self {
        let (rows, longest) = (batch.rows.len(), batch.longest());
        let selected = batch.selected.len();
        Self { rows, longest, selected: if longest == 1 { selected.max(rows) } else { selected }, width, attended }
    }

    /// The shapes of a step of decoding: one token and one selected position a row.
    pub fn is_decode(&self) -> bool {
        self.longest == 1 && self.selected == self.rows
    }
}

/// Upper bounds of a step's extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Most rows of a run.
    pub lanes: usize,
    /// Most tokens of a row.
    pub chunk: usize,
    /// Selected positions.
    pub selected: usize,
    /// Next tokens of a position.
    pub top_k: usize,
    /// Logits of a position, without padding.
    pub vocab: usize,
    /// Logits of a position in the engine.
    pub vocab_padded: usize,
    /// Positions of a lane where the graph is told how many attention reads; 0 where it isn't.
    pub slots: usize,
}

impl Sizes {
    /// The bounds that a backend's limits give. `vocab_padded` is the width of the engine's rows of logits; `has_slots`
    /// says whether the graph has an input of that name.
    pub fn new(limits: &Limits, vocab_padded: usize, has_slots: bool) -> Self {
        let &Limits { lanes, chunk, selected, top_k, vocab, context, .. } = limits;
        Self { lanes, chunk, selected, top_k, vocab, vocab_padded, slots: if has_slots { context } else { 0 } }
    }

    /// Memory of the device.
    pub fn bytes(&self) -> usize {
        self.inputs() * size_of::<i64>() + self.packed(self.selected).bytes + self.logits() * size_of::<f32>()
    }

    /// First element of `source_len` in the inputs, behind `past_len`.
    fn source_len_at(&self) -> usize {
        aligned(self.lanes)
    }

    /// First element of `select`.
    fn select_at(&self) -> usize {
        self.source_len_at() + aligned(self.lanes)
    }

    /// Index of the first element of `input_ids` `[lanes, chunk]` in the i64 input buffer.
    fn ids_at(&self) -> usize {
        self.select_at() + aligned(self.selected)
    }

    /// First element of `slots`, behind everything that changes from step to step.
    fn slots_at(&self) -> usize {
        self.ids_at() + aligned(self.lanes * self.chunk)
    }

    fn inputs(&self) -> usize {
        if self.slots == 0 { self.ids_at() + self.lanes * self.chunk } else { self.slots_at() + self.slots }
    }

    fn logits(&self) -> usize {
        self.selected * self.vocab_padded
    }

    fn packed(&self, selected: usize) -> Packed {
        let top_logits = (selected * self.top_k * size_of::<i64>()).next_multiple_of(ALIGNMENT);
        let logsumexp = top_logits + (selected * self.top_k * size_of::<f32>()).next_multiple_of(ALIGNMENT);
        Packed { top_logits, logsumexp, bytes: logsumexp + selected * size_of::<f32>() }
    }
}

/// `numbers` i64 elements, rounded up so that the next array is aligned.
fn aligned(numbers: usize) -> usize {
    (numbers * size_of::<i64>()).next_multiple_of(ALIGNMENT) / size_of::<i64>()
}

/// Where results are, in bytes behind the first, `top_ids`: side by side for the positions of a run, so that one copy
/// brings all.
#[derive(Clone, Copy, Debug)]
struct Packed {
    top_logits: usize,
    logsumexp: usize,
    bytes: usize,
}

/// Results of a step that are on the host.
#[derive(Clone, Copy, Debug)]
pub struct Results {
    packed: Packed,
    full: usize,
}

/// The memory. Rows are right-padded with token 0, and so are the rows of lanes that a step has no row for.
pub struct Buffers {
    /// KV caches of the lanes, and the pool of KV pages.
    pub kv: DeviceKv,
    /// Encoder outputs, in models with an encoder.
    pub sources: Option<DeviceSources>,
    sizes: Sizes,
    /// `past_len` `[lanes]`, `source_len` `[lanes]`, `select` `[selected]`, `input_ids` `[rows, longest]`, each
    /// aligned; and `slots` `[context]`, which stays. i64.
    inputs: DeviceMemory,
    staged_inputs: Pinned<i64>,
    /// `topi` i64 `[selected, top_k]`, `topv` f32 `[selected, top_k]`, `lse` f32 `[selected, 1]`; see [`Packed`].
    results: DeviceMemory,
    staged_results: Pinned<u8>,
    /// f32 `[selected, vocab_padded]`
    logits: DeviceMemory,
    /// Rows that were asked for, f32 `[full, vocab]`.
    staged_logits: Pinned<f32>,
    stream: Arc<Stream>,
}

impl Buffers {
    /// Takes the memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        stream: &Arc<Stream>,
        sizes: Sizes,
        kv: DeviceKv,
        sources: Option<DeviceSources>,
    ) -> Result<Self, CudaError> {
        let result_bytes = sizes.packed(sizes.selected).bytes;
        let mut buffers = Self {
            kv,
            sources,
            sizes,
            inputs: DeviceMemory::new(stream, sizes.inputs() * size_of::<i64>())?,
            staged_inputs: Pinned::new(stream, sizes.inputs())?,
            results: DeviceMemory::new(stream, result_bytes)?,
            staged_results: Pinned::new(stream, result_bytes)?,
            logits: DeviceMemory::new(stream, sizes.logits() * size_of::<f32>())?,
            staged_logits: Pinned::new(stream, sizes.selected * sizes.vocab)?,
            stream: Arc::clone(stream),
        };
        if sizes.slots > 0 {
            let slots = &mut buffers.staged_inputs.as_mut_slice()[sizes.slots_at()..];
            slots.iter_mut().zip(0..).for_each(|(slot, position)| *slot = position);
            stream.upload(&buffers.inputs, &mut buffers.staged_inputs, sizes.inputs())?;
        }
        Ok(buffers)
    }

    /// The stream of every copy and run.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The bounds that the buffers were made for.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Device address of `past_len`, i64 `[rows]`.
    pub fn past_len(&self) -> u64 {
        self.inputs.address()
    }

    /// Device address of `source_len`, i64 `[rows]`.
    pub fn source_len(&self) -> u64 {
        self.inputs.address() + (self.sizes.source_len_at() * size_of::<i64>()) as u64
    }

    /// Positions of the rows' sources, as they are now.
    pub(super) fn width(&self) -> usize {
        self.sources.as_ref().map_or(0, DeviceSources::width)
    }

    /// Device address of `select`, i64 `[selected]`.
    pub fn select(&self) -> u64 {
        self.inputs.address() + (self.sizes.select_at() * size_of::<i64>()) as u64
    }

    /// Device address of `input_ids`, i64 `[rows, longest]`.
    pub fn input_ids(&self) -> u64 {
        self.inputs.address() + (self.sizes.ids_at() * size_of::<i64>()) as u64
    }

    /// Device address of `slots`, i64 `[context]`, in graphs that have it.
    pub fn slots(&self) -> u64 {
        self.inputs.address() + (self.sizes.slots_at() * size_of::<i64>()) as u64
    }

    /// Where `topi` is, i64 `[selected, top_k]`, then `topv`, f32 `[selected, top_k]`, and `lse`, f32 `[selected, 1]`.
    pub fn results(&self, shapes: Shapes) -> [u64; 3] {
        let (start, packed) = (self.results.address(), self.sizes.packed(shapes.selected));
        [start, start + packed.top_logits as u64, start + packed.logsumexp as u64]
    }

    /// Device address of `logits`, f32 `[selected, vocab_padded]`.
    pub fn logits(&self) -> u64 {
        self.logits.address()
    }

    /// Copies a batch's inputs to the device, in one copy on the stream. Rows that the batch lacks write behind what
    /// their lanes hold, `filled` positions of each.
    pub(super) fn upload(&mut self, batch: &Batch, shapes: Shapes, filled: &[usize]) -> Result<(), CudaError> {
        let Shapes { rows, longest, selected, .. } = shapes;
        let (select_at, ids_at) = (self.sizes.select_at(), self.sizes.ids_at());
        let source_len_at = self.sizes.source_len_at();
        let staged = self.staged_inputs.as_mut_slice();
        for (r, row) in batch.rows.iter().enumerate() {
            staged[r] = row.past_len as i64;
            if let Some((sources, slot)) = self.sources.as_ref().zip(row.source) {
                staged[source_len_at + r] = sources.len(slot) as i64;
            }
            let padded = &mut staged[ids_at + r * longest..ids_at + (r + 1) * longest];
            padded[row.len..].fill(0);
            for (id, token) in padded.iter_mut().zip(&batch.tokens[row.start..row.start + row.len]) {
                *id = i64::from(token.0);
            }
        }
        for (r, &filled) in filled.iter().enumerate().take(rows).skip(batch.rows.len()) {
            staged[r] = filled as i64;
            // One position of whatever the lane has: nothing to attend to would be no number.
            staged[source_len_at + r] = 1;
            staged[ids_at + r * longest..ids_at + (r + 1) * longest].fill(0);
        }
        let select = &mut staged[select_at..select_at + selected];
        select.fill(0);
        for (flat, selected) in select.iter_mut().zip(&batch.selected) {
            *flat = (selected.row * longest + selected.offset) as i64;
        }
        self.stream.upload(&self.inputs, &mut self.staged_inputs, ids_at + rows * longest)
    }

    /// Puts the copies of results on the stream: one of top-k and logsumexp, and one of logits for each group of
    /// neighbouring positions that want them.
    pub(super) fn download(&mut self, batch: &Batch, shapes: Shapes) -> Result<Results, CudaError> {
        let packed = self.sizes.packed(shapes.selected);
        self.stream.download(&mut self.staged_results, 0, (&self.results, 0), packed.bytes)?;
        let (width, pitch) = (self.sizes.vocab * size_of::<f32>(), self.sizes.vocab_padded * size_of::<f32>());
        let (mut first, mut full) = (0, 0);
        for group in batch.selected.chunk_by(|one, next| one.full == next.full) {
            if group[0].full {
                let source = Region { offset: first * pitch, pitch, rows: group.len() };
                let extent = Extent { width, height: group.len(), depth: 1 };
                let start = full * self.sizes.vocab;
                self.stream.download_rows(&mut self.staged_logits, start, (&self.logits, source), extent)?;
                full += group.len();
            }
            first += group.len();
        }
        Ok(Results { packed, full })
    }

    /// Hands out what [`Buffers::download`] brought, once the stream is synchronised.
    pub(super) fn read(&self, batch: &Batch, results: Results, out: &mut Outputs) {
        let Results { packed, full } = results;
        let (bytes, count) = (self.staged_results.as_slice(), batch.selected.len());
        let listed = count * self.sizes.top_k;
        let floats = |from: usize, count: usize| {
            bytes[from..from + count * 4].as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes))
        };
        let ids = bytes[..listed * 8].as_chunks::<8>().0;
        out.top_ids.extend(ids.iter().map(|&bytes| i64::from_ne_bytes(bytes) as u32));
        out.top_logits.extend(floats(packed.top_logits, listed));
        out.logsumexp.extend(floats(packed.logsumexp, count));
        if full > 0 {
            out.logits.extend_from_slice(&self.staged_logits.as_slice()[..full * self.sizes.vocab]);
        }
    }
}
