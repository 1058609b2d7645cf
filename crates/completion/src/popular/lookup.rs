//! The popular queries that a typed text may stand for: best first, from the map's root.
//!
//! A node of the map is as probable as the queries below it are together, less the cost of the cheapest way in which
//! its text became what was typed so far. No query below it is more probable. So the first queries that come up are the
//! best ones, and what is less probable is never looked at.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

use rustc_hash::FxHashSet;

use super::counts::Part;
use super::index::{Below, PopularQueries};
use crate::suggestion::{Completions, Meaning};
use crate::typing::Typed;
use crate::typing::alignment::Alignment;
use crate::typing::channel::Channel;

/// Nodes of the map that one search reads at most: a bound on its time, for texts that are like nothing popular.
const MAX_NODES: usize = 20_000;

/// What is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The typed text.
    pub typed: &'a str,
    /// The typed text as corrections see it; none without a tolerance.
    pub typing: Option<&'a Typed>,
    /// Queries wanted.
    pub count: usize,
    /// Least probability of a reading of the typed text: all queries that begin with it, and how it was typed.
    pub floor: f64,
    /// How much less probable than the best reading another one may be, in nats.
    pub range_nats: f64,
}

impl<'a> Lookup<'a> {
    /// What the typed text may stand for, but for what is improbable beside other readings.
    pub fn new(typed: &'a str, typing: Option<&'a Typed>, count: usize) -> Self {
        Self { typed, typing, count, floor: 0.0, range_nats: Channel::default().reading_nats }
    }

    /// Only what is not improbable, by so many nats, beside what the model takes the text for.
    pub fn beside(self, completions: &Completions, range_nats: f64) -> Self {
        let model = completions.readings.unwrap_or_default().all;
        Self { floor: (model - range_nats).exp(), range_nats, ..self }
    }
}

/// A popular query that the typed text may stand for.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The whole query.
    pub text: String,
    /// What the typed text stands for in it.
    pub meaning: Meaning,
    /// Probability of the query and of how it was typed.
    pub joint: f64,
}

/// The popular queries that a typed text may stand for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The most probable ones, best first.
    pub hits: Vec<Hit>,
    /// Probability of the queries that begin with exactly the typed text, among all popular queries.
    pub as_typed: f64,
    /// Probability of the other readings of the typed text that were found, and of how it was typed.
    pub corrected: f64,
}

/// A node of the map, and how its text became what was typed.
struct Reached {
    below: Below,
    alignment: Alignment,
    /// Bytes of an unfinished character.
    pending: Vec<u8>,
}

/// What is looked at next.
enum Next {
    /// Nodes behind one: index of [`Reached`].
    Node(usize),
    /// Queries with a reading of this cost, in nats.
    Queries(Range<usize>, f64),
    /// Counts with a reading of this cost, in nats.
    Part(Part, f64),
}

struct Entry {
    /// What no query in it exceeds.
    bound: f64,
    /// Entries made before; of equals the first is looked at first.
    made: usize,
    next: Next,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bound.total_cmp(&other.bound).then(other.made.cmp(&self.made))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

/// A search that is under way.
struct Finder<'a> {
    queries: &'a PopularQueries,
    lookup: Lookup<'a>,
    waiting: BinaryHeap<Entry>,
    reached: Vec<Option<Reached>>,
    made: usize,
    /// The most probable reading so far.
    best: f64,
    taken: FxHashSet<usize>,
    found: Found,
}

impl PopularQueries {
    /// The most probable queries that the typed text may stand for. Without a tolerance: those that begin with it.
    /// Queries that add nothing to exactly the typed text are left out.
    pub fn find(&self, lookup: Lookup<'_>) -> Found {
        let exact = self.beginning_with(lookup.typed);
        let as_typed = self.probability(exact.clone());
        let mut finder = Finder {
            queries: self,
            lookup,
            waiting: BinaryHeap::new(),
            reached: Vec::new(),
            made: 0,
            best: as_typed,
            taken: FxHashSet::default(),
            found: Found { as_typed, ..Found::default() },
        };
        finder.wait(as_typed, Next::Queries(exact, 0.0));
        if let Some(typing) = lookup.typing {
            let root = Reached { below: self.root(), alignment: Alignment::start(typing), pending: Vec::new() };
            finder.reach(root, typing, f64::INFINITY);
        }
        finder.run();
        finder.found
    }

