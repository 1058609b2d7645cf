//! Which tokens are worth an alignment: those that are probable enough for where one more edit leads.

mod walk;

use std::ops::{Range, RangeInclusive};

use walk::Walk;

use super::edit_automaton::{EditAutomaton, LONGEST, Run, States};
use super::levels::Levels;
use crate::text::TokenId;
use crate::text::folded_tokens::{FoldedTokens, class_of};
use crate::typing::Typed;
use crate::typing::alignment::{Alignment, MOST_EDITS};

/// Token lengths, in characters, that are told apart.
const LENGTHS: usize = 32;

/// Most levels between those of a step's cheapest way and of its furthest one.
const SPREAD: usize = 2 * MOST_EDITS;
/// Levels before the step's that a token may seem to lead to.
const BEFORE: usize = SPREAD + MOST_EDITS;
/// Levels from the step's on that are told apart.
const LEVELS: usize = LENGTHS + SPREAD + MOST_EDITS;

/// Most tokens that are looked at one by one: more take longer than a walk through the tree.
const MOST_ALONE: usize = 200;

/// The lower one of two floors. Unlike [`f64::min`], it says nothing of NaN, and is one instruction.
fn lower(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

/// The lowest one of some floors; infinite if there are none. Eight are compared at once.
fn lowest(floors: &[f64]) -> f64 {
    let (eights, rest) = floors.as_chunks::<8>();
    let least = |least: [f64; 8], floors: &[f64; 8]| std::array::from_fn(|i| lower(least[i], floors[i]));
    let eight = eights.iter().fold([f64::INFINITY; 8], least);
    eight.iter().chain(rest).copied().fold(f64::INFINITY, lower)
}

/// The log-probabilities that a step's tokens must reach to be followed.
pub(super) struct Floor {
    /// By levels from the step's on: the log-probability of the path that leads there, less the cost of its edits.
    levels: [f64; LEVELS],
    /// By a token's length in characters: the lowest of the levels that it may lead to.
    by_length: [f64; LENGTHS],
    /// The lowest of them.
    pub(super) least: f64,
    /// The highest of them.
    pub(super) most: f64,
}

impl Floor {
    /// The floor for steps at `level` whose ways have reached the levels of `reach`.
    pub(super) fn new(levels: &Levels, level: usize, reach: &RangeInclusive<usize>) -> Self {
        let ahead = &levels.floors()[level..];
        // No token leads to a level before the step's.
        let mut floors = [f64::INFINITY; BEFORE + LEVELS];
        let last = ahead[ahead.len() - 1];
        let (known, beyond) = floors[BEFORE..].split_at_mut(ahead.len().min(LEVELS));
        known.copy_from_slice(&ahead[..known.len()]);
        beyond.fill(last);
        // A token leads as many levels on as it has characters, more or less by its edits. Each of these differences is
        // taken for all lengths at once, which is a few vector instructions.
        let shortest = (BEFORE + reach.start()).saturating_sub(MOST_EDITS + level);
        let furthest = BEFORE + reach.end() + MOST_EDITS - level;
        let mut by_length = [f64::INFINITY; LENGTHS];
        for from in shortest..=furthest.min(floors.len()) {
            by_length.iter_mut().zip(&floors[from..]).for_each(|(least, &floor)| *least = lower(*least, floor));
        }
        // The longest are those that are longer, too.
        let longest = &mut by_length[LENGTHS - 1];
        *longest =
            longest.min(lowest(&floors[shortest + LENGTHS - 1..])).min(lowest(ahead.get(LEVELS..).unwrap_or(&[])));
        let most = -lowest(&by_length.map(|floor| -floor));
        let least = lowest(&by_length);
        let levels = std::array::from_fn(|behind| floors[BEFORE + behind]);
        Self { levels, by_length, least, most }
    }

    /// What a path must reach that leads so many levels behind the step's.
    pub(super) fn at(&self, levels: usize) -> f64 {
        self.levels.get(levels).copied().unwrap_or(self.least)
    }
}

/// Finds the tokens that may follow a step with one more edit. See the module's documentation.
pub(super) struct TokenFilter<'a> {
    folded: &'a FoldedTokens,
    /// None if a character of the typed text folds to several, so that characters can't be counted.
    automaton: Option<EditAutomaton>,
    /// The step's level.
    level: usize,
    /// The step's log-probability, or that with a swap of its last character, if that is higher.
    score: f64,
    /// What one more edit costs at least, and what a second one does.
    least_edits: [f64; 2],
    most_alone: usize,
    /// Whether the tokenizer put a space before the text, which a first token has and which wasn't typed.
    skips_space: bool,
    /// Whether the step is the text as it stands, so that only a whole character makes it another one.
    is_exact: bool,
}

