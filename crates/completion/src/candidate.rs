//! What a search may expand next, in order of probability.

use std::cmp::Ordering;

use crate::text::TokenId;

/// A beam as it is, or extended by a token. Ordered by probability; ties by beam and token, so that the order of a
/// search never depends on chance.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Log-probability of everything behind the prompt.
    pub joint: f64,
    /// Index among the search's beams.
    pub beam: usize,
    /// The token to add.
    pub token: Option<TokenId>,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.joint.total_cmp(&other.joint).then(other.beam.cmp(&self.beam)).then(other.token.cmp(&self.token))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_comes_first_and_ties_are_settled() {
        let candidate = |joint, beam, token| Candidate { joint, beam, token: Some(TokenId(token)) };
        let mut heap = std::collections::BinaryHeap::from([
            candidate(-2.0, 0, 1),
            candidate(-1.0, 1, 5),
            candidate(-1.0, 0, 7),
            candidate(-1.0, 0, 3),
        ]);
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).map(|c| (c.beam, c.token.map(|t| t.0))).collect();
        assert_eq!(order, [(0, Some(3)), (0, Some(7)), (1, Some(5)), (0, Some(1))]);
    }
}
