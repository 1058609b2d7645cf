//! `foretype serve`: the server's life, from the listener to the last answer.

use std::error::Error;
use std::net::IpAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix_web::dev::{Server, ServerHandle};
use clap::Args;
use futures_util::future::join_all;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::listen;
use super::loading::{Beside, Loading, open_folder, open_version};
use super::model_args::ModelArgs;
use crate::access::file::KeyFile;
use crate::engine::machine;
use crate::http::conventions::{Conventions, InputsAnswer, UnknownFields};
use crate::http::trace::LogRequests;
use crate::http::{self, Listener, Routes, ServerOptions};
use crate::metrics::Metrics;
use crate::models::named::Named;
use crate::models::{
    Intake, ModelState, Models, ModelsRoot, Registry, RegistryLimits, SAGEMAKER_MODELS, Single, Versions,
};

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
    /// Folder that all models must be below which are named over HTTP, links resolved. Default: with --multi-model,
    /// /opt/ml/models if that exists; else none.
    #[arg(long, env = "FORETYPE_MODELS_ROOT", value_name = "DIR")]
    models_root: Option<PathBuf>,
    /// With --multi-model: most models at once; one more is answered 507.
    #[arg(long, env = "FORETYPE_MAX_MODELS", value_name = "N", default_value_t = 64)]
    max_models: usize,
    /// Folder of `blocklist.txt`, `popular.tsv`, `typing.json` and `template.txt`, any of which may be absent: what is
    /// there holds in the place of the bundle's own, and is read again when it changes.
    #[arg(long, env = "FORETYPE_EXTRAS", value_name = "DIR", conflicts_with = "multi_model")]
    extras: Option<PathBuf>,
    /// Compute what people type most at another server before /ping is 200: the address of its operators' port, such as
    /// `http://10.0.0.7:8081`, or a file of what its `GET /models/NAME/prefixes` answered.
    #[arg(long, env = "FORETYPE_WARM_FROM", value_name = "URL|FILE", conflicts_with = "multi_model")]
    warm_from: Option<String>,
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
    /// Port for operators, on the same address: /models and /metrics are served there and nowhere else.
    #[arg(long, env = "FORETYPE_ADMIN_PORT", value_name = "PORT", conflicts_with = "admin_socket")]
    admin_port: Option<u16>,
    /// Socket file for operators: /models and /metrics are served there and nowhere else.
    #[arg(long, env = "FORETYPE_ADMIN_SOCKET", value_name = "FILE")]
    admin_socket: Option<PathBuf>,
    /// File of keys that requests need, read again when it changes; /ping needs none.
    #[arg(long, env = "FORETYPE_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Requests that have a log line: `all`, `errors`, or `sampled:N` for one of N and all errors.
    #[arg(long, env = "FORETYPE_LOG_REQUESTS", value_name = "WHICH", default_value = "all")]
    log_requests: LogRequests,
    /// Origin whose web pages may read answers, such as `https://search.example.com`; may be given several times.
    #[arg(
        long = "cors-origin", env = "FORETYPE_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',',
        value_parser = http::cors::check_origin
    )]
    cors_origins: Vec<String>,
    /// HTTP threads.
    #[arg(long, env = "FORETYPE_WORKERS", value_name = "N", default_value = "2")]
    workers: NonZero<usize>,
    /// Most bytes of a request's body.
    #[arg(long, env = "FORETYPE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 1 << 20)]
    max_body_bytes: usize,
    /// Milliseconds that a request's body may take to come; then the request is answered 408.
    #[arg(long, env = "FORETYPE_BODY_TIMEOUT_MS", value_name = "MS", default_value_t = 10_000)]
    body_timeout_ms: u64,
    /// Most connections of clients at once; requests on further ones are answered 429. The limit of open files may
    /// allow fewer.
    #[arg(long, env = "FORETYPE_MAX_CONNECTIONS", value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// Form of answers to `inputs` on /invocations: `hugging-face`, a list and streams of server-sent events, or `lmi`,
    /// an object for a single prompt and streams of JSON Lines.
    #[arg(long, env = "FORETYPE_INPUTS_ANSWER", value_name = "FORM", default_value = "hugging-face")]
    inputs_answer: InputsAnswer,
    /// Unknown fields in the schemas of other systems, `inputs` and `prompt`: `ignore` answers without them and names
    /// them in a header, `refuse` answers 400.
    #[arg(long, env = "FORETYPE_UNKNOWN_FIELDS", value_name = "WHAT", default_value = "ignore")]
    unknown_fields: UnknownFields,
    /// Serve a page at / on which people can try the model.
    #[arg(long, env = "FORETYPE_PAGE")]
    page: bool,
    /// Options of LMI containers that change nothing.
    #[arg(skip)]
    unused_options: Vec<String>,
}

