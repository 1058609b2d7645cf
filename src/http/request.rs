//! What every handler starts from: the server's state, and a request's body and content type.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN};
use actix_web::web::{Bytes, Data, block};
use actix_web::{FromRequest, HttpRequest};
use futures_util::future::{FutureExt, LocalBoxFuture};
use tokio::time::timeout;

use super::connections::Connections;
use super::encoding::Encoding;
use super::trace::LogRequests;
use crate::access::file::KeyFile;
use crate::error::{Error, Kind};
use crate::metrics::Metrics;
use crate::models::Models;

/// The server's state, which all handlers share.
pub(super) struct Served {
    pub models: Models,
    pub max_body_bytes: usize,
    pub body_timeout: Duration,
    pub page: bool,
    pub metrics: Arc<Metrics>,
    /// When this server was started, in Unix time.
    pub started: u64,
    /// Whether it is being stopped.
    pub stopping: Arc<AtomicBool>,
    pub connections: Arc<Connections>,
    /// The keys that requests need, if they need one.
    pub keys: Option<Arc<KeyFile>>,
    pub log_requests: LogRequests,
    /// Requests so far, for a sample of them.
    pub number: AtomicU64,
}

/// The state of the server that a request came to.
pub(super) fn served(request: &HttpRequest) -> Option<&Data<Served>> {
    request.app_data()
}

/// A request's whole body, decoded, or why it can't be read.
pub(super) struct WholeBody(pub Result<Bytes, Error>);

impl FromRequest for WholeBody {
    type Error = Infallible;
    type Future = LocalBoxFuture<'static, Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let served = served(request).cloned();
        let encoding = request.headers().get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let encoding = Encoding::named(encoding.as_deref().unwrap_or_default());
        let bytes = Bytes::from_request(request, payload);
        async move {
            let Some(served) = served else {
                return Ok(Self(Err(Error::new(Kind::Internal, "the server failed on this request"))));
            };
            Ok(Self(async { served.read(bytes, encoding?).await }.await))
        }
        .boxed_local()
    }
}

impl Served {
    /// The number of a request, from 0.
    pub(super) fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    async fn read(
        &self,
        body: impl Future<Output = actix_web::Result<Bytes>>,
        encoding: Option<Encoding>,
    ) -> Result<Bytes, Error> {
        let (limit, within) = (self.max_body_bytes, self.body_timeout);
        let body = timeout(within, body).await.map_err(|_| {
            let message = format!("the body did not come within {} s; send it at once", within.as_secs_f64());
            Error::new(Kind::RequestTimeout, message)
        })?;
        let body = body.map_err(|error| match error.as_response_error().status_code() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Error::new(Kind::BodyTooLarge, format!("the body is over {limit} bytes; an input needs far less"))
            }
            _ => Error::new(Kind::InvalidJson, format!("the body can't be read: {error}")),
        })?;
        let Some(encoding) = encoding else { return Ok(body) };
        // A large one takes milliseconds.
        block(move || encoding.decode(&body, limit)).await.map_or_else(
            |_| Err(Error::new(Kind::Internal, "the server failed on this request")),
            |decoded| decoded.map(Bytes::from),
        )
    }
}

/// A request's content type in lower case, without parameters; empty if the request names none.
///
/// # Errors
/// If a page of a browser sends a body without a content type. A page of any other site may do that without the
/// browser asking first.
pub(super) fn content_type(request: &HttpRequest) -> Result<String, Error> {
    let value = request.headers().get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = value.as_deref().unwrap_or_default().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if essence.is_empty() && request.headers().contains_key(ORIGIN) {
        let message = "the content type is missing; send application/json from a web page";
        return Err(Error::new(Kind::UnsupportedMediaType, message));
    }
    Ok(essence)
}

/// Accepts JSON and, from programs, requests without a content type; curl's default for `-d` is a form.
pub(super) fn expect_json(request: &HttpRequest) -> Result<(), Error> {
    match content_type(request)?.as_str() {
        "" | "application/json" => Ok(()),
        other => {
            Err(Error::new(Kind::UnsupportedMediaType, format!("the content type is {other}; send application/json")))
        }
    }
}
