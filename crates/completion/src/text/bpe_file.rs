//! Reads a Hugging Face `tokenizer.json` of a model that merges pairs, byte-level like GPT-2's or with SentencePiece's
//! `▁`.
//!
//! Everything in the file that would make encoding anything else than what `canonical` follows is refused by name,
//! because completions couldn't be exact. What is ignored is what doesn't change how text becomes tokens: truncation,
//! padding, the decoder, and the post-processor with the special tokens it adds around a text.
//!
//! This module opens no file: it is given its text. `bpe_stages` reads the normalizer and the pre-tokenizer.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use thiserror::Error;

use super::bpe_merges::Merge;
use super::bpe_stages::{Stages, read_stages};
use super::normal_form::{META_SPACE, NormalForm};
use super::pre_tokenizer::PreTokenizer;
use super::vocabulary::{TokenId, Vocabulary};

/// The largest token id accepted, so that a broken file can't ask for any amount of memory.
pub const MAX_TOKEN_ID: u32 = (1 << 22) - 1;

/// Why a `tokenizer.json` can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BpeFileError {
    /// The file is not JSON, or lacks what a `tokenizer.json` of a BPE model has.
    #[error("not a tokenizer.json of a BPE model")]
    Json(#[from] serde_json::Error),
    /// The model isn't `BPE`.
    #[error("the model is {0}, and only BPE is supported")]
    NotBpe(String),
    /// The file sets something that isn't understood.
    #[error("completions cannot be exact because {setting} {reason}")]
    Refused {
        /// The setting in the file, as a dotted path.
        setting: &'static str,
        /// What is wrong with the setting.
        reason: String,
    },
    /// A token outside the byte-level alphabet, that isn't a special token.
    #[error("token {id} ({token:?}) isn't written in the byte-level alphabet")]
    NotByteLevel {
        /// The token's id.
        id: u32,
        /// The token as the file writes it.
        token: String,
    },
    /// An added token that isn't special, and that is found in a text in a way that isn't understood.
    #[error("completions cannot be exact because the added token {id} ({content:?}) {reason}")]
    AddedText {
        /// The token's id.
        id: u32,
        /// The token's text.
        content: String,
        /// What isn't understood.
        reason: &'static str,
    },
    /// A merge that isn't two tokens which make a third.
    #[error("merge {rank} isn't a pair of tokens that make a token")]
    BadMerge {
        /// Index of the merge in the file's list, from 0.
        rank: usize,
    },
    /// An id above [`MAX_TOKEN_ID`].
    #[error("token id {0} is above {MAX_TOKEN_ID}")]
    IdTooLarge(u32),
    /// Two tokens with one id.
    #[error("token id {0} is given twice")]
    RepeatedId(u32),
}

/// What a `tokenizer.json` says, as far as it decides the tokens of a text.
#[derive(Debug)]
pub struct BpeTokenizer {
    /// The bytes of each token; none for special tokens.
    pub(super) vocabulary: Vocabulary,
    /// The merges, in rank order.
    pub(super) merges: Vec<Merge>,
    pub(super) pre_tokenizer: PreTokenizer,
    pub(super) normal_form: NormalForm,
    /// Tokens whose text is found in a text before it is split.
    pub(super) added: Vec<TokenId>,
    /// Whether characters are merged, and not bytes. Characters that aren't tokens are spelled by bytes.
    pub(super) by_characters: bool,
    /// Whether a pre-token that is a token isn't merged.
    pub(super) whole_words: bool,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<serde_json::Value>,
    pre_tokenizer: Option<serde_json::Value>,
    model: Model,
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    normalized: Option<bool>,
}

impl AddedToken {
    /// Whether it is found in the normalized text, and not in the text as it is.
    pub(super) fn normalized(&self) -> bool {
        self.normalized.unwrap_or(!self.special)
    }
}

#[derive(Deserialize)]
struct Model {
    r#type: Option<String>,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<WrittenMerge>,
}

/// A merge in the older and the newer way to write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenMerge {
    Joined(String),
    Pair(String, String),
}

impl WrittenMerge {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Self::Joined(pair) => pair.split_once(' '),
            Self::Pair(left, right) => Some((left, right)),
        }
    }
}

