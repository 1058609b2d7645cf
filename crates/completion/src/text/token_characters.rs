//! What the pre-tokenizer sees of each token: the classes of its characters, and the incomplete characters at its ends.
//!
//! This module decides nothing about paths: it is a table for `canonical`.

use super::character_class::{CharacterClasses, ClassSet};
use super::vocabulary::{TokenId, Vocabulary};

/// One token's characters. A token of GPT-2's kind may begin and end inside a character.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenCharacters<'a> {
    /// Leading bytes that go on with a character begun before the token.
    pub(super) head: usize,
    /// The classes of the token's whole characters.
    pub(super) whole: &'a [u8],
    /// Trailing bytes of a character that goes on after the token.
    pub(super) tail: usize,
    /// What that character can turn out to be.
    pub(super) tail_classes: ClassSet,
}

/// A token's characters, with a range of [`TokenCharacterTable::classes`] instead of the slice.
#[derive(Clone, Copy, Debug)]
struct Row {
    start: u32,
    length: u32,
    head: u8,
    tail: u8,
    tail_classes: ClassSet,
}

/// The characters of a vocabulary's tokens.
#[derive(Clone, Debug)]
pub(super) struct TokenCharacterTable {
    classes: Vec<u8>,
    /// The characters of each token; `None` where no text contains the token. `[vocab]`
    rows: Vec<Option<Row>>,
}

impl TokenCharacterTable {
    /// Reads the tokens for which `exists` holds. Those that can't be part of UTF-8 get no characters.
    pub(super) fn new(vocabulary: &Vocabulary, classes: &CharacterClasses, exists: impl Fn(TokenId) -> bool) -> Self {
        let mut characters = Self { classes: Vec::new(), rows: Vec::with_capacity(vocabulary.len()) };
        for token in (0..vocabulary.len() as u32).map(TokenId) {
            let bytes = vocabulary.bytes(token).filter(|_| exists(token));
            let row = bytes.and_then(|bytes| characters.read(bytes, classes));
            characters.rows.push(row);
        }
        characters
    }

    /// The characters of a token; none if no text contains it.
    pub(super) fn get(&self, token: TokenId) -> Option<TokenCharacters<'_>> {
        let row = self.rows.get(token.0 as usize)?.as_ref()?;
        Some(TokenCharacters {
            head: usize::from(row.head),
            whole: &self.classes[row.start as usize..(row.start + row.length) as usize],
            tail: usize::from(row.tail),
            tail_classes: row.tail_classes,
        })
    }

    fn read(&mut self, bytes: &[u8], classes: &CharacterClasses) -> Option<Row> {
        let head = bytes.iter().take_while(|&&byte| is_continuation(byte)).count();
        let (text, tail) = split_tail(&bytes[head..])?;
        if head > 3 {
            return None;
        }
        let start = self.classes.len() as u32;
        self.classes.extend(text.chars().map(|character| classes.of(character) as u8));
        let tail_classes = if tail.is_empty() { ClassSet::default() } else { classes.of_partial(tail)? };
        let length = self.classes.len() as u32 - start;
        Some(Row { start, length, head: head as u8, tail: tail.len() as u8, tail_classes })
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