/// The step whose tokens are looked for.
pub(super) struct From<'a> {
    pub(super) alignment: &'a Alignment,
    pub(super) level: usize,
    /// The levels that its ways have reached.
    pub(super) reach: &'a RangeInclusive<usize>,
    pub(super) score: f64,
    /// What one more edit adds to it at least: see [`Alignment::least_edit`].
    pub(super) least_edit: f32,
    pub(super) skips_space: bool,
    /// Whether it is the text as it stands, up to a whole character.
    pub(super) is_exact: bool,
}

impl<'a> TokenFilter<'a> {
    pub(super) fn new(folded: &'a FoldedTokens, typed: &Typed, from: &From<'_>) -> Self {
        let From { alignment, level, reach, score, least_edit, skips_space, is_exact } = *from;
        let automaton = typed.is_simple.then(|| EditAutomaton::new(typed, alignment, *reach.start(), least_edit));
        let least_edits = [least_edit.max(0.0), typed.costs.least_edit()].map(f64::from);
        let score = score - f64::from(least_edit.min(0.0));
        Self { folded, automaton, level, score, least_edits, most_alone: MOST_ALONE, skips_space, is_exact }
    }

    /// The tokens that may lead to a step that reaches the floor, of those whose log-probability is in a range. `row`
    /// has the log-probabilities of the whole vocabulary.
    ///
    /// Not many tokens are one edit away: the tree has them in a few steps. Where few tokens are probable enough for
    /// two edits, each of those is looked at.
    pub(super) fn find(&self, floor: &Floor, row: &[f32], probable: RangeInclusive<f32>) -> Vec<(TokenId, f32)> {
        let is_near = |&(token, log_prob): &(TokenId, f32)| self.may_reach(floor, token, log_prob);
        let Some(automaton) = &self.automaton else {
            return between(row, probable).filter(is_near).collect();
        };
        let (least, most) = probable.into_inner();
        let cost: f64 = self.least_edits.iter().sum();
        let two_edits = if automaton.allows_two() {
            ((floor.least + cost - self.score) as f32).next_down().max(least)
        } else {
            f32::INFINITY
        };
        let alone = (two_edits <= most).then(|| between(row, two_edits..=most).take(self.most_alone + 1));
        let mut found: Vec<_> = alone.into_iter().flatten().collect();
        // The walk is for what is less probable than this.
        let behind = if found.len() > self.most_alone {
            found.clear();
            most.next_up()
        } else {
            found.retain(is_near);
            two_edits.min(most.next_up())
        };
        found.extend(within(row, self.folded.irregular(), least..behind).filter(is_near));
        if !self.is_exact {
            found.extend(within(row, self.folded.unbegun(), least..behind).filter(is_near));
        }
        let least_by_token = Walk::new(self, automaton, floor, f64::from(behind)).tokens();
        // Looked up in one pass: the rows of distributions are large, and seldom in a cache.
        found.extend(least_by_token.into_iter().filter_map(|(token, needed)| {
            let log_prob = *row.get(token.0 as usize)?;
            (needed.max(least)..behind).contains(&log_prob).then_some((token, log_prob))
        }));
        found
    }