/// Reads the text of a `tokenizer.json`.
///
/// # Errors
///
/// If it isn't one, or if its tokens can't be followed from left to right.
pub fn from_tokenizer_json(json: &str) -> Result<BpeTokenizer, BpeFileError> {
    let file: File = serde_json::from_str(json)?;
    if let Some(kind) = file.model.r#type.as_deref().filter(|kind| *kind != "BPE") {
        return Err(BpeFileError::NotBpe(kind.to_owned()));
    }
    check_model(&file.model)?;
    let stages = read_stages(file.normalizer.as_ref(), file.pre_tokenizer.as_ref(), &file.added_tokens)?;
    let Stages { pre_tokenizer, normal_form, byte_level, added, .. } = stages;
    let refused = |setting, reason: &str| BpeFileError::Refused { setting, reason: reason.to_owned() };
    if byte_level && file.model.byte_fallback {
        return Err(refused("model.byte_fallback", "is on"));
    }
    let special = file.added_tokens.iter().filter(|token| token.special).map(|token| token.id).collect();
    let spelling = Spelling { vocab: &file.model.vocab, byte_level, byte_fallback: file.model.byte_fallback };
    let vocabulary = read_vocabulary(&spelling, &special, &added)?;
    if normal_form.meta_space && !file.model.vocab.contains_key("▁") {
        return Err(refused("model.vocab", "lacks the token ▁"));
    }
    let merges = read_merges(&file.model.merges, &file.model.vocab)?;
    let added = added.into_iter().map(|(token, _)| token).collect();
    let (by_characters, whole_words) = (!byte_level, file.model.ignore_merges);
    Ok(BpeTokenizer { vocabulary, merges, pre_tokenizer, normal_form, added, by_characters, whole_words })
}

fn check_model(model: &Model) -> Result<(), BpeFileError> {
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let refusals = [
        (model.dropout.is_some_and(|p| p != 0.0), "model.dropout", "makes the encoding random"),
        (is_set(&model.continuing_subword_prefix), "model.continuing_subword_prefix", "is set"),
        (is_set(&model.end_of_word_suffix), "model.end_of_word_suffix", "is set"),
    ];
    match refusals.into_iter().find(|(refused, ..)| *refused) {
        Some((_, setting, reason)) => Err(BpeFileError::Refused { setting, reason: reason.to_owned() }),
        None => Ok(()),
    }
}

/// How a vocabulary writes bytes.
struct Spelling<'a> {
    vocab: &'a HashMap<String, u32>,
    byte_level: bool,
    byte_fallback: bool,
}

impl Spelling<'_> {
    /// The bytes of a token; none if no text contains it.
    fn bytes(&self, token: &str, alphabet: &HashMap<char, u8>) -> Result<Option<Vec<u8>>, ()> {
        if self.byte_level {
            let bytes: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
            return bytes.map(Some).ok_or(());
        }
        if let Some(byte) = hex_byte(token).filter(|_| self.byte_fallback) {
            // A character that is a token is never spelled by its byte.
            let written = if byte == b' ' { META_SPACE } else { char::from(byte) };
            let is_token = byte.is_ascii() && self.vocab.contains_key(written.encode_utf8(&mut [0; 4]) as &str);
            return Ok((!is_token).then(|| vec![byte]));
        }
        Ok((!token.contains(' ')).then(|| token.replace(META_SPACE, " ").into_bytes()))
    }
}

/// `<0x41>` is the byte 0x41.
pub(super) fn hex_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

fn read_vocabulary(
    spelling: &Spelling,
    special: &HashSet<u32>,
    added: &[(TokenId, String)],
) -> Result<Vocabulary, BpeFileError> {
    let alphabet = byte_alphabet();
    let added: HashMap<u32, &str> = added.iter().map(|(token, content)| (token.0, content.as_str())).collect();
    let mut tokens: HashMap<u32, Option<Vec<u8>>> = HashMap::with_capacity(spelling.vocab.len());
    for (token, &id) in spelling.vocab {
        let bytes = if special.contains(&id) || added.contains_key(&id) {
            None
        } else {
            let not_byte_level = |()| BpeFileError::NotByteLevel { id, token: token.clone() };
            spelling.bytes(token, &alphabet).map_err(not_byte_level)?
        };
        if tokens.insert(id, bytes).is_some() {
            return Err(BpeFileError::RepeatedId(id));
        }
    }
    tokens.extend(special.iter().map(|&id| (id, None)));
    tokens.extend(added.into_iter().map(|(id, content)| (id, Some(content.as_bytes().to_vec()))));
    match tokens.keys().find(|&&id| id > MAX_TOKEN_ID) {
        Some(&id) => Err(BpeFileError::IdTooLarge(id)),
        None => Ok(Vocabulary::from_tokens(tokens.into_iter().map(|(id, bytes)| (TokenId(id), bytes)))),
    }
}

