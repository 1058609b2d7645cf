//! Nodes in the order of their last use.

use super::NodeId;

const NONE: u32 = u32::MAX;

/// The neighbours of a node in the order: indices of nodes, or [`NONE`].
#[derive(Clone, Copy, Debug)]
struct Links {
    newer: u32,
    older: u32,
    is_listed: bool,
}

const UNLISTED: Links = Links { newer: NONE, older: NONE, is_listed: false };

/// Some of the nodes, least recently used first. Every operation takes constant time.
#[derive(Debug)]
pub struct Recency {
    /// By index of the node.
    links: Vec<Links>,
    newest: u32,
    oldest: u32,
}

impl Default for Recency {
    fn default() -> Self {
        Self { links: Vec::new(), newest: NONE, oldest: NONE }
    }
}

fn id(index: u32) -> Option<NodeId> {
    (index != NONE).then_some(NodeId(index))
}

impl Recency {
    /// Bytes that a node takes.
    pub const NODE_BYTES: usize = size_of::<Links>();

    /// The least recently used node.
    pub fn oldest(&self) -> Option<NodeId> {
        id(self.oldest)
    }

    /// The node that was used next after a listed one.
    pub fn newer(&self, node: NodeId) -> Option<NodeId> {
        id(self.links[node.0 as usize].newer)
    }

    /// Marks a node as used just now; lists it if it isn't listed.
    pub fn touch(&mut self, node: NodeId) {
        self.remove(node);
        let index = node.0 as usize;
        if self.links.len() <= index {
            self.links.resize(index + 1, UNLISTED);
        }
        let older = std::mem::replace(&mut self.newest, node.0);
        self.links[index] = Links { newer: NONE, older, is_listed: true };
        match id(older) {
            Some(older) => self.links[older.0 as usize].newer = node.0,
            None => self.oldest = node.0,
        }
    }

    /// As [`Recency::touch`], for a node that is listed; nothing otherwise.
    pub fn touch_listed(&mut self, node: NodeId) {
        if self.links.get(node.0 as usize).is_some_and(|links| links.is_listed) {
            self.touch(node);
        }
    }

    /// Removes a node, if it is listed.
    pub fn remove(&mut self, node: NodeId) {
        let Some(links) = self.links.get_mut(node.0 as usize).filter(|links| links.is_listed) else { return };
        let Links { newer, older, .. } = std::mem::replace(links, UNLISTED);
        match id(newer) {
            Some(newer) => self.links[newer.0 as usize].older = older,
            None => self.newest = older,
        }
        match id(older) {
            Some(older) => self.links[older.0 as usize].newer = newer,
            None => self.oldest = newer,
        }
    }

    /// The listed nodes, least recently used first.
    #[cfg(test)]
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        std::iter::successors(self.oldest(), |&node| self.newer(node))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_order_is_that_of_a_plain_list() {
        let mut rng = StdRng::seed_from_u64(3);
        let (mut recency, mut plain) = (Recency::default(), Vec::<NodeId>::new());
        for _ in 0..20_000 {
            let node = NodeId(rng.random_range(0..12));
            let was_listed = plain.contains(&node);
            plain.retain(|&other| other != node);
            match rng.random_range(0..3) {
                0 => recency.remove(node),
                1 => {
                    recency.touch(node);
                    plain.push(node);
                }
                _ => {
                    recency.touch_listed(node);
                    plain.extend(was_listed.then_some(node));
                }
            }
            assert_eq!(recency.nodes().collect::<Vec<_>>(), plain);
            assert_eq!(recency.oldest(), plain.first().copied());
        }
    }
}
