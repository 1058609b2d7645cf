//! Best-first beam search over the joint probability of whole queries, as a state machine (Meister et al. 2020: the
//! answers of a beam search, with no more work than its answers need).
//!
//! It starts from the covering set of the typed text ([`crate::text::Opening`]) and expands the most probable beam
//! next, never renormalising: what is compared is the joint probability of all tokens behind the prompt. At most
//! [`SearchOptions::beams`] beams are expanded at each number of new tokens (a level), so that the search ends where
//! probability is spread thin. Once no beam left could beat the last wanted suggestion, the answer is final. The search
//! keeps the best probability that it dropped unexpanded, so that the answer can say whether it is proven.
//!
//! It is driven from outside: its [`Paths`] name the distributions it wants, and when none is missing
//! [`Search::advance`] goes on. [`Search::speculate`] names more that will probably be wanted, for an engine that
//! computes several as quickly as one. The order in which distributions arrive never changes the answer.
//!
//! With a [`Tolerance`] the joint probability is that of the query and of how it was typed. The text without its style
//! has a covering set, too (`readings`). Corrections of the typed text are found first (`corrections`); from then on
//! they are beams like those of the covering sets.

mod completions;
mod corrections;
mod edit_automaton;
mod expansion;
mod levels;
mod next_key;
mod preview;
mod readings;
mod speculation;
mod token_filter;
mod token_walk;

use std::sync::Arc;

use self::corrections::Corrections;
use self::readings::{MOST_READINGS, Reading};
use super::frontier::{Frontier, Order, Slot};
use super::paths::{NodeIndex, Paths, Wanted};
use super::top_completions::TopCompletions;
use crate::text::{Method, PathRule, Text};
use crate::typing::{Tolerance, Typed};

/// The search expands level by level below one completion per this many expanded beams.
const MAX_BEAMS_PER_COMPLETION: usize = 16;

/// Distributions that a search needs for each suggestion, as measured with the demo model.
const TOKENS_PER_SUGGESTION: usize = 4;

/// Settings of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Suggestions wanted, at least 1.
    pub suggestions: usize,
    /// Beams expanded at each number of new tokens, at least 1.
    pub beams: usize,
    /// Tokens that may reach beyond the typed text.
    pub max_new_tokens: usize,
    /// Positions that a path, prompt included, may have.
    pub context: usize,
    /// How half-typed tokens are treated.
    pub method: Method,
    /// What the typed text may be taken to mean. Only the exact method has a tolerance.
    pub tolerance: Tolerance,
    /// Least probability of a typed character, as the geometric mean of all, for completions of the text as it stands.
    /// A text that is less probable is one that the model can't know, such as one in another script. 0 allows every
    /// text.
    pub min_probability: f64,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            suggestions: 10,
            beams: 16,
            max_new_tokens: 16,
            context: 1024,
            method: Method::Exact,
            tolerance: Tolerance::Off,
            min_probability: 0.0,
        }
    }
}

/// The text of a beam, and what may follow it.
#[derive(Clone, Debug)]
struct Prefix {
    rule: PathRule,
    /// The text so far, all that was typed included.
    text: Vec<u8>,
    /// Tokens that reach beyond what was typed: the beam's level.
    new_tokens: usize,
    /// The reading that the text begins with; none if that is a correction.
    reading: Option<usize>,
}

/// A beginning of queries that was selected for expansion.
#[derive(Clone, Debug)]
struct Beam {
    node: NodeIndex,
    /// Log-probability of everything behind the prompt, and of how it was typed.
    joint: f64,
    prefix: Prefix,
}

/// A beam at a length limit: it is not expanded.
#[derive(Clone, Debug)]
struct Truncated {
    joint: f64,
    text: Vec<u8>,
    reading: Option<usize>,
}

/// How many beams of a level were selected, by reading and, last, of corrections. Each has beams of its own: what may
/// be meant never displaces a completion of exactly what was typed.
#[derive(Clone, Copy, Debug, Default)]
struct Selected([usize; MOST_READINGS + 1]);

/// The index of a kind of beams: a reading's, or that of corrections.
fn kind(reading: Option<usize>) -> usize {
    reading.unwrap_or(MOST_READINGS)
}

impl Selected {
    /// Those of a level.
    fn at(levels: &mut Vec<Self>, level: usize) -> &mut Self {
        if levels.len() <= level {
            levels.resize(level + 1, Self::default());
        }
        &mut levels[level]
    }

    fn of(&mut self, reading: Option<usize>) -> &mut usize {
        &mut self.0[kind(reading)]
    }

    /// Beams that begin with a reading.
    fn exact(&self) -> usize {
        self.0[..MOST_READINGS].iter().sum()
    }

    fn all(&self) -> usize {
        self.0.iter().sum()
    }
}

