//! The tokenizer's mathematics against the `tokenizers` crate, which knows none of it.
//!
//! GPT-2's real vocabulary is in the folder that `FORETYPE_GPT2_VOCAB` names, as `encoder.json` and `vocab.bpe`.
//! SmolLM2's is in the folder that `FORETYPE_REAL_MODEL` names. `tests/goldens/tokenizers` has one of each kind.
//! Tiny random ones are small enough to compare with all texts that there are.

mod brute;
mod reach;
pub(super) mod samples;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::json;

use super::bpe_file::from_tokenizer_json;
use super::canonical::{CanonicalBpe, PathState};
use super::normal_form::AddedSpace;
use super::testing::{gpt2_json, tokenizer_json};
use super::vocabulary::TokenId;
use samples::Random;

/// The same tokenizer twice: ours, and the reference.
struct Oracle {
    canon: CanonicalBpe,
    reference: tokenizers::Tokenizer,
}

impl Oracle {
    fn new(json: &str) -> Self {
        let file = from_tokenizer_json(json).expect("a tokenizer.json that can be followed");
        let canon = CanonicalBpe::new(file).expect("merges that fit the vocabulary");
        Self { canon, reference: tokenizers::Tokenizer::from_bytes(json).expect("the reference reads it too") }
    }

    fn gpt2() -> Option<Self> {
        let json = gpt2_json();
        if json.is_none() {
            require::skip("GPT-2's vocabulary", "FORETYPE_GPT2_VOCAB isn't set: run tools/gpt2_vocabulary.sh");
        }
        json.map(|json| Self::new(&json))
    }

    /// The repository's own tokenizers, each once.
    fn in_repository() -> Vec<(PathBuf, Self)> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let goldens = std::fs::read_dir(root.join("tests/goldens")).into_iter().flatten();
        let folders = goldens.filter_map(|entry| Some(entry.ok()?.path())).chain([root.join("models/demo")]);
        let kinds = std::fs::read_dir(root.join("tests/goldens/tokenizers")).into_iter().flatten();
        let kinds = kinds.filter_map(|entry| Some(entry.ok()?.path()));
        let files: HashMap<String, PathBuf> = folders
            .map(|folder| folder.join("tokenizer.json"))
            .chain(kinds)
            .filter_map(|path| Some((std::fs::read_to_string(&path).ok()?, path)))
            .collect();
        let mut oracles: Vec<_> = files.into_iter().map(|(json, path)| (path, Self::new(&json))).collect();
        oracles.sort_by(|a, b| a.0.cmp(&b.0));
        oracles
    }

    fn all() -> Vec<(PathBuf, Self)> {
        let gpt2 = Self::gpt2().map(|oracle| (PathBuf::from("GPT-2"), oracle));
        let smollm2 = Self::smollm2().map(|oracle| (PathBuf::from("SmolLM2"), oracle));
        gpt2.into_iter().chain(smollm2).chain(Self::in_repository()).collect()
    }

    fn smollm2() -> Option<Self> {
        let Some(folder) = std::env::var_os("FORETYPE_REAL_MODEL") else {
            require::skip("SmolLM2's vocabulary", "FORETYPE_REAL_MODEL isn't set: run tools/real_model.sh");
            return None;
        };
        let path = PathBuf::from(folder).join("tokenizer.json");
        Some(Self::new(&std::fs::read_to_string(path).expect("the folder that the variable names")))
    }

    fn encode(&self, text: &str) -> Vec<TokenId> {
        let encoding = self.reference.encode_fast(text, false).expect("the reference encodes everything");
        encoding.get_ids().iter().copied().map(TokenId).collect()
    }

    /// The state after a path; none where `may_follow` ends it.
    fn follow(&self, tokens: &[TokenId]) -> Option<PathState> {
        tokens.iter().try_fold(self.canon.start(), |state, &token| self.canon.may_follow(&state, token))
    }

    fn spell(&self, tokens: &[TokenId]) -> Vec<u8> {
        tokens.iter().flat_map(|&token| self.canon.vocabulary().bytes(token).expect("bytes")).copied().collect()
    }

    /// The text that is spelled like this; none if no text is.
    fn typed<'a>(&self, spelled: &'a str) -> Option<&'a str> {
        match self.canon.normal_form().space {
            AddedSpace::Always if !spelled.is_empty() => spelled.strip_prefix(' '),
            _ => Some(spelled),
        }
    }

    /// The tokens as text, for messages.
    fn show(&self, tokens: &[TokenId]) -> String {
        let show = |&token| self.spell(&[token]).escape_ascii().to_string();
        tokens.iter().map(show).collect::<Vec<_>>().join(" | ")
    }

    /// What must hold of any text.
    fn check(&self, text: &str) {
        if !self.canon.is_encodable(text) {
            return; // SmolLM2 lacks a few bytes, and has another token for them
        }
        let expected = self.encode(text);
        assert_eq!(self.canon.encode(text), expected, "{text:?}");
        let state = self.follow(&expected).unwrap_or_else(|| panic!("{text:?} can't be followed"));
        assert!(self.canon.may_end(&state), "{text:?}");
        assert_eq!(self.canon.covering_set(text).canonical, expected, "{text:?}");
    }
}

