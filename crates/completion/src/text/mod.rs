//! Text and tokens: what was typed, where a completion may begin, and what may follow.
//!
//! [`Text`] is what the search sees of a model's tokenizer. The mathematics of half-typed tokens is in [`canonical`] and
//! [`cover`]; [`query`] checks what people send. Nothing here calls a model, and nothing waits, reads a clock or a file.

pub mod blocklist;
pub mod bytes;
pub mod canonical;
pub mod cover;
mod fallback;
mod kinds;
mod lattice;
pub mod load;
mod merges;
pub mod query;
mod shape;
mod split;
pub mod tokenizer_json;

#[cfg(test)]
mod oracle_tests;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::sync::Arc;

use self::blocklist::Blocklist;
pub use self::bytes::{TokenId, Vocabulary};
use self::canonical::{Canon, PathState};
use self::fallback::Fallback;

/// How the end of the typed text, where a token may be half typed, is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// By the covering set: the right distribution over completions.
    #[default]
    Exact,
    /// By dropping the last token and constraining the next one to begin with its bytes ("token healing").
    Healed,
    /// Not at all: the model continues behind the typed text's tokens.
    Naive,
}

/// A beginning of completions: a path from the prompt, and how it goes on to cover the typed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Tokens behind the prompt. They spell the typed text, or a beginning of it.
    pub path: Vec<TokenId>,
    /// The tokens of which one must follow; `None` where `path` spells all that was typed.
    pub extensions: Option<Vec<TokenId>>,
}

/// What is known of a path in order to say which token may follow.
#[derive(Clone, Copy, Debug)]
pub enum PathRule {
    /// The path must stay the beginning of a text's own encoding.
    Canonical(PathState),
    /// Anything may follow.
    Free,
}

/// What a token is to the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Adds its bytes to the text.
    Text,
    /// Ends the query: end of text, or a line break.
    End,
    /// Never part of a suggestion: special tokens, control characters, runs of spaces.
    Never,
}

/// A model's text side: tokenizer, prompt, ends.
pub struct Text {
    vocabulary: Arc<Vocabulary>,
    kind: Kind,
    /// By token id.
    roles: Vec<Role>,
    prompt: Vec<TokenId>,
    blocklist: Option<Blocklist>,
}

enum Kind {
    Exact(Box<Canon>),
    Fallback(Box<Fallback>),
}

/// Why a tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Neither the exact reader nor the general one understands the file.
    #[error("tokenizer.json can't be read: {0}")]
    Tokenizer(String),
    /// The prompt prefix has characters that the vocabulary can't spell.
    #[error("the prompt prefix {0:?} can't be spelled with this tokenizer's tokens")]
    Prompt(String),
}

impl Text {
    /// Reads a `tokenizer.json`.
    ///
    /// Completions start from `start` and the tokens of `prompt_prefix`; each token of `end_of_text` ends one.
    ///
    /// # Errors
    /// See [`TextError`].
    pub fn from_json(
        json: &str,
        start: TokenId,
        end_of_text: &[TokenId],
        prompt_prefix: &str,
    ) -> Result<Self, TextError> {
        let read = load::from_tokenizer_json(json).map_err(|e| e.to_string());
        let exact = read.and_then(|(vocabulary, merges)| {
            let vocabulary = Arc::new(vocabulary);
            Canon::new(Arc::clone(&vocabulary), merges).map(|canon| (vocabulary, canon)).map_err(|e| e.to_string())
        });
        match exact {
            Ok((vocabulary, canon)) => {
                Self::new(vocabulary, Kind::Exact(Box::new(canon)), start, end_of_text, prompt_prefix)
            }
            Err(reason) => {
                let fallback = Fallback::from_json(json, reason).map_err(TextError::Tokenizer)?;
                let vocabulary = Arc::new(fallback.vocabulary());
                Self::new(vocabulary, Kind::Fallback(Box::new(fallback)), start, end_of_text, prompt_prefix)
            }
        }
    }

