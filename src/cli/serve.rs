//! `foretype serve`: the server's life, from the listener to the last answer.

use std::error::Error;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::ModelArgs;
use super::progress::Bar;
use crate::bundle::{self, Source};
use crate::engine::Engine;
use crate::http::{self, ModelState, ServerOptions};
use crate::metrics::Metrics;

/// Arguments of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on.
    #[arg(long, env = "FORETYPE_HOST", value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, env = "FORETYPE_PORT", value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// HTTP threads.
    #[arg(long, env = "FORETYPE_WORKERS", value_name = "N", default_value = "2")]
    workers: NonZero<usize>,
    /// Most bytes of a request's body.
    #[arg(long, env = "FORETYPE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 1 << 20)]
    max_body_bytes: usize,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        // What can be told at once is told before anything listens.
        let source = bundle::identify(&self.model.model)?;
        let address = SocketAddr::new(self.host, self.port);
        let listener =
            TcpListener::bind(address).map_err(|e| format!("can't listen on {address}: {e}; name another --port"))?;
        let address = listener.local_addr()?;
        let metrics = Metrics::new();
        let options = ServerOptions {
            workers: self.workers.get(),
            max_body_bytes: self.max_body_bytes,
            metrics: Arc::clone(&metrics),
        };
        let (state, model) = watch::channel(ModelState::Loading);
        let served = model.clone();
        let counted = Arc::clone(&metrics);
        actix_web::rt::System::new().block_on(async move {
            let server = http::start(listener, model, &options)?;
            let handle = server.handle();
            // SIGTERM is what container platforms send, SIGINT is Ctrl-C; both are caught before anything takes time.
            let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            let loader = std::thread::Builder::new().name("loader".into());
            let args = self.model;
            loader.spawn(move || load(&args, &source, &counted, address, &state))?;
            actix_web::rt::spawn(async move {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                tracing::info!("stopping: no new requests; those that run are answered");
                if let ModelState::Ready(engine) = &*served.borrow() {
                    engine.drain(DRAIN);
                }
                handle.stop(true).await;
            });
            server.await
        })?;
        tracing::info!(cancelled = metrics.cancelled(), "stopped");
        Ok(())
    }
}

/// Time that running requests get when the server is stopped. SageMaker kills a container 30 s after asking it to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// Builds if needed, loads, and says where to point a client. A failure is one log line, and leaves `/ping` unhealthy.
fn load(
    args: &ModelArgs,
    source: &Source,
    metrics: &Arc<Metrics>,
    address: SocketAddr,
    state: &watch::Sender<ModelState>,
) {
    let started = Instant::now();
    let loaded = bundle::open(source, &args.intake(), &Bar::default()).map_err(|e| e.to_string()).and_then(
        |(path, manifest)| Engine::load(&path, &manifest, &args.engine(), metrics).map_err(|e| e.to_string()),
    );
    match loaded {
        Ok(engine) => {
            tracing::info!(model = engine.name(), elapsed_ms = started.elapsed().as_millis() as u64, "ready");
            state.send_replace(ModelState::Ready(Arc::new(engine)));
            println!("foretype is ready on http://{address}. Try:\n");
            println!(
                "  curl -s http://{address}/invocations -H 'Content-Type: application/json' -d '{{\"input\": \"wireless char\"}}'\n"
            );
        }
        Err(reason) => {
            tracing::error!(%reason, "the model can't be loaded; /ping stays unhealthy");
            state.send_replace(ModelState::Failed(reason));
        }
    }
}
