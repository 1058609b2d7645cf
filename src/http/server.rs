//! The server: a listener, the routes, and the model's state beside them. It runs before the model is loaded, so that `/ping` can
//! say so.

use std::net::TcpListener;
use std::sync::Arc;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::web::{Data, PayloadConfig};
use actix_web::{App, HttpServer};
use tokio::sync::watch;

use super::routes;
use crate::engine::Engine;
use crate::error::{Error, Kind};
use crate::metrics::Metrics;

/// What the server knows of its model.
#[derive(Clone)]
pub enum ModelState {
    /// It is being built or loaded.
    Loading,
    /// It answers.
    Ready(Arc<Engine>),
    /// It can't be loaded.
    Failed(String),
}

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// HTTP threads.
    pub workers: usize,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// What handlers share.
pub(super) struct Served {
    pub model: watch::Receiver<ModelState>,
    pub max_body_bytes: usize,
}

impl Served {
    /// The engine, if it is ready.
    pub fn engine(&self) -> Result<Arc<Engine>, Error> {
        match &*self.model.borrow() {
            ModelState::Ready(engine) => Ok(Arc::clone(engine)),
            ModelState::Loading => {
                Err(Error::new(Kind::NotReady, "the model is being loaded; GET /ping says when it is ready"))
            }
            ModelState::Failed(_) => {
                Err(Error::new(Kind::NotReady, "the model could not be loaded; the server's log says why"))
            }
        }
    }
}

/// Starts serving on a listener that is bound already. The returned server runs until it is stopped by its handle.
///
/// # Errors
/// The operating system's.
pub fn start(
    listener: TcpListener,
    model: watch::Receiver<ModelState>,
    options: &ServerOptions,
) -> std::io::Result<Server> {
    let max_body_bytes = options.max_body_bytes;
    let server = HttpServer::new(move || {
        App::new()
            .wrap(from_fn(log_request))
            .app_data(Data::new(Served { model: model.clone(), max_body_bytes }))
            .app_data(PayloadConfig::new(max_body_bytes))
            .configure(routes::configure)
    });
    Ok(server.workers(options.workers).disable_signals().shutdown_timeout(25).listen(listener)?.run())
}

/// One line per request; none for pings.
async fn log_request(
    request: actix_web::dev::ServiceRequest,
    next: actix_web::middleware::Next<impl actix_web::body::MessageBody>,
) -> Result<actix_web::dev::ServiceResponse<impl actix_web::body::MessageBody>, actix_web::Error> {
    let started = std::time::Instant::now();
    let (method, path) = (request.method().clone(), request.path().to_owned());
    let response = next.call(request).await?;
    if path != "/ping" {
        let elapsed_ms = started.elapsed().as_micros() as f64 / 1000.0;
        match response.response().error() {
            Some(error) => tracing::info!(%method, path, status = response.status().as_u16(), elapsed_ms, %error),
            None => tracing::info!(%method, path, status = response.status().as_u16(), elapsed_ms),
        }
    }
    Ok(response)
}
