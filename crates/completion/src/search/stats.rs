//! What searches learn about a model: whether its queries end, and how often speculation hits.

use rustc_hash::FxHashSet;

use crate::paths::NodeIndex;

/// Weight of the latest search in the moving average [`SearchStats::speculation_hit_rate`].
const LATEST_WEIGHT: f64 = 0.1;
/// How far a search that shows nothing new moves the average back to its default, so that a model gets another chance.
const DECAY: f64 = 0.01;

/// What earlier searches of a model were like. It changes what a search asks for and when, never its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchStats {
    /// Hardly any expanded beam ended, so that suggestions are truncated at a length limit. The search then expands
    /// level by level from the start, which saves the forwards that would show the same again.
    pub rarely_ends: bool,
    /// The share of the beams requested along with the typed text that turned out to be wanted.
    pub speculation_hit_rate: f64,
}

impl Default for SearchStats {
    fn default() -> Self {
        Self { rarely_ends: false, speculation_hit_rate: 0.5 }
    }
}

/// Nodes whose distributions were requested speculatively, and how many of them were wanted.
#[derive(Debug, Default)]
pub(super) struct SpeculationCounts {
    /// Counts of nodes that were requested along with the typed text.
    with_typed_text: HitCount,
    /// Counts of nodes that were requested later.
    later: HitCount,
}

#[derive(Debug, Default)]
struct HitCount {
    /// Requested and not wanted yet.
    pending: FxHashSet<NodeIndex>,
    requested: usize,
    hits: usize,
}

impl HitCount {
    fn record_request(&mut self, node: NodeIndex) {
        self.requested += 1;
        self.pending.insert(node);
    }

    fn record_wanted(&mut self, node: NodeIndex) {
        self.hits += usize::from(self.pending.remove(&node));
    }
}

impl SpeculationCounts {
    /// Records a node that was requested speculatively.
    pub(super) fn record_request(&mut self, node: NodeIndex, with_typed_text: bool) {
        if with_typed_text { &mut self.with_typed_text } else { &mut self.later }.record_request(node);
    }

    /// Records a node that turned out to be wanted, requested or not.
    pub(super) fn record_wanted(&mut self, node: NodeIndex) {
        self.with_typed_text.record_wanted(node);
        self.later.record_wanted(node);
    }

    /// The hit rate of requests that don't belong to the typed text, smoothed.
    pub(super) fn hit_rate(&self) -> f64 {
        (self.later.hits + 2) as f64 / (self.later.requested + 4) as f64
    }

    /// Updates the speculation hit rate `before` with this search's hits.
    pub(super) fn updated_hit_rate(&self, before: f64) -> f64 {
        let HitCount { requested, hits, .. } = self.with_typed_text;
        if requested == 0 {
            return before + DECAY * (SearchStats::default().speculation_hit_rate - before);
        }
        before + LATEST_WEIGHT * (hits as f64 / requested as f64 - before)
    }
}
