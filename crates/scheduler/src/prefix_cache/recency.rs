//! Finds the least recently used of some nodes.
//!
//! A use only writes the node's clock: a keystroke uses hundreds of nodes, and few are ever evicted. So the clocks in
//! these queues may lag behind. A node that comes first with a clock that has moved on goes back with its new one. A
//! node that is of the other class by now is in that class's queue, too, and leaves the queue in which it comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::NodeId;
use crate::client::Class;

/// The last use of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// When it was.
    pub clock: u64,
    /// The class of the node.
    pub class: Class,
}

/// The nodes that have something to evict, and how much of it each class has.
#[derive(Debug, Default)]
pub struct Recency {
    interactive: Queue,
    bulk: Queue,
}

/// The nodes of one class, each once.
#[derive(Debug, Default)]
struct Queue {
    nodes: BinaryHeap<Reverse<(u64, NodeId)>>,
    /// By index of the node: whether it is in the queue.
    is_queued: Vec<bool>,
    /// How much its nodes have.
    size: usize,
}

impl Recency {
    /// Bytes that a node takes.
    pub const NODE_BYTES: usize = size_of::<(u64, NodeId)>() + 2;

    /// Adds a node that was last used so.
    pub fn add(&mut self, node: NodeId, used: Use) {
        self.queue(used.class).add(node, used.clock);
    }

    /// Nodes of a class have so much more.
    pub fn give(&mut self, class: Class, size: usize) {
        self.queue(class).size += size;
    }

    /// Nodes of a class have so much less.
    pub fn take(&mut self, class: Class, size: usize) {
        self.queue(class).size -= size;
    }

    /// How much all nodes have.
    pub fn size(&self) -> usize {
        self.interactive.size + self.bulk.size
    }

    /// Takes the least recently used node out: of the bulk ones while they have half or more, otherwise of all.
    /// `last` tells how a node was last used; `None` if the node has nothing to evict any more.
    pub fn pop(&mut self, last: impl Fn(NodeId) -> Option<Use>) -> Option<NodeId> {
        let of = |class| {
            let last = &last;
            move |node| last(node).filter(|used| used.class == class).map(|used| used.clock)
        };
        let bulk = self.bulk.pop(of(Class::Bulk));
        if bulk.is_some() && self.bulk.size >= self.interactive.size {
            return bulk.map(|(_, node)| node);
        }
        let interactive = self.interactive.pop(of(Class::Interactive));
        let (oldest, newer) = if interactive.is_some_and(|one| bulk.is_none_or(|other| one < other)) {
            (interactive, bulk.map(|newer| (Class::Bulk, newer)))
        } else {
            (bulk, interactive.map(|newer| (Class::Interactive, newer)))
        };
        if let Some((class, (clock, node))) = newer {
            self.queue(class).add(node, clock);
        }
        oldest.map(|(_, node)| node)
    }

    /// Whether a node of a class is in its queue.
    #[cfg(test)]
    pub fn has(&self, node: NodeId, class: Class) -> bool {
        let queue = if class == Class::Bulk { &self.bulk } else { &self.interactive };
        queue.is_queued.get(node.0 as usize).is_some_and(|&queued| queued)
    }

    /// How much the nodes of a class have.
    #[cfg(test)]
    pub fn size_of(&self, class: Class) -> usize {
        if class == Class::Bulk { self.bulk.size } else { self.interactive.size }
    }

    fn queue(&mut self, class: Class) -> &mut Queue {
        match class {
            Class::Interactive => &mut self.interactive,
            Class::Bulk => &mut self.bulk,
        }
    }
}

impl Queue {
    fn add(&mut self, node: NodeId, clock: u64) {
        let index = node.0 as usize;
        if self.is_queued.len() <= index {
            self.is_queued.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_queued[index], true) {
            self.nodes.push(Reverse((clock, node)));
        }
    }

    /// Takes the least recently used node out, with its clock. `clock` is `None` for a node that is no longer of this
    /// queue.
    fn pop(&mut self, clock: impl Fn(NodeId) -> Option<u64>) -> Option<(u64, NodeId)> {
        while let Some(Reverse((queued, node))) = self.nodes.pop() {
            match clock(node) {
                Some(used) if used > queued => self.nodes.push(Reverse((used, node))),
                used => {
                    self.is_queued[node.0 as usize] = false;
                    if let Some(used) = used {
                        return Some((used, node));
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_order_is_that_of_the_last_uses_but_bulk_nodes_that_have_half_go_first() {
        let mut rng = StdRng::seed_from_u64(3);
        let (mut recency, mut uses) = (Recency::default(), [None::<Use>; 12]);
        let mut bulk_first = 0;
        for clock in 1..20_000 {
            let node = rng.random_range(0..uses.len());
            match rng.random_range(0..4) {
                0 => {
                    if let Some(old) = uses[node].take() {
                        recency.take(old.class, 1);
                    }
                }
                1 => {
                    // Once interactive, a node stays it.
                    let class = if rng.random_bool(0.6) { Class::Bulk } else { Class::Interactive };
                    let class = uses[node].map_or(class, |old| old.class.min(class));
                    if let Some(old) = uses[node].replace(Use { clock, class }) {
                        recency.take(old.class, 1);
                    }
                    recency.give(class, 1);
                    recency.add(NodeId(node as u32), Use { clock, class });
                }
                2 => uses[node] = uses[node].map(|used| Use { clock, ..used }),
                _ => {
                    let has = |class| uses.iter().flatten().filter(|used| used.class == class).count();
                    let only_bulk = has(Class::Bulk) >= has(Class::Interactive).max(1);
                    bulk_first += usize::from(only_bulk && has(Class::Interactive) > 0);
                    let mine = |used: &Use| !only_bulk || used.class == Class::Bulk;
                    let nodes = (0..uses.len()).filter(|&node| uses[node].as_ref().is_some_and(mine));
                    let expected = nodes.min_by_key(|&node| uses[node].map(|used| used.clock));
                    let popped = recency.pop(|node| uses[node.0 as usize]).map(|node| node.0 as usize);
                    assert_eq!(popped, expected);
                    if let Some(old) = popped.and_then(|node| uses[node].take()) {
                        recency.take(old.class, 1);
                    }
                }
            }
        }
        assert!(bulk_first > 100, "{bulk_first}");
    }
}
