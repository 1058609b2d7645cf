//! `foretype serve`: the server's life, from the listener to the last answer.

use std::error::Error;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix_web::dev::ServerHandle;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::ModelArgs;
use super::progress::Bar;
use crate::engine::{Engine, EngineError};
use crate::error::{Error as ClientError, Kind};
use crate::http::{self, Listener, ServerOptions};
use crate::metrics::Metrics;
use crate::models::folder::{self, IntakeError, Source};
use crate::models::{ModelState, Models, Shelf, ShelfLimits};

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
    /// Socket file to listen on instead of a port, for a proxy on the same machine. Then a model folder that holds no model is
    /// told by /ping and the log, as one that can't be loaded is.
    #[arg(long, env = "FORETYPE_SOCKET", value_name = "FILE")]
    socket: Option<PathBuf>,
    /// HTTP threads.
    #[arg(long, env = "FORETYPE_WORKERS", value_name = "N", default_value = "2")]
    workers: NonZero<usize>,
    /// Most bytes of a request's body.
    #[arg(long, env = "FORETYPE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 1 << 20)]
    max_body_bytes: usize,
    /// Serve a page at / on which people can try the model.
    #[arg(long, env = "FORETYPE_PAGE")]
    page: bool,
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<(), Box<dyn Error>> {
        let source = (!self.multi_model).then(|| self.model.source().map_err(|e| e.to_string()));
        // To a person, what can be told at once is told before anything listens.
        if let (None, Some(Err(reason))) = (&self.socket, &source) {
            return Err(reason.clone().into());
        }
        actix_web::rt::System::new().block_on(self.serve(source))
    }

    async fn serve(self, source: Option<Result<Source, String>>) -> Result<(), Box<dyn Error>> {
        // Both are caught before anyone can connect, and so before anyone can know that there is a server to stop.
        let stops = Stops { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? };
        let (listener, url) = self.listen()?;
        let metrics = Metrics::new();
        let options = ServerOptions {
            workers: self.workers.get(),
            max_body_bytes: self.max_body_bytes,
            page: self.page,
            metrics: Arc::clone(&metrics),
        };
        let (state, model) = watch::channel(ModelState::Loading);
        let models =
            if source.is_some() { Models::Single(model) } else { Models::Multi(Arc::new(self.shelf(&metrics))) };
        let server = http::start(listener, models.clone(), &options)?;
        let stopping = Arc::new(AtomicBool::new(false));
        actix_web::rt::spawn(stops.stop(server.handle(), models.clone(), Arc::clone(&stopping)));
        let loader = match source {
            Some(source) => {
                let work =
                    Loading { source, args: self.model, metrics: Arc::clone(&metrics), url, page: self.page, stopping };
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
        // Everyone is answered, and the process ends without destructors. Engines are left as they are, because one may be in a
        // step that hangs, or being loaded again, and neither can be interrupted.
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

    /// An empty shelf for models by name.
    fn shelf(&self, metrics: &Arc<Metrics>) -> Shelf {
        let limits = ShelfLimits { bytes: self.models_mib << 20, models: self.max_models };
        let (args, metrics) = (self.model.clone(), Arc::clone(metrics));
        Shelf::new(Box::new(move |folder| load_folder(&args, folder, &metrics)), limits)
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

/// The engine of a folder that a client named.
fn load_folder(args: &ModelArgs, folder: &Path, metrics: &Arc<Metrics>) -> Result<Engine, ClientError> {
    let started = Instant::now();
    let unusable = |reason: String| ClientError::new(Kind::InvalidValue, format!("url can't be loaded: {reason}"));
    let source = folder::identify(folder).map_err(|error| match error {
        IntakeError::NoFolder(_) => {
            ClientError::new(Kind::NotFound, format!("url is {}; there is no such folder", folder.display()))
        }
        other => unusable(other.to_string()),
    })?;
    let (intake, options) = args.setup(&source).map_err(unusable)?;
    let (path, manifest) =
        folder::open(&source, &intake, &Bar::default()).map_err(|error| unusable(error.to_string()))?;
    let options = args.for_server(options, &path);
    let engine = Engine::load(&path, &manifest, &options, metrics).map_err(|error| match error {
        EngineError::Model(reason) => {
            tracing::error!(%reason, folder = %folder.display(), "the model can't be loaded");
            ClientError::new(Kind::Internal, "the model can't be loaded; the server's log says why")
        }
        other => unusable(other.to_string()),
    })?;
    tracing::info!(folder = %folder.display(), elapsed_ms = started.elapsed().as_millis() as u64, "loaded");
    Ok(engine)
}

/// The model that a server is started with, on its way.
struct Loading {
    source: Result<Source, String>,
    args: ModelArgs,
    metrics: Arc<Metrics>,
    /// Where the server is, if it has an address.
    url: Option<String>,
    page: bool,
    /// Set once nobody needs the model any more.
    stopping: Arc<AtomicBool>,
}

impl Loading {
    /// Builds if needed, loads, and says where to point a client. A failure is one log line, and leaves `/ping` unhealthy.
    fn run(self, state: &watch::Sender<ModelState>) {
        let started = Instant::now();
        let loaded = self.load();
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        match loaded {
            Ok(engine) => {
                tracing::info!(model = engine.name(), elapsed_ms = started.elapsed().as_millis() as u64, "ready");
                let field = if engine.is_encoder_decoder() { "inputs" } else { "input" };
                state.send_replace(ModelState::Ready(Arc::new(engine)));
                self.tell(field);
            }
            Err(reason) => {
                tracing::error!(%reason, "the model can't be loaded; /ping stays unhealthy");
                state.send_replace(ModelState::Failed(reason));
            }
        }
    }

    fn load(&self) -> Result<Engine, String> {
        let source = self.source.as_ref().map_err(Clone::clone)?;
        let progress = Bar::cancelled_by(Arc::clone(&self.stopping));
        let (intake, options) = self.args.setup(source)?;
        let (path, manifest) = folder::open(source, &intake, &progress).map_err(|e| e.to_string())?;
        let options = self.args.for_server(options, &path);
        Engine::load(&path, &manifest, &options, &self.metrics).map_err(|e| e.to_string())
    }

    /// `field` is where the model takes a text.
    fn tell(&self, field: &str) {
        let Some(url) = &self.url else { return };
        println!("foretype is ready on {url}. Try:\n");
        if self.page {
            println!("  {url}/ in a browser, or\n");
        }
        println!(
            "  curl -s {url}/invocations -H 'Content-Type: application/json' -d '{{\"{field}\": \"wireless char\"}}'\n"
        );
    }
}
