//! The KV caches of the lanes and the pool of KV pages, in host memory, and the copies between them.

use super::raw::{Element, Memory};
use crate::model::{BackendError, KvCopy, Lane, Page};

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

    /// Elements of one position: all layers, keys and values.
    pub fn page_elements(&self) -> usize {
        self.tensors() * self.heads * self.head_dim
    }
}

/// Lanes and pages of one element type.
pub struct KvCache<T: Element> {
    shape: KvShape,
    /// One per layer and keys/values, in the order k0, v0, k1, v1, ...: `[lanes, heads, context, head_dim]`.
    /// A prefix of the lanes is a prefix of the memory, so a forward of fewer rows needs no copy.
    pub tensors: Vec<Memory<T>>,
    /// `[pages, 2 * layers, heads, head_dim]`
    pages: Memory<T>,
}

impl<T: Element> KvCache<T> {
    /// Zeroed caches.
    pub fn new(shape: KvShape) -> Self {
        let lane = shape.heads * shape.context * shape.head_dim;
        let tensors = (0..shape.tensors()).map(|_| Memory::zeroed(shape.lanes * lane)).collect();
        Self { shape, tensors, pages: Memory::zeroed(shape.pages * shape.page_elements()) }
    }

    /// Does the copies in order.
    pub fn copy(&mut self, copies: &[KvCopy]) -> Result<(), BackendError> {
        for copy in copies {
            let (lane, position, page) = place(copy);
            if lane.0 >= self.shape.lanes || position >= self.shape.context || page.0 >= self.shape.pages {
                return Err(BackendError::Contract(format!("{copy:?} names something that does not exist")));
            }
        }
        copies.chunk_by(go_together).for_each(|run| self.copy_run(run));
        Ok(())
    }

    /// Copies between one lane and some pages, head by head: the positions of a head are neighbours in a lane, and the heads of a
    /// position in a page.
    fn copy_run(&mut self, run: &[KvCopy]) {
        let KvShape { heads, context, head_dim, .. } = self.shape;
        let pages = self.pages.as_mut_slice();
        for (index, tensor) in self.tensors.iter_mut().enumerate() {
            let cache = tensor.as_mut_slice();
            for head in 0..heads {
                for copy in run {
                    let (lane, position, page) = place(copy);
                    let at_page = page.0 * self.shape.page_elements() + (index * heads + head) * head_dim;
                    let at_lane = ((lane.0 * heads + head) * context + position) * head_dim;
                    let paged = &mut pages[at_page..at_page + head_dim];
                    let cached = &mut cache[at_lane..at_lane + head_dim];
                    match copy {
                        KvCopy::Load { .. } => cached.copy_from_slice(paged),
                        KvCopy::Store { .. } => paged.copy_from_slice(cached),
                    }
                }
            }
        }
    }
}

fn place(copy: &KvCopy) -> (Lane, usize, Page) {
    match *copy {
        KvCopy::Load { page, lane, position } | KvCopy::Store { lane, position, page } => (lane, position, page),
    }
}

/// Whether two copies may be done element by element in turns: they go the same way, in the same lane.
fn go_together(a: &KvCopy, b: &KvCopy) -> bool {
    let same_way =
        matches!((a, b), (KvCopy::Load { .. }, KvCopy::Load { .. }) | (KvCopy::Store { .. }, KvCopy::Store { .. }));
    same_way && place(a).0 == place(b).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_one_position_of_every_layer_and_head() {
        let shape = KvShape { layers: 2, heads: 3, context: 5, head_dim: 4, lanes: 2, pages: 3 };
        let mut kv = KvCache::<f32>::new(shape);
        for (t, tensor) in kv.tensors.iter_mut().enumerate() {
            for (i, x) in tensor.as_mut_slice().iter_mut().enumerate() {
                *x = (t * 1000 + i) as f32;
            }
        }
        let value = |kv: &KvCache<f32>, t: usize, lane: usize, head: usize, position: usize, d: usize| {
            kv.tensors[t].as_slice()[((lane * 3 + head) * 5 + position) * 4 + d]
        };
        let before: Vec<f32> = kv.tensors[0].as_slice().to_vec();
        kv.copy(&[
            KvCopy::Store { lane: Lane(1), position: 2, page: Page(2) },
            KvCopy::Load { page: Page(2), lane: Lane(0), position: 4 },
        ])
        .unwrap();
        for t in 0..4 {
            for head in 0..3 {
                for d in 0..4 {
                    assert_eq!(value(&kv, t, 0, head, 4, d), value(&kv, t, 1, head, 2, d));
                }
            }
        }
        let changed = before.iter().zip(kv.tensors[0].as_slice()).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 3 * 4, "only position 4 of lane 0");
        for copy in [
            KvCopy::Load { page: Page(3), lane: Lane(0), position: 0 },
            KvCopy::Load { page: Page(0), lane: Lane(2), position: 0 },
            KvCopy::Store { lane: Lane(0), position: 5, page: Page(0) },
        ] {
            kv.copy(&[copy]).unwrap_err();
        }
    }
}
