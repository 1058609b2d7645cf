//! The tokens by their folded forms: which of them spell a part of a folded text, and which characters each has.
//!
//! This module knows nothing of alignments: it only says which tokens are worth one.

use super::vocabulary::{TokenId, Vocabulary};
use crate::typing::fold::{fold, folded};

/// Number of classes of characters.
pub const CLASSES: usize = 64;

/// A set of classes of characters: a bit for each.
pub type ClassSet = u64;

/// The class of a folded character, below [`CLASSES`]: letters and digits have one each, others share some.
pub fn class_of(character: char) -> u8 {
    match character {
        'a'..='z' => character as u8 - b'a',
        '0'..='9' => 26 + (character as u8 - b'0'),
        other => 36 + (u32::from(other) % 28) as u8,
    }
}

/// The set of some folded characters' classes.
pub fn set_of(characters: &[char]) -> ClassSet {
    characters.iter().fold(0, |set, &character| set | 1 << class_of(character))
}

/// The characters of a token of which each folds to one character.
#[derive(Clone, Copy, Debug)]
pub struct Letters<'a> {
    /// The class of each folded character.
    pub classes: &'a [u8],
    /// The set of them.
    pub set: ClassSet,
    /// Whether the first character is a space.
    pub starts_with_space: bool,
}

/// Where [`FoldedTokens::classes`] has a token.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    set: ClassSet,
    start: u32,
    length: u16,
    starts_with_space: bool,
}

/// A vocabulary's tokens in folded form, sorted, so that tokens that fit a typed text are found without a scan.
#[derive(Clone, Debug)]
pub struct FoldedTokens {
    /// Tokens that spell whole characters, sorted by their folded forms.
    sorted: Vec<(Box<[u8]>, TokenId)>,
    /// Tokens that begin or end inside a character.
    parts: Vec<TokenId>,
    /// The classes of all tokens' characters.
    classes: Vec<u8>,
    /// Where each token's classes are; none if a character doesn't fold to one. `[vocab]`
    places: Vec<Option<Place>>,
}

impl FoldedTokens {
    /// Folds every token of a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let (mut sorted, mut parts, mut classes) = (Vec::new(), Vec::new(), Vec::new());
        let mut places = vec![None; vocabulary.len()];
        for token in (0..vocabulary.len() as u32).map(TokenId) {
            let Some(bytes) = vocabulary.bytes(token) else { continue };
            let Ok(text) = std::str::from_utf8(bytes) else {
                parts.push(token);
                continue;
            };
            if text.chars().all(|character| folded(character).count() == 1) {
                let start = classes.len();
                classes.extend(text.chars().flat_map(folded).map(class_of));
                let set = classes[start..].iter().fold(0, |set, class| set | 1 << class);
                let (length, starts_with_space) = ((classes.len() - start) as u16, text.starts_with(' '));
                places[token.0 as usize] = Some(Place { set, start: start as u32, length, starts_with_space });
            }
            sorted.push((fold(text).into_bytes().into_boxed_slice(), token));
        }
        sorted.sort_unstable();
        Self { sorted, parts, classes, places }
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

    /// The characters of a token; `None` if one of them doesn't fold to one character, or isn't whole.
    pub fn letters(&self, token: TokenId) -> Option<Letters<'_>> {
        let Place { set, start, length, starts_with_space } = (*self.places.get(token.0 as usize)?)?;
        let classes = &self.classes[start as usize..start as usize + usize::from(length)];
        Some(Letters { classes, set, starts_with_space })
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
        let letters = |token: u32| folded.letters(TokenId(token));
        let heater = letters(3).unwrap();
        assert_eq!(heater.classes, "heater".chars().map(class_of).collect::<Vec<_>>());
        assert_eq!(heater.set, set_of(&['a', 'e', 'h', 'r', 't']));
        assert!(letters(4).is_some() && letters(7).is_none());
        let ligature = Vocabulary::from_tokens(std::iter::once((TokenId(0), Some("ﬁ".into()))));
        assert!(FoldedTokens::new(&ligature).letters(TokenId(0)).is_none());
    }
}
