//! The candidates that a search may expand next, by slot: candidates of a slot compete for the same beams.
//!
//! Best first has the least work, one beam after the other. Level by level lets an engine compute a level's beams
//! together.
//!
//! A beam's candidates come as a list. Only the best of each list that is left takes part in the comparisons, and a
//! list is sorted as far as it is used, so that the many that are never expanded cost nothing.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::candidate::Candidate;

/// How many candidates of a list are sorted first.
const FIRST_SORTED: usize = 64;

/// Which candidate comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The most probable of all.
    BestFirst,
    /// The most probable of those with the fewest new tokens.
    LevelByLevel,
}

impl Order {
    /// Compares two candidates with their slots; the greater one comes first.
    pub fn compare(self, one: &(Slot, Candidate), other: &(Slot, Candidate)) -> Ordering {
        let by_candidate = one.1.cmp(&other.1);
        match self {
            Self::BestFirst => by_candidate,
            Self::LevelByLevel => other.0.level.cmp(&one.0.level).then(by_candidate),
        }
    }
}

/// Where a candidate belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of new tokens.
    pub level: usize,
    /// The kind of beam, such as a reading of the typed text; kinds are numbered from 0.
    pub kind: usize,
}

/// The best candidate that is left of a list. Ordered by candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head {
    candidate: Candidate,
    /// Index of the list; none if the candidate came alone.
    list: Option<usize>,
    /// The candidate's index in the list.
    rank: usize,
}

/// What is left of each list: `[levels][kinds]` heaps.
#[derive(Clone, Debug, Default)]
pub struct Heads(Vec<Vec<BinaryHeap<Head>>>);

impl Heads {
    fn slot(&mut self, Slot { level, kind }: Slot) -> &mut BinaryHeap<Head> {
        if self.0.len() <= level {
            self.0.resize_with(level + 1, Vec::new);
        }
        let kinds = &mut self.0[level];
        if kinds.len() <= kind {
            kinds.resize_with(kind + 1, BinaryHeap::new);
        }
        &mut kinds[kind]
    }

    /// The best candidate of each slot.
    fn best_of_slots(&self) -> impl Iterator<Item = (Slot, &Head)> {
        let slots = self.0.iter().enumerate();
        slots.flat_map(|(level, kinds)| {
            let heads = kinds.iter().enumerate();
            heads.filter_map(move |(kind, heap)| Some((Slot { level, kind }, heap.peek()?)))
        })
    }

    /// The first candidate, with its slot.
    pub fn first(&self, order: Order) -> Option<(Slot, Candidate)> {
        let candidates = self.best_of_slots().map(|(slot, head)| (slot, head.candidate));
        candidates.max_by(|one, other| order.compare(one, other))
    }
}

/// Candidates, of which the first `sorted` are the best ones, best first.
#[derive(Debug)]
struct List {
    candidates: Vec<Candidate>,
    sorted: usize,
}

impl List {
    /// Candidates that are sorted when it is first used, unless they are in order already.
    fn new(candidates: Vec<Candidate>) -> Self {
        let sorted = if candidates.is_sorted_by(|a, b| a >= b) { candidates.len() } else { 0 };
        Self { candidates, sorted }
    }

    /// The candidate of a rank, 0 for the best one.
    fn get(&mut self, rank: usize) -> Option<Candidate> {
        while rank >= self.sorted && self.sorted < self.candidates.len() {
            let all = self.candidates.len();
            let more = self.sorted.max(FIRST_SORTED).min(all - self.sorted);
            let rest = &mut self.candidates[self.sorted..];
            if more < rest.len() {
                rest.select_nth_unstable_by(more, |a, b| b.cmp(a));
            }
            rest[..more].sort_unstable_by(|a, b| b.cmp(a));
            self.sorted += more;
        }
        self.candidates.get(rank).copied()
    }
}

/// Candidates by slot. See the module's documentation.
#[derive(Debug, Default)]
pub struct Frontier {
    lists: Vec<List>,
    heads: Heads,
}

impl Frontier {
    /// Adds a candidate.
    pub fn push(&mut self, slot: Slot, candidate: Candidate) {
        self.heads.slot(slot).push(Head { candidate, list: None, rank: 0 });
    }

