//! Finds the least recently used of some nodes.
//!
//! A use only writes the node's clock: a keystroke uses hundreds of nodes, and few are ever evicted. So the clocks in
//! this queue may lag behind. A node that comes first with a clock that has moved on goes back with its new one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::NodeId;

/// The nodes that have something to evict, each once.
#[derive(Debug, Default)]
pub struct Recency {
    queue: BinaryHeap<Reverse<(u64, NodeId)>>,
    /// By index of the node: whether it is in the queue.
    is_queued: Vec<bool>,
}

impl Recency {
    /// Bytes that a node takes.
    pub const NODE_BYTES: usize = size_of::<(u64, NodeId)>() + 1;

    /// Adds a node that was used at `clock`.
    pub fn add(&mut self, node: NodeId, clock: u64) {
        let index = node.0 as usize;
        if self.is_queued.len() <= index {
            self.is_queued.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_queued[index], true) {
            self.queue.push(Reverse((clock, node)));
        }
    }

    /// Takes the least recently used node out. `clock` tells when a node was used last; `None` if the node has nothing
    /// to evict any more.
    pub fn pop(&mut self, clock: impl Fn(NodeId) -> Option<u64>) -> Option<NodeId> {
        while let Some(Reverse((queued, node))) = self.queue.pop() {
            match clock(node) {
                Some(used) if used > queued => self.queue.push(Reverse((used, node))),
                used => {
                    self.is_queued[node.0 as usize] = false;
                    if used.is_some() {
                        return Some(node);
                    }
                }
            }
        }
        None
    }

    /// Whether a node is in the queue.
    #[cfg(test)]
    pub fn has(&self, node: NodeId) -> bool {
        self.is_queued.get(node.0 as usize).is_some_and(|&queued| queued)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_order_is_that_of_the_last_uses() {
        let mut rng = StdRng::seed_from_u64(3);
        let (mut recency, mut clocks) = (Recency::default(), [None; 12]);
        for now in 1..20_000 {
            let node = rng.random_range(0..clocks.len());
            match rng.random_range(0..4) {
                0 => clocks[node] = None,
                1 => {
                    clocks[node] = Some(now);
                    recency.add(NodeId(node as u32), now);
                }
                2 => clocks[node] = clocks[node].map(|_| now),
                _ => {
                    let expected = (0..clocks.len()).filter(|&node| clocks[node].is_some()).min_by_key(|&n| clocks[n]);
                    let popped = recency.pop(|node| clocks[node.0 as usize]).map(|node| node.0 as usize);
                    assert_eq!(popped, expected);
                    popped.into_iter().for_each(|node| clocks[node] = None);
                }
            }
        }
    }
}
