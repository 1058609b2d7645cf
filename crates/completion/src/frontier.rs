//! The candidates that a search may follow next, kept by their number of new tokens (their level).
//!
//! Two orders are asked for. The best of all levels first is the order with the least work, one beginning after the other. The
//! best of the shallowest level first follows whole levels, which an engine can compute together.

use std::collections::BinaryHeap;

use super::candidate::Candidate;

/// Which candidate comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The most probable of all.
    Best,
    /// The most probable of those with the fewest new tokens.
    Shallowest,
}

/// Candidates by level. See the module's documentation.
#[derive(Debug, Default)]
pub struct Frontier {
    levels: Vec<BinaryHeap<Candidate>>,
}

impl Frontier {
    /// Adds a candidate.
    pub fn push(&mut self, level: usize, candidate: Candidate) {
        self.level(level).push(candidate);
    }

    /// Makes room for so many more, which else grows little by little.
    pub fn make_room(&mut self, level: usize, more: usize) {
        self.level(level).reserve(more);
    }

    fn level(&mut self, level: usize) -> &mut BinaryHeap<Candidate> {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, BinaryHeap::new);
        }
        &mut self.levels[level]
    }

    /// Log-probability of the best candidate.
    pub fn best(&self) -> Option<f64> {
        self.levels.iter().filter_map(|level| level.peek()).map(|best| best.joint).reduce(f64::max)
    }

    /// Takes the first candidate, with its level.
    pub fn pop(&mut self, order: Order) -> Option<(usize, Candidate)> {
        let some = self.levels.iter().enumerate().filter_map(|(level, heap)| Some((level, *heap.peek()?)));
        let (level, _) = match order {
            Order::Best => some.max_by(|a, b| a.1.cmp(&b.1))?,
            Order::Shallowest => some.min_by_key(|&(level, _)| level)?,
        };
        Some((level, self.levels[level].pop()?))
    }

    /// Forgets a level's candidates.
    pub fn clear(&mut self, level: usize) {
        if let Some(level) = self.levels.get_mut(level) {
            level.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TokenId;

    #[test]
    fn both_orders() {
        let filled = || {
            let mut frontier = Frontier::default();
            for (level, joint) in [(2, -1.0), (0, -5.0), (2, -3.0), (0, -2.0), (1, -4.0)] {
                frontier.push(level, Candidate { joint, source: 0, token: Some(TokenId(0)) });
            }
            frontier
        };
        let order = |order: Order| -> Vec<f64> {
            let mut frontier = filled();
            std::iter::from_fn(|| frontier.pop(order)).map(|(_, candidate)| candidate.joint).collect()
        };
        assert_eq!(filled().best(), Some(-1.0));
        assert_eq!(order(Order::Best), [-1.0, -2.0, -3.0, -4.0, -5.0]);
        assert_eq!(order(Order::Shallowest), [-2.0, -5.0, -4.0, -1.0, -3.0]);
    }
}
