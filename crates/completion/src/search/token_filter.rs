//! Which tokens are worth an alignment: those that are probable enough for where they lead, and that aren't made of
//! characters that nobody typed.

use super::levels::Levels;
use crate::text::TokenId;
use crate::text::folded_tokens::{CharacterSet, FIRST, FoldedTokens, character_set};
use crate::typing::Typed;

/// A token may end so many characters before or behind where its length says.
const MOST_EDITS: usize = 2;
/// Token lengths, in characters, that are told apart.
pub(super) const LENGTHS: usize = 32;

/// The log-probabilities that a step's tokens must reach to be followed.
pub(super) struct Floor {
    /// By a token's length in characters: the log-probability of the path that it leads to, less the cost of its edits.
    pub(super) by_length: [f64; LENGTHS],
    /// The lowest of them.
    pub(super) least: f64,
    /// The highest of them.
    pub(super) most: f64,
}

impl Floor {
    /// The floor for steps at `level`.
    pub(super) fn new(levels: &Levels, level: usize) -> Self {
        let last = levels.last();
        let lowest = |from: usize, to: usize| (from..=to).map(|at| levels.floor(at)).fold(f64::INFINITY, f64::min);
        let by_length = std::array::from_fn(|length| {
            let from = (level + length).saturating_sub(MOST_EDITS).clamp(level, last);
            let to = if length + 1 == LENGTHS { last } else { (level + length + MOST_EDITS).min(last) };
            lowest(from, to)
        });
        let least = by_length.iter().copied().fold(f64::INFINITY, f64::min);
        let most = by_length.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { by_length, least, most }
    }
}

/// The characters that were typed behind a level: what a token without them costs at least.
pub(super) struct Windows {
    /// By a token's length in characters: the typed characters that it may stand for; all where it may reach beyond
    /// what was typed.
    by_length: [CharacterSet; LENGTHS],
    /// The typed characters that a token's first characters may stand for.
    first: CharacterSet,
    /// The cheapest edit that leaves out or replaces a character.
    least_loss: f64,
}

impl Windows {
    pub(super) fn new(typing: &Typed, level: usize, least_loss: f64) -> Self {
        let from = level.saturating_sub(MOST_EDITS);
        let window = |length: usize| {
            let to = level + length + MOST_EDITS;
            let typed = typing.folded.characters.get(from..to);
            typed.map_or(CharacterSet::MAX, |typed| typed.iter().fold(0, |set, &c| set | character_set(c)))
        };
        Self { by_length: std::array::from_fn(window), first: window(FIRST), least_loss }
    }

    /// What the characters of a token that were not typed cost at least.
    pub(super) fn loss(&self, folded: &FoldedTokens, token: TokenId, length: usize) -> f64 {
        let missing = (folded.letters(token) & !self.by_length[length]).count_ones();
        let first = (folded.first_letters(token) & !self.first).count_ones();
        f64::from(missing.max(first)) * self.least_loss
    }
}
