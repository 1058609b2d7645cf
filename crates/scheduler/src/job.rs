//! A task that the scheduler works on: its cost so far, and its nodes in the prefix cache.

use std::sync::Arc;

use super::client::{Class, Flow};
use super::order::Standing;
use super::plan::{Plan, Target, Wants};
use super::prefix_cache::{Above, NodeId, PrefixCache};
use super::sources::Held;
use completion::text::TokenId;
use completion::{NodeIndex, Task, Wanted};

/// A task that is being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// The model work of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the typed text.
    pub typed_tokens: usize,
    /// Forwards that this request had a row in.
    pub forwards: usize,
    /// Positions computed for this request.
    pub positions_computed: usize,
    /// Positions computed for the typed text itself; a part of `positions_computed`.
    pub typed_positions_computed: usize,
    /// Distributions that the prefix cache had or that another request's row brought.
    pub positions_saved: usize,
}

impl Usage {
    /// Of a task that no step has worked on for the request. One that a lookahead has done saves what it was supplied
    /// with.
    pub(crate) fn of(task: &Task) -> Self {
        let (typed_tokens, positions_saved) = (task.typed_tokens(), task.paths().supplied());
        Self { typed_tokens, positions_saved, ..Self::default() }
    }
}

/// A task and what belongs to it.
pub(super) struct Job {
    pub(super) id: JobId,
    /// Who pays for it.
    pub(super) flow: Flow,
    pub(super) task: Task,
    /// The task's source, once the encoder has read it.
    pub(super) source: Option<Held>,
    /// The prefix cache's node for each of the task's.
    pub(super) places: Vec<NodeId>,
    pub(super) usage: Usage,
    /// The forward in which it last had a row; that of its adding before it had one.
    pub(super) served: u64,
    /// Whether nobody waits for it yet.
    pub(super) ahead: bool,
}

impl Job {
    pub(super) fn is_bulk(&self) -> bool {
        self.flow.class == Class::Bulk
    }

    /// Brings the task what it wants and the prefix cache has.
    pub(super) fn supply_known(&mut self, cache: &mut PrefixCache) {
        if self.missing_source().is_some() {
            return;
        }
        self.hold_new_nodes(cache);
        let (places, class) = (&self.places, self.flow.class);
        self.usage.positions_saved += self.task.paths_mut().supply_known(|wanted| {
            let place = places[wanted.node.0];
            let next = cache.next(place).filter(|next| next.is_full() || !wanted.full).cloned();
            if next.is_some() {
                cache.touch(place, class);
            }
            next
        });
    }

    /// Advances the task as far as the prefix cache allows, and as `choices` does: rounds of a search, or tokens that a
    /// sampling chooses. Takes those that it used. Whether it is done.
    pub(super) fn settle(&mut self, cache: &mut PrefixCache, choices: &mut usize) -> bool {
        loop {
            if self.task.is_done() {
                return true;
            }
            self.supply_known(cache);
            if self.task.paths().is_waiting() || *choices == 0 {
                return false;
            }
            *choices = choices.saturating_sub(self.task.advance(*choices));
        }
    }

    /// Asks for what it will probably want, until it has so many rows of the step that it waits for.
    pub(super) fn speculate(&mut self, cache: &mut PrefixCache, rows: usize) {
        loop {
            let before = self.task.paths().wanted().len();
            if before < rows {
                self.task.speculate(rows - before);
            }
            let asked = self.task.paths().wanted().len();
            self.supply_known(cache);
            // What the prefix cache knows takes no row, and shows what comes behind it.
            if asked == before || self.task.paths().wanted().len() == asked {
                return;
            }
        }
    }

    /// Whether a person waits for what is found at once: a keystroke's search, which takes microseconds a round.
    pub(super) fn is_quick(&self) -> bool {
        !self.is_bulk() && matches!(self.task, Task::Search(_))
    }

    /// The source that has to be read before anything can be computed for it.
    pub(super) fn missing_source(&self) -> Option<&Arc<[TokenId]>> {
        self.task.paths().source().filter(|_| self.source.is_none())
    }

    /// Holds a place in the prefix cache for every node that the task has newly referred to.
    fn hold_new_nodes(&mut self, cache: &mut PrefixCache) {
        if self.places.is_empty() {
            let mut root = None;
            let partition = self.task.paths().partition();
            let mut above = self.source.map_or(Above::Nothing(partition), |source| Above::Source(source.name));
            for &token in self.task.paths().prompt() {
                let node = cache.hold(above, token);
                if let Some(parent) = root {
                    cache.release(parent);
                }
                (root, above) = (Some(node), Above::Node(node));
            }
            self.places.extend(root);
        }
        for index in self.places.len()..self.task.paths().len() {
            if let Some((parent, token)) = self.task.paths().step_to(NodeIndex(index)) {
                let place = cache.hold(Above::Node(self.places[parent.0]), token);
                self.places.push(place);
            }
        }
    }

    /// What decides its place among the others, if it waits for a row of so many positions.
    pub(super) fn standing(&self, row_len: usize) -> Standing {
        Standing { arrival: self.id.0, served: self.served, left: self.task.remaining(), row_len }
    }

    /// What it misses, if anything: what it waits for before what it may want, deepest first, because a deep row brings
    /// the distributions of its path along.
    pub(super) fn wants(&self, index: usize, cache: &PrefixCache) -> Option<Wants> {
        if self.missing_source().is_some() {
            return None;
        }
        let depth = |wanted: &Wanted| cache.depth(self.places[wanted.node.0]);
        let mut wanted = self.task.paths().wanted().to_vec();
        wanted.sort_by_key(|wanted| (wanted.speculative, std::cmp::Reverse(depth(wanted))));
        let target = |wanted: &Wanted| Target {
            node: wanted.node,
            place: self.places[wanted.node.0],
            full: wanted.full,
            speculative: wanted.speculative,
        };
        let targets: Vec<Target> = wanted.iter().map(target).collect();
        let first = targets.first()?;
        let standing = self.standing(Plan::row_len(first.place, cache));
        Some(Wants { job: index, standing, targets })
    }
}