impl ServeArgs {
    /// Takes what options of LMI containers say beside defaults: the model, which replaces the one that is named, and
    /// what changes nothing.
    pub(super) fn take_options(&mut self, model: Option<String>, unused: Vec<String>) {
        if let Some(model) = model {
            self.model.model = Some(model.into());
        }
        self.unused_options = unused;
    }

    pub(super) fn run(mut self) -> Result<(), Box<dyn Error>> {
        self.model.is_one_of_many = self.multi_model;
        let model = (!self.multi_model).then(|| self.model.named().map_err(|e| e.to_string()));
        // To a person, what can be told at once is told before anything listens.
        if let (None, Some(Err(reason))) = (&self.socket, &model) {
            return Err(reason.clone().into());
        }
        actix_web::rt::System::new().block_on(self.serve(model))
    }

    async fn serve(self, named: Option<Result<Named, String>>) -> Result<(), Box<dyn Error>> {
        for option in &self.unused_options {
            tracing::info!(%option, "an option that changes nothing here");
        }
        // Both are caught before anyone can connect, and so before anyone can know that there is a server to stop.
        let stops = Stops { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? };
        let (listener, url) = self.listen()?;
        let admin = self.listen_for_operators()?;
        let (metrics, stopping) = (Metrics::new(), Arc::new(AtomicBool::new(false)));
        let (keys, of_all) = (self.keys()?, self.options(&metrics, admin.is_some()));
        let options = ServerOptions { stopping: Arc::clone(&stopping), keys, ..of_all };
        let state = watch::Sender::new(ModelState::Loading);
        let intake = Arc::new(self.intake(&metrics)?);
        let models = match &named {
            Some(_) => {
                Models::Single(Arc::new(Single::new(state.clone(), admin.as_ref().map(|_| Arc::clone(&intake)))))
            }
            None => Models::Multi(Arc::new(self.registry(&metrics)?)),
        };
        let server = http::start(listener, models.clone(), &options)?;
        // Who reaches the operators' listener is an operator.
        let for_operators = ServerOptions { routes: Routes::Admin, keys: None, ..options };
        let admin = admin.map(|listener| http::start(listener, models.clone(), &for_operators)).transpose()?;
        let handles = [Some(server.handle()), admin.as_ref().map(Server::handle)].into_iter().flatten().collect();
        actix_web::rt::spawn(stops.stop(handles, models.clone(), Arc::clone(&stopping)));
        admin.map(actix_web::rt::spawn);
        let sockets = [self.socket.clone(), self.admin_socket.clone()];
        let loader = self.load(named, url, Shared { state, metrics: Arc::clone(&metrics), stopping, intake })?;
        server.await?;
        for path in sockets.into_iter().flatten() {
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

    fn options(&self, metrics: &Arc<Metrics>, has_admin: bool) -> ServerOptions {
        ServerOptions {
            workers: self.workers.get(),
            max_body_bytes: self.max_body_bytes,
            body_timeout: Duration::from_millis(self.body_timeout_ms),
            max_connections: self.max_connections,
            cors_origins: self.cors_origins.clone(),
            routes: if has_admin { Routes::Public } else { Routes::All },
            conventions: Conventions { inputs: self.inputs_answer, unknown: self.unknown_fields },
            page: self.page,
            metrics: Arc::clone(metrics),
            stopping: Arc::default(),
            keys: None,
            log_requests: self.log_requests,
        }
    }

    /// The keys that requests need. A server that others can reach says so if there are none.
    fn keys(&self) -> Result<Option<Arc<KeyFile>>, String> {
        let Some(path) = &self.api_key_file else {
            if self.socket.is_none() && !self.host.is_loopback() {
                let host = self.host;
                tracing::warn!(%host, "anyone who reaches this address may ask: there is no --api-key-file");
            }
            return Ok(None);
        };
        KeyFile::open(path).map(Some).map_err(|error| format!("--api-key-file is {}: {error}", path.display()))
    }

    /// Begins to load the model, if there is one.
    fn load(
        self,
        named: Option<Result<Named, String>>,
        url: Option<String>,
        shared: Shared,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        let Shared { state, metrics, stopping, intake } = shared;
        let Some(model) = named else {
            tracing::info!("ready, without models; POST /models loads one");
            if let Some(url) = url {
                println!("foretype is ready on {url}, without models. POST /models loads one.");
            }
            return Ok(None);
        };
        let beside = Beside { extras: self.extras, warm_from: self.warm_from };
        let work = Loading { model, args: self.model, metrics, url, page: self.page, stopping, intake, beside };
        std::thread::Builder::new().name("loader".into()).spawn(move || work.run(&state)).map(Some)
    }

    /// The port, with the URL that people use, or the socket file.
    fn listen(&self) -> Result<(Listener, Option<String>), String> {
        match &self.socket {
            Some(path) => Ok((listen::socket(path)?, None)),
            None => listen::port(self.host, self.port, "--port").map(|(listener, url)| (listener, Some(url))),
        }
    }

    /// Where operators connect, if that is a place of its own.
    fn listen_for_operators(&self) -> Result<Option<Listener>, String> {
        if let Some(path) = &self.admin_socket {
            return listen::socket(path).map(Some);
        }
        let Some(port) = self.admin_port else { return Ok(None) };
        let (listener, url) = listen::port(self.host, port, "--admin-port")?;
        tracing::info!(url, "operators connect here");
        Ok(Some(listener))
    }

    /// Loads the versions of the one model, which must come from below --models-root if that is given.
    fn intake(&self, metrics: &Arc<Metrics>) -> Result<Intake, String> {
        let (args, metrics) = (self.model.clone(), Arc::clone(metrics));
        let open = move |name: &str, model: &Path| open_version(&args, name, model, &metrics);
        let intake = Intake::new(Box::new(open), machine::memory_bytes().unwrap_or(u64::MAX));
        match &self.models_root {
            Some(root) => Ok(intake.below(models_root(root)?)),
            None => Ok(intake),
        }
    }

    /// An empty registry of models by name.
    fn registry(&self, metrics: &Arc<Metrics>) -> Result<Registry, String> {
        let (asked, machine) = (self.models_mib.saturating_mul(1 << 20), machine::memory_bytes().unwrap_or(u64::MAX));
        if asked > machine {
            let (asked_mib, machine_mib) = (self.models_mib, machine >> 20);
            tracing::warn!(asked_mib, machine_mib, "--models-mib is more than there is: models get what there is");
        }
        let limits = RegistryLimits { bytes: asked.min(machine), models: self.max_models };
        let (args, metrics) = (self.model.clone(), Arc::clone(metrics));
        let registry = Registry::new(Box::new(move |name, folder| open_folder(&args, name, folder, &metrics)), limits);
        let default = Path::new(SAGEMAKER_MODELS);
        let Some(root) = self.models_root.as_deref().or(default.is_dir().then_some(default)) else {
            return Ok(registry);
        };
        Ok(registry.below(models_root(root)?))
    }
}

fn models_root(root: &Path) -> Result<ModelsRoot, String> {
    ModelsRoot::new(root).map_err(|e| format!("--models-root is {}: {e}; name a folder that exists", root.display()))
}

/// What the parts of a server share.
struct Shared {
    state: watch::Sender<ModelState>,
    metrics: Arc<Metrics>,
    stopping: Arc<AtomicBool>,
    intake: Arc<Intake>,
}

/// The signals that end a server: SIGTERM from container platforms, SIGINT from Ctrl-C.
struct Stops {
    term: Signal,
    int: Signal,
}

impl Stops {
    /// Waits for one, and stops the server.
    async fn stop(mut self, servers: Vec<ServerHandle>, models: Models, stopping: Arc<AtomicBool>) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
        tracing::info!("stopping: no new requests; those that were sent are answered");
        stopping.store(true, Ordering::Relaxed);
        // What was sent before the signal may not have been read yet.
        tokio::time::sleep(ARRIVE).await;
        for engine in models.ready().iter().flat_map(Versions::engines) {
            engine.drain(DRAIN);
        }
        join_all(servers.iter().map(|server| server.stop(true))).await;
    }
}

/// Waits until a thread has ended, but not longer than `within`.
fn wait_for(thread: &JoinHandle<()>, within: Duration) {
    let until = Instant::now() + within;
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Time that requests get to be read which were sent before the server was stopped.
const ARRIVE: Duration = Duration::from_millis(200);

/// Time that running requests get when the server is stopped. SageMaker kills a container 30 s after asking it to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// Time that a model which is being built when the server is stopped gets to remove its unfinished files.
const UNLOAD: Duration = Duration::from_secs(1);
