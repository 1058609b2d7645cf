//! What every handler starts from: the server's state, and a request's body and content type.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use actix_web::http::StatusCode;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::Bytes;
use actix_web::{HttpRequest, Result};

use crate::error::{Error, Kind};
use crate::metrics::Metrics;
use crate::models::Models;

/// The server's state, which all handlers share.
pub(super) struct Served {
    pub models: Models,
    pub max_body_bytes: usize,
    pub page: bool,
    pub metrics: Arc<Metrics>,
    /// When this server was started, in Unix time.
    pub started: u64,
    /// Whether it is being stopped.
    pub stopping: Arc<AtomicBool>,
}

impl Served {
    /// A request's whole body, or why it can't be read.
    pub(super) fn body(&self, body: Result<Bytes>) -> Result<Bytes, Error> {
        let limit = self.max_body_bytes;
        body.map_err(|error| match error.as_response_error().status_code() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Error::new(Kind::BodyTooLarge, format!("the body is over {limit} bytes; an input needs far less"))
            }
            _ => Error::new(Kind::InvalidJson, format!("the body can't be read: {error}")),
        })
    }
}

/// A request's content type in lower case, without parameters; empty if the request names none.
pub(super) fn content_type(request: &HttpRequest) -> String {
    let value = request.headers().get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = value.as_deref().unwrap_or_default().split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// Accepts JSON and requests without a content type; curl's default for `-d` is a form.
pub(super) fn expect_json(request: &HttpRequest) -> Result<(), Error> {
    match content_type(request).as_str() {
        "" | "application/json" => Ok(()),
        other => {
            Err(Error::new(Kind::UnsupportedMediaType, format!("the content type is {other}; send application/json")))
        }
    }
}
