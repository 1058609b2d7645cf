//! Errors on the wire: `{"error":{"kind","message"}}` with the status of this one table.

use actix_web::http::StatusCode;
use actix_web::http::header::{ALLOW, RETRY_AFTER};
use actix_web::{HttpResponse, ResponseError};

use crate::error::{Error, Kind};

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
        Kind::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        Kind::NotReady => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[derive(serde::Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(serde::Serialize)]
struct Inner<'a> {
    kind: Kind,
    message: &'a str,
}

impl ResponseError for Error {
    fn status_code(&self) -> StatusCode {
        status(self.kind)
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        if matches!(self.kind, Kind::Overloaded | Kind::NotReady) {
            response.insert_header((RETRY_AFTER, "1"));
        }
        response.json(Body { error: Inner { kind: self.kind, message: &self.message } })
    }
}

/// The answer to a method that a path doesn't have.
pub fn method_not_allowed(method: &str, path: &str, allowed: &'static str) -> HttpResponse {
    let error = Error::new(Kind::MethodNotAllowed, format!("{method} is not allowed on {path}; use {allowed}"));
    let mut response = error.error_response();
    response.headers_mut().insert(ALLOW, actix_web::http::header::HeaderValue::from_static(allowed));
    response
}
