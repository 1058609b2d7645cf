//! Whole texts to tokens and tokens to text, as Hugging Face transformers does both. Knows nothing of half-typed texts.

use rustc_hash::FxHashSet;
use tokenizers::Tokenizer;

use super::bpe_file::{byte_alphabet, hex_byte};
use super::inexact::caught;
use super::vocabulary::TokenId;

/// A tokenizer as transformers uses it for generation: with the tokens that its post-processor adds, and without
/// special tokens in texts.
pub struct Codec {
    tokenizer: Tokenizer,
    /// Tokens that are left out of texts.
    special: FxHashSet<u32>,
    /// Tokens that stand for single bytes: what a run of them spells is known only at its end.
    single_bytes: FxHashSet<u32>,
    /// Whether the tokenizer has a token. `[vocab]`
    known: Vec<bool>,
    /// The bytes of each token, if the decoder only puts them together: each generated token is decoded several times,
    /// beside other people's requests. `[vocab]`
    bytes: Option<Vec<Vec<u8>>>,
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
        let single = vocabulary.iter().filter(|(token, _)| !byte_level && hex_byte(token).is_some());
        let single_bytes = single.map(|(_, &id)| id).collect();
        let bytes = byte_level.then(|| {
            let (alphabet, mut bytes) = (byte_alphabet(), vec![Vec::new(); known.len()]);
            for (token, &id) in &vocabulary {
                // A token with another character stands for itself.
                let spelled: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
                bytes[id as usize] = spelled.unwrap_or_else(|| token.clone().into_bytes());
            }
            bytes
        });
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id).collect();
        Ok(Self { tokenizer, special, single_bytes, known, bytes })
    }

    /// The tokens of a prompt, with those that the post-processor adds; `None` if it can't be encoded.
    pub fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        self.tokens(text, true)
    }

    /// The tokens of a part of a prompt: what it says, special tokens included, and nothing added; `None` if it can't
    /// be encoded.
    pub fn encode_part(&self, text: &str) -> Option<Vec<TokenId>> {
        self.tokens(text, false)
    }

    fn tokens(&self, text: &str, post_process: bool) -> Option<Vec<TokenId>> {
        let encoding = caught(|| self.tokenizer.encode_fast(text, post_process).ok())?;
        Some(encoding.get_ids().iter().map(|&id| TokenId(id)).collect())
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, ids: &[u32]) -> String {
        let Some(bytes) = &self.bytes else {
            return caught(|| self.tokenizer.decode(ids, true).ok()).unwrap_or_default();
        };
        let shown = ids.iter().filter(|&&id| !self.is_special(id)).filter_map(|&id| bytes.get(id as usize));
        String::from_utf8_lossy(&shown.flatten().copied().collect::<Vec<u8>>()).into_owned()
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

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn the_bytes_of_tokens_put_together_are_what_the_decoder_makes_of_them() {
        let json = include_str!("../../../../models/demo/tokenizer.json");
        let codec = Codec::from_json(json).unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..1000 {
            let ids: Vec<u32> =
                (0..rng.random_range(0..8)).map(|_| rng.random_range(0..codec.known.len() as u32)).collect();
            assert_eq!(codec.decode(&ids), codec.tokenizer.decode(&ids, true).unwrap(), "{ids:?}");
        }
    }
}
