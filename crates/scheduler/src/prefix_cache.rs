//! The prefix cache: a radix tree with one node for each computed token path, which holds its KV page and its
//! next-token distribution.
//!
//! A keystroke's search asks for paths that the previous keystroke asked for too; cached ones cost no forward. Evicted
//! contents are computed again on demand. A search holds its nodes by a reference count: a held node may lose its
//! contents, but is never removed.
//!
//! Memory is bounded: pages by their number, everything else in bytes. Each is evicted on its own, least recently used
//! first. Whole rows of the vocabulary go before the lists of best tokens: each saves one position, but a row of 49,152
//! tokens takes as much memory as the lists of a few hundred nodes. A node's ancestors are always used more recently
//! than the node itself, so a page rarely outlives the page before it.
//!
//! Bulk work uses most nodes once, and so many that everything else would soon be the least recently used. While bulk
//! work has half of what is kept, its own nodes go first.
//!
//! The prefix cache holds page numbers, not pages: the scheduler copies keys and values. Pure data structure.

mod recency;

use std::sync::Arc;

use self::recency::{Recency, Use};
use rustc_hash::{FxHashMap, FxHashSet};

use super::client::Class;
use super::sources::SourceName;
use crate::backend::Page;
use completion::text::TokenId;
use completion::{Distribution, Partition};

/// A place in the prefix cache. Valid as long as the node is held or has not been evicted; reused afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

/// Name of a node in lanes: never reused, so a stale name matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Serial(u64);

/// What a node stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Above {
    /// Nothing: it is at position 0 of a partition's paths.
    Nothing(Partition),
    /// Nothing but the source that the decoder reads, which is one partition's: it is at position 0.
    Source(SourceName),
    /// The node of the position before.
    Node(NodeId),
}

impl Above {
    fn node(self) -> Option<NodeId> {
        if let Self::Node(node) = self { Some(node) } else { None }
    }
}

impl From<Option<NodeId>> for Above {
    fn from(parent: Option<NodeId>) -> Self {
        parent.map_or(Self::Nothing(Partition::default()), Self::Node)
    }
}

/// Bytes that a node takes beside its page and distribution: itself and its entry in the children's map.
const NODE_BYTES: usize = size_of::<Node>() + 48 + 3 * Recency::NODE_BYTES;

/// The share of the bytes that nodes and lists of best tokens may take before they are evicted instead of whole rows:
/// one in so many.
const LISTS_SHARE: usize = 4;

struct Node {
    serial: Serial,
    above: Above,
    token: TokenId,
    /// Tokens from position 0 to this one, inclusive.
    depth: u32,
    children: u32,
    held: u32,
    page: Option<Page>,
    next: Option<Arc<Distribution>>,
    /// When it was used last.
    clock: u64,
    /// Bulk until interactive work uses it.
    class: Class,
}

/// Counters and sizes, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCacheStats {
    /// Nodes in the prefix cache.
    pub nodes: usize,
    /// Number of pages in use.
    pub pages: usize,
    /// Bytes in use: nodes and distributions, and pages in use.
    pub bytes: usize,
    /// Nodes that gave up a page or a distribution, ever.
    pub evicted: u64,
    /// Holds that haven't ended.
    pub holds: usize,
}

/// The prefix cache. See the module's documentation.
pub struct PrefixCache {
    nodes: Vec<Node>,
    free_nodes: Vec<NodeId>,
    children: FxHashMap<(Above, TokenId), NodeId>,
    free_pages: Vec<Page>,
    pages: usize,
    page_bytes: usize,
    /// Bound on the bytes of nodes and distributions; pages have theirs by their number.
    max_bytes: usize,
    bytes: usize,
    /// The number of uses until now.
    clock: u64,
    /// The nodes that have a page or a distribution, and the bytes of distributions.
    filled: Recency,
    /// The nodes that have a page, and the number of pages.
    paged: Recency,
    /// The nodes that have a whole row, and the bytes of whole rows.
    rows: Recency,
    next_serial: u64,
    evicted: u64,
    holds: usize,
}

impl PrefixCache {
    /// An empty prefix cache over `pages` pages of `page_bytes`, with at most `max_bytes` of nodes and distributions.
    ///
    /// Nodes that are held stay, so the true bound is the larger of `max_bytes` and what the searches that run refer
    /// to, without their distributions.
    pub fn new(pages: usize, page_bytes: usize, max_bytes: usize) -> Self {
        Self {
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            children: FxHashMap::default(),
            free_pages: (0..pages).rev().map(Page).collect(),
            pages,
            page_bytes,
            max_bytes,
            bytes: 0,
            clock: 0,
            filled: Recency::default(),
            paged: Recency::default(),
            rows: Recency::default(),
            next_serial: 0,
            evicted: 0,
            holds: 0,
        }
    }

