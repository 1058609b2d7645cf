//! Loading models for a server: the one that it is started with, and those that clients name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use backends::onnxruntime::CpuLevel;
use bundle::Manifest;
use tokio::sync::watch;

use super::model_args::ModelArgs;
use super::progress::Bar;
use crate::engine::{Engine, EngineError, EngineOptions};
use crate::metrics::Metrics;
use crate::models::folder::{self, ModelFolder};
use crate::models::{LoadError, ModelState};

/// Loads a folder that a client named, to be served by the name that the client gave.
pub(super) fn load_folder(
    args: &ModelArgs,
    name: &str,
    folder: &Path,
    metrics: &Arc<Metrics>,
) -> Result<Engine, LoadError> {
    let started = Instant::now();
    let mut opened = open(args, &folder::identify(folder)?, &Bar::default())?;
    opened.manifest.name = name.to_owned();
    let engine = opened.load(metrics).inspect_err(|error| {
        // A client isn't told the reason.
        if let LoadError::Engine(EngineError::Model(reason)) = error {
            tracing::error!(%reason, folder = %folder.display(), "the model can't be loaded");
        }
    })?;
    let (cpu_level, elapsed_ms) = (engine.cpu_level().map(CpuLevel::name), started.elapsed().as_millis() as u64);
    tracing::info!(folder = %folder.display(), cpu_level, elapsed_ms, "loaded");
    Ok(engine)
}

/// A bundle, and how to load it.
struct Opened {
    path: PathBuf,
    manifest: Manifest,
    options: EngineOptions,
}

/// Finds a bundle, and builds it if needed.
fn open(args: &ModelArgs, folder: &ModelFolder, bar: &Bar) -> Result<Opened, LoadError> {
    let (intake, options) = args.setup(folder).map_err(LoadError::Backend)?;
    let (path, manifest) = folder::open(folder, &intake, bar)?;
    let options = args.for_server(options, &path);
    Ok(Opened { path, manifest, options })
}

impl Opened {
    fn load(self, metrics: &Arc<Metrics>) -> Result<Engine, LoadError> {
        Ok(Engine::load(&self.path, &self.manifest, &self.options, metrics)?)
    }
}

/// The model that a server is started with, while it is loaded.
pub(super) struct Loading {
    pub folder: Result<ModelFolder, String>,
    pub args: ModelArgs,
    pub metrics: Arc<Metrics>,
    /// Where the server is, if it has an address.
    pub url: Option<String>,
    pub page: bool,
    /// Set once nobody needs the model any more.
    pub stopping: Arc<AtomicBool>,
}

impl Loading {
    /// Builds if needed, loads, and says where to point a client. A failure is one log line, and leaves `/ping`
    /// unhealthy.
    pub(super) fn run(self, state: &watch::Sender<ModelState>) {
        let started = Instant::now();
        let loaded = self.load();
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        match loaded {
            Ok(engine) => {
                let cpu_level = engine.cpu_level().map(CpuLevel::name);
                let elapsed_ms = started.elapsed().as_millis() as u64;
                tracing::info!(model = engine.name(), cpu_level, elapsed_ms, "ready");
                let field = if engine.is_encoder_decoder() { "inputs" } else { "input" };
                state.send_replace(ModelState::Ready(Arc::new(engine)));
                self.print_url(field);
            }
            Err(reason) => {
                tracing::error!(%reason, "the model can't be loaded; /ping stays unhealthy");
                state.send_replace(ModelState::Failed(reason));
            }
        }
    }

    fn load(&self) -> Result<Engine, String> {
        let folder = self.folder.as_ref().map_err(Clone::clone)?;
        let bar = Bar::cancelled_by(Arc::clone(&self.stopping));
        let opened = open(&self.args, folder, &bar).map_err(|error| error.to_string())?;
        opened.load(&self.metrics).map_err(|error| error.to_string())
    }

    /// Prints how to ask; `field` is where the model takes a text.
    fn print_url(&self, field: &str) {
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
