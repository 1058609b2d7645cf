//! The schema of typed texts: `{"input": ...}`, answered with suggestions. This module checks only the shape; the
//! engine checks the ranges.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Key;
use crate::engine::{Caller, Completion};
use completion::text::Method;
use completion::typing::Tolerance;
use completion::{Completions, Suggestion};
use scheduler::{Answer, Finish, Usage};

/// A typed text to complete.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Invocation {
    /// The typed text, on one line.
    #[schema(format = "query-text", min_length = 1, max_length = 1000)]
    pub input: String,
    /// Suggestions wanted; 10 if absent.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "super::json::whole_number")]
    pub suggestions: Option<usize>,
    /// Tokens that may reach beyond the typed text, up to the model's context; 16 if absent.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "super::json::whole_number")]
    pub max_new_tokens: Option<usize>,
    /// Milliseconds after which the best found until then is the answer.
    #[schema(minimum = 1, maximum = 60_000)]
    #[serde(default, deserialize_with = "super::json::whole_number")]
    pub deadline_ms: Option<u64>,
    /// What the typed text may be taken to mean: exactly what was typed (`off`), also other letter case, width and
    /// accents (`case`), or also typing errors (`auto`); the server's default if absent.
    #[schema(value_type = Option<ToleranceName>)]
    pub tolerance: Option<Tolerance>,
    /// A text around the typed text, with `{input}` where that stands; the model's own if absent.
    #[schema(format = "template-text", min_length = 7, max_length = 65536)]
    pub template: Option<String>,
    /// Name of the session. A newer request of the same session supersedes an older one that still runs.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    pub session: Option<String>,
    /// Separates what is remembered of this request: only requests with the same salt share it.
    #[schema(min_length = 1, max_length = 256)]
    pub salt: Option<String>,
    /// Send each suggestion as soon as its place is certain.
    #[serde(default)]
    pub stream: bool,
    /// The key that the request came with.
    #[serde(skip)]
    #[schema(ignore)]
    pub key: Option<Arc<Key>>,
}

impl From<Invocation> for Completion {
    fn from(invocation: Invocation) -> Self {
        let Invocation {
            input,
            suggestions,
            max_new_tokens,
            deadline_ms,
            tolerance,
            template,
            session,
            salt,
            key,
            stream: _,
        } = invocation;
        let (method, caller) = (Method::default(), Caller { key, salt });
        Self { input, suggestions, max_new_tokens, deadline_ms, method, tolerance, template, session, caller }
    }
}

/// What a typed text may be taken to mean.
#[derive(Clone, Copy, Debug, ToSchema)]
#[schema(as = Tolerance, rename_all = "lowercase")]
pub enum ToleranceName {
    /// Exactly what was typed.
    Off,
    /// Also other letter case, width and accents.
    Case,
    /// Also typing errors.
    Auto,
}

/// How a half-typed word is treated.
#[derive(Clone, Copy, Debug, ToSchema)]
#[schema(as = Method, rename_all = "lowercase")]
pub enum MethodName {
    /// With all ways to spell it.
    Exact,
    /// By dropping and constraining the last tokens.
    Healed,
}

/// A query that completes the typed text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Suggestion)]
pub struct SuggestedQuery<'a> {
    /// The whole query. It starts with exactly what was typed if `edits` is 0.
    text: &'a str,
    /// What to add to the typed text; absent if the query doesn't start with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion: Option<&'a str>,
    /// Edits between what was meant and what was typed. Another case, width or accents of the whole text are one.
    edits: u8,
    /// The beginning of `text` that the typed text stands for.
    meant: &'a str,
    /// Natural logarithm of `probability`.
    #[schema(maximum = 0)]
    logprob: f64,
    /// Probability that the query goes on like this and then ends, given what was typed.
    #[schema(minimum = 0, maximum = 1)]
    probability: f64,
    /// Whether the model ended the query here.
    complete: bool,
}

/// Why an answer is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Finish)]
#[serde(rename_all = "lowercase")]
pub enum SuggestFinish {
    /// The search ended by itself.
    Complete,
    /// Suggestions were cut at the length limit.
    Length,
    /// What was typed has a blocked term.
    Blocked,
    /// The deadline passed.
    Deadline,
    /// A newer request of the session came.
    Superseded,
}

