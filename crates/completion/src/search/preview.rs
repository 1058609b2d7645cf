//! How a search will go on as far as the known distributions tell.
//!
//! A beam whose distribution was computed ahead waits in the frontier until its turn. What it will be expanded into is
//! known all the same, and so are the queries that end with it. A preview goes through the frontier in the search's own
//! order and expands such beams, without a change to the search.

use super::expansion::Children;
use super::{Beam, Search, Selected};
use crate::candidate::Candidate;
use crate::distribution::Distribution;
use crate::frontier::{Frontier, Heads, Order, Slot};
use crate::paths::NodeIndex;
use crate::top_completions::TopCompletions;

/// A look ahead from the state of a search. Its beams stand behind those of the search until it ends.
pub(super) struct Preview<'a> {
    search: &'a mut Search,
    order: Order,
    /// What is left of the search's frontier.
    heads: Heads,
    /// The children of beams that the preview expanded.
    children: Frontier,
    /// The search's completions, and those of beams that the preview expanded.
    completed: TopCompletions,
    /// Beams of each level that were selected, by the search or here. `[levels]`
    selected: Vec<Selected>,
    /// Number of the search's own beams.
    own_beams: usize,
}

impl<'a> Preview<'a> {
    /// Begins where the search stands.
    pub(super) fn new(search: &'a mut Search, order: Order) -> Self {
        Self {
            order,
            heads: search.frontier.heads(),
            children: Frontier::default(),
            completed: search.completed.clone(),
            selected: search.selected.clone(),
            own_beams: search.beams.len(),
            search,
        }
    }

    /// Up to `count` nodes whose distributions will be wanted and are unknown, in the order of the search, as long as
    /// their candidates are `likely`. At most `examined` candidates are looked at that don't lead to a known node.
    pub(super) fn unknown_nodes(
        mut self,
        count: usize,
        mut examined: usize,
        likely: impl Fn(usize, &Candidate) -> bool,
    ) -> Vec<NodeIndex> {
        let mut nodes = Vec::new();
        while nodes.len() < count && examined > 0 {
            let Some((slot, candidate)) = self.next() else { break };
            let is_too_low = self.completed.threshold().is_some_and(|kth| candidate.joint <= kth);
            if is_too_low || !likely(slot.level, &candidate) {
                break;
            }
            let Some(beam) = self.select(slot, &candidate) else {
                examined -= 1;
                continue;
            };
            if let Some(next) = self.search.paths.next(beam.node).cloned() {
                self.expand(beam, &next);
                continue;
            }
            examined -= 1;
            if self.search.is_unknown(beam.node) && !nodes.contains(&beam.node) {
                nodes.push(beam.node);
            }
        }
        self.search.beams.truncate(self.own_beams);
        nodes
    }

    /// Takes the next candidate of the frontier or of the children.
    fn next(&mut self) -> Option<(Slot, Candidate)> {
        let own = self.heads.first(self.order);
        let child = self.children.first(self.order);
        match child.filter(|child| own.is_none_or(|own| self.order.compare(child, &own).is_gt())) {
            Some(child) => {
                self.children.pop(child.0);
                Some(child)
            }
            None => self.search.frontier.next(&mut self.heads, self.order),
        }
    }

    /// The beam that a candidate becomes, if it may become one and will be expanded.
    fn select(&mut self, slot: Slot, candidate: &Candidate) -> Option<Beam> {
        let prefix = self.search.extended_prefix(candidate)?;
        if self.search.is_truncated(candidate, prefix.new_tokens) {
            return None;
        }
        let selected = Selected::at(&mut self.selected, slot.level).of(prefix.reading);
        if *selected >= self.search.options.beams {
            return None;
        }
        *selected += 1;
        Some(Beam { node: self.search.node(candidate), joint: candidate.joint, prefix })
    }

    /// Expands a beam as the search will, into the preview's own candidates and completions.
    fn expand(&mut self, beam: Beam, next: &Distribution) {
        let slot = Search::slot(beam.prefix.new_tokens + 1, beam.prefix.reading);
        let least = self.completed.threshold().unwrap_or(f64::NEG_INFINITY);
        self.search.beams.push(beam);
        let Children { candidates, completion } = self.search.children(self.search.beams.len() - 1, next, least);
        self.children.push_list(slot, candidates);
        if let Some((text, ending)) = completion {
            self.completed.add(text, ending);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::SearchOptions;
    use super::super::tests::{distribution, log_probs};
    use super::*;
    use crate::text::testing::tiny;

    const RANDOM_MODELS: u64 = 60;

    /// The beam that the search waits for stays unknown, what it asked for beside that beam is supplied.
    #[test]
    fn what_lies_behind_a_known_beam_is_wanted_before_its_turn_comes() {
        let text = Arc::new(tiny("abc ", &[("a", "b"), (" ", "a"), ("b", "a"), ("ab", "c")]));
        let model = |seed, search: &Search, node| {
            let path: Vec<u32> = search.paths.tokens(node).iter().map(|token| token.0).collect();
            distribution(&log_probs(seed, &path, text.vocab(), 4.0), 8)
        };
        let mut deeper = 0;
        for seed in 0..RANDOM_MODELS {
            let options = SearchOptions { suggestions: 10, max_new_tokens: 6, ..SearchOptions::default() };
            let mut search = Search::new(Arc::clone(&text), "a".into(), options);
            while search.waiting.is_empty() {
                for wanted in search.paths.wanted().to_vec() {
                    let next = model(seed, &search, wanted.node);
                    search.paths.supply(wanted.node, next);
                }
                search.advance();
            }
            search.speculate(4);
            let ahead = |search: &Search| -> Vec<NodeIndex> {
                search.paths.wanted().iter().filter(|wanted| wanted.speculative).map(|wanted| wanted.node).collect()
            };
            let known = ahead(&search);
            for &node in &known {
                let next = model(seed, &search, node);
                search.paths.supply(node, next);
            }
            let beams = search.beams.len();
            search.speculate(4);
            assert_eq!(search.beams.len(), beams, "the preview has left its beams behind");
            let parents = ahead(&search).into_iter().filter_map(|node| search.paths.step_to(node));
            deeper += parents.filter(|(parent, _)| known.contains(parent)).count();
        }
        assert!(deeper > 2 * RANDOM_MODELS as usize, "{deeper}");
    }
}