/// The search. See the module's documentation.
pub struct Search {
    text: Arc<Text>,
    /// The typed text as it is, and without its style if that differs.
    readings: Vec<Reading>,
    /// Whether the tokenizer puts a space before the typed text.
    adds_space: bool,
    /// Whether suggestions spell the typed text with other bytes, because the tokenizer composes characters.
    is_respelled: bool,
    options: SearchOptions,
    paths: Paths,
    /// Beams that were selected for expansion; candidates refer to them by index.
    beams: Vec<Beam>,
    frontier: Frontier,
    /// Beams whose distributions are needed to go on: the best one, or all missing ones of a level.
    waiting: Vec<usize>,
    /// How many beams of each level were selected. `[levels]`
    selected: Vec<Selected>,
    truncated: Vec<Truncated>,
    completed: TopCompletions,
    /// Log of the probability that a query begins with the typed bytes; known once the openings are weighed.
    typed_log_prob: Option<f64>,
    /// The typed text as corrections see it; none without a tolerance.
    typing: Option<Typed>,
    /// The search for corrections while it goes on.
    corrections: Option<Corrections>,
    /// Log of the probability that queries begin with the typed bytes, words included that the model doesn't know.
    as_typed_log_prob: f64,
    /// Log of the probability that the typed text was typed at all, whatever it means: suggestions are relative to it.
    readings_log_prob: f64,
    /// The most probable beam that was dropped unexpanded.
    best_dropped: f64,
    /// See [`Search::expect_no_ends`].
    expects_no_ends: bool,
    /// See [`Search::next_characters`]; known once the distributions were given back.
    next_characters: Option<Vec<char>>,
    /// For tests: always this order.
    #[cfg(test)]
    fixed_order: Option<Order>,
}

impl Search {
    /// Starts a search. What was typed must leave room in the context: see [`Search::typed_tokens`].
    pub fn new(text: Arc<Text>, typed: String, options: SearchOptions) -> Self {
        let normalized = text.normalized(&typed).into_owned();
        let is_respelled = normalized != typed;
        let typed = normalized;
        let adds_space = text.adds_space(&typed);
        let tolerance = if text.rule(options.method).is_canonical() { options.tolerance } else { Tolerance::Off };
        let mut typing = Typed::tolerant(&typed, tolerance, text.costs());
        let mut paths = Paths::new(text.prompt().to_vec());
        let readings = Reading::all(&text, typed, typing.as_mut(), &options);
        let readings = readings.into_iter().map(|reading| reading.with_nodes(&mut paths)).collect();
        // Every node of the openings will be a context again when the next character comes: whole rows are wanted.
        (0..paths.len()).for_each(|i| paths.want(Wanted { node: NodeIndex(i), full: true, speculative: false }));
        Self {
            completed: TopCompletions::new(options.suggestions, typing.is_some()),
            typing,
            corrections: None,
            as_typed_log_prob: 0.0,
            readings_log_prob: 0.0,
            adds_space,
            is_respelled,
            text,
            readings,
            options,
            paths,
            beams: Vec::new(),
            frontier: Frontier::default(),
            waiting: Vec::new(),
            selected: Vec::new(),
            truncated: Vec::new(),
            typed_log_prob: None,
            best_dropped: f64::NEG_INFINITY,
            expects_no_ends: false,
            next_characters: None,
            #[cfg(test)]
            fixed_order: None,
        }
    }

    /// The typed text.
    fn typed(&self) -> &str {
        &self.readings[0].text
    }

    /// Whether the model's tokens can spell what was typed, at least without its style.
    pub fn is_spelled(&self) -> bool {
        self.readings.len() > 1 || self.text.is_encodable(self.typed())
    }

    /// The longest path that the typed text needs, in tokens behind the prompt.
    pub fn typed_tokens(&self) -> usize {
        let deepest = self.opening_nodes().map(|node| self.paths.depth(node)).max();
        deepest.map_or(0, |depth| depth - self.paths.depth(Paths::ROOT))
    }