/// Model work of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Usage)]
pub struct SuggestUsage {
    /// Tokens of the typed text.
    typed_tokens: usize,
    /// Forwards that this request had a row in.
    forwards: usize,
    /// Positions computed for this request.
    positions_computed: usize,
    /// Positions computed for the typed text itself; a part of `positions_computed`.
    typed_positions_computed: usize,
    /// Distributions that were known already.
    positions_saved: usize,
}

/// The ranked suggestions for a typed text.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Suggestions<'a> {
    /// The suggestions, the most probable first.
    pub suggestions: Vec<SuggestedQuery<'a>>,
    /// How the search ended, and its model work.
    #[serde(flatten)]
    pub end: End<'a>,
}

/// How a search ended, and its model work.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct End<'a> {
    /// Why the search ended.
    pub finish: SuggestFinish,
    /// Whether no unexplored completion is as probable as the last suggestion.
    pub proven: bool,
    /// The probability that the model gives to queries that start with exactly what was typed; absent if the search
    /// ended before it was known.
    #[schema(minimum = 0, maximum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typed_probability: Option<f64>,
    /// How a half-typed word at the end was treated: with all ways to spell it (`exact`), or by dropping and
    /// constraining the last tokens (`healed`), where the model's tokenizer does not allow more.
    #[schema(value_type = MethodName)]
    pub method: Method,
    /// The model's name.
    pub model: &'a str,
    /// Model work of the request.
    pub usage: SuggestUsage,
    /// Where the time went.
    pub timing: Timing,
}

/// Where the time went, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Timing {
    /// Time in the queue, in milliseconds.
    #[schema(minimum = 0)]
    pub queue_ms: f64,
    /// Time of the search, in milliseconds.
    #[schema(minimum = 0)]
    pub search_ms: f64,
}

/// One line of a stream of suggestions.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct SuggestionLine<'a> {
    /// The most probable suggestion that was not sent yet.
    pub suggestion: SuggestedQuery<'a>,
}

impl<'a> From<&'a Suggestion> for SuggestedQuery<'a> {
    fn from(suggestion: &'a Suggestion) -> Self {
        let &Suggestion { ref text, meaning, logprob, probability, complete } = suggestion;
        let (completion, meant) = (suggestion.completion(), suggestion.meant());
        Self { text, completion, edits: meaning.edits, meant, logprob, probability, complete }
    }
}

impl From<Finish> for SuggestFinish {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Complete => Self::Complete,
            Finish::Length => Self::Length,
            Finish::Blocked => Self::Blocked,
            Finish::Deadline => Self::Deadline,
            Finish::Superseded => Self::Superseded,
        }
    }
}

impl From<Usage> for SuggestUsage {
    fn from(usage: Usage) -> Self {
        let Usage { typed_tokens, forwards, positions_computed, typed_positions_computed, positions_saved } = usage;
        Self { typed_tokens, forwards, positions_computed, typed_positions_computed, positions_saved }
    }
}

impl<'a> End<'a> {
    /// The end of an answer as it is sent.
    pub fn new(model: &'a str, method: Method, answer: &Answer<Completions>) -> Self {
        // Microseconds are enough, and keep the body short.
        let ms = |duration: std::time::Duration| duration.as_micros() as f64 / 1000.0;
        Self {
            finish: answer.finish.into(),
            proven: answer.result.proven,
            typed_probability: answer.result.typed_log_prob.map(|log_prob| log_prob.exp().min(1.0)),
            method,
            model,
            usage: answer.usage.into(),
            timing: Timing { queue_ms: ms(answer.queued), search_ms: ms(answer.searched) },
        }
    }
}

impl<'a> Suggestions<'a> {
    /// An answer as it is sent.
    pub fn new(model: &'a str, method: Method, answer: &'a Answer<Completions>) -> Self {
        let suggestions = answer.result.suggestions.iter().map(SuggestedQuery::from).collect();
        Self { suggestions, end: End::new(model, method, answer) }
    }
}
