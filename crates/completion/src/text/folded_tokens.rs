//! The tokens by their folded forms: which of them spell a part of a folded text, and which characters each has.
//!
//! This module knows nothing of alignments: it only says which tokens are worth one.

use super::token_tree::TokenTree;
use super::vocabulary::{TokenId, Vocabulary};
use crate::typing::fold::folded;

/// Number of classes of characters.
pub const CLASSES: usize = 64;

/// Most characters of a token that are told apart.
pub const MOST_LENGTH: u8 = u8::MAX - 1;
/// Stands for the length of an irregular token.
const IRREGULAR: u8 = u8::MAX;

/// The class of a folded character, below [`CLASSES`]: letters and digits have one each, others share some.
pub const fn class_of(character: char) -> u8 {
    match character {
        'a'..='z' => character as u8 - b'a',
        '0'..='9' => 26 + (character as u8 - b'0'),
        other => 36 + (other as u32 % 28) as u8,
    }
}

/// A vocabulary's tokens in folded form, as trees, so that tokens that fit a typed text are found without a scan.
#[derive(Clone, Debug)]
pub struct FoldedTokens {
    /// Tokens that begin or end inside a character.
    parts: Vec<TokenId>,
    /// Tokens with a character that doesn't fold to one, or with a whole one and a part of another.
    irregular: Vec<TokenId>,
    /// Tokens without a whole character.
    unbegun: Vec<TokenId>,
    /// The classes of the regular tokens' characters.
    classes: Vec<u8>,
    /// Where each token's classes begin; they end where those of the next one begin. `[vocab + 1]`
    starts: Vec<u32>,
    /// Characters of each token, at most [`MOST_LENGTH`], or [`IRREGULAR`]. A byte each: most questions about tokens
    /// are answered by it. `[vocab]`
    lengths: Vec<u8>,
    /// The tokens that have classes.
    tree: TokenTree,
    /// The irregular tokens that spell whole characters, by the classes of their folded forms.
    irregular_tree: TokenTree,
}

impl FoldedTokens {
    /// Folds every token of a vocabulary.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let (mut forms, mut parts, mut irregular, mut unbegun) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut classes, mut starts, mut lengths) = (Vec::new(), vec![0], vec![IRREGULAR; vocabulary.len()]);
        for (token, length) in (0..).map(TokenId).zip(&mut lengths) {
            let start = classes.len();
            match vocabulary.bytes(token).map(|bytes| (bytes, std::str::from_utf8(bytes))) {
                Some((_, Ok(text))) => {
                    let form = text.chars().flat_map(folded).map(class_of);
                    if text.chars().all(|character| folded(character).count() == 1) {
                        classes.extend(form);
                        *length = u8::try_from(classes.len() - start).unwrap_or(u8::MAX).min(MOST_LENGTH);
                    } else {
                        irregular.push(token);
                        forms.push((form.collect::<Vec<_>>(), token));
                    }
                }
                Some((bytes, Err(_))) => {
                    parts.push(token);
                    if bytes.utf8_chunks().all(|chunk| chunk.valid().is_empty()) {
                        *length = 0;
                        unbegun.push(token);
                    } else {
                        irregular.push(token);
                    }
                }
                None => {}
            }
            starts.push(classes.len() as u32);
        }
        let irregular_tree = TokenTree::new(forms.iter().map(|(form, token)| (&form[..], *token)));
        let tree = TokenTree::new([]);
        let mut folded = Self { parts, irregular, unbegun, classes, starts, lengths, tree, irregular_tree };
        let regular = (0..vocabulary.len() as u32).map(TokenId);
        folded.tree = TokenTree::new(regular.filter_map(|token| Some((folded.classes(token)?, token))));
        folded
    }

    /// The tokens whose folded forms `text` begins with, and those whose folded forms begin with all of `text`.
    /// Characters of one class count as equal.
    pub fn fitting(&self, text: impl Iterator<Item = char> + Clone) -> impl Iterator<Item = TokenId> {
        let classes = text.map(class_of);
        self.tree.along(classes.clone()).chain(self.irregular_tree.along(classes))
    }

    /// The tokens that begin or end inside a character.
    pub fn parts(&self) -> &[TokenId] {
        &self.parts
    }

    /// The tokens with a character that doesn't fold to one, or with a whole one and a part of another.
    pub fn irregular(&self) -> &[TokenId] {
        &self.irregular
    }

    /// The tokens without a whole character.
    pub fn unbegun(&self) -> &[TokenId] {
        &self.unbegun
    }

    /// Characters of a token, at most [`MOST_LENGTH`], none for one of [`Self::unbegun`]; `None` for an irregular one.
    pub fn length(&self, token: TokenId) -> Option<usize> {
        self.lengths.get(token.0 as usize).filter(|&&length| length != IRREGULAR).map(|&length| usize::from(length))
    }

    /// The classes of a token's whole characters, none for one of [`Self::unbegun`]; `None` for an irregular one.
    pub fn classes(&self, token: TokenId) -> Option<&[u8]> {
        self.length(token)?;
        let ends = self.starts.get(token.0 as usize..token.0 as usize + 2)?;
        Some(&self.classes[ends[0] as usize..ends[1] as usize])
    }

    /// The tokens that have classes, by these.
    pub fn tree(&self) -> &TokenTree {
        &self.tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_fit_by_their_folded_forms() {
        let tokens = ["he", "He", "heat", "HEATER", "é", "eat", "x"].map(|token| Some(token.as_bytes().to_vec()));
        let broken = [Some(vec![0xc3]), Some(b"e\xc3".to_vec())];
        let vocabulary = Vocabulary::from_tokens((0..).map(TokenId).zip(tokens.into_iter().chain(broken)));
        let folded = FoldedTokens::new(&vocabulary);
        let fitting = |text: &str| {
            let mut found: Vec<u32> = folded.fitting(text.chars()).map(|token| token.0).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(fitting("heat p"), [0, 1, 2]);
        assert_eq!(fitting("heat"), [0, 1, 2, 3]);
        assert_eq!(fitting("e"), [4, 5]);
        assert_eq!(fitting("y"), [] as [u32; 0]);
        assert_eq!(folded.parts(), [TokenId(7), TokenId(8)]);
        let classes = |token: u32| folded.classes(TokenId(token));
        assert_eq!(classes(3).unwrap(), "heater".chars().map(class_of).collect::<Vec<_>>());
        assert!(classes(4).is_some() && classes(7) == Some(&[]) && classes(8).is_none());
        assert_eq!((folded.unbegun(), folded.irregular()), (&[TokenId(7)][..], &[TokenId(8)][..]));
        let ligature = Vocabulary::from_tokens(std::iter::once((TokenId(0), Some("ﬁ".into()))));
        assert_eq!(FoldedTokens::new(&ligature).irregular(), [TokenId(0)]);
    }
}
