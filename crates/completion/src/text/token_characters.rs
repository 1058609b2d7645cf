//! What the pre-tokenizer sees of each token: the classes of its characters, and the incomplete characters at its ends.
//!
//! This module decides nothing about paths: it is a table for `canonical`.

use rustc_hash::FxHashMap;

use super::character_class::ClassSet;
use super::character_runs::{Run, RunFinder, Runs};
use super::pre_tokenizer::PreTokens;
use super::vocabulary::{TokenId, Vocabulary};

/// One token's characters. A token of GPT-2's kind may begin and end inside a character.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenCharacters {
    /// Leading bytes that go on with a character begun before the token.
    pub(super) head: u8,
    /// The class of the first whole character, and the run of those behind it; none if there is no whole character.
    pub(super) whole: Option<(u8, Run)>,
    /// Trailing bytes of a character that goes on after the token.
    pub(super) tail: u8,
    /// Whether the token is found in a text before anything else is done with it.
    pub(super) is_added: bool,
}

/// The characters of a vocabulary's tokens.
#[derive(Clone, Debug)]
pub(super) struct TokenCharacterTable {
    /// `None` where no text contains the token. Ten bytes each, because a key looks up thousands. `[vocab]`
    tokens: Vec<Option<TokenCharacters>>,
    /// What the unfinished character at a token's end can turn out to be.
    tails: FxHashMap<TokenId, ClassSet>,
    /// What the runs do.
    pub(super) runs: Runs,
}

impl TokenCharacterTable {
    /// Reads the tokens for which `exists` holds; `is_added` says which of them are added ones. Those that can't be
    /// part of UTF-8 get no characters. None if the tokens have too many different runs.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        pre_tokens: &PreTokens,
        is_added: impl Fn(TokenId) -> bool,
        exists: impl Fn(TokenId) -> bool,
    ) -> Option<Self> {
        let mut tails = FxHashMap::default();
        let mut finder = RunFinder::new(pre_tokens);
        let mut tokens = Vec::with_capacity(vocabulary.len());
        for token in (0..vocabulary.len() as u32).map(TokenId) {
            let bytes = vocabulary.bytes(token).filter(|_| exists(token) || is_added(token));
            let parts = bytes.and_then(Parts::of);
            let Some(Parts { head, text, tail }) = parts else {
                tokens.push(None);
                continue;
            };
            if !tail.is_empty() {
                let Some(classes) = pre_tokens.classes.of_partial(tail) else {
                    tokens.push(None);
                    continue;
                };
                tails.insert(token, classes);
            }
            let mut classes = text.chars().map(|character| pre_tokens.classes.of(character));
            let whole = match classes.next() {
                Some(first) => Some((first as u8, finder.find(classes)?)),
                None => None,
            };
            let (head, tail) = (head as u8, tail.len() as u8);
            tokens.push(Some(TokenCharacters { head, whole, tail, is_added: is_added(token) }));
        }
        Some(Self { tokens, tails, runs: finder.into_runs() })
    }

    /// The characters of a token; none if no text contains it.
    pub(super) fn get(&self, token: TokenId) -> Option<TokenCharacters> {
        self.tokens.get(token.0 as usize).copied().flatten()
    }

    /// What the unfinished character at a token's end can turn out to be.
    pub(super) fn tail_classes(&self, token: TokenId) -> ClassSet {
        self.tails.get(&token).copied().unwrap_or_default()
    }
}

/// A token's bytes.
pub(super) struct Parts<'a> {
    /// Leading bytes that go on with a character begun before the token.
    pub(super) head: usize,
    /// The whole characters.
    pub(super) text: &'a str,
    /// The beginning of a character that goes on after the token.
    pub(super) tail: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The parts of a token; none if its bytes can't be part of UTF-8.
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.iter().take_while(|&&byte| is_continuation(byte)).count();
        let (text, tail) = split_tail(&bytes[head..])?;
        (head <= 3).then_some(Self { head, text, tail })
    }
}

/// Whether a byte goes on with a character rather than beginning one.
pub(super) fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// Splits bytes into whole characters and an unfinished one; none if they can't be the beginning of UTF-8.
fn split_tail(bytes: &[u8]) -> Option<(&str, &[u8])> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some((text, &[])),
        Err(error) if error.error_len().is_none() => {
            let (text, tail) = bytes.split_at(error.valid_up_to());
            Some((std::str::from_utf8(text).ok()?, tail))
        }
        Err(_) => None,
    }
}
