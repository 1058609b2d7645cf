//! Which tokens are worth an alignment: those that are probable enough for where one more edit leads.

use std::ops::RangeInclusive;

use super::edit_automaton::{EditAutomaton, LONGEST};
use super::levels::Levels;
use crate::text::TokenId;
use crate::text::folded_tokens::{ClassSet, FoldedTokens, Letters, set_of};
use crate::typing::Typed;
use crate::typing::alignment::{Alignment, MOST_EDITS};

/// Token lengths, in characters, that are told apart.
const LENGTHS: usize = 32;

/// Most levels between those of a step's cheapest way and of its furthest one.
const SPREAD: usize = 2 * MOST_EDITS;
/// Levels from the step's on that are told apart.
const LEVELS: usize = LENGTHS + SPREAD + MOST_EDITS;

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
        let left = levels.last() - level;
        let floors: [f64; LEVELS] = std::array::from_fn(|behind| levels.floor(level + behind.min(left)));
        let lowest = |floors: &[f64]| floors.iter().copied().fold(f64::INFINITY, f64::min);
        let beyond = (level + LEVELS..=levels.last()).map(|at| levels.floor(at)).fold(f64::INFINITY, f64::min);
        let by_length = std::array::from_fn(|length| {
            let from = (reach.start() + length).saturating_sub(MOST_EDITS + level);
            match length + 1 {
                LENGTHS => lowest(&floors[from..]).min(beyond),
                _ => lowest(&floors[from..=reach.end() + length + MOST_EDITS - level]),
            }
        });
        let most = by_length.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { levels: floors, by_length, least: lowest(&by_length), most }
    }
}

/// Finds the tokens that may follow a step with one more edit. See the module's documentation.
pub(super) struct TokenFilter<'a> {
    folded: &'a FoldedTokens,
    automaton: EditAutomaton,
    /// The step's level.
    level: usize,
    /// The step's log-probability.
    score: f64,
    least_edit: f64,
    /// By a token's length in characters: the typed characters that it may stand for; all where it may reach beyond
    /// what was typed.
    windows: [ClassSet; LENGTHS],
    /// Whether the tokenizer put a space before the text, which a first token has and which wasn't typed.
    skips_space: bool,
    /// Whether the characters of the typed text fold to one each. If not, they can't be counted.
    is_simple: bool,
}

/// The step whose tokens are looked for.
pub(super) struct From<'a> {
    pub(super) alignment: &'a Alignment,
    pub(super) level: usize,
    /// The levels that its ways have reached.
    pub(super) reach: &'a RangeInclusive<usize>,
    pub(super) score: f64,
    pub(super) skips_space: bool,
}

impl<'a> TokenFilter<'a> {
    pub(super) fn new(folded: &'a FoldedTokens, typed: &Typed, from: &From<'_>) -> Self {
        let From { alignment, level, reach, score, skips_space } = *from;
        let characters = &typed.folded.characters[reach.start().saturating_sub(MOST_EDITS)..];
        let ahead = MOST_EDITS + reach.end() - (typed.len() - characters.len());
        let mut window = characters.get(..ahead).map_or(ClassSet::MAX, set_of);
        let windows = std::array::from_fn(|length| {
            let before = window;
            window |= characters.get(ahead + length).map_or(ClassSet::MAX, |&next| set_of(&[next]));
            before
        });
        let automaton = EditAutomaton::new(typed, alignment, *reach.start());
        let (least_edit, is_simple) = (f64::from(typed.costs.least_edit()), typed.is_simple);
        Self { folded, automaton, level, score, least_edit, windows, skips_space, is_simple }
    }

    /// The tokens that may lead to a step that reaches the floor, of those whose log-probability is in a range. `row`
    /// has the log-probabilities of the whole vocabulary.
    pub(super) fn find(&self, floor: &Floor, row: &[f32], probable: RangeInclusive<f32>) -> Vec<(TokenId, f32)> {
        const CHUNK: usize = 256;
        let mut found = Vec::new();
        for (first, chunk) in (0..).step_by(CHUNK).zip(row.chunks(CHUNK)) {
            // Without a branch: about as many are probable enough as are not.
            let (mut places, mut count) = ([0u8; CHUNK], 0);
            for (place, log_prob) in chunk.iter().enumerate() {
                places[count] = place as u8;
                count += usize::from(probable.contains(log_prob));
            }
            for &place in &places[..count] {
                let (token, log_prob) = (TokenId(first + u32::from(place)), chunk[usize::from(place)]);
                if self.may_reach(floor, token, log_prob) {
                    found.push((token, log_prob));
                }
            }
        }
        found
    }

    /// Whether a token may lead to a step that reaches the floor. Tokens that need no edit may be among them.
    pub(super) fn may_reach(&self, floor: &Floor, token: TokenId, log_prob: f32) -> bool {
        let joint = self.score + f64::from(log_prob);
        let Some(letters) = self.folded.letters(token).filter(|_| self.is_simple) else {
            return joint - self.least_edit >= floor.least;
        };
        let length = letters.classes.len().min(LENGTHS - 1);
        let nats = joint - floor.by_length[length];
        if nats < self.least_edit {
            return false;
        }
        let edits = if nats < 2.0 * self.least_edit { 1 } else { MOST_EDITS };
        // Each edit accounts for one character that wasn't typed.
        let mut missing = letters.set & !self.windows[length];
        for _ in 0..edits {
            missing &= missing.wrapping_sub(1);
        }
        (missing == 0 || self.skips_space) && self.may_be_typed(floor, joint, letters, edits)
    }

    /// Whether some way to have typed a token with so many edits leads to a level whose floor is reached.
    fn may_be_typed(&self, floor: &Floor, joint: f64, letters: Letters<'_>, edits: usize) -> bool {
        let Letters { mut classes, starts_with_space, .. } = letters;
        if classes.len() > LONGEST {
            return true;
        }
        if self.skips_space && starts_with_space {
            classes = &classes[1..];
        }
        let states = self.automaton.run(classes, edits);
        states.into_iter().zip(self.automaton.costs()).any(|(mut states, &cost)| {
            let joint = joint - f64::from(cost);
            while states != 0 {
                let behind = self.automaton.level(states.trailing_zeros()).saturating_sub(self.level);
                if joint >= floor.levels.get(behind).copied().unwrap_or(floor.least) {
                    return true;
                }
                states &= states - 1;
            }
            false
        })
    }
}

#[cfg(test)]
#[path = "token_filter_tests.rs"]
mod tests;
