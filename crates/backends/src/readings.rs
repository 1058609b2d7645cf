//! What a step reads besides its tokens, for host and device memory alike: how much of the KV caches, and which slot
//! and which lane holds which encoder output. Pure.
//!
//! The encoder writes its outputs into a slot. The decoder's graph wants the sources of all rows side by side, so a
//! row's source is copied to its lane once and stays there until the lane needs another source. The lanes are as wide
//! as the longest source in use, not as the longest possible one.

use bundle::manifest::{Manifest, attended_lengths};

use scheduler::backend::{BackendError, Batch, SourceLimits, SourceSlot};

/// The lanes are at least so wide.
const MIN_WIDTH: usize = 16;

/// The graph's input that says how much of the KV caches attention reads.
pub const SLOTS: &str = "slots";

/// Positions of the caches that attention reads in a step, of a graph that is told and has so many `slots`; 0 for a
/// graph that isn't told.
pub fn attended(slots: usize, batch: &Batch) -> usize {
    let needed = batch.rows.iter().map(|row| row.past_len + row.len).max().unwrap_or(0);
    let mut lengths = attended_lengths(slots as u32).map(|length| length as usize);
    if slots == 0 { 0 } else { lengths.find(|length| *length >= needed).unwrap_or(slots) }
}

/// The extents of what is kept of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceShape {
    /// Layers of the decoder.
    pub layers: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Rows of a forward.
    pub lanes: usize,
    /// Slots, and the longest source.
    pub limits: SourceLimits,
}

impl SourceShape {
    /// The extents that a bundle's manifest gives; `None` where the model has no encoder.
    pub fn of(manifest: &Manifest, lanes: usize, element_bytes: usize) -> Option<Self> {
        let model = &manifest.model;
        let [layers, heads, head_dim] = [model.layers, model.kv_heads, model.head_dim].map(|size| size as usize);
        let tokens = model.source? as usize;
        let slot_bytes = 2 * layers * heads * head_dim * tokens * element_bytes;
        let limits = SourceLimits { slots: 0, tokens, slot_bytes };
        Some(Self { layers, heads, head_dim, element_bytes, lanes, limits }.with_lanes(lanes))
    }

    /// The same shape with `lanes` lanes, and one slot more than lanes, for the warm-up.
    #[must_use]
    pub fn with_lanes(self, lanes: usize) -> Self {
        Self { lanes, limits: SourceLimits { slots: lanes + 1, ..self.limits }, ..self }
    }

    /// Key and value tensors, one pair a layer.
    pub fn tensors(&self) -> usize {
        2 * self.layers
    }

    /// The names of the encoder's outputs, which are the decoder's inputs, in the order of the tensors.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.layers).flat_map(|layer| ['k', 'v'].map(|kind| format!("cross_{kind}_{layer}")))
    }

    /// The widths that the lanes may have.
    pub fn widths(&self) -> Vec<usize> {
        let longest = self.limits.tokens;
        let doubled = std::iter::successors(Some(MIN_WIDTH), |width| width.checked_mul(2));
        doubled.take_while(|&width| width < longest).chain([longest]).collect()
    }

    /// Elements of the longest source in one tensor.
    pub fn elements(&self) -> usize {
        self.heads * self.limits.tokens * self.head_dim
    }
}

/// The source that a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// Serial number: encoded sources are counted from the start.
    number: u64,
    /// Tokens of the source.
    len: usize,
}

/// A lane that is to get what is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The lane that gets the source.
    pub lane: usize,
    /// The slot that holds the source.
    pub slot: usize,
    /// Tokens of the source.
    pub len: usize,
}

/// Which slots and lanes have which sources.
#[derive(Clone, Debug)]
pub struct Readings {
    /// `None` where nothing was read.
    slots: Vec<Option<Reading>>,
    /// The serial number of the reading that each lane holds a copy of. `[lanes]`
    lanes: Vec<Option<u64>>,
    /// Number of sources read so far.
    count: u64,
    /// The longest source that there may be.
    longest: usize,
    width: usize,
}

impl Readings {
    /// Empty slots and lanes.
    pub fn new(shape: &SourceShape) -> Self {
        let SourceLimits { slots, tokens, .. } = shape.limits;
        let width = MIN_WIDTH.min(tokens);
        Self { slots: vec![None; slots], lanes: vec![None; shape.lanes], count: 0, longest: tokens, width }
    }

    /// Positions of a source in the lanes; it changes with what is read.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Tokens of the source in a slot; 0 where nothing was read.
    pub fn len(&self, slot: SourceSlot) -> usize {
        self.slots[slot.0].map_or(0, |reading| reading.len)
    }

    /// A slot is about to be written: what was there is gone.
    pub fn begin(&mut self, slot: SourceSlot) {
        self.slots[slot.0] = None;
    }

