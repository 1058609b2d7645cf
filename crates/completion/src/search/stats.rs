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
    /// The share of speculative requests that turned out to be wanted: of the last one of each step, which decides
    /// whether one more pays.
    pub speculation_hit_rate: f64,
}

impl Default for SearchStats {
    fn default() -> Self {
        // The demo model and SmolLM2-135M come to about this rate.
        Self { rarely_ends: false, speculation_hit_rate: 0.7 }
    }
}

/// Speculative requests that count for the hit rate, and how many of them were wanted.
#[derive(Debug, Default)]
pub(super) struct SpeculationCounts {
    /// Requested and not wanted yet.
    pending: FxHashSet<NodeIndex>,
    requested: usize,
    hits: usize,
}

impl SpeculationCounts {
    /// Records a speculative request that counts.
    pub(super) fn record_request(&mut self, node: NodeIndex) {
        self.requested += 1;
        self.pending.insert(node);
    }

    /// Records a node that turned out to be wanted, requested or not.
    pub(super) fn record_wanted(&mut self, node: NodeIndex) {
        self.hits += usize::from(self.pending.remove(&node));
    }

    /// Updates the speculation hit rate `before` with the hits of a search that is done.
    pub(super) fn updated_hit_rate(&self, before: f64) -> f64 {
        if self.requested == 0 {
            return before + DECAY * (SearchStats::default().speculation_hit_rate - before);
        }
        before + LATEST_WEIGHT * (self.hits as f64 / self.requested as f64 - before)
    }
}
