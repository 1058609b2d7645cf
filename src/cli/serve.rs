//! `foretype serve`: the server's life, from the listener to the last answer.

use std::error::Error;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::loading::{Loading, load_folder};
use super::model_args::ModelArgs;
use crate::http::{self, Listener, ServerOptions};
use crate::metrics::Metrics;
use crate::models::folder::ModelFolder;
use crate::models::{ModelState, Models, Registry, RegistryLimits};

/// Arguments of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Start without a model, and load models by name over HTTP as Amazon SageMaker's multi-model endpoints do.
    #[arg(long, env = "SAGEMAKER_MULTI_MODEL")]
    multi_model: bool,
    /// With --multi-model: memory of all models together, in MiB; one more is answered 507.
    #[arg(long, env = "FORETYPE_MODELS_MIB", value_name = "MIB", default_value_t = 8192)]
    models_mib: u64,
    /// With --multi-model: most models at once; one more is answered 507.
    #[arg(long, env = "FORETYPE_MAX_MODELS", value_name = "N", default_value_t = 64)]
    max_models: usize,
    /// Address to listen on.
    #[arg(long, env = "FORETYPE_HOST", value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one and prints it.
    #[arg(long, env = "FORETYPE_PORT", value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Socket file to listen on instead of a port, for a proxy on the same machine. Then a model folder that holds no
    /// model is told by /ping and the log, as one that can't be loaded is.
    #[arg(long, env = "FORETYPE_SOCKET", value_name = "FILE")]
    socket: Option<PathBuf>,
    /// HTTP threads.
    #[arg(long, env = "FORETYPE_WORKERS", value_name = "N", default_value = "2")]
    workers: NonZero<usize>,
    /// Most bytes of a request's body.
    #[arg(long, env = "FORETYPE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 1 << 20)]
    max_body_bytes: usize,
    /// Milliseconds that a request's body may take to come; then the request is answered 408.
    #[arg(long, env = "FORETYPE_BODY_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000)]
    body_timeout_ms: u64,
    /// Most connections of clients at once; requests on further ones are answered 429. The limit of open files may allow
    /// fewer.
    #[arg(long, env = "FORETYPE_MAX_CONNECTIONS", value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// Serve a page at / on which people can try the model.
    #[arg(long, env = "FORETYPE_PAGE")]
    page: bool,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let folder = (!self.multi_model).then(|| self.model.folder().map_err(|e| e.to_string()));
        // To a person, what can be told at once is told before anything listens.
        if let (None, Some(Err(reason))) = (&self.socket, &folder) {
            return Err(reason.clone().into());
        }
        actix_web::rt::System::new().block_on(self.serve(folder))
    }

    async fn serve(self, folder: Option<Result<ModelFolder, String>>) -> Result<(), Box<dyn Error>> {
        // Both are caught before anyone can connect, and so before anyone can know that there is a server to stop.
        let stops = Stops { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? };
        let (listener, url) = self.listen()?;
        let metrics = Metrics::new();
        let options = ServerOptions {
            workers: self.workers.get(),
            max_body_bytes: self.max_body_bytes,
            body_timeout: Duration::from_millis(self.body_timeout_ms),
            max_connections: self.max_connections,
            page: self.page,
            metrics: Arc::clone(&metrics),
        };
        let (state, model) = watch::channel(ModelState::Loading);
        let models =
            if folder.is_some() { Models::Single(model) } else { Models::Multi(Arc::new(self.registry(&metrics))) };
        let server = http::start(listener, models.clone(), &options)?;
        let stopping = Arc::new(AtomicBool::new(false));
        actix_web::rt::spawn(stops.stop(server.handle(), models.clone(), Arc::clone(&stopping)));
        let loader = match folder {
            Some(folder) => {
                let work =
                    Loading { folder, args: self.model, metrics: Arc::clone(&metrics), url, page: self.page, stopping };
                Some(std::thread::Builder::new().name("loader".into()).spawn(move || work.run(&state))?)
            }
            None => {
                tracing::info!("ready, without models; POST /models loads one");
                if let Some(url) = url {
                    println!("foretype is ready on {url}, without models. POST /models loads one.");
                }
                None
            }
        };
        server.await?;
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
        if let Some(loader) = loader {
            wait_for(&loader, UNLOAD);
        }
        tracing::info!(cancelled = metrics.cancelled(), "stopped");
        // Everyone is answered, and the process ends without destructors. Engines are left as they are, because one may
        // be in a step that hangs, or being loaded again, and neither can be interrupted.
        std::mem::forget(models);
        Ok(())
    }

    /// The port, with the URL that people use, or the socket file.
    fn listen(&self) -> Result<(Listener, Option<String>), Box<dyn Error>> {
        let Some(path) = &self.socket else {
            let address = SocketAddr::new(self.host, self.port);
            let listener = TcpListener::bind(address)
                .map_err(|e| format!("can't listen on {address}: {e}; name another --port"))?;
            let url = format!("http://{}", listener.local_addr()?);
            return Ok((listener.into(), Some(url)));
        };
        // One that a dead server left behind is in nobody's way.
        if UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path).map_err(|e| format!("can't listen on {}: {e}", path.display()))?;
        Ok((listener.into(), None))
    }

    /// An empty registry of models by name.
    fn registry(&self, metrics: &Arc<Metrics>) -> Registry {
        let limits = RegistryLimits { bytes: self.models_mib << 20, models: self.max_models };
        let (args, metrics) = (self.model.clone(), Arc::clone(metrics));
        Registry::new(Box::new(move |name, folder| load_folder(&args, name, folder, &metrics)), limits)
    }
}

/// The signals that end a server: SIGTERM from container platforms, SIGINT from Ctrl-C.
struct Stops {
    term: Signal,
    int: Signal,
}

impl Stops {
    /// Waits for one, and stops the server.
    async fn stop(mut self, server: ServerHandle, models: Models, stopping: Arc<AtomicBool>) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
        tracing::info!("stopping: no new requests; those that run are answered");
        stopping.store(true, Ordering::Relaxed);
        for engine in models.engines() {
            engine.drain(DRAIN);
        }
        server.stop(true).await;
    }
}

/// Waits until a thread has ended, but not longer than `within`.
fn wait_for(thread: &JoinHandle<()>, within: Duration) {
    let until = Instant::now() + within;
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Time that running requests get when the server is stopped. SageMaker kills a container 30 s after asking it to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// Time that a model which is being built when the server is stopped gets to remove its unfinished files.
const UNLOAD: Duration = Duration::from_secs(1);
