//! Popular queries in memory: a finite-state map from query to its place in the alphabet, and the counts by place.
//!
//! The queries that begin with a text are a range of places, and a node of the map knows its range. So their number and
//! the sum and the greatest of their counts are known without reading them.

use std::ops::Range;

use fst::raw::{CompiledAddr, Node, Output};

use super::counts::Counts;

/// Popular queries with their counts.
#[derive(Debug)]
pub struct PopularQueries {
    map: fst::Map<Vec<u8>>,
    pub(super) counts: Counts,
    /// The sum of all counts.
    pub(super) total: f64,
}

/// Why popular queries can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PopularError {
    /// The map is broken.
    #[error("the map of popular queries can't be read: {0}")]
    Map(#[from] fst::Error),
    /// The map doesn't give each query its place in the alphabet.
    #[error("the map of popular queries must give each query its place in the alphabet, from 0")]
    Places,
    /// Map and counts are not of the same queries.
    #[error("there must be 8 bytes of counts for each of the {queries} popular queries; found {bytes}")]
    Counts {
        /// Queries of the map.
        queries: usize,
        /// Bytes of the counts.
        bytes: usize,
    },
}

/// A node of the map, with the places of the queries below it.
#[derive(Clone, Debug)]
pub(super) struct Below {
    pub address: CompiledAddr,
    pub places: Range<usize>,
}

impl PopularQueries {
    /// From the bytes of a finite-state map from each query to its place in the alphabet, and the counts in that order,
    /// each as 8 bytes, the lowest first.
    ///
    /// # Errors
    /// See [`PopularError`].
    pub fn new(map: Vec<u8>, counts: &[u8]) -> Result<Self, PopularError> {
        let map = fst::Map::new(map)?;
        map.as_fst().verify()?;
        let (read, rest) = counts.as_chunks();
        if read.len() != map.len() || !rest.is_empty() {
            return Err(PopularError::Counts { queries: map.len(), bytes: counts.len() });
        }
        let counts = Counts::new(read.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect());
        let total = counts.sum(0..counts.len()) as f64;
        let queries = Self { map, counts, total };
        if queries.are_places() { Ok(queries) } else { Err(PopularError::Places) }
    }

    /// Whether the map's values are places. Of a map whose values only grow, which nothing else makes, two are enough.
    fn are_places(&self) -> bool {
        let Some(last) = self.counts.len().checked_sub(1) else { return true };
        let root = self.root();
        let value = |place: usize| self.query(place).and_then(|query| self.map.get(query));
        let ends = value(0) == Some(0) && value(last) == Some(last as u64);
        let mut first = self.children(&root).map(|(_, below)| below.places);
        let mut until = usize::from(self.node(&root).is_final());
        ends && first.all(|places| std::mem::replace(&mut until, places.end) == places.start)
    }

    pub(super) fn root(&self) -> Below {
        Below { address: self.map.as_fst().root().addr(), places: 0..self.counts.len() }
    }

    fn node(&self, below: &Below) -> Node<'_> {
        self.map.as_fst().node(below.address)
    }

    /// The nodes that a byte leads to, in the order of the bytes.
    pub(super) fn children(&self, below: &Below) -> impl Iterator<Item = (u8, Below)> {
        let (node, Range { start, end }) = (self.node(below), below.places.clone());
        // The places below a node that is not the last one end where those of the next one begin.
        let first = move |out: Output| (start as u64).saturating_add(out.value()).min(end as u64) as usize;
        (0..node.len()).map(move |index| {
            let transition = node.transition(index);
            let until = if index + 1 < node.len() { first(node.transition(index + 1).out) } else { end };
            let from = first(transition.out).min(until);
            (transition.inp, Below { address: transition.addr, places: from..until })
        })
    }

    /// The places of the queries that begin with a text.
    pub(super) fn beginning_with(&self, text: &str) -> Range<usize> {
        let mut below = self.root();
        for byte in text.bytes() {
            let node = self.node(&below);
            let Some(index) = node.find_input(byte) else { return 0..0 };
            let Some((_, next)) = self.children(&below).nth(index) else { return 0..0 };
            below = next;
        }
        below.places
    }

    /// The query at a place.
    pub(super) fn query(&self, place: usize) -> Option<String> {
        String::from_utf8(self.map.as_fst().get_key(place as u64)?).ok()
    }
}
