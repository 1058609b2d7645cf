//! Which tokens are worth an alignment: those that are probable enough for where one more edit leads.

mod walk;

use std::ops::RangeInclusive;

use walk::Walk;

use super::edit_automaton::{EditAutomaton, KINDS, LONGEST, Run, States};
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

/// The lower one of two floors. Unlike [`f64::min`], it says nothing of NaN, and is one instruction.
fn lower(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

/// The highest one of some floors; infinitely low if there are none.
fn highest(floors: &[f64]) -> f64 {
    floors.iter().copied().fold(f64::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// The log-probabilities that a step's tokens must reach to be followed.
pub(super) struct Floor {
    /// By levels from the step's on: the log-probability of the path that leads there, less the cost of its edits.
    levels: [f64; LEVELS],
    /// The lowest of them, and of the levels behind them.
    pub(super) least: f64,
    /// The highest of them.
    pub(super) most: f64,
    /// The highest one of the levels behind them.
    beyond: f64,
}

impl Floor {
    /// The floor for steps at `level`.
    pub(super) fn new(levels: &Levels, level: usize) -> Self {
        // No token leads to a level before the step's.
        let ahead = &levels.floors()[level..];
        let mut known = [ahead[ahead.len() - 1]; LEVELS];
        let near = ahead.len().min(LEVELS);
        known[..near].copy_from_slice(&ahead[..near]);
        let least = ahead.iter().copied().fold(f64::INFINITY, lower);
        let beyond = highest(&ahead[near..]);
        Self { levels: known, least, most: highest(&known).max(beyond), beyond }
    }

    /// What a path must reach that leads so many levels behind the step's.
    pub(super) fn at(&self, levels: usize) -> f64 {
        self.levels.get(levels).copied().unwrap_or(self.least)
    }

    /// The highest floor that many levels behind the step's or more.
    fn highest(&self, levels: usize) -> f64 {
        highest(&self.levels[levels.min(LEVELS - 1)..]).max(self.beyond)
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
    /// What one more edit costs at least.
    least_edit: f64,
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
        let score = score - f64::from(least_edit.min(0.0));
        let least_edit = f64::from(least_edit.max(0.0));
        Self { folded, automaton, level, score, least_edit, skips_space, is_exact }
    }

    /// The filter for tokens that lead to steps which reach a floor.
    pub(super) fn at(&'a self, floor: &'a Floor) -> FilterAt<'a> {
        let mut least = [[f64::INFINITY; LENGTHS]; KINDS];
        let Some(automaton) = &self.automaton else {
            least[0].fill(floor.least + self.least_edit);
            return FilterAt { filter: self, floor, least };
        };
        // By levels: the lowest floor up to there.
        let mut lowest = [floor.levels[0]; BEFORE + LEVELS];
        for (level, &floor) in (BEFORE..).zip(&floor.levels) {
            lowest[level] = lower(lowest[level - 1], floor);
        }
        let kinds = automaton.begun().into_iter().zip(automaton.costs());
        for (least, (span, cost)) in least.iter_mut().zip(kinds) {
            let Some(span) = span else { continue };
            let from = (BEFORE + span.furthest).saturating_sub(self.level + 1);
            debug_assert!(
                from + LENGTHS <= lowest.len(),
                "the levels behind a step are within its spread and its edits"
            );
            least.iter_mut().zip(&lowest[from..]).for_each(|(least, lowest)| *least = lowest + f64::from(cost));
            // The longest are those that are longer, too.
            least[LENGTHS - 1] = floor.least + f64::from(cost);
        }
        // A way of one kind may become one of another kind.
        let [none, left_out, other, two] = &mut least;
        for length in 0..LENGTHS {
            left_out[length] = lower(left_out[length], two[length]);
            other[length] = lower(other[length], two[length]);
            none[length] = lower(none[length], lower(left_out[length], other[length]));
        }
        // An unfinished character counts as the whole one that it will be.
        least.iter_mut().for_each(|least| least[0] = least[1]);
        FilterAt { filter: self, floor, least }
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
}

/// A filter for tokens that lead to steps which reach a floor.
pub(super) struct FilterAt<'a> {
    filter: &'a TokenFilter<'a>,
    floor: &'a Floor,
    /// What the log-probability of the path that a token ends must be at least, before it pays for edits. By kind of
    /// ways, which may become other kinds, and by the token's length in characters. A way without an edit may become
    /// any.
    least: [[f64; LENGTHS]; KINDS],
}

impl FilterAt<'_> {
    /// The tokens that may lead to a step that reaches the floor, of those whose log-probability is in a range. `row`
    /// has the log-probabilities of the whole vocabulary.
    pub(super) fn find(&self, row: &[f32], probable: RangeInclusive<f32>) -> Vec<(TokenId, f32)> {
        let Self { filter, .. } = self;
        let is_near = |&(token, log_prob): &(TokenId, f32)| self.may_reach(token, log_prob);
        let Some(automaton) = &filter.automaton else {
            return between(row, probable).filter(is_near).collect();
        };
        let (least, most) = (*probable.start(), *probable.end());
        let mut found: Vec<_> = within(row, filter.folded.irregular(), &probable).filter(is_near).collect();
        if !filter.is_exact {
            found.extend(within(row, filter.folded.unbegun(), &probable).filter(is_near));
        }
        let least_by_token = Walk::new(self, automaton, most).tokens();
        // Looked up in one pass: the rows of distributions are large, and seldom in a cache.
        found.extend(least_by_token.into_iter().filter_map(|(token, needed)| {
            let log_prob = *row.get(token.0 as usize)?;
            (needed.max(least)..=most).contains(&log_prob).then_some((token, log_prob))
        }));
        found
    }

    /// A bound on the log-probabilities of all tokens that may lead to a step that reaches the floor.
    pub(super) fn least(&self) -> f64 {
        self.least[0][LENGTHS - 1] - self.filter.score
    }

    /// Whether a token may lead to a step that reaches the floor. Tokens that need no edit may be among them.
    pub(super) fn may_reach(&self, token: TokenId, log_prob: f32) -> bool {
        let filter = self.filter;
        let joint = filter.score + f64::from(log_prob);
        let Some((length, automaton)) = filter.folded.length(token).zip(filter.automaton.as_ref()) else {
            return joint - filter.least_edit >= self.floor.least;
        };
        if length > LONGEST {
            return true;
        }
        // Most tokens are passed over here, before their classes are read.
        let least = self.least.each_ref().map(|least| least[length.min(LENGTHS - 1)]);
        if joint < least[0] {
            return false;
        }
        if length == 0 {
            return !filter.is_exact;
        }
        let Some(classes) = filter.folded.classes(token) else { return false };
        let affordable = least.map(|least| if least <= joint { u64::MAX } else { 0 });
        let mut run = *automaton.start();
        for (place, &class) in classes.iter().enumerate() {
            let Some(next) = filter.push(automaton, &run, class, place == 0, &affordable) else { return false };
            run = next;
        }
        joint >= self.lowest(automaton, &run.states)
    }

    /// A bound on the log-probability of the step that a token would have led to, if it may not reach the floor.
    pub(super) fn dropped(&self, token: TokenId, log_prob: f32) -> f64 {
        let Self { filter, floor, .. } = self;
        let joint = filter.score + f64::from(log_prob);
        let length = filter.folded.length(token).filter(|&length| length > 0);
        let Some((length, automaton)) = length.zip(filter.automaton.as_ref()) else {
            return (joint - filter.least_edit).min(floor.most);
        };
        // The space before the text leads nowhere.
        let before = filter.level + 1 + usize::from(filter.skips_space);
        let kinds = automaton.begun().into_iter().zip(automaton.costs());
        let bounds = kinds.filter_map(|(span, cost)| {
            let level = (span?.nearest + length).saturating_sub(before);
            Some((joint - f64::from(cost)).min(floor.highest(level)))
        });
        bounds.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The lowest log-probability of a path in these states, before it pays for its edits, with which it reaches the
    /// floor.
    fn lowest(&self, automaton: &EditAutomaton, states: &States) -> f64 {
        let mut least = f64::INFINITY;
        for (&states, cost) in states.iter().zip(automaton.costs()) {
            let mut states = if cost.is_finite() { states } else { 0 };
            while states != 0 {
                let level = automaton.level(states.trailing_zeros()).saturating_sub(self.filter.level);
                least = lower(least, self.floor.at(level) + f64::from(cost));
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
    probable: &'a RangeInclusive<f32>,
) -> impl Iterator<Item = (TokenId, f32)> + 'a {
    let known = tokens.iter().filter_map(|&token| Some((token, *row.get(token.0 as usize)?)));
    known.filter(|(_, log_prob)| probable.contains(log_prob))
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
