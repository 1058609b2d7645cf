//! Reads the vocabulary and the merges out of a Hugging Face `tokenizer.json` of GPT-2's kind.
//!
//! Everything in the file that would make encoding anything else than byte-level merges behind GPT-2's pre-tokenizer is
//! refused by name, because completions couldn't be exact. What is ignored is what doesn't change how text becomes
//! tokens: truncation, padding, the decoder, and the post-processor with the special tokens it adds around a text.
//!
//! This module opens no file: it is given its text.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use thiserror::Error;

use super::bpe_merges::Merge;
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
    /// The file sets something that isn't GPT-2's.
    #[error("completions cannot be exact because {setting} {reason}")]
    NotGpt2 {
        /// The setting in the file, as a dotted path.
        setting: &'static str,
        /// What is wrong with the setting.
        reason: &'static str,
    },
    /// A token outside the byte-level alphabet, that isn't a special token.
    #[error("token {id} ({token:?}) isn't written in the byte-level alphabet")]
    NotByteLevel {
        /// The token's id.
        id: u32,
        /// The token as the file writes it.
        token: String,
    },
    /// An added token that isn't special: text that contains it isn't split into bytes.
    #[error(
        "completions cannot be exact because token {id} ({content:?}) is added to the vocabulary and isn't special"
    )]
    AddedText {
        /// The token's id.
        id: u32,
        /// The token's text.
        content: String,
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

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<serde_json::Value>,
    pre_tokenizer: Option<PreTokenizer>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct PreTokenizer {
    r#type: String,
    add_prefix_space: Option<bool>,
    use_regex: Option<bool>,
}

#[derive(Deserialize)]
struct Model {
    r#type: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
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

/// Reads the text of a `tokenizer.json`: the vocabulary, with the byte-level alphabet undone and no bytes for special
/// tokens, and the merges in rank order.
///
/// # Errors
///
/// If it isn't one, or if it isn't GPT-2's kind.
pub fn from_tokenizer_json(json: &str) -> Result<(Vocabulary, Vec<Merge>), BpeFileError> {
    let file: File = serde_json::from_str(json)?;
    if let Some(kind) = file.model.r#type.as_deref().filter(|kind| *kind != "BPE") {
        return Err(BpeFileError::NotBpe(kind.to_owned()));
    }
    check_settings(&file)?;
    if let Some(added) = file.added_tokens.iter().find(|added| !added.special) {
        return Err(BpeFileError::AddedText { id: added.id, content: added.content.clone() });
    }
    let special = file.added_tokens.iter().map(|added| added.id).collect();
    let vocabulary = read_vocabulary(&file.model.vocab, &special)?;
    if file.model.unk_token.is_some_and(|token| !token.is_empty())
        && (0..=255u8).any(|byte| vocabulary.token(&[byte]).is_none())
    {
        let reason = "replaces bytes that the vocabulary lacks";
        return Err(BpeFileError::NotGpt2 { setting: "model.unk_token", reason });
    }
    let merges = read_merges(&file.model.merges, &file.model.vocab)?;
    Ok((vocabulary, merges))
}

fn check_settings(file: &File) -> Result<(), BpeFileError> {
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let byte_level = file.pre_tokenizer.as_ref().filter(|p| p.r#type == "ByteLevel");
    let adds_space = byte_level.is_some_and(|p| p.add_prefix_space.unwrap_or(true));
    let no_regex = byte_level.is_some_and(|p| !p.use_regex.unwrap_or(true));
    let model = &file.model;
    let refusals = [
        (file.normalizer.is_some(), "normalizer", "changes the text before it is split"),
        (byte_level.is_none(), "pre_tokenizer", "isn't ByteLevel"),
        (adds_space, "pre_tokenizer.add_prefix_space", "adds a space to the text"),
        (no_regex, "pre_tokenizer.use_regex", "is off, so that words aren't split as GPT-2 does"),
        (model.dropout.is_some_and(|p| p != 0.0), "model.dropout", "makes the encoding random"),
        (is_set(&model.continuing_subword_prefix), "model.continuing_subword_prefix", "is set"),
        (is_set(&model.end_of_word_suffix), "model.end_of_word_suffix", "is set"),
        (model.byte_fallback, "model.byte_fallback", "is on"),
        (model.ignore_merges, "model.ignore_merges", "is on: words in the vocabulary aren't merged"),
    ];
    match refusals.into_iter().find(|(refused, ..)| *refused) {
        Some((_, setting, reason)) => Err(BpeFileError::NotGpt2 { setting, reason }),
        None => Ok(()),
    }
}

fn read_vocabulary(vocab: &HashMap<String, u32>, special: &HashSet<u32>) -> Result<Vocabulary, BpeFileError> {
    let alphabet = byte_alphabet();
    let mut tokens: HashMap<u32, Option<Vec<u8>>> = HashMap::with_capacity(vocab.len());
    for (token, &id) in vocab {
        let bytes = if special.contains(&id) {
            None
        } else {
            let bytes: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
            Some(bytes.ok_or_else(|| BpeFileError::NotByteLevel { id, token: token.clone() })?)
        };
        if tokens.insert(id, bytes).is_some() {
            return Err(BpeFileError::RepeatedId(id));
        }
    }
    tokens.extend(special.iter().map(|&id| (id, None)));
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
        let (vocabulary, merges) = from_tokenizer_json(&valid().to_string()).unwrap();
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
    fn refuses_what_is_not_gpt2() {
        for (pointer, value, message) in [
            ("/normalizer", json!({ "type": "NFC" }), "normalizer"),
            ("/pre_tokenizer", json!(null), "pre_tokenizer isn't"),
            ("/pre_tokenizer/type", json!("Metaspace"), "pre_tokenizer isn't"),
            ("/pre_tokenizer/add_prefix_space", json!(true), "add_prefix_space"),
            ("/pre_tokenizer/use_regex", json!(false), "use_regex"),
            ("/model/type", json!("Unigram"), "Unigram"),
            ("/model/dropout", json!(0.1), "dropout"),
            ("/model/unk_token", json!("a"), "unk_token"),
            ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix"),
            ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
            ("/model/byte_fallback", json!(true), "byte_fallback"),
            ("/model/ignore_merges", json!(true), "ignore_merges"),
            ("/added_tokens/0/special", json!(false), "isn't special"),
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
        assert_eq!(changed("/model/unk_token", json!("")), "");
    }
}