    /// The node of `token` behind `above`, made if there is none, and held once more. Paths of different partitions or
    /// sources have no node in common.
    pub fn hold(&mut self, above: impl Into<Above>, token: TokenId) -> NodeId {
        self.holds += 1;
        let above = above.into();
        if let Some(&node) = self.children.get(&(above, token)) {
            self.nodes[node.0 as usize].held += 1;
            return node;
        }
        let depth = above.node().map_or(1, |parent| self.nodes[parent.0 as usize].depth + 1);
        let node = Node {
            serial: Serial(self.next_serial),
            above,
            token,
            depth,
            children: 0,
            held: 1,
            page: None,
            next: None,
            clock: self.tick(),
            class: Class::Bulk,
        };
        self.next_serial += 1;
        let id = match self.free_nodes.pop() {
            Some(id) => {
                self.nodes[id.0 as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                NodeId(self.nodes.len() as u32 - 1)
            }
        };
        if let Some(parent) = above.node() {
            self.nodes[parent.0 as usize].children += 1;
        }
        self.children.insert((above, token), id);
        self.bytes += NODE_BYTES;
        self.shrink();
        id
    }

    /// Ends one [`PrefixCache::hold`].
    pub fn release(&mut self, node: NodeId) {
        let entry = &mut self.nodes[node.0 as usize];
        debug_assert!(entry.held > 0, "released more often than held");
        entry.held -= 1;
        self.holds -= 1;
        self.remove_if_unused(node);
        self.shrink();
    }

    /// Marks a path as used just now by work of a class, from the node to position 0.
    pub fn touch(&mut self, node: NodeId, class: Class) {
        let mut next = Some(node);
        while let Some(id) = next {
            let clock = self.tick();
            let node = &mut self.nodes[id.0 as usize];
            node.clock = clock;
            next = node.above.node();
            if class < node.class {
                self.set_class(id, class);
            }
        }
    }

    fn set_class(&mut self, id: NodeId, class: Class) {
        let (page, next) = (self.take_page(id), self.set_next(id, None));
        self.nodes[id.0 as usize].class = class;
        if let Some(page) = page {
            self.put_page(id, page);
        }
        self.set_next(id, next);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The node's name in lanes.
    pub fn serial(&self, node: NodeId) -> Serial {
        self.nodes[node.0 as usize].serial
    }

    /// The node's token.
    pub fn token(&self, node: NodeId) -> TokenId {
        self.nodes[node.0 as usize].token
    }

    /// Tokens from position 0 to the node's, inclusive.
    pub fn depth(&self, node: NodeId) -> usize {
        self.nodes[node.0 as usize].depth as usize
    }

    /// The page with the node's keys and values, if it has one.
    pub fn page(&self, node: NodeId) -> Option<Page> {
        self.nodes[node.0 as usize].page
    }

    /// The distribution behind the node, if it is kept.
    pub fn next(&self, node: NodeId) -> Option<&Arc<Distribution>> {
        self.nodes[node.0 as usize].next.as_ref()
    }

    /// The nodes from position 0 to `node`, in order, into `path`.
    pub fn path(&self, node: NodeId, path: &mut Vec<NodeId>) {
        path.clear();
        let mut next = Some(node);
        while let Some(node) = next {
            path.push(node);
            next = self.nodes[node.0 as usize].above.node();
        }
        path.reverse();
    }

    /// A page for the node's keys and values: the one it has, a free one, or that of the least recently used node that
    /// is not in `keep`. `None` if there is none to be had.
    pub fn give_page(&mut self, node: NodeId, keep: &FxHashSet<NodeId>) -> Option<Page> {
        if let Some(page) = self.nodes[node.0 as usize].page {
            return Some(page);
        }
        if self.free_pages.is_empty() {
            let old = self.oldest_page(keep)?;
            self.evicted += 1;
            let page = self.take_page(old);
            self.free_pages.extend(page);
            self.remove_if_unused(old);
        }
        let page = self.free_pages.pop()?;
        self.put_page(node, page);
        Some(page)
    }

    /// Gives a page to a node that has none.
    fn put_page(&mut self, node: NodeId, page: Page) {
        let entry = &mut self.nodes[node.0 as usize];
        entry.page = Some(page);
        self.paged.give(entry.class, 1);
        self.paged.add(node, entry.used());
        self.filled.add(node, entry.used());
    }

    /// Takes a node's page away, if it has one.
    fn take_page(&mut self, node: NodeId) -> Option<Page> {
        let node = &mut self.nodes[node.0 as usize];
        let page = node.page.take()?;
        self.paged.take(node.class, 1);
        Some(page)
    }

    /// The least recently used node that has a page and is not in `keep`.
    fn oldest_page(&mut self, keep: &FxHashSet<NodeId>) -> Option<NodeId> {
        let mut kept = Vec::new();
        let oldest = loop {
            match oldest(&mut self.paged, &self.nodes, |node| node.page.is_some()) {
                Some(node) if keep.contains(&node) => kept.push(node),
                oldest => break oldest,
            }
        };
        kept.into_iter().for_each(|node| self.paged.add(node, self.nodes[node.0 as usize].used()));
        oldest
    }

    /// Keeps the distribution behind a node, in place of the one it had, unless that says more.
    pub fn give_next(&mut self, node: NodeId, next: Arc<Distribution>) {
        let kept = &self.nodes[node.0 as usize].next;
        if kept.as_ref().is_some_and(|old| old.is_full() && !next.is_full()) {
            return;
        }
        self.set_next(node, Some(next));
        self.shrink();
    }

    /// Keeps a distribution or none behind a node, and returns the one before.
    fn set_next(&mut self, node: NodeId, next: Option<Arc<Distribution>>) -> Option<Arc<Distribution>> {
        let entry = &mut self.nodes[node.0 as usize];
        if let Some(old) = &entry.next {
            self.bytes -= old.bytes();
            self.filled.take(entry.class, old.bytes());
            self.rows.take(entry.class, old.row_bytes());
        }
        if let Some(new) = &next {
            self.bytes += new.bytes();
            self.filled.give(entry.class, new.bytes());
            self.rows.give(entry.class, new.row_bytes());
            self.filled.add(node, entry.used());
            if new.is_full() {
                self.rows.add(node, entry.used());
            }
        }
        std::mem::replace(&mut entry.next, next)
    }

    /// Pages that no node has.
    pub fn free_pages(&self) -> usize {
        self.free_pages.len()
    }

    /// Counters and sizes.
    pub fn stats(&self) -> PrefixCacheStats {
        let pages = self.pages - self.free_pages.len();
        let nodes = self.nodes.len() - self.free_nodes.len();
        PrefixCacheStats {
            nodes,
            pages,
            bytes: self.bytes + pages * self.page_bytes,
            evicted: self.evicted,
            holds: self.holds,
        }
    }

    /// Brings the bytes within their bound, or empties all nodes.
    fn shrink(&mut self) {
        self.evict_rows();
        while self.bytes > self.max_bytes {
            let Some(node) = oldest(&mut self.filled, &self.nodes, Node::is_filled) else { break };
            self.evicted += 1;
            let page = self.take_page(node);
            self.free_pages.extend(page);
            self.set_next(node, None);
            self.remove_if_unused(node);
        }
    }

    /// Evicts whole rows, least recently used first, while everything else keeps to its share of the bytes.
    fn evict_rows(&mut self) {
        while self.bytes > self.max_bytes && self.bytes - self.rows.size() <= self.max_bytes / LISTS_SHARE {
            let Some(node) = oldest(&mut self.rows, &self.nodes, Node::has_row) else { break };
            let list = self.nodes[node.0 as usize].next.as_ref().map(|next| Arc::new(next.without_row()));
            self.evicted += 1;
            self.set_next(node, list);
        }
    }

    /// Removes a node that nothing refers to, and the nodes before it of which nothing is left then.
    fn remove_if_unused(&mut self, node: NodeId) {
        let mut unused = Some(node);
        while let Some(id) = unused.filter(|id| self.nodes[id.0 as usize].is_unused()) {
            let Node { above, token, .. } = self.nodes[id.0 as usize];
            self.bytes -= NODE_BYTES;
            self.children.remove(&(above, token));
            self.free_nodes.push(id);
            unused = above.node();
            if let Some(parent) = unused {
                self.nodes[parent.0 as usize].children -= 1;
            }
        }
    }
}

/// Takes the least recently used node that has something out of a queue.
fn oldest(queue: &mut Recency, nodes: &[Node], has: impl Fn(&Node) -> bool) -> Option<NodeId> {
    queue.pop(|id| Some(&nodes[id.0 as usize]).filter(|node| has(node)).map(Node::used))
}

impl Node {
    fn used(&self) -> Use {
        Use { clock: self.clock, class: self.class }
    }

    /// Whether it has something to evict.
    fn is_filled(&self) -> bool {
        self.page.is_some() || self.next.is_some()
    }

    fn has_row(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.is_full())
    }

    /// Whether it holds nothing and nothing refers to it.
    fn is_unused(&self) -> bool {
        self.held == 0 && self.children == 0 && !self.is_filled()
    }
}

#[cfg(test)]
#[path = "prefix_cache_tests.rs"]
mod tests;
