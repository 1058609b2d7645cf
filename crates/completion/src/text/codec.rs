//! Whole texts to tokens and tokens to text, as Hugging Face transformers does both. Knows nothing of half-typed texts.

use rustc_hash::FxHashSet;
use tokenizers::Tokenizer;

use super::bpe_file::hex_byte;
use super::inexact::caught;
use super::vocabulary::TokenId;

/// A tokenizer as transformers uses it for generation: with the tokens that its post-processor adds, and without special
/// tokens in texts.
pub struct Codec {
    tokenizer: Tokenizer,
    /// Tokens that are left out of texts.
    special: FxHashSet<u32>,
    /// Tokens that stand for single bytes: what a run of them spells is known only at its end.
    single_bytes: FxHashSet<u32>,
    /// Whether the tokenizer has a token. `[vocab]`
    known: Vec<bool>,
}

impl Codec {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// What is wrong with the file, in words.
    pub fn from_json(json: &str) -> Result<Self, String> {
        let mut tokenizer = super::tokenizer_json::read_tokenizer(json.as_bytes())?;
        // A file may ask for both, and transformers turns both off before it encodes a prompt.
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        tokenizer.with_padding(None);
        let vocabulary = tokenizer.get_vocab(true);
        let mut known = vec![false; vocabulary.values().max().map_or(0, |&id| id as usize + 1)];
        vocabulary.values().for_each(|&id| known[id as usize] = true);
        let byte_level = matches!(tokenizer.get_decoder(), Some(tokenizers::DecoderWrapper::ByteLevel(_)));
        let bytes = vocabulary.iter().filter(|(token, _)| !byte_level && hex_byte(token).is_some());
        let single_bytes = bytes.map(|(_, &id)| id).collect();
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Ok(Self { tokenizer, special, single_bytes, known })
    }

    /// The tokens of a prompt, with those that the post-processor adds; `None` if it can't be encoded.
    pub fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let encoding = caught(|| self.tokenizer.encode_fast(text, true).ok())?;
        Some(encoding.get_ids().iter().map(|&id| TokenId(id)).collect())
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, ids: &[u32]) -> String {
        caught(|| self.tokenizer.decode(ids, true).ok()).unwrap_or_default()
    }

    /// The token of a piece as the file writes it.
    #[cfg(test)]
    pub(crate) fn id(&self, piece: &str) -> Option<u32> {
        self.tokenizer.token_to_id(piece)
    }

    /// Whether texts leave a token out.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Whether the tokenizer has a token. A model may have more rows than its tokenizer has tokens.
    pub fn has(&self, id: u32) -> bool {
        self.known.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether a token stands for one byte, so that what it spells depends on its neighbours.
    pub(crate) fn is_single_byte(&self, id: u32) -> bool {
        self.single_bytes.contains(&id)
    }
}
