//! Errors as OpenAI's clients expect them, with the names of this schema's fields.

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{Error, Kind};

/// The fields that the engine knows by other names.
const RENAMED: [(&str, &str); 1] = [("max_new_tokens", "max_tokens")];

/// An error with the names of this schema's fields.
pub fn renamed(mut error: Error) -> Error {
    for (engine, here) in RENAMED {
        if let Some(rest) = error.message.strip_prefix(engine).filter(|rest| rest.starts_with(' ')) {
            error.message = format!("{here}{rest}");
        }
    }
    error
}

/// The body of an error, as OpenAI's clients expect it, and our `kind` beside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorInner,
}

/// An error as OpenAI's clients expect it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorInner {
    /// What was wrong and what would be right, for people.
    pub message: String,
    /// The class of the error, in OpenAI's terms.
    #[serde(rename = "type")]
    pub class: ErrorClass,
    /// The field that is wrong, if it is one.
    pub param: Option<String>,
    /// `model_not_found` for a model that isn't there, `invalid_api_key` without a right key.
    pub code: Option<&'static str>,
    /// As in the other routes' errors.
    pub kind: Kind,
}

/// The class of the error, in OpenAI's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The request is wrong.
    InvalidRequestError,
    /// There are too many.
    RateLimitError,
    /// The server is in trouble.
    ServerError,
}

impl From<&Error> for ErrorBody {
    fn from(error: &Error) -> Self {
        let class = match error.kind {
            Kind::Overloaded | Kind::RateLimited => ErrorClass::RateLimitError,
            Kind::NotReady | Kind::Internal | Kind::OutOfMemory => ErrorClass::ServerError,
            _ => ErrorClass::InvalidRequestError,
        };
        let code = match error.kind {
            Kind::ModelNotFound => Some("model_not_found"),
            Kind::Unauthorized => Some("invalid_api_key"),
            _ => None,
        };
        let param = param(error).map(str::to_owned);
        Self { error: ErrorInner { message: error.message.clone(), class, param, code, kind: error.kind } }
    }
}

/// The field that a message names first.
fn param(error: &Error) -> Option<&str> {
    let message = error.message.as_str();
    match error.kind {
        Kind::ModelNotFound => Some("model"),
        Kind::EmptyInput | Kind::InputTooLong | Kind::InvalidInput => Some("prompt"),
        Kind::InvalidValue => message.split(' ').next(),
        Kind::InvalidField => match message.strip_prefix("in field ") {
            Some(rest) => rest.split(':').next(),
            None => message.split('`').nth(1),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_this_schemas_names() {
        let error = renamed(Error::new(Kind::InvalidValue, "max_new_tokens is 0; it must be from 1 to 48"));
        assert_eq!(error.message, "max_tokens is 0; it must be from 1 to 48");
        assert_eq!(ErrorBody::from(&error).error.param.as_deref(), Some("max_tokens"));
    }
}
