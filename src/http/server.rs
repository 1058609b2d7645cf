//! The server: a listener, the routes and the models. It listens before a model is loaded, so that `/ping` can report
//! that the model loads.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::dev::Server;
use actix_web::middleware::{Condition, from_fn};
use actix_web::web::{Data, PayloadConfig};
use actix_web::{App, HttpServer};
use rustix::net::listen;

use super::connections::{BACKLOG, Connections, bound};
use super::conventions::Conventions;
use super::cors::cors;
use super::keys::authenticate;
use super::observe::observe;
use super::request::Served;
use super::routes::{Routes, configure};
use super::trace::LogRequests;
use crate::access::file::KeyFile;
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

/// Time that the headers of a connection's first request may take.
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
/// Time that a client has to close its side, after an answer that is the connection's last. The library counts it from
/// a clock that is up to half a second late, and never ends what is over before it begins.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Settings of an HTTP server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Number of HTTP threads.
    pub workers: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Time that a request's body may take.
    pub body_timeout: Duration,
    /// Connections at once; the process's limit of open files may allow fewer.
    pub max_connections: usize,
    /// Origins whose web pages may read answers.
    pub cors_origins: Vec<String>,
    /// The keys that requests need; none, if absent.
    pub keys: Option<Arc<KeyFile>>,
    /// Which requests have a log line.
    pub log_requests: LogRequests,
    /// What this listener serves.
    pub routes: Routes,
    /// What clients of other systems are used to.
    pub conventions: Conventions,
    /// Whether `/` is the page for people.
    pub page: bool,
    /// The metrics that handlers add to.
    pub metrics: Arc<Metrics>,
    /// Whether the server is being stopped: then answers close their connections, so that clients turn elsewhere.
    pub stopping: Arc<AtomicBool>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            workers: 2,
            max_body_bytes: 1 << 20,
            body_timeout: Duration::from_secs(10),
            max_connections: 4096,
            cors_origins: Vec::new(),
            keys: None,
            log_requests: LogRequests::All,
            routes: Routes::All,
            conventions: Conventions::default(),
            page: false,
            metrics: Metrics::new(),
            stopping: Arc::default(),
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
    let ServerOptions { workers, max_body_bytes, body_timeout, page, metrics, .. } = options.clone();
    let ServerOptions { max_connections, cors_origins, keys, routes, log_requests, conventions, .. } = options.clone();
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let stopping = Arc::clone(&options.stopping);
    let connections = Arc::new(Connections::new(max_connections));
    let accepted = connections.accepted().div_ceil(workers);
    let counted = Arc::clone(&connections);
    let served = Data::new(Served {
        models: models.into(),
        routes,
        max_body_bytes,
        body_timeout,
        conventions,
        page,
        metrics,
        started,
        stopping,
        connections,
        keys,
        log_requests,
        number: AtomicU64::new(0),
    });
    let server = HttpServer::new(move || {
        App::new()
            .wrap(from_fn(authenticate))
            .wrap(Condition::new(!cors_origins.is_empty(), cors(&cors_origins)))
            .wrap(from_fn(bound))
            .wrap(from_fn(observe))
            .app_data(served.clone())
            .app_data(PayloadConfig::new(max_body_bytes))
            .configure(|config| configure(routes, config))
    });
    let server = server.on_connect(move |_, data| counted.opened(data)).max_connections(accepted);
    let server = server.client_request_timeout(HEADERS_WITHIN).client_disconnect_timeout(CLOSE_WITHIN);
    // A part of a stream goes out at once, and doesn't wait until the client has acknowledged the one before it.
    let server = server.tcp_nodelay(true);
    // A client that closes its side has left: its request's future is dropped, and with it the work.
    let server = server.h1_allow_half_closed(false);
    let server = server.workers(workers).disable_signals().shutdown_timeout(25);
    let server = match listener.into() {
        // The library binds with a backlog of 128; to listen again changes it.
        Listener::Tcp(listener) => {
            listen(&listener, BACKLOG)?;
            server.listen(listener)?
        }
        Listener::Unix(listener) => {
            listen(&listener, BACKLOG)?;
            server.listen_uds(listener)?
        }
    };
    Ok(server.run())
}
