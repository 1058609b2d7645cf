//! Tokenizers that can't be treated exactly: encoding by the `tokenizers` crate, and the bytes of each token as far as
//! they are known. Half-typed tokens are healed with them: the last few tokens are dropped and constrained.

use tokenizers::Tokenizer;

use super::bpe_file::{BpeFileError, MAX_TOKEN_ID, byte_alphabet, hex_byte};
use super::vocabulary::{TokenId, Vocabulary};

/// A tokenizer of another kind than GPT-2's.
pub struct InexactTokenizer {
    tokenizer: Tokenizer,
    reason: String,
    /// Whether it puts a space before the first word.
    adds_space: bool,
}

impl InexactTokenizer {
    /// Reads a `tokenizer.json`; `reason` is why it can't be exact.
    pub fn from_json(json: &str, reason: String) -> Result<Self, String> {
        let tokenizer = super::tokenizer_json::read_tokenizer(json.as_bytes())?;
        // A table of all ids is made: a broken file must not ask for any amount of memory.
        let largest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        if largest > MAX_TOKEN_ID {
            return Err(BpeFileError::IdTooLarge(largest).to_string());
        }
        let mut inexact = Self { tokenizer, reason, adds_space: false };
        let (first, vocabulary) = (inexact.encode("a"), inexact.vocabulary());
        inexact.adds_space =
            first.first().and_then(|&token| vocabulary.bytes(token)).is_some_and(|b| b.starts_with(b" "));
        Ok(inexact)
    }

    /// Whether it puts a space before the first word.
    pub fn adds_space(&self) -> bool {
        self.adds_space
    }

    /// Why it can't be exact.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The tokens of a text, without special ones; none if it can't be encoded.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        let encoding = caught(|| self.tokenizer.encode_fast(text, false).ok());
        encoding.map(|e| e.get_ids().iter().map(|&id| TokenId(id)).collect()).unwrap_or_default()
    }

    /// Whether encoding and decoding gives the text back.
    pub fn is_encodable(&self, text: &str) -> bool {
        let ids: Vec<u32> = self.encode(text).iter().map(|t| t.0).collect();
        let decoded = caught(|| self.tokenizer.decode(&ids, false).ok());
        decoded.is_some_and(|decoded| decoded.trim_start() == text.trim_start())
    }

    /// The bytes of each token: the byte alphabet undone where the tokenizer is byte-level, SentencePiece's `▁` as a
    /// space and its `<0xNN>` as that byte.
    pub fn vocabulary(&self) -> Vocabulary {
        let byte_level = matches!(self.tokenizer.get_decoder(), Some(tokenizers::DecoderWrapper::ByteLevel(_)));
        let alphabet = byte_alphabet();
        let special = self.tokenizer.get_added_tokens_decoder();
        let tokens = self.tokenizer.get_vocab(true).into_iter().map(|(token, id)| {
            let bytes = if special.get(&id).is_some_and(|t| t.special) {
                None
            } else if byte_level {
                token.chars().map(|c| alphabet.get(&c).copied()).collect()
            } else if let Some(byte) = hex_byte(&token) {
                Some(vec![byte])
            } else {
                Some(token.replace('▁', " ").into_bytes())
            };
            (TokenId(id), bytes)
        });
        Vocabulary::from_tokens(tokens)
    }
}

/// The `tokenizers` crate panics where its file contradicts itself, such as a character map that points outside of
/// itself. That is a text that can't be encoded; it must not end a request's thread.
pub(super) fn caught<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    // What is shared is the tokenizer, which is only read; its caches hold whole entries or none.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok().flatten()
}
