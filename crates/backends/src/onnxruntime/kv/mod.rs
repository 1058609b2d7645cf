//! The KV caches of the lanes and the pool of KV pages, in host memory.
//!
//! - `lanes`: contiguous memory for each lane, for graphs of ONNX's own operators. Loading and storing a page copies
//!   keys and values.
//! - `places`: slots of one position each and a table from positions to slots, for foretype's own attention. Loading
//!   and storing a page only changes reference counts. Rows with a common prefix read the same memory.

mod lanes;
mod places;

use self::lanes::Lanes;
pub use self::places::PLACE_BYTES;
use self::places::Places;
use super::raw::{Element, Memory, NoMemory};
use scheduler::backend::{BackendError, Batch, KvCopy};

/// The graph's input that says where positions are, i64 `[rows, context]`; its caches are `[places, heads, head_dim]`
/// then.
pub const TABLE: &str = "kv_places";

/// The extents of the caches.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// KV heads of a layer.
    pub heads: usize,
    /// Positions of a lane.
    pub context: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of lanes.
    pub lanes: usize,
    /// Number of pages.
    pub pages: usize,
}

impl KvShape {
    /// Key and value tensors, one pair a layer.
    pub fn tensors(&self) -> usize {
        2 * self.layers
    }

    /// Elements of one position in one tensor.
    pub fn position_elements(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of one position: all layers, keys and values.
    pub fn page_elements(&self) -> usize {
        self.tensors() * self.position_elements()
    }
}

/// Lanes and pages of one element type.
pub struct Kv<T: Element> {
    shape: KvShape,
    layout: Layout<T>,
}

enum Layout<T: Element> {
    Lanes(Lanes<T>),
    Places(Places<T>),
}

impl<T: Element> Kv<T> {
    /// Zeroed caches; `by_places` where the graph has a table.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(shape: KvShape, by_places: bool) -> Result<Self, NoMemory> {
        let layout = if by_places { Layout::Places(Places::new(shape)?) } else { Layout::Lanes(Lanes::new(shape)?) };
        Ok(Self { shape, layout })
    }

    /// One per layer and keys/values, in the order k0, v0, k1, v1, ...
    pub fn tensors(&self) -> &[Memory<T>] {
        match &self.layout {
            Layout::Lanes(lanes) => &lanes.tensors,
            Layout::Places(places) => &places.tensors,
        }
    }

    /// The dimensions of each of these tensors in a forward of `rows` rows.
    pub fn dims(&self, rows: usize) -> Vec<i64> {
        let KvShape { heads, context, head_dim, .. } = self.shape;
        let dims = match &self.layout {
            Layout::Lanes(_) => vec![rows, heads, context, head_dim],
            Layout::Places(places) => vec![places.count(), heads, head_dim],
        };
        dims.into_iter().map(|size| size as i64).collect()
    }

    /// `[lanes, context]`: what to give to the graph as [`TABLE`].
    pub fn table(&self) -> Option<&Memory<i64>> {
        match &self.layout {
            Layout::Lanes(_) => None,
            Layout::Places(places) => Some(places.table()),
        }
    }

    /// Makes room for what a forward will write.
    pub fn prepare(&mut self, batch: &Batch) {
        if let Layout::Places(places) = &mut self.layout {
            let longest = batch.longest();
            for (lane, row) in batch.rows.iter().enumerate() {
                places.own(lane, row.past_len..row.past_len + longest);
            }
        }
    }

    /// Does the copies in order, if all of them name what there is.
    pub fn copy(&mut self, copies: &[KvCopy]) -> Result<(), BackendError> {
        for copy in copies {
            let (lane, position, page) = copy.endpoints();
            if lane.0 >= self.shape.lanes || position >= self.shape.context || page.0 >= self.shape.pages {
                return Err(BackendError::Contract(format!("{copy:?} names something that does not exist")));
            }
        }
        match &mut self.layout {
            Layout::Lanes(lanes) => lanes.copy(copies),
            Layout::Places(places) => places.copy(copies),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use scheduler::backend::{Lane, Page};

    use super::*;

    #[test]
    fn copies_of_what_does_not_exist_are_refused() {
        let shape = KvShape { layers: 2, heads: 3, context: 5, head_dim: 4, lanes: 2, pages: 3 };
        for by_places in [false, true] {
            let mut kv = Kv::<f32>::new(shape, by_places).unwrap();
            for copy in [
                KvCopy::Load { page: Page(3), lane: Lane(0), position: 0 },
                KvCopy::Load { page: Page(0), lane: Lane(2), position: 0 },
                KvCopy::Store { lane: Lane(0), position: 5, page: Page(0) },
            ] {
                kv.copy(&[copy]).unwrap_err();
            }
        }
    }
}
