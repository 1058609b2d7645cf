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
    /// The body is over the limit in bytes.
    BodyTooLarge,
    /// The content type isn't JSON.
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
    /// The queue is full.
    Overloaded,
    /// The model is being loaded, or failed to load.
    NotReady,
    /// The engine failed, or something else that is not the client's fault.
    Internal,
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
    /// An error of a kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
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
            Refusal::Unhealthy(_) | Refusal::Interrupted | Refusal::Stopping => Kind::NotReady,
            Refusal::Failed => Kind::Internal,
        };
        Self::new(kind, refusal.to_string())
    }
}
