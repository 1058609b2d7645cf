//! Text and tokens: what was typed, where a completion may begin, and which token may follow.
//!
//! [`Text`] is what the search sees of a model's tokenizer.
//!
//! | module | holds |
//! |---|---|
//! | [`vocabulary`] | the bytes of each token |
//! | `before` | the text before every query, and the space between them |
//! | [`covering_set`] | the token sequences with which a completion of a typed text can begin |
//! | [`canonical`], `token_lattice` | canonical tokenization: which token may follow; a text's encoding |
//! | `bpe_merges`, `token_characters`, `character_runs`, `normal_form` | what canonical tokenization rests on |
//! | `pre_tokenizer`, `splitter`, `pattern`, `character_class` | where pre-tokens may end, by the tokenizer |
//! | [`folded_tokens`] | tokens by what they are without case, width and accents |
//! | `inexact` | tokenizers of other kinds |
//! | [`codec`] | whole texts to tokens and back, as transformers does it |
//! | [`bpe_file`], `bpe_stages`, [`tokenizer_json`] | reading tokenizers |
//! | [`query`], [`blocklist`] | what people may send, and what is never suggested |

mod before;
pub mod blocklist;
pub mod bpe_file;
mod bpe_merges;
mod bpe_stages;
pub mod canonical;
mod character_class;
mod character_runs;
pub mod codec;
pub mod covering_set;
pub mod folded_tokens;
mod inexact;
pub mod normal_form;
mod pattern;
mod pre_tokenizer;
pub mod query;
mod splitter;
mod token_characters;
mod token_lattice;
pub mod token_tree;
pub mod tokenizer_json;
pub mod vocabulary;

#[cfg(test)]
mod oracle_tests;
// Not `cfg(test)`: tests of other crates use it.
#[doc(hidden)]
pub mod testing;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use self::blocklist::Blocklist;
use self::canonical::{CanonicalBpe, PathState};
use self::codec::Codec;
use self::folded_tokens::FoldedTokens;
use self::inexact::InexactTokenizer;
pub use self::vocabulary::{TokenId, Vocabulary};
use crate::typing::channel::{Channel, Costs};
use crate::typing::unknown_words::UnknownWords;

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

/// A member of the covering set, or several that differ in the last token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Tokens behind the prompt. They spell the typed text, or a prefix of it.
    pub path: Vec<TokenId>,
    /// The tokens of which one must follow, in the order of their bytes. `None` where `path` spells all that was typed.
    pub extensions: Option<Vec<TokenId>>,
}

/// What decides which token may follow a path.
#[derive(Clone, Copy, Debug)]
pub enum PathRule {
    /// The path must stay canonical: the beginning of a text's own encoding.
    Canonical(PathState),
    /// Anything may follow.
    Free,
}

impl PathRule {
    /// Whether paths must stay canonical.
    pub fn is_canonical(&self) -> bool {
        matches!(self, Self::Canonical(_))
    }
}

/// The role of a token in a search: text, end of a text, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Adds its bytes to the text.
    Text,
    /// Ends the query: end of text, or a line break.
    End,
    /// Never part of a suggestion: special tokens, control characters, runs of spaces.
    Never,
}

/// A model's text side: tokenizer, prompt, ends. A clone shares the tables, which are large.
#[derive(Clone)]
pub struct Text {
    vocabulary: Arc<Vocabulary>,
    tokenizer: Tokenizer,
    /// The role of each token. `[vocab]`
    roles: Arc<[Role]>,
    prompt: Vec<TokenId>,
    /// Whether the text before every query ends with a space. A tokenizer puts it into the first token of the query.
    is_spaced: bool,
    blocklist: Option<Arc<Blocklist>>,
    channel: Channel,
    costs: Arc<Costs>,
    /// Made when it is first needed.
    folded: Arc<OnceLock<FoldedTokens>>,
    unknown_words: Arc<OnceLock<UnknownWords>>,
    /// `tokenizer.json`.
    json: Arc<str>,
    ends: Vec<TokenId>,
    codec: Arc<OnceLock<Result<Arc<Codec>, String>>>,
}

#[derive(Clone)]
enum Tokenizer {
    Exact(Arc<CanonicalBpe>),
    Inexact(Arc<InexactTokenizer>),
}

/// Why a tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// Neither the exact reader nor the general one understands the file.
    #[error("tokenizer.json can't be read: {0}")]
    Tokenizer(String),
    /// The text before every query has characters that the vocabulary can't spell.
    #[error("the text {0:?} before the input can't be spelled with this tokenizer's tokens")]
    Prompt(String),
}