    /// Adds candidates, in any order.
    pub fn push_list(&mut self, slot: Slot, candidates: Vec<Candidate>) {
        let mut list = List::new(candidates);
        let Some(candidate) = list.get(0) else { return };
        self.heads.slot(slot).push(Head { candidate, list: Some(self.lists.len()), rank: 0 });
        self.lists.push(list);
    }

    /// Log-probability of the best candidate.
    pub fn best(&self) -> Option<f64> {
        self.heads.best_of_slots().map(|(_, head)| head.candidate.joint).reduce(f64::max)
    }

    /// The first candidate, with its slot.
    pub fn first(&self, order: Order) -> Option<(Slot, Candidate)> {
        self.heads.first(order)
    }

    /// Takes the best candidate of a slot out.
    pub fn pop(&mut self, slot: Slot) {
        Self::pop_head(&mut self.lists, &mut self.heads, slot);
    }

    /// What is left of each list, to look through without taking anything out: see [`Frontier::next`].
    pub fn heads(&self) -> Heads {
        self.heads.clone()
    }

    /// The next candidate of those that are left in `heads`, with its slot.
    pub fn next(&mut self, heads: &mut Heads, order: Order) -> Option<(Slot, Candidate)> {
        let first = heads.first(order)?;
        Self::pop_head(&mut self.lists, heads, first.0);
        Some(first)
    }

    fn pop_head(lists: &mut [List], heads: &mut Heads, slot: Slot) {
        let Some(mut head) = heads.slot(slot).peek_mut() else { return };
        let rank = head.rank + 1;
        match head.list.and_then(|list| lists[list].get(rank)) {
            Some(candidate) => (head.candidate, head.rank) = (candidate, rank),
            None => drop(PeekMut::pop(head)),
        }
    }

    /// Drops a slot's candidates.
    pub fn clear(&mut self, slot: Slot) {
        self.heads.slot(slot).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TokenId;

    fn candidate(joint: f64) -> Candidate {
        Candidate { joint, beam: 0, token: Some(TokenId(0)) }
    }

    fn filled() -> Frontier {
        let mut frontier = Frontier::default();
        let slot = |level, kind| Slot { level, kind };
        frontier.push_list(slot(2, 0), [-3.0, -1.0, -7.0].map(candidate).to_vec());
        frontier.push_list(slot(2, 0), vec![candidate(-2.5)]);
        frontier.push_list(slot(2, 1), Vec::new());
        frontier.push(slot(0, 1), candidate(-5.0));
        frontier.push(slot(0, 0), candidate(-2.0));
        frontier.push(slot(1, 0), candidate(-4.0));
        frontier
    }

    #[test]
    fn both_orders() {
        let order = |order: Order| -> Vec<f64> {
            let mut frontier = filled();
            let taken = std::iter::from_fn(|| {
                let (slot, candidate) = frontier.first(order)?;
                frontier.pop(slot);
                Some(candidate.joint)
            });
            taken.collect()
        };
        assert_eq!(filled().best(), Some(-1.0));
        assert_eq!(order(Order::BestFirst), [-1.0, -2.0, -2.5, -3.0, -4.0, -5.0, -7.0]);
        assert_eq!(order(Order::LevelByLevel), [-2.0, -5.0, -4.0, -1.0, -2.5, -3.0, -7.0]);
    }

    #[test]
    fn a_long_list_is_sorted_as_far_as_it_is_used() {
        let joint = |index: usize| -((index * 7919 % 1000) as f64);
        let mut list = List::new((0..1000).map(|index| candidate(joint(index))).collect());
        let mut expected: Vec<f64> = (0..1000).map(joint).collect();
        expected.sort_by(|a, b| b.total_cmp(a));
        assert_eq!((list.get(5).map(|c| c.joint), list.sorted), (Some(expected[5]), FIRST_SORTED));
        let all: Vec<f64> = (0..).map_while(|rank| list.get(rank)).map(|candidate| candidate.joint).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn candidates_are_looked_through_without_taking_them_out() {
        let mut frontier = filled();
        let mut heads = frontier.heads();
        let seen: Vec<f64> =
            std::iter::from_fn(|| frontier.next(&mut heads, Order::BestFirst)).map(|(_, c)| c.joint).collect();
        assert_eq!((seen.len(), frontier.best()), (7, Some(-1.0)));
        frontier.clear(Slot { level: 2, kind: 0 });
        assert_eq!(frontier.best(), Some(-2.0));
    }
}
