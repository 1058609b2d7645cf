//! Loading models for a server: the one that it is started with, and those that clients name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backends::onnxruntime::CpuLevel;
use bundle::Manifest;
use tokio::sync::watch;

use super::model_args::{ModelArgs, Setup};
use super::progress::Bar;
use super::warm::warm;
use crate::engine::{Engine, EngineOptions, EngineParts, ExtrasChange, memory};
use crate::follow::Followed;
use crate::metrics::Metrics;
use crate::models::folder::{self, ModelFolder};
use crate::models::named::{self, Named};
use crate::models::{Intake, LoadError, ModelError, ModelState, Models, Opened, Start};

/// Time until a build that met a full disk is tried again; it doubles up to the last.
const FIRST_RETRY: Duration = Duration::from_secs(2);
/// See [`FIRST_RETRY`].
const LAST_RETRY: Duration = Duration::from_secs(120);
/// Time that the search for the empty text may take before the server is ready.
const FIRST_KEYS_WITHIN: Duration = Duration::from_secs(2);

/// Opens a folder that a client named, to be served by the name that the client gave.
pub(super) fn open_folder(
    args: &ModelArgs,
    name: &str,
    folder: &Path,
    metrics: &Arc<Metrics>,
) -> Result<Opened, LoadError> {
    let started = Instant::now();
    let mut bundle = Bundle::open(args, &folder::identify(folder)?, metrics, &Bar::default())?;
    bundle.manifest.name = name.to_owned();
    let memory = memory(&bundle.path, &bundle.manifest, &bundle.options);
    let (metrics, folder) = (Arc::clone(metrics), folder.to_owned());
    let start = move |parts, options: &EngineOptions| -> Result<Engine, LoadError> {
        let engine = Engine::start(parts, options.requests.clone(), &metrics)?;
        let (cpu_level, elapsed_ms) = (engine.cpu_level().map(CpuLevel::name), started.elapsed().as_millis() as u64);
        tracing::info!(folder = %folder.display(), cpu_level, elapsed_ms, "loaded");
        Ok(engine)
    };
    let read = move || {
        let Bundle { path, manifest, mut options } = bundle;
        options.requests.pool.in_background = options.backend.has_no_threads();
        let parts = EngineParts::read(&path, &manifest, &options)?;
        Ok(Box::new(move || start(parts, &options)) as Start)
    };
    Ok(Opened { memory, read: Box::new(read) })
}

/// Opens the next version of the server's one model, which may lie elsewhere as the first one may.
pub(super) fn open_version(
    args: &ModelArgs,
    name: &str,
    model: &Path,
    metrics: &Arc<Metrics>,
) -> Result<Opened, LoadError> {
    match args.fetch(&named::find(model)?, &Bar::default())? {
        ModelFolder::Bundle(folder) | ModelFolder::Checkpoint(folder) => open_folder(args, name, &folder, metrics),
    }
}

/// Reads the folder of extras again when a file of it changes, for whichever version of the model answers.
fn follow_extras(folder: PathBuf, followed: Followed, state: watch::Sender<ModelState>) {
    let held = move || Some(state.clone());
    let changed = move |state: &watch::Sender<ModelState>| {
        let models = Models::from(state.clone());
        let change = ExtrasChange::read(&folder).map_err(ModelError::Extras);
        let changed = change.and_then(|change| models.change_extras(models.only()?.name(), &change));
        match changed {
            Ok(named) => {
                tracing::info!(model = named.versions.name(), folder = %folder.display(), "the extras were read again")
            }
            Err(error) => tracing::error!(folder = %folder.display(), %error, "the extras stay as they were"),
        }
    };
    if let Err(error) = followed.start("extras", held, changed) {
        tracing::error!(%error, "changes of the extras are not seen");
    }
}

/// A bundle that was checked, and the options for it.
struct Bundle {
    path: PathBuf,
    manifest: Manifest,
    options: EngineOptions,
}

impl Bundle {
    /// Builds the bundle if needed.
    fn open(args: &ModelArgs, folder: &ModelFolder, metrics: &Metrics, bar: &Bar) -> Result<Self, LoadError> {
        let Setup { intake, engine, gpu_unused } = args.setup(folder).map_err(LoadError::Backend)?;
        if let Some(reason) = gpu_unused {
            metrics.gpu_unused(reason.name());
        }
        let (path, manifest) = folder::open(folder, &intake, bar)?;
        let options = args.for_server(engine, &path);
        Ok(Self { path, manifest, options })
    }

    fn load(&self, metrics: &Arc<Metrics>) -> Result<Engine, LoadError> {
        Ok(Engine::load(&self.path, &self.manifest, &self.options, metrics)?)
    }
}