#[test]
fn encodes_as_the_reference_does() {
    for (path, oracle) in Oracle::all() {
        let mut random = Random::new(1);
        let mut characters = 0;
        for text in samples::TEXTS.iter().chain(samples::MULTILINGUAL) {
            oracle.check(text);
        }
        // A million texts over ten kinds.
        for number in 0..require::cases(100_000) {
            let text = random.text(12);
            if !oracle.canon.is_encodable(&text) {
                continue;
            }
            characters += text.chars().count();
            if number % 10 == 0 {
                oracle.check(&text);
            }
            assert_eq!(oracle.canon.encode(&text), oracle.encode(&text), "{}: {text:?}", path.display());
        }
        println!("{}: {characters} characters encoded alike", path.display());
    }
}

#[test]
fn encodes_long_runs_as_the_reference_does() {
    for (_, oracle) in Oracle::all() {
        for piece in ["a", " ", "\n", "1", "!", "'", "'s", "é", "日", "\u{3000}", "\u{301}", " '", "ab", "-="] {
            for length in [1, 2, 3, 15, 16, 17, 64, 127, 128, 129, 500] {
                oracle.check(&piece.repeat(length));
                oracle.check(&format!("x{}y", piece.repeat(length)));
            }
        }
    }
}

/// Random tokens, and random ways to spell random text: `may_end` says whether the reference gives that path.
#[test]
fn random_paths_end_where_the_reference_agrees() {
    for (path, oracle) in Oracle::all() {
        let vocabulary = oracle.canon.vocabulary();
        let mut random = Random::new(5);
        let (mut canonical, mut others) = (0, 0);
        for round in 0..40_000 {
            let mut tokens = Vec::new();
            if round % 2 == 0 {
                tokens.extend((0..random.below(3) + 2).map(|_| TokenId(random.below(vocabulary.len()) as u32)));
                tokens.retain(|&token| vocabulary.bytes(token).is_some());
            } else {
                let text = random.text(2);
                let mut at = if oracle.canon.is_encodable(&text) { 0 } else { text.len() };
                while at < text.len() {
                    let choices: Vec<_> = vocabulary.beginnings_of(&text.as_bytes()[at..]).collect();
                    let (token, length) = *random.pick(&choices);
                    tokens.push(token);
                    at += length;
                }
            }
            let Ok(text) = String::from_utf8(oracle.spell(&tokens)) else { continue };
            let typed = oracle.typed(&text);
            if typed == Some("") {
                continue; // nothing but the space that would be put before a text
            }
            let is_canonical = typed.is_some_and(|typed| oracle.encode(typed) == tokens);
            let state = oracle.follow(&tokens);
            assert_eq!(
                state.is_some_and(|state| oracle.canon.may_end(&state)),
                is_canonical,
                "{}",
                oracle.show(&tokens)
            );
            *(if is_canonical { &mut canonical } else { &mut others }) += 1;
        }
        println!("{}: {canonical} canonical paths and {others} others told apart", path.display());
        assert!(canonical > 2_000 && others > 300);
    }
}

#[test]
fn text_that_cannot_be_spelled_is_left_out() {
    let vocab = json!({ "a": 0, "b": 1, "ab": 2 });
    let oracle = Oracle::new(&tokenizer_json(&vocab, &json!(["a b"]), &json!([])));
    assert!(oracle.canon.is_encodable("abba") && !oracle.canon.is_encodable("ab a"));
    assert_eq!(oracle.canon.encode("aéb a"), [TokenId(2), TokenId(0)]);
    let cover = oracle.canon.covering_set("b ");
    assert_eq!((cover.canonical, cover.contexts.len()), (vec![TokenId(1)], 0));
    let nothing = Oracle::new(&tokenizer_json(&json!({}), &json!([]), &json!([])));
    assert_eq!(nothing.canon.encode("it's"), []);
    assert_eq!(nothing.canon.covering_set("").contexts.len() + nothing.canon.covering_set("a").contexts.len(), 0);
}

proptest! {
    #[test]
    fn nothing_panics(text in any::<String>(), at in 0usize..40, tokens in prop::collection::vec(0u32..400, 0..20)) {
        thread_local! {
            static ORACLES: Vec<(PathBuf, Oracle)> = Oracle::in_repository();
        }
        ORACLES.with(|oracles| oracles.iter().for_each(|(_, oracle)| {
            oracle.check(&text);
            let cover = oracle.canon.covering_set(&text);
            for context in &cover.contexts {
                assert!(!oracle.canon.extensions(&text, context).is_empty());
                let elsewhere = text.get(at..).unwrap_or_default();
                assert!(oracle.canon.extensions(elsewhere, context).len() <= oracle.canon.vocabulary().len());
            }
            let mut state = oracle.canon.start();
            for &token in &tokens {
                state = oracle.canon.may_follow(&state, TokenId(token)).unwrap_or(state);
                oracle.canon.may_end(&state);
            }
        }));
    }
}
