//! Names every request, counts it by its route, and logs one line for it; none for pings and scrapes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::{ConnectionType, Method};
use actix_web::middleware::Next;
use tracing::Instrument;

use super::errors::OpenAiError;
use super::keys::key_of;
use super::request::served;
use super::trace::RequestNames;
use crate::access::Key;
use crate::error::{Error, Kind, shown};

/// The middleware around all others.
pub(super) async fn observe<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<B>, actix_web::Error> {
    let started = Instant::now();
    let line = Line {
        method: request.method().clone(),
        path: shown(request.path().to_owned()),
        names: RequestNames::of(request.headers()),
        started,
    };
    let served = served(request.request()).cloned();
    let span = line.span();
    let mut response = next.call(request).instrument(span.clone()).await?;
    line.names.tell(response.headers_mut());
    let status = response.status().as_u16();
    span.record("status", status);
    let Some(served) = served else { return Ok(response) };
    if served.stopping.load(Ordering::Relaxed) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    // The pattern, never the path: a client must not be able to make up labels.
    let route = response.request().match_pattern();
    served.metrics.http_request(route.as_deref().unwrap_or("unmatched"), status, started.elapsed().as_secs_f64());
    let is_watching = matches!(line.path.as_str(), "/ping" | "/metrics");
    if !is_watching && served.log_requests.has_line(served.next_number(), status >= 400) {
        span.in_scope(|| line.write(status, key_of(response.request()), response.response().error()));
    }
    Ok(response)
}

/// What a request's log line says.
struct Line {
    method: Method,
    path: String,
    names: RequestNames,
    started: Instant,
}

impl Line {
    /// The request's span. It is below the level of the log: the line that is logged says the same.
    fn span(&self) -> tracing::Span {
        let Self { method, path, names: RequestNames { id, span, .. }, .. } = self;
        let status = tracing::field::Empty;
        let span = tracing::debug_span!("request", %method, path, request_id = id, trace_id = span.trace(), status);
        #[cfg(feature = "opentelemetry")]
        if let Some(parent) = &self.names.parent {
            set_parent(&span, parent);
        }
        span
    }

    fn write(&self, status: u16, key: Option<Arc<Key>>, error: Option<&actix_web::Error>) {
        let Self { method, path, names, started } = self;
        let elapsed_ms = started.elapsed().as_micros() as f64 / 1000.0;
        let (request_id, trace_id) = (&names.id, names.span.trace());
        let (key, kind) = (key.as_ref().map(|key| key.name()), error.map(kind));
        tracing::info!(%method, path, status, elapsed_ms, kind, key, request_id, trace_id);
        // A message may quote the request, which can be anything: it isn't for every log.
        if let Some(error) = error {
            tracing::debug!(request_id, reason = shown(error.to_string()), "refused");
        }
    }
}

/// The kind of an error; empty for one that is not ours.
fn kind(error: &actix_web::Error) -> String {
    let openai = error.as_error::<OpenAiError>().map(|error| error.0.kind);
    openai.or(error.as_error::<Error>().map(|error| error.kind)).map_or_else(String::new, Kind::name)
}

/// Makes a span one of the trace that the request came from.
#[cfg(feature = "opentelemetry")]
fn set_parent(span: &tracing::Span, parent: &super::trace::TraceParent) {
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    let (trace, parent_span) = (parent.trace_id.to_be_bytes(), parent.span_id.to_be_bytes());
    let (trace, parent_span) = (TraceId::from_bytes(trace), SpanId::from_bytes(parent_span));
    let flags = TraceFlags::new(parent.flags & 1);
    let remote = SpanContext::new(trace, parent_span, flags, true, TraceState::default());
    // Refused only where no exporter listens.
    let _ = span.set_parent(opentelemetry::Context::new().with_remote_span_context(remote));
}