/// The model that a server is started with, while it is loaded.
pub(super) struct Loading {
    pub model: Result<Named, String>,
    pub args: ModelArgs,
    pub metrics: Arc<Metrics>,
    /// Where the server is, if it has an address.
    pub url: Option<String>,
    pub page: bool,
    /// Set once nobody needs the model any more.
    pub stopping: Arc<AtomicBool>,
    /// Counts the model's memory, and loads its next versions.
    pub intake: Arc<Intake>,
    pub beside: Beside,
}

/// What the model gets beside its bundle.
pub(super) struct Beside {
    /// The folder of extras that hold in the place of the bundle's own.
    pub extras: Option<PathBuf>,
    /// Where what people type is read from, to be computed first.
    pub warm_from: Option<String>,
}

impl Loading {
    /// Builds if needed, loads, and says where to point a client. A failure is one log line, and leaves `/ping`
    /// unhealthy.
    pub(super) fn run(self, state: &watch::Sender<ModelState>) {
        let started = Instant::now();
        // Before anything is read, so that no change is missed.
        let followed = self.beside.extras.as_deref().map(|folder| Followed::new(ExtrasChange::files(folder)));
        let loaded = self.load(state);
        if self.stopping.load(Ordering::Relaxed) {
            return;
        }
        match loaded {
            Ok(engine) => {
                let cpu_level = engine.cpu_level().map(CpuLevel::name);
                let elapsed_ms = started.elapsed().as_millis() as u64;
                tracing::info!(model = engine.name(), cpu_level, elapsed_ms, "ready");
                let field = if engine.is_encoder_decoder() { "inputs" } else { "input" };
                state.send_replace(ModelState::Ready(Arc::new(engine).into()));
                if let (Some(folder), Some(followed)) = (self.beside.extras.clone(), followed) {
                    follow_extras(folder, followed, state.clone());
                }
                self.print_url(field);
            }
            Err(reason) => {
                tracing::error!(%reason, "the model can't be loaded; /ping stays unhealthy");
                state.send_replace(ModelState::Failed(reason));
            }
        }
    }

    /// Loads the model. A download or build that met a full disk is tried again until there is room, or the server
    /// stops.
    fn load(&self, state: &watch::Sender<ModelState>) -> Result<Engine, String> {
        let model = self.model.as_ref().map_err(Clone::clone)?;
        let mut pause = FIRST_RETRY;
        loop {
            let bar = Bar::cancelled_by(Arc::clone(&self.stopping));
            let folder = self.fetch(model, &bar, state);
            let bundle = folder.and_then(|folder| Bundle::open(&self.args, &folder, &self.metrics, &bar));
            match bundle.and_then(|bundle| self.load_bundle(&bundle)) {
                Err(error) if error.is_full_disk() && !self.stopping.load(Ordering::Relaxed) => {
                    let retry_s = pause.as_secs();
                    tracing::error!(%error, retry_s, "there is no room for the model; /ping stays unhealthy");
                    state.send_replace(ModelState::Failed(format!("{error}; it is tried again")));
                    self.wait(pause);
                    pause = (2 * pause).min(LAST_RETRY);
                }
                loaded => return loaded.map_err(|error| error.to_string()),
            }
        }
    }

    fn load_bundle(&self, bundle: &Bundle) -> Result<Engine, LoadError> {
        let mut engine = bundle.load(&self.metrics)?;
        let url = self.args.model.as_deref().unwrap_or(&bundle.path).to_string_lossy();
        if let Some(folder) = &self.beside.extras {
            ExtrasChange::read(folder).and_then(|change| engine.change_extras(&change))?;
        }
        if let Some(from) = &self.beside.warm_from {
            warm(&engine, from);
        }
        engine.expect_first_keys(FIRST_KEYS_WITHIN);
        self.intake.adopt(&mut engine, &url, memory(&bundle.path, &bundle.manifest, &bundle.options));
        Ok(engine)
    }

    /// The model's folder. While it is downloaded, `/ping` says so.
    fn fetch(&self, model: &Named, bar: &Bar, state: &watch::Sender<ModelState>) -> Result<ModelFolder, LoadError> {
        #[cfg(feature = "remote")]
        if let Named::Elsewhere(source) = model {
            state.send_replace(ModelState::Downloading(source.to_string()));
        }
        let folder = self.args.fetch(model, bar)?;
        state.send_replace(ModelState::Loading);
        Ok(folder)
    }

    /// Waits, but not beyond the server's stop.
    fn wait(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.stopping.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
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