    /// Whether a character may be the space that the tokenizer put before the text.
    fn is_added_space(&self, is_first: bool, class: u8) -> bool {
        self.skips_space && is_first && class == class_of(' ')
    }

    /// The states behind one more character of a token.
    #[inline]
    fn push(
        &self,
        automaton: &EditAutomaton,
        run: &Run,
        class: u8,
        is_first: bool,
        affordable: &States,
    ) -> Option<Run> {
        let next = automaton.push(run, class, affordable);
        // The class is that of some other characters, too.
        if self.is_added_space(is_first, class) {
            return Some(next.map_or(*run, |next| next.or(run)));
        }
        next
    }

    /// What a token's log-probability must be at least to lead to a step that reaches the floor.
    pub(super) fn least(&self, floor: &Floor) -> f64 {
        floor.least + self.least_edits[0] - self.score
    }

    /// Whether a token may lead to a step that reaches the floor. Tokens that need no edit may be among them.
    pub(super) fn may_reach(&self, floor: &Floor, token: TokenId, log_prob: f32) -> bool {
        let joint = self.score + f64::from(log_prob);
        let length = self.folded.length(token);
        let counted = length.filter(|&length| length > 0).zip(self.automaton.as_ref());
        let Some((length, automaton)) = counted else {
            let is_unbegun = length == Some(0);
            return !(is_unbegun && self.is_exact) && joint - self.least_edits[0] >= floor.least;
        };
        if length > LONGEST {
            return true;
        }
        let nats = joint - floor.by_length[length.min(LENGTHS - 1)];
        // Most tokens are passed over here, before their classes are read.
        if nats < self.least_edits[0] {
            return false;
        }
        let Some(classes) = self.folded.classes(token) else { return false };
        let affordable = automaton.affordable(nats);
        let mut run = *automaton.start();
        for (place, &class) in classes.iter().enumerate() {
            let Some(next) = self.push(automaton, &run, class, place == 0, &affordable) else { return false };
            run = next;
        }
        joint >= self.lowest(automaton, floor, &run.states)
    }

    /// The lowest log-probability of a path in these states, before it pays for its edits, with which it reaches the
    /// floor.
    fn lowest(&self, automaton: &EditAutomaton, floor: &Floor, states: &States) -> f64 {
        let mut least = f64::INFINITY;
        for (&states, &cost) in states.iter().zip(automaton.costs()) {
            let mut states = states;
            while states != 0 {
                let level = floor.at(automaton.level(states.trailing_zeros()).saturating_sub(self.level));
                least = least.min(level + f64::from(cost));
                states &= states - 1;
            }
        }
        least
    }
}

/// Those of some tokens whose log-probability is in a range.
fn within<'a>(
    row: &'a [f32],
    tokens: &'a [TokenId],
    probable: Range<f32>,
) -> impl Iterator<Item = (TokenId, f32)> + 'a {
    let known = tokens.iter().filter_map(|&token| Some((token, *row.get(token.0 as usize)?)));
    known.filter(move |(_, log_prob)| probable.contains(log_prob))
}

/// The tokens whose log-probability is in a range.
fn between(row: &[f32], probable: RangeInclusive<f32>) -> impl Iterator<Item = (TokenId, f32)> {
    const CHUNK: usize = 16;
    let (least, most) = probable.into_inner();
    let chunks = (0..).step_by(CHUNK).zip(row.chunks(CHUNK));
    // Most chunks have none; without a branch, a chunk is compared at once.
    let near = chunks.filter(move |(_, chunk)| chunk.iter().fold(false, |any, &log_prob| any | (log_prob >= least)));
    let known = near.flat_map(|(first, chunk)| (first..).map(TokenId).zip(chunk.iter().copied()));
    known.filter(move |&(_, log_prob)| (least..=most).contains(&log_prob))
}

#[cfg(test)]
#[path = "token_filter_tests.rs"]
mod tests;