    /// Records that a source of `len` tokens was written into a slot.
    pub fn finish(&mut self, slot: SourceSlot, len: usize) {
        self.count += 1;
        self.slots[slot.0] = Some(Reading { number: self.count, len });
    }

    /// What has to be copied before the rows of a batch can read their sources, and counts as done from now on. `width`
    /// may change.
    ///
    /// # Errors
    /// A slot into which nothing was read.
    pub fn fill(&mut self, batch: &Batch) -> Result<Vec<Fill>, BackendError> {
        let slots: Vec<usize> = batch.rows.iter().filter_map(|row| Some(row.source?.0)).collect();
        let empty = |slot| BackendError::Contract(format!("nothing was read into the source slot {slot}"));
        let reading = |slot: &usize| self.slots[*slot].ok_or_else(|| empty(*slot));
        let readings = slots.iter().map(reading).collect::<Result<Vec<_>, _>>()?;
        let longest = readings.iter().map(|reading| reading.len).max().unwrap_or(0);
        let width = longest.next_power_of_two().max(MIN_WIDTH).min(self.longest);
        // Somewhat too wide is cheaper than to copy all of them again.
        if width > self.width || 2 * width < self.width {
            self.width = width;
            self.forget_lanes();
        }
        let mut fills = Vec::new();
        for (lane, (slot, Reading { number, len })) in slots.into_iter().zip(readings).enumerate() {
            if self.lanes[lane].replace(number) != Some(number) {
                fills.push(Fill { lane, slot, len });
            }
        }
        Ok(fills)
    }

    /// Forgets which sources the lanes hold, because a copy failed.
    pub fn forget_lanes(&mut self) {
        self.lanes.fill(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use completion::text::TokenId;

    fn readings() -> Readings {
        let limits = SourceLimits { slots: 4, tokens: 48, slot_bytes: 1 };
        Readings::new(&SourceShape { layers: 1, heads: 1, head_dim: 1, element_bytes: 2, lanes: 3, limits })
    }

    fn batch(slots: &[usize]) -> Batch {
        let mut batch = Batch::default();
        slots.iter().for_each(|&slot| batch.push_row_of(Some(SourceSlot(slot)), 0, [TokenId(0)]));
        batch
    }

    fn read(readings: &mut Readings, slot: usize, len: usize) {
        readings.begin(SourceSlot(slot));
        readings.finish(SourceSlot(slot), len);
    }

    fn fills(readings: &mut Readings, slots: &[usize]) -> Vec<(usize, usize, usize)> {
        readings.fill(&batch(slots)).unwrap().into_iter().map(|fill| (fill.lane, fill.slot, fill.len)).collect()
    }

    #[test]
    fn a_lane_is_filled_when_its_source_changes_and_no_oftener() {
        let mut readings = readings();
        read(&mut readings, 0, 5);
        read(&mut readings, 1, 7);
        assert_eq!(fills(&mut readings, &[0, 1]), [(0, 0, 5), (1, 1, 7)]);
        assert_eq!(fills(&mut readings, &[0, 1]), []);
        assert_eq!(fills(&mut readings, &[1, 1, 0]), [(0, 1, 7), (2, 0, 5)]);
        read(&mut readings, 1, 6);
        assert_eq!(fills(&mut readings, &[1, 1]), [(0, 1, 6), (1, 1, 6)], "the same slot, another source");
        readings.forget_lanes();
        assert_eq!(fills(&mut readings, &[1]), [(0, 1, 6)]);
    }

    #[test]
    fn lanes_are_as_wide_as_what_they_hold_asks_for() {
        let mut readings = readings();
        let mut width = |len: usize| {
            read(&mut readings, 0, len);
            let filled = fills(&mut readings, &[0]).len();
            assert_eq!((filled, readings.len(SourceSlot(0))), (1, len));
            readings.width()
        };
        assert_eq!([3, 16, 17, 9, 33, 48, 20, 2].map(&mut width), [16, 16, 32, 32, 48, 48, 48, 16]);
        let limits = SourceLimits { slots: 0, tokens: 48, slot_bytes: 1 };
        let shape = SourceShape { layers: 1, heads: 1, head_dim: 1, element_bytes: 2, lanes: 3, limits };
        assert_eq!(shape.widths(), [16, 32, 48], "no other widths");
        assert_eq!(SourceShape { limits: SourceLimits { tokens: 9, ..limits }, ..shape }.widths(), [9]);
        read(&mut readings, 1, 40);
        assert_eq!(fills(&mut readings, &[0, 1]), [(0, 0, 2), (1, 1, 40)], "both, for the width has changed");
    }

    #[test]
    fn a_slot_without_a_source_is_refused() {
        let mut readings = readings();
        read(&mut readings, 0, 5);
        readings.begin(SourceSlot(0));
        for slot in [0, 2] {
            let error = readings.fill(&batch(&[slot])).unwrap_err().to_string();
            assert!(error.contains("nothing was read into the source slot"), "{error}");
        }
    }
}