    fn probability(&self, places: Range<usize>) -> f64 {
        self.counts.sum(places) as f64 / self.total.max(1.0)
    }
}

impl Finder<'_> {
    fn run(&mut self) {
        while let Some(Entry { bound, next, .. }) = self.waiting.pop() {
            match next {
                Next::Node(index) if bound >= self.floor() => self.read(index),
                Next::Node(_) => {}
                Next::Queries(places, cost) => {
                    let queries = self.queries;
                    queries.counts.parts(places).for_each(|part| self.wait_for_part(part, cost));
                }
                Next::Part(Part::Node(node), cost) => {
                    let queries = self.queries;
                    queries.counts.children(node).for_each(|part| self.wait_for_part(part, cost));
                }
                Next::Part(Part::Count(place), _) => self.take(place, bound),
            }
            if self.found.hits.len() == self.lookup.count {
                return;
            }
        }
    }

    /// What a reading must reach.
    fn floor(&self) -> f64 {
        self.lookup.floor.max(self.best * (-self.lookup.range_nats).exp())
    }

    fn wait(&mut self, bound: f64, next: Next) {
        if bound > 0.0 {
            self.made += 1;
            self.waiting.push(Entry { bound, made: self.made, next });
        }
    }

    fn wait_for_part(&mut self, part: Part, cost: f64) {
        let bound = self.queries.counts.most(part) as f64 / self.queries.total * (-cost).exp();
        self.wait(bound, Next::Part(part, cost));
    }

    /// Looks at the nodes behind a node.
    fn read(&mut self, index: usize) {
        let (Some(from), Some(typing)) = (self.reached[index].take(), self.lookup.typing) else { return };
        let queries = self.queries;
        let cost = from.alignment.finished().map_or(f64::INFINITY, |finished| f64::from(finished.cost));
        for (byte, below) in queries.children(&from.below) {
            if self.reached.len() > MAX_NODES {
                return;
            }
            let budget = (queries.probability(below.places.clone()) / self.floor()).ln() as f32;
            let mut alignment = from.alignment;
            let whole = alignment.push_bytes(typing, &from.pending, &[byte], budget);
            let pending = if whole > from.pending.len() { Vec::new() } else { [&from.pending[..], &[byte]].concat() };
            if budget >= 0.0 && !alignment.is_dead() {
                self.reach(Reached { below, alignment, pending }, typing, cost);
            }
        }
    }

    /// A node was reached; `before` is the cost of the reading that its text begins with.
    fn reach(&mut self, node: Reached, typing: &Typed, before: f64) {
        let probability = self.queries.probability(node.below.places.clone());
        let finished = node.alignment.finished().map_or(f64::INFINITY, |finished| f64::from(finished.cost));
        if node.alignment.is_whole() {
            // As typed: these were found already. What begins with a reading before it is no other text.
            self.found.corrected -= probability * (-before).exp();
            return;
        }
        if finished < before {
            let reading = probability * (-finished).exp();
            self.best = self.best.max(reading);
            self.found.corrected += reading - probability * (-before).exp();
            self.wait(reading, Next::Queries(node.below.places.clone(), finished));
        }
        let (cost, _) = node.alignment.cheapest(typing);
        // A reading that goes on for no less is no other one.
        if f64::from(cost) < finished {
            let bound = probability * f64::from(-cost).exp();
            self.wait(bound, Next::Node(self.reached.len()));
            self.reached.push(Some(node));
        }
    }

    /// Takes a query, unless a cheaper reading of it was taken before or it adds nothing to what was typed.
    fn take(&mut self, place: usize, joint: f64) {
        let Some(text) = self.queries.query(place).filter(|_| self.taken.insert(place)) else { return };
        let Lookup { typed, typing, .. } = self.lookup;
        let rest = text.strip_prefix(typed);
        if rest.is_some_and(|rest| rest.trim().is_empty()) {
            return;
        }
        let exact = Meaning { edits: 0, meant: typed.len() };
        let finished = typing.filter(|_| rest.is_none()).and_then(|typing| Alignment::of_text(typing, &text));
        let meaning = finished.map_or(exact, |finished| Meaning { edits: finished.edits, meant: finished.meant });
        self.found.hits.push(Hit { text, meaning, joint });
    }
}