    /// The text side of a model that reads whole texts and answers them. Its answers begin with `start`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn of_encoder_decoder(json: &str, start: TokenId, end_of_text: &[TokenId]) -> Result<Self, TextError> {
        let reason = "the model reads whole texts".to_owned();
        let fallback = Fallback::from_json(json, reason).map_err(TextError::Tokenizer)?;
        let vocabulary = Arc::new(fallback.vocabulary());
        Self::new(vocabulary, Kind::Fallback(Box::new(fallback)), start, end_of_text, "")
    }

    fn new(
        vocabulary: Arc<Vocabulary>,
        kind: Kind,
        start: TokenId,
        ends: &[TokenId],
        prefix: &str,
    ) -> Result<Self, TextError> {
        let roles =
            (0..vocabulary.len() as u32).map(|id| role(vocabulary.bytes(TokenId(id)), ends.contains(&TokenId(id))));
        let mut text = Self { roles: roles.collect(), vocabulary, kind, prompt: vec![start], blocklist: None };
        let tokens = text.encode(prefix);
        if tokens.is_empty() != prefix.is_empty() {
            return Err(TextError::Prompt(prefix.to_owned()));
        }
        text.prompt.extend(tokens);
        Ok(text)
    }

    /// With terms that are never suggested.
    pub fn with_blocklist(self, blocklist: Blocklist) -> Self {
        Self { blocklist: Some(blocklist), ..self }
    }

    /// Whether any term is blocked at all.
    pub fn has_blocklist(&self) -> bool {
        self.blocklist.is_some()
    }

    /// Whether a text has a blocked term; of one that goes on (`ended` false), one that can't become another word any more.
    pub fn blocks(&self, text: &[u8], ended: bool) -> bool {
        self.blocklist.as_ref().is_some_and(|list| list.blocks(&String::from_utf8_lossy(text), ended))
    }

    /// Why half-typed tokens are only healed and not treated exactly, if so.
    pub fn inexact_because(&self) -> Option<&str> {
        match &self.kind {
            Kind::Exact(_) => None,
            Kind::Fallback(fallback) => Some(fallback.reason()),
        }
    }

    /// The tokens that every path begins with: the start token and the prompt prefix.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The tokenizer's tokens of a text, without special ones.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        match &self.kind {
            Kind::Exact(canon) => canon.encode(text),
            Kind::Fallback(fallback) => fallback.encode(text),
        }
    }

    /// The tokens of a whole text as an encoder reads it, with the special ones that the tokenizer puts around it; none if it can't be
    /// encoded.
    pub fn encode_whole(&self, text: &str) -> Vec<TokenId> {
        match &self.kind {
            Kind::Exact(canon) => canon.encode(text),
            Kind::Fallback(fallback) => fallback.encode_whole(text),
        }
    }

    /// One more than the largest token id.
    pub fn vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// The bytes of a token; none for special tokens.
    pub fn bytes(&self, token: TokenId) -> Option<&[u8]> {
        self.vocabulary.bytes(token)
    }

    /// What a token is to the search. Ids outside the vocabulary are [`Role::Never`].
    pub fn role(&self, token: TokenId) -> Role {
        self.roles.get(token.0 as usize).copied().unwrap_or(Role::Never)
    }

    /// Whether the vocabulary can spell a text; if not, nothing can complete it.
    pub fn is_encodable(&self, text: &str) -> bool {
        match &self.kind {
            Kind::Exact(canon) => canon.is_encodable(text),
            Kind::Fallback(fallback) => fallback.is_encodable(text),
        }
    }

    /// Where completions of `typed` begin. An exact treatment that the tokenizer doesn't allow becomes a healed one.
    pub fn openings(&self, typed: &str, method: Method) -> Vec<Opening> {
        match (&self.kind, method) {
            (Kind::Exact(canon), Method::Exact) => exact_openings(canon, typed),
            (_, Method::Naive) => vec![Opening { path: self.encode(typed), extensions: None }],
            (Kind::Exact(_), Method::Healed) => self.healed_openings(typed),
            (Kind::Fallback(_), _) => self.multi_healed_openings(typed),
        }
    }

    /// The rule of paths that begin with the prompt, under a method.
    pub fn rule(&self, method: Method) -> PathRule {
        match (&self.kind, method) {
            (Kind::Exact(canon), Method::Exact) => PathRule::Canonical(canon.start()),
            _ => PathRule::Free,
        }
    }

    /// The rule after one more token; `None` if it may not follow.
    pub fn follow(&self, rule: &PathRule, next: TokenId) -> Option<PathRule> {
        match (&self.kind, rule) {
            (Kind::Exact(canon), PathRule::Canonical(state)) => canon.may_follow(state, next).map(PathRule::Canonical),
            _ => self.bytes(next).map(|_| PathRule::Free),
        }
    }

    /// Whether the text may end here.
    pub fn may_end(&self, rule: &PathRule) -> bool {
        match (&self.kind, rule) {
            (Kind::Exact(canon), PathRule::Canonical(state)) => canon.may_end(state),
            _ => true,
        }
    }

    /// Drops the last token and lets every token follow that begins with its bytes.
    fn healed_openings(&self, typed: &str) -> Vec<Opening> {
        let mut path = self.encode(typed);
        let Some(dropped) = path.pop() else {
            return vec![Opening { path, extensions: None }];
        };
        let bytes = self.bytes(dropped).unwrap_or_default();
        let extensions = std::iter::once(dropped).chain(self.vocabulary.extending(bytes)).collect();
        vec![Opening { path, extensions: Some(extensions) }]
    }

    /// The typed text's own tokens, and each of the last few dropped with all behind it, for a token that begins with their bytes
    /// and goes on: a covering set as near as it can be had without knowing which sequences are encodings.
    fn multi_healed_openings(&self, typed: &str) -> Vec<Opening> {
        let tokens = self.encode(typed);
        let mut openings = vec![Opening { path: tokens.clone(), extensions: None }];
        let mut dropped = Vec::new();
        for kept in (tokens.len().saturating_sub(HEALED_TOKENS)..tokens.len()).rev() {
            dropped.splice(0..0, self.bytes(tokens[kept]).unwrap_or_default().iter().copied());
            let extensions: Vec<TokenId> = self.vocabulary.extending(&dropped).collect();
            if !extensions.is_empty() {
                openings.push(Opening { path: tokens[..kept].to_vec(), extensions: Some(extensions) });
            }
        }
        openings
    }

    /// The bytes with which a text's first token shows: some tokenizers put a space before the first word.
    pub fn first_bytes(&self, token: TokenId) -> Option<&[u8]> {
        let bytes = self.bytes(token)?;
        match &self.kind {
            Kind::Fallback(fallback) if fallback.adds_space() => Some(bytes.strip_prefix(b" ").unwrap_or(bytes)),
            _ => Some(bytes),
        }
    }
}

/// Tokens that are healed where a tokenizer can't be treated exactly.
const HEALED_TOKENS: usize = 3;

fn exact_openings(canon: &Canon, typed: &str) -> Vec<Opening> {
    let cover = canon.cover(typed);
    let branches = cover.contexts.iter().map(|context| Opening {
        path: context.tokens.clone(),
        extensions: Some(canon.extensions(typed, context).collect()),
    });
    let branches: Vec<_> = branches.filter(|o| o.extensions.as_ref().is_some_and(|e| !e.is_empty())).collect();
    let mut openings = vec![Opening { path: cover.canonical, extensions: None }];
    openings.extend(branches);
    openings
}

/// A line break ends a query, and runs of spaces are no distinct text: they are left out where they would be generated.
fn role(bytes: Option<&[u8]>, is_end: bool) -> Role {
    match bytes {
        _ if is_end => Role::End,
        None | Some([]) => Role::Never,
        Some([b'\n' | b'\r', ..]) => Role::End,
        Some(bytes) if bytes.iter().any(u8::is_ascii_control) => Role::Never,
        Some(bytes) if bytes.windows(2).any(|w| w == b"  ") => Role::Never,
        Some(_) => Role::Text,
    }
}
