//! One KV cache for each lane and a pool of pages, with copies between them, for graphs of ONNX's own operators.

use super::KvShape;
use crate::onnxruntime::raw::{Element, Memory, NoMemory};
use scheduler::backend::KvCopy;

/// Lanes and pages of one element type.
pub struct Lanes<T: Element> {
    shape: KvShape,
    /// One per layer and keys/values, in the order k0, v0, k1, v1, ...: `[lanes, heads, context, head_dim]`.
    /// A prefix of the lanes is a prefix of the memory, so a forward of fewer rows needs no copy.
    pub tensors: Vec<Memory<T>>,
    /// `[pages, 2 * layers, heads, head_dim]`
    pages: Memory<T>,
}

impl<T: Element> Lanes<T> {
    /// KV caches and pages of this shape, zeroed.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(shape: KvShape) -> Result<Self, NoMemory> {
        let lane = shape.heads * shape.context * shape.head_dim;
        let tensor = |_| Memory::zeroed(shape.lanes.saturating_mul(lane));
        let tensors = (0..shape.tensors()).map(tensor).collect::<Result<_, _>>()?;
        Ok(Self { shape, tensors, pages: Memory::zeroed(shape.pages.saturating_mul(shape.page_elements()))? })
    }

    /// Does the copies, which name what there is, in order.
    pub fn copy(&mut self, copies: &[KvCopy]) {
        copies.chunk_by(go_together).for_each(|run| self.copy_run(run));
    }

    /// Copies between one lane and some pages, head by head: the positions of a head are neighbours in a lane, and the
    /// heads of a position in a page.
    fn copy_run(&mut self, run: &[KvCopy]) {
        let KvShape { heads, context, head_dim, .. } = self.shape;
        let pages = self.pages.as_mut_slice();
        for (index, tensor) in self.tensors.iter_mut().enumerate() {
            let cache = tensor.as_mut_slice();
            for head in 0..heads {
                for copy in run {
                    let (lane, position, page) = copy.endpoints();
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

/// Whether two copies may be done element by element in turns: they go the same way, in the same lane.
fn go_together(a: &KvCopy, b: &KvCopy) -> bool {
    let same_way =
        matches!((a, b), (KvCopy::Load { .. }, KvCopy::Load { .. }) | (KvCopy::Store { .. }, KvCopy::Store { .. }));
    same_way && a.endpoints().0 == b.endpoints().0
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::backend::{Lane, Page};

    #[test]
    fn a_page_holds_one_position_of_every_layer_and_head() {
        let shape = KvShape { layers: 2, heads: 3, context: 5, head_dim: 4, lanes: 2, pages: 3 };
        let mut kv = Lanes::<f32>::new(shape).unwrap();
        for (t, tensor) in kv.tensors.iter_mut().enumerate() {
            for (i, x) in tensor.as_mut_slice().iter_mut().enumerate() {
                *x = (t * 1000 + i) as f32;
            }
        }
        let value = |kv: &Lanes<f32>, t: usize, lane: usize, head: usize, position: usize, d: usize| {
            kv.tensors[t].as_slice()[((lane * 3 + head) * 5 + position) * 4 + d]
        };
        let before: Vec<f32> = kv.tensors[0].as_slice().to_vec();
        kv.copy(&[
            KvCopy::Store { lane: Lane(1), position: 2, page: Page(2) },
            KvCopy::Load { page: Page(2), lane: Lane(0), position: 4 },
        ]);
        for t in 0..4 {
            for head in 0..3 {
                for d in 0..4 {
                    assert_eq!(value(&kv, t, 0, head, 4, d), value(&kv, t, 1, head, 2, d));
                }
            }
        }
        let changed = before.iter().zip(kv.tensors[0].as_slice()).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 3 * 4, "only position 4 of lane 0");
    }
}
