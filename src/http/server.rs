//! The server: a listener, the routes and the models. It listens before a model is loaded, so that `/ping` can report
//! that the model loads.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use actix_web::body::MessageBody;
use actix_web::dev::{Server, ServiceRequest, ServiceResponse};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{Data, PayloadConfig};
use actix_web::{App, HttpServer};
use tracing::Instrument;

use super::errors::OpenAiError;
use super::request::Served;
use super::routes;
use crate::error::{Error, Kind, shown};
use crate::metrics::Metrics;
use crate::models::Models;

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// On a port.
    Tcp(TcpListener),
    /// On a socket file, behind a proxy on the same machine.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// HTTP threads.
    pub workers: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Time that a request's body may take.
    pub body_timeout: Duration,
    /// Whether `/` is the page for people.
    pub page: bool,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            workers: 2,
            max_body_bytes: 1 << 20,
            body_timeout: Duration::from_secs(10),
            page: false,
            metrics: Metrics::new(),
        }
    }
}

/// Starts serving on a listener that is bound already. The returned server runs until it is stopped by its handle.
///
/// # Errors
/// The operating system's.
pub fn start(
    listener: impl Into<Listener>,
    models: impl Into<Models>,
    options: &ServerOptions,
) -> std::io::Result<Server> {
    let ServerOptions { workers, max_body_bytes, body_timeout, page, metrics } = options.clone();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let served = Data::new(Served { models: models.into(), max_body_bytes, body_timeout, page, metrics, started });
    let server = HttpServer::new(move || {
        App::new()
            .wrap(from_fn(observe))
            .app_data(served.clone())
            .app_data(PayloadConfig::new(max_body_bytes))
            .configure(routes::configure)
    });
    // A client that closes its side has left: its request's future is dropped, and with it the work.
    let server = server.h1_allow_half_closed(false);
    let server = server.workers(workers).disable_signals().shutdown_timeout(25);
    let server = match listener.into() {
        Listener::Tcp(listener) => server.listen(listener)?,
        Listener::Unix(listener) => server.listen_uds(listener)?,
    };
    Ok(server.run())
}

/// Counts every request by its route, and logs one line for each; none for pings and scrapes.
async fn observe(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), shown(request.path().to_owned()));
    let metrics = request.app_data::<Data<Served>>().map(|served| Arc::clone(&served.metrics));
    // Below the level of the log: the line that is logged says the same.
    let span = tracing::debug_span!("request", %method, path, status = tracing::field::Empty);
    let response = next.call(request).instrument(span.clone()).await?;
    span.record("status", response.status().as_u16());
    let (status, elapsed) = (response.status().as_u16(), started.elapsed());
    if let Some(metrics) = metrics {
        // The pattern, never the path: a client must not be able to make up labels.
        let route = response.request().match_pattern();
        metrics.http_request(route.as_deref().unwrap_or("unmatched"), status, elapsed.as_secs_f64());
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
