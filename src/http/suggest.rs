//! The schema of typed texts: `{"input": ...}`, answered with suggestions. Only its shape; ranges are the engine's business.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::openapi::{FinishShape, SuggestionShape, UsageShape};
use crate::engine::Completion;
use completion::text::Method;
use completion::{Outcome, Suggestion};
use scheduler::{Answer, Finish, Usage};

/// A typed text to complete.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Invocation {
    /// What was typed, on one line.
    #[schema(format = "query-text", min_length = 1, max_length = 1000)]
    pub input: String,
    /// Suggestions wanted; 10 if absent.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub suggestions: Option<usize>,
    /// Tokens that may reach beyond the typed text, up to the model's context; 16 if absent.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub max_new_tokens: Option<usize>,
    /// Milliseconds after which the best found until then is the answer.
    #[schema(minimum = 1, maximum = 60_000)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub deadline_ms: Option<u64>,
    /// Whose text this is: a newer request of a session takes the place of an older one that is still being worked on.
    #[schema(min_length = 1, max_length = 256, pattern = "^[!-~]+$")]
    pub session: Option<String>,
    /// Send each suggestion as soon as its place is certain.
    #[serde(default)]
    pub stream: bool,
}

impl From<Invocation> for Completion {
    fn from(invocation: Invocation) -> Self {
        let Invocation { input, suggestions, max_new_tokens, deadline_ms, session, stream: _ } = invocation;
        Self { input, suggestions, max_new_tokens, deadline_ms, method: Method::default(), session }
    }
}

/// The ranked suggestions for a typed text.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Suggestions<'a> {
    /// Best first.
    #[schema(value_type = Vec<SuggestionShape>)]
    pub suggestions: &'a [Suggestion],
    /// How the search ended and what it cost.
    #[serde(flatten)]
    pub end: End<'a>,
}

/// How a search ended and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct End<'a> {
    /// Why the search ended.
    #[schema(value_type = FinishShape)]
    pub finish: Finish,
    /// Whether no unexplored completion is as probable as the last suggestion.
    pub proven: bool,
    /// The model's name.
    pub model: &'a str,
    /// What it cost.
    #[schema(value_type = UsageShape)]
    pub usage: Usage,
    /// How long it took.
    pub timing: Timing,
}

/// Where the time went, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Timing {
    /// Waiting for the model.
    #[schema(minimum = 0)]
    pub queue_ms: f64,
    /// Searching.
    #[schema(minimum = 0)]
    pub search_ms: f64,
}

/// One line of a stream of suggestions.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct SuggestionLine<'a> {
    /// The next best.
    #[schema(value_type = SuggestionShape)]
    pub suggestion: &'a Suggestion,
}

impl<'a> End<'a> {
    /// The end of an answer as it is sent.
    pub fn new(model: &'a str, answer: &Answer<Outcome>) -> Self {
        // Microseconds are enough, and keep the body short.
        let ms = |duration: std::time::Duration| duration.as_micros() as f64 / 1000.0;
        Self {
            finish: answer.finish,
            proven: answer.result.proven,
            model,
            usage: answer.usage,
            timing: Timing { queue_ms: ms(answer.queued), search_ms: ms(answer.searched) },
        }
    }
}

impl<'a> Suggestions<'a> {
    /// An answer as it is sent.
    pub fn new(model: &'a str, answer: &'a Answer<Outcome>) -> Self {
        Self { suggestions: &answer.result.suggestions, end: End::new(model, answer) }
    }
}
