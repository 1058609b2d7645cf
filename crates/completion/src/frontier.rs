//! The candidates that a search may expand next, by level (their number of new tokens).
//!
//! Best first has the least work, one beam after the other. Level by level lets an engine compute a level's beams
//! together.

use std::collections::BinaryHeap;

use super::candidate::Candidate;

/// Which candidate comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The most probable of all.
    BestFirst,
    /// The most probable of those with the fewest new tokens.
    LevelByLevel,
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

    /// Reserves memory for `more` candidates of a level.
    pub fn reserve(&mut self, level: usize, more: usize) {
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
        let heads = self.levels.iter().enumerate().filter_map(|(level, heap)| Some((level, *heap.peek()?)));
        let (level, _) = match order {
            Order::BestFirst => heads.max_by(|a, b| a.1.cmp(&b.1))?,
            Order::LevelByLevel => heads.min_by_key(|&(level, _)| level)?,
        };
        Some((level, self.levels[level].pop()?))
    }

    /// Drops a level's candidates.
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
                frontier.push(level, Candidate { joint, beam: 0, token: Some(TokenId(0)) });
            }
            frontier
        };
        let order = |order: Order| -> Vec<f64> {
            let mut frontier = filled();
            std::iter::from_fn(|| frontier.pop(order)).map(|(_, candidate)| candidate.joint).collect()
        };
        assert_eq!(filled().best(), Some(-1.0));
        assert_eq!(order(Order::BestFirst), [-1.0, -2.0, -3.0, -4.0, -5.0]);
        assert_eq!(order(Order::LevelByLevel), [-2.0, -5.0, -4.0, -1.0, -3.0]);
    }
}