    /// The paths it refers to and what it wants of them.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// See [`Search::paths`].
    pub fn paths_mut(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// Estimates how many distributions it still needs: the usual number less those supplied. A search that had more
    /// than the usual number is expected to go on the longer, the longer it has run.
    pub fn remaining(&self) -> usize {
        let SearchOptions { suggestions, max_new_tokens, .. } = self.options;
        let usual = self.typed_tokens() + suggestions * max_new_tokens.min(TOKENS_PER_SUGGESTION);
        usual.abs_diff(self.paths.supplied())
    }

    /// Whether nothing is left to expand.
    pub fn is_done(&self) -> bool {
        self.typed_log_prob.is_some() && self.corrections.is_none() && self.waiting.is_empty()
    }

    /// Goes on until a distribution is missing, or to the end. What it waited for must have been supplied.
    pub fn advance(&mut self) {
        debug_assert!(!self.paths.is_waiting(), "a distribution is missing");
        self.paths.want_nothing();
        if self.typed_log_prob.is_none() {
            self.weigh_openings();
        }
        if self.corrections.is_some() && !self.find_corrections() {
            return;
        }
        for beam in std::mem::take(&mut self.waiting) {
            self.expand(beam);
        }
        while let Some(beam) = self.next_beam() {
            let node = self.beams[beam].node;
            if self.paths.next(node).is_some() {
                self.expand(beam);
                continue;
            }
            self.paths.want(Wanted { node, full: false, speculative: false });
            self.waiting.push(beam);
        }
    }

    /// Says that earlier searches of this model rarely ended: hardly any expanded beam did, and suggestions were
    /// truncated at a length limit. Then this one expands level by level from the start, which saves the forwards that
    /// would show the same again. The answer doesn't change.
    pub fn expect_no_ends(&mut self) {
        self.expects_no_ends = true;
    }

    /// Whether this search rarely ended; see [`Search::expect_no_ends`].
    pub fn rarely_ended(&self) -> bool {
        self.order() == Order::LevelByLevel
    }

    /// Suggestions that were asked for.
    pub fn suggestions_wanted(&self) -> usize {
        self.options.suggestions
    }

    /// Log-probability that a query begins with the typed bytes; `None` before the first step.
    pub fn typed_log_prob(&self) -> Option<f64> {
        self.typed_log_prob
    }

    /// The order of expansion. Both orders give the same answer: a level's beams are its most probable ones either way.
    ///
    /// Best first does the least work where queries end, because completions rule out the rest. Where hardly any query
    /// ends, all levels fill up anyway, and level by level an engine computes a level's beams together.
    fn order(&self) -> Order {
        #[cfg(test)]
        if let Some(order) = self.fixed_order {
            return order;
        }
        let selected: usize = self.selected.iter().map(Selected::exact).sum();
        let is_early = selected < self.options.beams && !self.expects_no_ends;
        let ends = self.completed.len() * MAX_BEAMS_PER_COMPLETION > selected || is_early;
        if ends { Order::BestFirst } else { Order::LevelByLevel }
    }

    /// Selects the next beam to expand. `None` if nothing left can change the answer, or if the next selection depends
    /// on what the search waits for: a level's beams are known before any is expanded, those of the next level aren't.
    fn next_beam(&mut self) -> Option<usize> {
        let order = self.order();
        let level_waiting = self.waiting.first().map(|&beam| self.beams[beam].prefix.new_tokens);
        if level_waiting.is_some() && order == Order::BestFirst {
            return None;
        }
        loop {
            let (slot, candidate) = self.frontier.first(order)?;
            let level = slot.level;
            if level_waiting.is_some_and(|waiting| waiting != level) {
                return None;
            }
            let joint = candidate.joint;
            if self.completed.threshold().is_some_and(|kth| joint <= kth) {
                self.drop_slot(slot, joint);
                continue;
            }
            let reading = self.beams[candidate.beam].prefix.reading;
            let has_room = self.has_room_at(level, reading);
            if !has_room && joint <= self.best_dropped {
                self.frontier.clear(slot);
                continue;
            }
            self.frontier.pop(slot);
            let Some(prefix) = self.extended_prefix(&candidate) else { continue };
            if !has_room {
                self.drop_slot(slot, joint);
                continue;
            }
            *Selected::at(&mut self.selected, level).of(reading) += 1;
            if self.is_truncated(&candidate, prefix.new_tokens) {
                self.truncated.push(Truncated { joint, text: prefix.text, reading: prefix.reading });
                continue;
            }
            let node = self.node(&candidate);
            self.beams.push(Beam { node, joint, prefix });
            return Some(self.beams.len() - 1);
        }
    }

    /// Drops the candidates of a slot; the best of them has the log-probability `joint`.
    fn drop_slot(&mut self, slot: Slot, joint: f64) {
        self.best_dropped = self.best_dropped.max(joint);
        self.frontier.clear(slot);
    }

    /// The slot of beams with so many new tokens, of a reading or of corrections.
    fn slot(level: usize, reading: Option<usize>) -> Slot {
        Slot { level, kind: kind(reading) }
    }

    /// Whether another beam of this level may be selected, of a reading or of a correction. Truncated beams cost
    /// nothing: there is room for as many as may be suggested.
    fn has_room_at(&self, level: usize, reading: Option<usize>) -> bool {
        let SearchOptions { beams, suggestions, max_new_tokens, .. } = self.options;
        let most = if level < max_new_tokens { beams } else { beams.max(suggestions) };
        *self.selected.get(level).copied().unwrap_or_default().of(reading) < most
    }
}

#[cfg(test)]
#[path = "search/correction_tests.rs"]
mod correction_tests;
#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
