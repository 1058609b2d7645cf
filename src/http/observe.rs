//! Counts every request by its route, and logs one line for each; none for pings and scrapes.

use std::sync::atomic::Ordering;
use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::middleware::Next;
use tracing::Instrument;

use super::errors::OpenAiError;
use super::request::served;
use crate::error::{Error, Kind, shown};

/// The middleware around all others.
pub(super) async fn observe<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), shown(request.path().to_owned()));
    let served = served(request.request()).cloned();
    // Below the level of the log: the line that is logged says the same.
    let span = tracing::debug_span!("request", %method, path, status = tracing::field::Empty);
    let mut response = next.call(request).instrument(span.clone()).await?;
    span.record("status", response.status().as_u16());
    let (status, elapsed) = (response.status().as_u16(), started.elapsed());
    if let Some(served) = served {
        if served.stopping.load(Ordering::Relaxed) {
            response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
        }
        // The pattern, never the path: a client must not be able to make up labels.
        let route = response.request().match_pattern();
        served.metrics.http_request(route.as_deref().unwrap_or("unmatched"), status, elapsed.as_secs_f64());
    }
    if !matches!(path.as_str(), "/ping" | "/metrics") {
        let elapsed_ms = elapsed.as_micros() as f64 / 1000.0;
        match response.response().error() {
            // A message may quote the request, which can be anything: only its kind is for every log.
            Some(error) => {
                let kind = kind(error);
                tracing::info!(%method, path, status, elapsed_ms, kind);
                tracing::debug!(reason = shown(error.to_string()), "refused");
            }
            None => tracing::info!(%method, path, status, elapsed_ms),
        }
    }
    Ok(response)
}

/// The kind of an error; empty for one that is not ours.
fn kind(error: &actix_web::Error) -> String {
    let openai = error.as_error::<OpenAiError>().map(|error| error.0.kind);
    openai.or(error.as_error::<Error>().map(|error| error.kind)).map_or_else(String::new, Kind::name)
}
