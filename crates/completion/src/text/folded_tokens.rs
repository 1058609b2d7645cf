//! The tokens by their folded forms: which of them spell a part of a folded text, and which can't within a given cost.
//!
//! This module knows nothing of alignments: it only says which tokens are worth one.

use super::vocabulary::{TokenId, Vocabulary};
use crate::typing::fold::fold;

/// Characters at a token's beginning that [`FoldedTokens::first_letters`] covers.
pub const FIRST: usize = 4;

/// A set of characters: a bit for each letter and digit, and some that other characters share.
pub type CharacterSet = u64;

/// The set of one folded character.
pub fn character_set(character: char) -> CharacterSet {
    let bit = match character {
        'a'..='z' => u32::from(character) - u32::from('a'),
        '0'..='9' => 26 + u32::from(character) - u32::from('0'),
        other => 36 + u32::from(other) % 28,
    };
    1 << bit
}

/// A vocabulary's tokens in folded form, sorted, so that tokens that fit a typed text are found without a scan.
#[derive(Clone, Debug)]
pub struct FoldedTokens {
    /// Tokens that spell whole characters, sorted by their folded forms.
    sorted: Vec<(Box<[u8]>, TokenId)>,
    /// Tokens that begin or end inside a character.
    parts: Vec<TokenId>,
    /// Each token's folded characters, and those of its first [`FIRST`] characters. `[vocab]`
    letters: Vec<(CharacterSet, CharacterSet)>,
}

impl FoldedTokens {
    /// Folds every token of a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let (mut sorted, mut parts) = (Vec::new(), Vec::new());
        let mut letters = vec![(0, 0); vocabulary.len()];
        for token in (0..vocabulary.len() as u32).map(TokenId) {
            let Some(bytes) = vocabulary.bytes(token) else { continue };
            let Ok(text) = std::str::from_utf8(bytes) else {
                parts.push(token);
                continue;
            };
            let folded = fold(text);
            let set = |characters: &mut dyn Iterator<Item = char>| characters.fold(0, |set, c| set | character_set(c));
            letters[token.0 as usize] = (set(&mut folded.chars()), set(&mut folded.chars().take(FIRST)));
            sorted.push((folded.into_bytes().into_boxed_slice(), token));
        }
        sorted.sort_unstable();
        Self { sorted, parts, letters }
    }

    /// The tokens whose folded form `text` begins with, or that begin with `text`.
    pub fn fitting<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = TokenId> + 'a {
        let mut range = 0..self.sorted.len();
        let mut length = 0;
        let mut here = 0..0;
        std::iter::from_fn(move || {
            loop {
                if let Some(index) = here.next() {
                    return Some(self.sorted[index].1);
                }
                if length == text.len() || range.is_empty() {
                    return None;
                }
                let depth = length;
                let next = |entry: &(Box<[u8]>, TokenId)| entry.0.get(depth).copied();
                let entries = &self.sorted[range.clone()];
                let start = entries.partition_point(|entry| next(entry) < Some(text[depth]));
                let count = entries[start..].partition_point(|entry| next(entry) == Some(text[depth]));
                range = range.start + start..range.start + start + count;
                length += 1;
                // Those that end here come first; at the text's end all that go on fit, too.
                let ending = self.sorted[range.clone()].partition_point(|entry| entry.0.len() == length);
                here = range.start..if length == text.len() { range.end } else { range.start + ending };
            }
        })
    }

    /// The tokens that begin or end inside a character.
    pub fn parts(&self) -> &[TokenId] {
        &self.parts
    }

    /// The folded characters of a token; none of one that begins or ends inside a character.
    pub fn letters(&self, token: TokenId) -> CharacterSet {
        self.letters.get(token.0 as usize).map_or(0, |letters| letters.0)
    }

    /// The folded characters among the token's first [`FIRST`].
    pub fn first_letters(&self, token: TokenId) -> CharacterSet {
        self.letters.get(token.0 as usize).map_or(0, |letters| letters.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fit_by_their_folded_forms() {
        let tokens = ["he", "He", "heat", "HEATER", "é", "eat", "x"].map(|token| Some(token.as_bytes().to_vec()));
        let broken = [Some(vec![0xc3])];
        let vocabulary = Vocabulary::from_tokens((0..).map(TokenId).zip(tokens.into_iter().chain(broken)));
        let folded = FoldedTokens::new(&vocabulary);
        let fitting = |text: &str| {
            let mut found: Vec<u32> = folded.fitting(text.as_bytes()).map(|token| token.0).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(fitting("heat p"), [0, 1, 2]);
        assert_eq!(fitting("heat"), [0, 1, 2, 3]);
        assert_eq!(fitting("e"), [4, 5]);
        assert_eq!(fitting("y"), [] as [u32; 0]);
        assert_eq!(folded.parts(), [TokenId(7)]);
        let set = |text: &str| text.chars().fold(0, |set, c| set | character_set(c));
        assert_eq!(folded.letters(TokenId(3)), set("heatr"));
        assert_eq!(folded.first_letters(TokenId(3)), set("heat"));
    }
}
