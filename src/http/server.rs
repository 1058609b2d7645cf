//! The server: a listener, the routes and the models. It listens before a model is loaded, so that `/ping` can report
//! that the model loads.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use actix_web::body::MessageBody;
use actix_web::dev::{Server, ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::middleware::{Next, from_fn};
use actix_web::web::{Data, PayloadConfig};
use actix_web::{App, HttpServer};
use tracing::Instrument;

use super::request::Served;
use super::routes;
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

/// Settings of an HTTP server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Number of HTTP threads.
    pub workers: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Whether `/` is the page for people.
    pub page: bool,
    /// The metrics that handlers add to.
    pub metrics: Arc<Metrics>,
    /// Whether the server is being stopped: then answers close their connections, so that clients turn elsewhere.
    pub stopping: Arc<AtomicBool>,
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
    let max_body_bytes = options.max_body_bytes;
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (page, metrics, stopping) = (options.page, Arc::clone(&options.metrics), Arc::clone(&options.stopping));
    let served = Data::new(Served { models: models.into(), max_body_bytes, page, metrics, started, stopping });
    let server = HttpServer::new(move || {
        App::new()
            .wrap(from_fn(observe))
            .app_data(served.clone())
            .app_data(PayloadConfig::new(max_body_bytes))
            .configure(routes::configure)
    });
    // A client that closes its side has left: its request's future is dropped, and with it the work.
    let server = server.h1_allow_half_closed(false);
    let server = server.workers(options.workers).disable_signals().shutdown_timeout(25);
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
    let (method, path) = (request.method().clone(), request.path().to_owned());
    let served = request.app_data::<Data<Served>>().cloned();
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
            Some(error) => tracing::info!(%method, path, status, elapsed_ms, %error),
            None => tracing::info!(%method, path, status, elapsed_ms),
        }
    }
    Ok(response)
}
