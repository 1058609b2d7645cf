//! Reference-counted slots ("places") for the keys and values of single positions.
//!
//! A place holds the keys and values of one position, of all layers. Lanes and pages refer to places. Loading a page
//! into a lane, and storing a position as a page, copy a reference. Before a forward writes to a place with other
//! references, its lane gets another place, so shared contents never change. There are as many places as lanes times
//! positions plus pages, so a free place always exists.

use super::KvShape;
use crate::onnxruntime::raw::{Element, Memory, NoMemory};
use scheduler::backend::{KvCopy, Lane};

/// Index of a place.
type Place = u32;

/// Bytes that a place costs beside its keys and values, at most: its entry in the table or as a page, its count, and
/// its entry among the free ones.
pub const PLACE_BYTES: usize = size_of::<i64>() + size_of::<u32>() + size_of::<Place>();

/// Places, and the lanes and pages that refer to them.
pub struct Places<T: Element> {
    /// One per layer and keys/values, in the order k0, v0, k1, v1, ...: `[places, heads, head_dim]`.
    pub tensors: Vec<Memory<T>>,
    references: References,
}

impl<T: Element> Places<T> {
    /// Places for this shape, zeroed.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(shape: KvShape) -> Result<Self, NoMemory> {
        let references = References::new(shape)?;
        let elements = references.counts.len().saturating_mul(shape.position_elements());
        let tensors = (0..shape.tensors()).map(|_| Memory::zeroed(elements)).collect::<Result<_, _>>()?;
        Ok(Self { tensors, references })
    }

    /// Number of places.
    pub fn count(&self) -> usize {
        self.references.counts.len()
    }

    /// `[lanes, context]`: the place of each position of each lane.
    pub fn table(&self) -> &Memory<i64> {
        &self.references.lanes
    }

    /// Sees to it that these positions of a lane are in places that nobody else refers to. What they held is lost.
    pub fn own(&mut self, lane: usize, positions: std::ops::Range<usize>) {
        self.references.own(lane, positions);
    }

    /// Does the copies, which name what there is, in order.
    pub fn copy(&mut self, copies: &[KvCopy]) {
        copies.iter().for_each(|copy| self.references.copy(copy));
    }
}

struct References {
    context: usize,
    /// `[lanes, context]`
    lanes: Memory<i64>,
    /// `[pages]`: pages that nothing was stored in refer to none.
    pages: Vec<Option<Place>>,
    /// `[places]`: how many lanes' positions and pages refer to each.
    counts: Vec<u32>,
    /// Those that nobody refers to. The one that was left last is taken first: the caches may still hold it.
    free: Vec<Place>,
}

impl References {
    fn new(shape: KvShape) -> Result<Self, NoMemory> {
        let own = shape.lanes.saturating_mul(shape.context);
        let count = own.saturating_add(shape.pages);
        let last = Place::try_from(count).map_err(|_| NoMemory { elements: count, element_bytes: PLACE_BYTES })?;
        let mut lanes = Memory::zeroed(own)?;
        lanes.as_mut_slice().iter_mut().zip(0..).for_each(|(entry, place)| *entry = place);
        let mut counts = filled(count, 0)?;
        counts[..own].fill(1);
        let mut free = filled(count - own, 0)?;
        free.iter_mut().zip((own as Place..last).rev()).for_each(|(entry, place)| *entry = place);
        // Any place may be free one day.
        free.try_reserve_exact(own).map_err(|_| NoMemory { elements: count, element_bytes: size_of::<Place>() })?;
        Ok(Self { context: shape.context, lanes, pages: filled(shape.pages, None)?, counts, free })
    }

    /// The place of a lane's position.
    fn place(&self, Lane(lane): Lane, position: usize) -> Place {
        self.lanes.as_slice()[lane * self.context + position] as Place
    }

    fn release(&mut self, place: Place) {
        let count = &mut self.counts[place as usize];
        *count -= 1;
        if *count == 0 {
            self.free.push(place);
        }
    }

    fn copy(&mut self, copy: &KvCopy) {
        let (lane, position, page) = copy.endpoints();
        let held = self.place(lane, position);
        let (new, old) = match copy {
            // A page that nothing was stored in holds nothing, and so may the position.
            KvCopy::Load { .. } => (self.pages[page.0].unwrap_or(held), Some(held)),
            KvCopy::Store { .. } => (held, self.pages[page.0]),
        };
        // First: the old place may be the new one, too.
        self.counts[new as usize] += 1;
        if let Some(old) = old {
            self.release(old);
        }
        match copy {
            KvCopy::Load { .. } => self.lanes.as_mut_slice()[lane.0 * self.context + position] = i64::from(new),
            KvCopy::Store { .. } => self.pages[page.0] = Some(new),
        }
    }

