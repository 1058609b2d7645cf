//! Errors on the wire: `{"error":{"kind","message"}}`, or OpenAI's shape on its routes. One table maps a kind to its
//! HTTP status.

use actix_web::http::StatusCode;
use actix_web::http::header::{ACCEPT_ENCODING, ALLOW, HeaderValue, RETRY_AFTER};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, ResponseError};
use utoipa::ToSchema;

use super::{encoding, openai};
use crate::engine::EngineError;
use crate::error::{Error, Kind};
use crate::models::folder::IntakeError;
use crate::models::{LoadError, MAX_NAME_CHARACTERS, ModelError};

/// The status of each kind.
pub fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::InvalidUtf8
        | Kind::InvalidJson
        | Kind::InvalidField
        | Kind::InvalidValue
        | Kind::EmptyInput
        | Kind::InputTooLong
        | Kind::InvalidInput => StatusCode::BAD_REQUEST,
        Kind::Unauthorized => StatusCode::UNAUTHORIZED,
        Kind::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
        Kind::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Kind::NotFound | Kind::ModelNotFound => StatusCode::NOT_FOUND,
        Kind::ModelExists => StatusCode::CONFLICT,
        Kind::OutOfMemory => StatusCode::INSUFFICIENT_STORAGE,
        Kind::Overloaded | Kind::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Kind::NotReady => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The body of an error.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorInner,
}

/// The kind and the message of an error.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, ToSchema)]
pub struct ErrorInner {
    /// The kind of error, for programs.
    pub kind: Kind,
    /// For people: what was wrong and what would be right.
    pub message: String,
}

impl From<&Error> for ErrorBody {
    fn from(error: &Error) -> Self {
        Self { error: ErrorInner { kind: error.kind, message: error.message.clone() } }
    }
}

impl ResponseError for Error {
    fn status_code(&self) -> StatusCode {
        status(self.kind)
    }

    fn error_response(&self) -> HttpResponse {
        builder(self).json(ErrorBody::from(self))
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        let (kind, hint) = match error {
            ModelError::Load(error) => return Self::from(error),
            ModelError::Unnamed(count) => {
                let message =
                    format!("model is missing, and there are {count} to choose from; GET /models has their names");
                return Self::new(Kind::ModelNotFound, message);
            }
            ModelError::Name(name) => {
                let rule = format!("it must be 1 to {MAX_NAME_CHARACTERS} characters without slashes and controls");
                return Self::new(Kind::InvalidValue, format!("model_name is {name:?}; {rule}"));
            }
            ModelError::Loading => (Kind::NotReady, "; GET /ping says when it is ready"),
            ModelError::Failed => (Kind::NotReady, "; the server's log says why"),
            ModelError::ByName => {
                (Kind::ModelNotFound, "; use POST /models/{name}/invoke, and GET /models for the names")
            }
            ModelError::OneModel => {
                let hint = "; start it with --multi-model (SAGEMAKER_MULTI_MODEL=true) to load models by name, or with \
                            --admin-port to swap the one";
                (Kind::NotFound, hint)
            }
            ModelError::ForOperators => {
                (Kind::NotFound, "; start the server with --admin-port or --admin-socket, and ask there")
            }
            ModelError::Outside { .. } => (Kind::InvalidValue, ""),
            ModelError::Extras(_) => (Kind::InvalidValue, "; the extras are as they were"),
            ModelError::NotLoaded(_) => (Kind::ModelNotFound, ""),
            ModelError::AlreadyLoaded(_) | ModelError::BeingLoaded(_) => (Kind::ModelExists, ""),
            ModelError::HasShare(_) => {
                (Kind::ModelExists, "; give it to other versions first, with PUT /models/{name}")
            }
            ModelError::TooManyVersions(_) => (Kind::OutOfMemory, "; DELETE /models/{name}@{version} first"),
            ModelError::Shares => (Kind::InvalidValue, ""),
            ModelError::TooMany(_) => (Kind::OutOfMemory, "; DELETE /models/{name} first"),
            ModelError::NoRoomBeside { .. } => {
                (Kind::OutOfMemory, "; unload another model, or give the server more memory")
            }
            ModelError::Memory { .. } => (Kind::OutOfMemory, "; DELETE /models/{name} first, or raise --models-mib"),
        };
        Self::new(kind, format!("{error}{hint}"))
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Folder(IntakeError::NoFolder(folder)) => {
                Self::new(Kind::NotFound, format!("url is {}; there is no such folder", folder.display()))
            }
            LoadError::Engine(error @ EngineError::Memory { .. }) => Self::new(Kind::OutOfMemory, error.to_string()),
            // What else a folder holds is not a client's to know.
            LoadError::Folder(IntakeError::Neither { path, .. }) => Self::new(
                Kind::InvalidValue,
                format!("url is {}; no bundle (manifest.json) or checkpoint (config.json) is there", path.display()),
            ),
            unusable => Self::new(Kind::InvalidValue, format!("url can't be loaded: {unusable}")),
        }
    }
}