impl Text {
    /// Reads a `tokenizer.json`.
    ///
    /// Completions start from `start` and the tokens of the text `before`; each token of `end_of_text` ends one.
    ///
    /// # Errors
    /// See [`TextError`].
    pub fn from_json(json: &str, start: TokenId, end_of_text: &[TokenId], before: &str) -> Result<Self, TextError> {
        let read = bpe_file::from_tokenizer_json(json).map_err(|e| e.to_string());
        let exact = read.and_then(|file| CanonicalBpe::new(file).map_err(|e| e.to_string()));
        let tokenizer = match exact {
            Ok(canonical) => Tokenizer::Exact(Arc::new(canonical)),
            Err(reason) => Tokenizer::inexact(json, reason)?,
        };
        Self::new((json, tokenizer), start, end_of_text).with_text_before(before)
    }

    /// The text side of a model that reads whole texts and answers them. Its answers begin with `start`.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn of_encoder_decoder(json: &str, start: TokenId, end_of_text: &[TokenId]) -> Result<Self, TextError> {
        let tokenizer = Tokenizer::inexact(json, "the model reads whole texts".to_owned())?;
        Ok(Self::new((json, tokenizer), start, end_of_text))
    }

    fn new((json, tokenizer): (&str, Tokenizer), start: TokenId, ends: &[TokenId]) -> Self {
        let vocabulary = match &tokenizer {
            Tokenizer::Exact(canonical) => Arc::clone(canonical.vocabulary()),
            Tokenizer::Inexact(inexact) => Arc::new(inexact.vocabulary()),
        };
        let tokens = (0..vocabulary.len() as u32).map(TokenId);
        let roles = tokens.map(|token| role(vocabulary.bytes(token), ends.contains(&token))).collect();
        let (prompt, channel) = (vec![start], Channel::default());
        Self {
            roles,
            vocabulary,
            tokenizer,
            prompt,
            is_spaced: false,
            blocklist: None,
            costs: Arc::new(channel.costs()),
            channel,
            folded: Arc::default(),
            unknown_words: Arc::default(),
            json: json.into(),
            ends: ends.to_vec(),
            codec: Arc::default(),
        }
    }

    /// With terms that are never suggested, or without any.
    pub fn with_blocklist(self, blocklist: Option<Arc<Blocklist>>) -> Self {
        Self { blocklist, ..self }
    }

    /// With the probabilities of typing errors.
    pub fn with_channel(self, channel: Channel) -> Self {
        Self { costs: Arc::new(channel.costs()), channel, ..self }
    }

    /// The probabilities of typing errors.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The place of a token in the order of tokens' bytes.
    pub fn place(&self, token: TokenId) -> Option<u32> {
        self.vocabulary.place(token)
    }

    /// How words are spelled that the model doesn't know.
    pub fn unknown_words(&self) -> &UnknownWords {
        self.unknown_words.get_or_init(|| UnknownWords::new(&self.vocabulary))
    }

    /// Costs of typing errors, in nats.
    pub fn costs(&self) -> &Arc<Costs> {
        &self.costs
    }

    /// The tokens by their folded forms.
    pub fn folded(&self) -> &FoldedTokens {
        self.folded.get_or_init(|| FoldedTokens::new(&self.vocabulary))
    }

    /// The tokens that `text` begins with, shortest first, each with its length in bytes.
    pub fn beginnings_of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (TokenId, usize)> + 'a {
        self.vocabulary.beginnings_of(text)
    }

    /// Whether any term is blocked at all.
    pub fn has_blocklist(&self) -> bool {
        self.blocklist.is_some()
    }

    /// Whether a text has a blocked term. In a text that goes on (`ended` false), the last word doesn't count yet.
    pub fn blocks(&self, text: &[u8], ended: bool) -> bool {
        self.blocklist.as_ref().is_some_and(|list| list.blocks(&String::from_utf8_lossy(text), ended))
    }

    /// Why half-typed tokens are healed and not treated exactly, if so.
    pub fn inexact_because(&self) -> Option<&str> {
        match &self.tokenizer {
            Tokenizer::Exact(_) => None,
            Tokenizer::Inexact(inexact) => Some(inexact.reason()),
        }
    }

    /// The tokens that every path begins with: the start token and the prompt prefix.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The tokenizer's tokens of a text, without special ones; none if it can't be encoded.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        match &self.tokenizer {
            Tokenizer::Exact(canonical) => canonical.encode(text),
            Tokenizer::Inexact(inexact) => inexact.encode(text),
        }
    }

    /// Whole texts to tokens and back, as generation needs them. Made when it is first needed.
    ///
    /// # Errors
    /// What is wrong with `tokenizer.json`.
    pub fn codec(&self) -> Result<Arc<Codec>, TextError> {
        let made = self.codec.get_or_init(|| Codec::from_json(&self.json).map(Arc::new));
        made.clone().map_err(TextError::Tokenizer)
    }

    /// Number of tokens that end a generated text.
    pub fn ends(&self) -> usize {
        self.ends.len()
    }

    /// Whether a token ends a generated text.
    pub fn is_end(&self, token: TokenId) -> bool {
        self.ends.contains(&token)
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
        match &self.tokenizer {
            Tokenizer::Exact(canonical) => canonical.is_encodable(text),
            Tokenizer::Inexact(inexact) => inexact.is_encodable(text),
        }
    }

    /// The openings of completions of `typed`. Where the tokenizer doesn't allow the exact method, it heals.
    pub fn openings(&self, typed: &str, method: Method) -> Vec<Opening> {
        let typed = &*self.spaced(typed);
        match (&self.tokenizer, method) {
            (Tokenizer::Exact(canonical), Method::Exact) => exact_openings(canonical, typed),
            (_, Method::Naive) => vec![Opening { path: self.encode(typed), extensions: None }],
            (Tokenizer::Exact(_), Method::Healed) => self.healed_openings(typed),
            (Tokenizer::Inexact(_), _) => self.multi_healed_openings(typed),
        }
    }

    /// What becomes of a method with this tokenizer.
    pub fn method(&self, wanted: Method) -> Method {
        match (&self.tokenizer, wanted) {
            (Tokenizer::Inexact(_), Method::Exact) => Method::Healed,
            _ => wanted,
        }
    }

    /// The rule of paths that begin with the prompt, under a method.
    pub fn rule(&self, method: Method) -> PathRule {
        match (&self.tokenizer, method) {
            (Tokenizer::Exact(canonical), Method::Exact) => PathRule::Canonical(canonical.start()),
            _ => PathRule::Free,
        }
    }

    /// The rule after one more token; `None` if it may not follow.
    pub fn follow(&self, rule: &PathRule, next: TokenId) -> Option<PathRule> {
        match (&self.tokenizer, rule) {
            (Tokenizer::Exact(canonical), PathRule::Canonical(state)) => {
                canonical.may_follow(state, next).map(PathRule::Canonical)
            }
            _ => self.bytes(next).map(|_| PathRule::Free),
        }
    }

    /// Whether the text may end here.
    pub fn may_end(&self, rule: &PathRule) -> bool {
        match (&self.tokenizer, rule) {
            (Tokenizer::Exact(canonical), PathRule::Canonical(state)) => canonical.may_end(state),
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

    /// An approximation of the covering set where canonical sequences aren't known: the typed text's own tokens, and
    /// those with the last few dropped for one token that begins with their bytes.
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

    /// A typed text as suggestions spell it: composed, if the tokenizer composes.
    pub fn normalized<'a>(&self, typed: &'a str) -> Cow<'a, str> {
        match &self.tokenizer {
            Tokenizer::Exact(canonical) => canonical.normal_form().normalized(typed),
            Tokenizer::Inexact(_) => Cow::Borrowed(typed),
        }
    }
}