fn read_merges(merges: &[WrittenMerge], vocabulary: &HashMap<String, u32>) -> Result<Vec<Merge>, BpeFileError> {
    let token = |text: &str| vocabulary.get(text).copied().map(TokenId);
    let read = |merge: &WrittenMerge| {
        let (left, right) = merge.parts()?;
        Some(Merge { left: token(left)?, right: token(right)?, merged: token(&format!("{left}{right}"))? })
    };
    merges.iter().enumerate().map(|(rank, merge)| read(merge).ok_or(BpeFileError::BadMerge { rank })).collect()
}

/// The characters with which GPT-2 writes bytes: printable Latin-1 stands for itself, and the other bytes, in order,
/// are U+0100 and up.
pub(super) fn byte_alphabet() -> HashMap<char, u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let printable = (0..=255u8).filter(|&byte| is_printable(byte)).map(|byte| (char::from(byte), byte));
    let others = ('\u{100}'..).zip((0..=255u8).filter(|&byte| !is_printable(byte)));
    printable.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn valid() -> Value {
        json!({
            "version": "1.0",
            "added_tokens": [{ "id": 6, "content": "<|end|>", "special": true }],
            "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true },
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "vocab": { "a": 0, "b": 1, "Ġ": 2, "Ã": 3, "ab": 4, "Ġab": 5, "<|end|>": 6 },
                "merges": ["a b", ["Ġ", "ab"]]
            }
        })
    }

    fn changed(pointer: &str, value: Value) -> String {
        let mut file = valid();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        match file.pointer_mut(parent).expect("the parent exists") {
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        match from_tokenizer_json(&file.to_string()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn reads_both_ways_to_write_merges() {
        let BpeTokenizer { vocabulary, merges, .. } = from_tokenizer_json(&valid().to_string()).unwrap();
        assert_eq!(vocabulary.len(), 7);
        assert_eq!(vocabulary.bytes(TokenId(5)), Some(&b" ab"[..]));
        assert_eq!(vocabulary.bytes(TokenId(3)), Some(&b"\xc3"[..]));
        assert_eq!(vocabulary.bytes(TokenId(6)), None);
        let merge = |left, right, merged| {
            let [left, right, merged] = [left, right, merged].map(TokenId);
            Merge { left, right, merged }
        };
        assert_eq!(merges, [merge(0, 1, 4), merge(2, 4, 5)]);
    }

    #[test]
    fn refuses_what_cannot_be_followed() {
        for (pointer, value, message) in [
            ("/normalizer", json!({ "type": "NFKC" }), "normalizer NFKC isn't"),
            ("/pre_tokenizer", json!(null), "pre_tokenizer is neither"),
            ("/pre_tokenizer/type", json!("Whitespace"), "pre_tokenizer Whitespace isn't"),
            ("/model/type", json!("Unigram"), "Unigram"),
            ("/model/dropout", json!(0.1), "dropout"),
            ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix"),
            ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
            ("/model/byte_fallback", json!(true), "byte_fallback"),
            ("/added_tokens/0", json!({ "id": 6, "content": "<|end|>", "lstrip": true }), "takes the white space"),
            ("/added_tokens/0", json!({ "id": 6, "content": "<|end|>", "rstrip": true }), "takes the white space"),
            ("/added_tokens/0", json!({ "id": 6, "content": "<|end|>", "single_word": true }), "whole word"),
            ("/model/vocab/ c", json!(7), "byte-level alphabet"),
            ("/model/vocab/c", json!(1), "given twice"),
            ("/model/vocab/c", json!(u32::MAX), "is above"),
            ("/model/merges/0", json!("b c"), "merge 0"),
            ("/model/merges/1", json!("ab"), "merge 1"),
            ("/model/vocab", json!(1), "not a tokenizer.json"),
        ] {
            let found = changed(pointer, value);
            assert!(found.contains(message), "{pointer}: {found:?}");
        }
        assert_eq!(changed("/model/dropout", json!(0.0)), "");
        // A text with bytes that the vocabulary lacks isn't encodable, whatever stands for them.
        assert_eq!(changed("/model/unk_token", json!("a")), "");
    }
}
