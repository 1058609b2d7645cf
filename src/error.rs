//! The one error type that reaches a client, and the rule for it: a [`Kind`] that programs can match on, and a message
//! that says what was wrong and what would be right. Internal details are logged once, where the failure is handled,
//! and never sent.
//!
//! Libraries inside this crate have their own `thiserror` enums; they become an [`Error`] at the edge, in
//! [`crate::engine`] and [`crate::http`]. The HTTP status of each kind is in [`crate::http::errors`].

use completion::text::query::QueryError;
use scheduler::Refusal;

/// What went wrong, as a program sees it. The names are part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The body is not UTF-8.
    InvalidUtf8,
    /// The body is not JSON.
    InvalidJson,
    /// The JSON doesn't have the expected shape: a missing, unknown or repeated field, or a wrong type.
    InvalidField,
    /// A field's value is out of its range.
    InvalidValue,
    /// The input is empty.
    EmptyInput,
    /// The input is over a limit in characters or tokens.
    InputTooLong,
    /// The input has characters that can't be completed.
    InvalidInput,
    /// The request has no key, or a wrong one.
    Unauthorized,
    /// The body did not come in time.
    RequestTimeout,
    /// The body is over the limit in bytes.
    BodyTooLarge,
    /// The content type isn't JSON, or the content encoding is unknown.
    UnsupportedMediaType,
    /// The path exists, but not with this method.
    MethodNotAllowed,
    /// There is no such path.
    NotFound,
    /// There is no model of that name.
    ModelNotFound,
    /// There is a model of that name already, or it is being loaded.
    ModelExists,
    /// The models' memory or number is used up.
    OutOfMemory,
    /// The queue is full, or there are too many connections.
    Overloaded,
    /// The limits of the request's key are used up.
    RateLimited,
    /// The model is being loaded, or failed to load.
    NotReady,
    /// The engine failed, or something else that is not the client's fault.
    Internal,
}

impl Kind {
    /// The name that clients see.
    pub fn name(self) -> String {
        serde_json::json!(self).as_str().unwrap_or_default().to_owned()
    }
}

/// An error for a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What went wrong, for programs.
    pub kind: Kind,
    /// What was wrong and what would be right, for people.
    pub message: String,
}

impl Error {
    /// An error of a kind. What the message quotes of a request is made safe to show: see [`shown`].
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: shown(message.into()) }
    }
}

/// Most characters of a message, as it is shown.
pub const MAX_MESSAGE_CHARACTERS: usize = 1000;

/// Characters of an escape, such as `\u007f`: whatever is escaped has at most four digits.
const ESCAPE: usize = 6;

/// A text as it may stand in an answer or a log line. Characters that end a line, control a terminal or change the
/// direction of writing are escaped. A text that is too long loses its middle, because its end says what would be
/// right.
pub fn shown(text: String) -> String {
    let is_safe = |c: char| !c.is_control() && !changes_lines(c);
    if text.len() <= MAX_MESSAGE_CHARACTERS && text.chars().all(is_safe) {
        return text;
    }
    let escape = |c: char| if is_safe(c) { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) };
    let width = |c: char| if is_safe(c) { 1 } else { ESCAPE };
    if text.chars().map(width).sum::<usize>() <= MAX_MESSAGE_CHARACTERS {
        return text.chars().map(escape).collect();
    }
    let fitting = |characters: &mut dyn Iterator<Item = char>, most: usize| {
        let widths = characters.scan(0, |sum, c| {
            *sum += width(c);
            Some(*sum)
        });
        widths.take_while(|&sum| sum <= most).count()
    };
    let begin = fitting(&mut text.chars(), MAX_MESSAGE_CHARACTERS / 4);
    let end = fitting(&mut text.chars().rev(), MAX_MESSAGE_CHARACTERS / 2);
    let head = text.chars().take(begin).map(escape);
    let tail = text.chars().skip(text.chars().count() - end).map(escape);
    head.chain([" ... ".to_owned()]).chain(tail).collect()
}

/// Whether a character separates lines or paragraphs, or changes the direction of writing, without being a control
/// character.
fn changes_lines(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

impl From<QueryError> for Error {
    fn from(error: QueryError) -> Self {
        let kind = match &error {
            QueryError::Empty => Kind::EmptyInput,
            QueryError::TooManyCharacters { .. } | QueryError::TooManyTokens { .. } => Kind::InputTooLong,
            QueryError::ControlCharacter { .. } | QueryError::NotInVocabulary => Kind::InvalidInput,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match &refusal {
            Refusal::Busy(_) => Kind::Overloaded,
            Refusal::Asleep(_) => Kind::OutOfMemory,
            Refusal::Unhealthy(_) | Refusal::Interrupted | Refusal::Stopping => Kind::NotReady,
            Refusal::Failed => Kind::Internal,
        };
        Self::new(kind, refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_quotes_can_neither_forge_lines_nor_flood_them() {
        let error = Error::new(Kind::InvalidField, "unknown field `a\n\u{1b}[31m\u{202e}b\u{2028}`");
        assert_eq!(error.message, "unknown field `a\\u000a\\u001b[31m\\u202eb\\u2028`");
        let long = format!("unknown field `{}`, expected `input`", "\u{7}".repeat(1 << 20));
        let message = Error::new(Kind::InvalidField, long).message;
        assert!(message.chars().count() <= MAX_MESSAGE_CHARACTERS, "{} bytes", message.len());
        assert!(message.starts_with("unknown field `\\u0007") && message.ends_with("`, expected `input`"), "{message}");
        assert_eq!(shown("é, \"ü\"".to_owned()), "é, \"ü\"");
    }
}