/// Tokens that are healed where a tokenizer can't be treated exactly.
const HEALED_TOKENS: usize = 3;

impl Tokenizer {
    fn inexact(json: &str, reason: String) -> Result<Self, TextError> {
        let inexact = InexactTokenizer::from_json(json, reason).map_err(TextError::Tokenizer)?;
        Ok(Self::Inexact(Arc::new(inexact)))
    }

    /// Whether it puts a space before texts that begin like this one.
    fn adds_space(&self, text: &str) -> bool {
        match self {
            Self::Exact(canonical) => canonical.normal_form().adds_space(text),
            Self::Inexact(inexact) => inexact.adds_space() && !text.starts_with(' '),
        }
    }
}

fn exact_openings(canonical: &CanonicalBpe, typed: &str) -> Vec<Opening> {
    let covering_set = canonical.covering_set(typed);
    let branches = covering_set.contexts.iter().map(|context| Opening {
        path: context.tokens.clone(),
        extensions: Some(canonical.extensions(typed, context)),
    });
    let branches: Vec<_> = branches.filter(|o| o.extensions.as_ref().is_some_and(|e| !e.is_empty())).collect();
    let mut openings = vec![Opening { path: covering_set.canonical, extensions: None }];
    openings.extend(branches);
    openings
}

/// A line break ends a query. Runs of spaces make no distinct query and are never generated.
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
