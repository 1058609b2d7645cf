//! What goes over the wire, and reading it with errors that name the field.

use serde::{Deserialize, Serialize};

use crate::complete::{Outcome, Suggestion};
use crate::engine::Completion;
use crate::error::{Error, Kind};
use crate::schedule::{Answer, Finish, Usage};
use crate::text::Method;

/// The body of `POST /invocations`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invocation {
    /// What was typed.
    pub input: String,
    /// Suggestions wanted.
    pub suggestions: Option<usize>,
    /// Tokens that may be added.
    pub max_new_tokens: Option<usize>,
    /// Milliseconds after which the best found until then is the answer.
    pub deadline_ms: Option<u64>,
}

/// The answer to `POST /invocations`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Suggestions<'a> {
    /// Best first.
    pub suggestions: &'a [Suggestion],
    /// Why the search ended.
    pub finish: Finish,
    /// Whether no unexplored completion is as probable as the last suggestion.
    pub proven: bool,
    /// The model's name.
    pub model: &'a str,
    /// What it cost.
    pub usage: Usage,
    /// How long it took.
    pub timing: Timing,
}

/// Where the time went, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// Waiting for the model.
    pub queue_ms: f64,
    /// Searching.
    pub search_ms: f64,
}

impl<'a> Suggestions<'a> {
    /// An answer as it is sent.
    pub fn new(model: &'a str, answer: &'a Answer<Outcome>) -> Self {
        // Microseconds are enough, and keep the body short.
        let ms = |duration: std::time::Duration| duration.as_micros() as f64 / 1000.0;
        Self {
            suggestions: &answer.result.suggestions,
            finish: answer.finish,
            proven: answer.result.proven,
            model,
            usage: answer.usage,
            timing: Timing { queue_ms: ms(answer.queued), search_ms: ms(answer.searched) },
        }
    }
}

impl From<Invocation> for Completion {
    fn from(invocation: Invocation) -> Self {
        let Invocation { input, suggestions, max_new_tokens, deadline_ms } = invocation;
        Self { input, suggestions, max_new_tokens, deadline_ms, method: Method::default(), session: None }
    }
}

/// Reads a JSON body.
///
/// # Errors
/// Says which byte is no UTF-8, where the JSON breaks off, or which field is missing, unknown or of the wrong type.
pub fn parse<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Error> {
    let text = std::str::from_utf8(body).map_err(|e| {
        Error::new(
            Kind::InvalidUtf8,
            format!("the body is not UTF-8 from byte {} on; send UTF-8 encoded JSON", e.valid_up_to()),
        )
    })?;
    if text.trim().is_empty() {
        return Err(Error::new(
            Kind::InvalidJson,
            "the body is empty; send a JSON object such as {\"input\": \"wireless char\"}",
        ));
    }
    expect_object(text)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.inner();
        match inner.classify() {
            serde_json::error::Category::Data if field == "." => {
                Error::new(Kind::InvalidField, format!("in the body: {inner}"))
            }
            serde_json::error::Category::Data => Error::new(Kind::InvalidField, format!("in field {field}: {inner}")),
            _ => Error::new(Kind::InvalidJson, format!("the body is not valid JSON: {inner}")),
        }
    })?;
    json.end().map_err(|e| Error::new(Kind::InvalidJson, format!("the body has more than one JSON value: {e}")))?;
    Ok(value)
}

/// Serde would read an array as the fields in order; nobody means that.
fn expect_object(text: &str) -> Result<(), Error> {
    if text.trim_start().starts_with('{') {
        return Ok(());
    }
    Err(match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Error::new(
            Kind::InvalidField,
            "the body is JSON but no object; send one such as {\"input\": \"wireless char\"}",
        ),
        Err(error) => Error::new(Kind::InvalidJson, format!("the body is not valid JSON: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_name_the_field() {
        let error = |body: &str| parse::<Invocation>(body.as_bytes()).unwrap_err();
        let has = |body: &str, kind: Kind, words: &str| {
            let error = error(body);
            assert!(error.kind == kind && error.message.contains(words), "{body}: {error:?}");
        };
        has("", Kind::InvalidJson, "empty");
        has("{", Kind::InvalidJson, "EOF");
        has("{} {}", Kind::InvalidField, "missing field `input`");
        has(r#"{"input":"a"} x"#, Kind::InvalidJson, "more than one");
        has(r#"{"input":5}"#, Kind::InvalidField, "in field input: invalid type: integer `5`, expected a string");
        has(r#"{"input":"a","sugestions":5}"#, Kind::InvalidField, "unknown field `sugestions`");
        has(r#"{"input":"a","suggestions":-1}"#, Kind::InvalidField, "in field suggestions");
        has(r#"{"input":"a","input":"b"}"#, Kind::InvalidField, "duplicate field `input`");
        has("[\"a\",1,1,1]", Kind::InvalidField, "no object");
        let bytes = parse::<Invocation>(b"{\"input\":\"\xff\"}").unwrap_err();
        assert!(bytes.kind == Kind::InvalidUtf8 && bytes.message.contains("byte 10"), "{bytes:?}");
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse::<Invocation>(&body);
        }
    }
}