/// An error on OpenAI's routes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct OpenAiError(#[from] pub Error);

impl ResponseError for OpenAiError {
    fn status_code(&self) -> StatusCode {
        status(self.0.kind)
    }

    fn error_response(&self) -> HttpResponse {
        builder(&self.0).json(openai::ErrorBody::from(&self.0))
    }
}

fn builder(error: &Error) -> HttpResponseBuilder {
    let mut response = HttpResponse::build(status(error.kind));
    match error.kind {
        Kind::Overloaded | Kind::NotReady => {
            response.insert_header((RETRY_AFTER, "1"));
        }
        Kind::UnsupportedMediaType => {
            response.insert_header((ACCEPT_ENCODING, encoding::ACCEPTED));
        }
        // What comes of such a body is nobody's next request.
        Kind::RequestTimeout => {
            response.force_close();
        }
        _ => {}
    }
    response
}

/// The answer to a method that a path doesn't have.
pub(super) async fn method_not_allowed(request: HttpRequest, allowed: &'static str) -> HttpResponse {
    let (method, path) = (request.method(), request.path());
    let error = Error::new(Kind::MethodNotAllowed, format!("{method} is not allowed on {path}; use {allowed}"));
    // With its error, of which the log tells the kind.
    let mut response = HttpResponse::from_error(error);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The answer to a path that isn't served.
pub(super) async fn path_not_found(request: HttpRequest) -> HttpResponse {
    let path = request.path();
    let message = format!("there is no {path}; try POST /invocations or GET /ping, and GET /openapi.json for the rest");
    HttpResponse::from_error(Error::new(Kind::NotFound, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_reference_has_a_row_for_every_kind_with_its_status() {
        let schema = serde_json::to_value(<Kind as utoipa::PartialSchema>::schema()).unwrap();
        let kinds: Vec<Kind> = serde_json::from_value(schema["enum"].clone()).unwrap();
        let row =
            |kind: Kind| format!("| `{}` | {} |", serde_json::json!(kind).as_str().unwrap(), status(kind).as_u16());
        let rows: BTreeSet<String> = kinds.into_iter().map(row).collect();

        let reference = include_str!("../../docs/api.md").split("\n## Errors\n").nth(1).unwrap();
        let told = reference.lines().filter(|line| line.starts_with("| `"));
        let told: BTreeSet<String> =
            told.map(|line| line.splitn(4, '|').take(3).collect::<Vec<_>>().join("|") + "|").collect();
        assert_eq!(rows, told, "docs/api.md, Errors");
    }

    #[test]
    fn errors_of_models_say_what_to_do_over_http() {
        for (error, kind, message) in [
            (ModelError::Loading, Kind::NotReady, "the model is being loaded; GET /ping says when it is ready"),
            (
                ModelError::Unnamed(2),
                Kind::ModelNotFound,
                "model is missing, and there are 2 to choose from; GET /models has their names",
            ),
            (ModelError::NotLoaded("a".into()), Kind::ModelNotFound, "the model \"a\" is not loaded"),
            (
                ModelError::TooMany(3),
                Kind::OutOfMemory,
                "3 models are loaded, and no more may be; DELETE /models/{name} first",
            ),
            (LoadError::Backend("no GPU".into()).into(), Kind::InvalidValue, "url can't be loaded: no GPU"),
        ] {
            assert_eq!(Error::from(error), Error::new(kind, message));
        }
    }
}