    fn own(&mut self, lane: usize, positions: std::ops::Range<usize>) {
        for entry in &mut self.lanes.as_mut_slice()[lane * self.context..][positions] {
            let count = &mut self.counts[*entry as usize];
            if *count > 1
                && let Some(place) = self.free.pop()
            {
                *count -= 1;
                self.counts[place as usize] = 1;
                *entry = i64::from(place);
            }
        }
    }
}

/// As `vec![value; len]`, with an error where that would end the process.
fn filled<T: Copy>(len: usize, value: T) -> Result<Vec<T>, NoMemory> {
    let mut elements = Vec::new();
    let none = |_| NoMemory { elements: len, element_bytes: size_of::<T>() };
    elements.try_reserve_exact(len).map_err(none)?;
    elements.resize(len, value);
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use scheduler::backend::Page;

    const SHAPE: KvShape = KvShape { layers: 1, heads: 1, context: 5, head_dim: 1, lanes: 3, pages: 7 };

    #[derive(Clone, Debug)]
    enum Action {
        /// A forward writes these positions of a lane.
        Write(usize, std::ops::Range<usize>),
        Copy(KvCopy),
    }

    fn action() -> impl Strategy<Value = Action> {
        let copy = (any::<bool>(), 0..SHAPE.lanes, 0..SHAPE.context, 0..SHAPE.pages);
        let copy = copy.prop_map(|(load, lane, position, page)| {
            let (lane, page) = (Lane(lane), Page(page));
            Action::Copy(if load {
                KvCopy::Load { page, lane, position }
            } else {
                KvCopy::Store { lane, position, page }
            })
        });
        let write = (0..SHAPE.lanes, 0..SHAPE.context, 1..4_usize)
            .prop_map(|(lane, from, len)| Action::Write(lane, from..(from + len).min(SHAPE.context)));
        prop_oneof![2 => copy, 1 => write]
    }

    /// The contents of a lane's position.
    fn held(places: &Places<f32>, lane: usize, position: usize) -> f32 {
        places.tensors[0].as_slice()[places.references.place(Lane(lane), position) as usize]
    }

    proptest! {
        /// Against lanes and pages that are copied.
        #[test]
        fn references_are_as_good_as_copies(actions in prop::collection::vec(action(), 1..120)) {
            let mut places = Places::<f32>::new(SHAPE).unwrap();
            let mut lanes = [[0.0; SHAPE.context]; SHAPE.lanes];
            let mut pages: [Option<f32>; SHAPE.pages] = [None; SHAPE.pages];
            for (number, action) in (1_u16..).zip(actions) {
                match action {
                    Action::Write(lane, positions) => {
                        places.own(lane, positions.clone());
                        for position in positions {
                            let place = places.references.place(Lane(lane), position);
                            places.tensors[0].as_mut_slice()[place as usize] = number.into();
                            lanes[lane][position] = number.into();
                        }
                    }
                    Action::Copy(copy) => {
                        places.copy(&[copy]);
                        match copy {
                            KvCopy::Load { page, lane, position } => {
                                // What nobody stored is nothing to compare.
                                lanes[lane.0][position] = pages[page.0].unwrap_or(held(&places, lane.0, position));
                            }
                            KvCopy::Store { lane, position, page } => pages[page.0] = Some(lanes[lane.0][position]),
                        }
                    }
                }
                for (lane, position) in (0..SHAPE.lanes).flat_map(|l| (0..SHAPE.context).map(move |p| (l, p))) {
                    prop_assert_eq!(held(&places, lane, position), lanes[lane][position], "{} {}", lane, position);
                }
                let References { lanes, pages, counts, free, .. } = &places.references;
                let mut counted = vec![0; counts.len()];
                let in_lanes = lanes.as_slice().iter().map(|place| *place as Place);
                let referred = in_lanes.chain(pages.iter().flatten().copied());
                referred.for_each(|place| counted[place as usize] += 1);
                prop_assert_eq!(counts, &counted);
                prop_assert_eq!(free.len(), counted.iter().filter(|count| **count == 0).count());
                prop_assert!(free.iter().all(|place| counted[*place as usize] == 0));
            }
        }
    }

    #[test]
    fn a_page_is_read_where_it_is() {
        let mut places = Places::<f32>::new(SHAPE).unwrap();
        let load = |lane| KvCopy::Load { page: Page(6), lane: Lane(lane), position: 0 };
        places.copy(&[KvCopy::Store { lane: Lane(0), position: 0, page: Page(6) }, load(1), load(2)]);
        let table: Vec<i64> = places.table().as_slice().iter().step_by(SHAPE.context).copied().collect();
        assert_eq!(table, [0, 0, 0]);
        places.own(1, 0..2);
        let place = |lane| places.references.place(Lane(lane), 0);
        assert!(place(1) != place(0) && place(2) == place(0), "only the writer has another place");
        assert_eq!(places.references.place(Lane(1), 1), 6, "and only where the place was shared");
    }
}
