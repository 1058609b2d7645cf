//! Loading a model, alone or beside its older version: where it may come from, the memory that it takes, and what it
//! computes before it answers. Blocks, so callers keep it off their event loop.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scheduler::in_background;

use super::budget::{Budget, ReplicaRoom, Reservation};
use super::error::{LoadError, ModelError};
use super::root::ModelsRoot;
use super::versions::Versions;
use crate::engine::{Engine, Memory};

/// Opens a folder under the name that its model is served by: checks it, and builds its bundle if needed. No model is
/// loaded yet.
pub type FolderLoader = Box<dyn Fn(&str, &Path) -> Result<Opened, LoadError> + Send + Sync>;

/// A folder whose model can be loaded.
pub struct Opened {
    /// What the model takes with all its caches full.
    pub memory: Memory,
    /// Reads its files.
    pub read: Box<dyn FnOnce() -> Result<Start, LoadError> + Send>,
}

/// Starts a model whose files were read.
pub type Start = Box<dyn FnOnce() -> Result<Engine, LoadError> + Send>;

/// Time that a new version has to compute what is typed before it answers.
const WARM_WITHIN: Duration = Duration::from_secs(20);
/// Time that whoever swaps waits for the old version's last answers. It goes when they are given, however late.
const DRAIN_WITHIN: Duration = Duration::from_secs(20);

/// Loads models within a budget of memory. See the module's documentation.
pub struct Intake {
    open: FolderLoader,
    budget: Arc<Budget>,
    /// Where models must be; anywhere, if absent.
    root: Option<ModelsRoot>,
}

impl Intake {
    /// Loads models that together take at most so many bytes.
    pub fn new(open: FolderLoader, bytes: u64) -> Self {
        Self { open, budget: Budget::new(bytes), root: None }
    }

    /// The same, for models below a folder only.
    #[must_use]
    pub fn below(self, root: ModelsRoot) -> Self {
        Self { root: Some(root), ..self }
    }

    /// Bytes of the models that are held.
    pub fn reserved_bytes(&self) -> u64 {
        self.budget.reserved()
    }

    /// Counts a model that was loaded elsewhere, with as much of its memory as is left.
    pub fn adopt(&self, engine: &mut Engine, url: &str, memory: Memory) {
        engine.set_url(url);
        self.hold(engine, self.budget.reserve_rest(memory.at_start()), memory);
    }

    /// Lets a model, and each replica that may go before it, keep what was reserved for it.
    fn hold(&self, engine: &mut Engine, mut reserved: Reservation, memory: Memory) {
        if engine.follows_load() {
            let room = ReplicaRoom { budget: Arc::clone(&self.budget), bytes: memory.replica };
            let occupied = (0..memory.replicas).map(|_| Box::new(reserved.split(memory.replica)) as _).collect();
            engine.set_room(Arc::new(room), occupied);
        }
        engine.keep(reserved);
    }

    /// Loads a model. Returns when it has computed something.
    ///
    /// # Errors
    /// There is no room, or the folder can't be loaded.
    pub(super) fn load(&self, name: &str, url: &str) -> Result<Engine, ModelError> {
        let resolved = self.root.as_ref().map(|root| root.resolve(url)).transpose()?;
        let folder = resolved.as_deref().unwrap_or(Path::new(url));
        // The files' sizes are less than what the model will take; one that can't fit isn't even opened.
        drop(self.budget.reserve(folder_bytes(folder))?);
        // All of this gives way to those who type meanwhile.
        let opened = in_background(|| (self.open)(name, folder))?;
        let reserved = self.budget.reserve(opened.memory.at_start())?;
        let start = in_background(opened.read)?;
        let mut engine = start()?;
        self.hold(&mut engine, reserved, opened.memory);
        engine.set_url(url);
        Ok(engine)
    }

    /// Loads a version beside those that answer. It has then computed what was typed most. `wanted` is its number if it
    /// is to have a name of its own.
    ///
    /// # Errors
    /// There is no room for both, or the folder can't be loaded.
    pub(super) fn load_beside(
        &self,
        versions: &Versions,
        wanted: Option<u64>,
        url: &str,
    ) -> Result<Arc<Engine>, ModelError> {
        let (begun, old, number) = (Instant::now(), versions.main(), versions.next(wanted)?);
        let name = versions.name();
        let name = wanted.map_or_else(|| name.to_owned(), |number| format!("{name}@{number}"));
        let mut new = self.load(&name, url).map_err(|error| match error {
            ModelError::Memory { needed, used, limit } => ModelError::NoRoomBeside { needed, used, limit },
            other => other,
        })?;
        // First, because a template changes what is computed for a text.
        new.follow(old, number).map_err(LoadError::from)?;
        let warmed = new.warm_as_typed(WARM_WITHIN);
        new.release();
        let (version, elapsed_ms) = (number, begun.elapsed().as_millis() as u64);
        tracing::info!(model = new.name(), url, version, warmed, elapsed_ms, "a new version is ready");
        Ok(Arc::new(new))
    }
}

/// Waits for the last answers of a version that nobody gets any more, then frees it. Its threads are waited for here
/// and not where the last of its clients is answered.
pub(super) fn drain(mut old: Arc<Engine>) {
    let until = Instant::now() + DRAIN_WITHIN;
    while Instant::now() < until {
        match Arc::try_unwrap(old) {
            Ok(unused) => return drop(unused),
            Err(used) => old = used,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    tracing::info!(model = old.name(), version = old.version().number, "the old version still answers");
}

/// Bytes of the files in a folder, those one folder down included.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes =
        |entry: &std::fs::DirEntry| entry.metadata().ok().filter(std::fs::Metadata::is_file).map_or(0, |m| m.len());
    let folder_itself: u64 = entries(folder).map(|entry| bytes(&entry)).sum();
    let below: u64 =
        entries(folder).flat_map(|entry| entries(&entry.path()).collect::<Vec<_>>()).map(|e| bytes(&e)).sum();
    // A folder of a bundle and nothing else has no files of its own.
    if folder_itself > 0 { folder_itself } else { below }
}
