//! Models by name, loaded on demand within a memory budget. The loader that is given makes an [`Engine`] of a folder.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::budget::Budget;
use super::error::{LoadError, MAX_NAME_CHARACTERS, ModelError};
use super::root::ModelsRoot;
use crate::engine::Engine;

/// Opens a folder under the name that its model is served by: checks it, and builds its bundle if needed. No model is
/// loaded yet.
pub type FolderLoader = Box<dyn Fn(&str, &Path) -> Result<Opened, LoadError> + Send + Sync>;

/// A folder whose model can be loaded.
pub struct Opened {
    /// Bytes that the model takes with all its caches full.
    pub memory_bytes: u64,
    /// Loads it.
    pub load: Box<dyn FnOnce() -> Result<Engine, LoadError>>,
}

/// Bounds on what a registry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryLimits {
    /// Memory of all models together, in bytes.
    pub bytes: u64,
    /// Number of models.
    pub models: usize,
}

/// Models by name, loaded on demand.
pub struct Registry {
    open: FolderLoader,
    /// Most models.
    models: usize,
    budget: Arc<Budget>,
    /// Where models must be; anywhere, if absent.
    root: Option<ModelsRoot>,
    slots: Mutex<BTreeMap<String, Slot>>,
}

/// A model that is loaded.
#[derive(Clone)]
pub struct Loaded {
    /// The folder that it came from.
    pub url: String,
    /// The loaded engine.
    pub engine: Arc<Engine>,
}

/// The state of a name: its model is loaded, or being loaded.
enum Slot {
    /// A model that is being loaded.
    Loading,
    /// A model that answers.
    Ready(Loaded),
}

impl Registry {
    /// An empty registry.
    pub fn new(open: FolderLoader, limits: RegistryLimits) -> Self {
        let (models, budget) = (limits.models, Budget::new(limits.bytes));
        Self { open, models, budget, root: None, slots: Mutex::new(BTreeMap::new()) }
    }

    /// The same registry, for models below a folder only.
    #[must_use]
    pub fn below(self, root: ModelsRoot) -> Self {
        Self { root: Some(root), ..self }
    }

    /// Loads a model. Blocks until it answers or can't; two loads of one name don't run beside each other.
    ///
    /// # Errors
    /// The name is taken or not allowed, there is no room, or the folder can't be loaded.
    pub fn load(&self, name: &str, url: &str) -> Result<(), ModelError> {
        check_name(name)?;
        let reserved = self.reserve(name)?;
        let resolved = self.root.as_ref().map(|root| root.resolve(url)).transpose()?;
        let folder = resolved.as_deref().unwrap_or(Path::new(url));
        // The files' sizes are less than what the model will take; one that can't fit isn't even opened.
        drop(self.budget.reserve(folder_bytes(folder))?);
        let opened = (self.open)(name, folder)?;
        let memory = self.budget.reserve(opened.memory_bytes)?;
        let mut engine = (opened.load)()?;
        engine.keep(memory);
        reserved.fill(Loaded { url: url.to_owned(), engine: Arc::new(engine) });
        Ok(())
    }

    /// Removes a model; requests that run are answered.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`] or [`ModelError::BeingLoaded`].
    pub fn unload(&self, name: &str) -> Result<Loaded, ModelError> {
        match self.slots().entry(name.to_owned()) {
            Entry::Vacant(_) => Err(ModelError::NotLoaded(name.to_owned())),
            Entry::Occupied(slot) => match slot.get() {
                Slot::Loading => Err(ModelError::BeingLoaded(name.to_owned())),
                Slot::Ready(loaded) => {
                    let loaded = loaded.clone();
                    slot.remove();
                    Ok(loaded)
                }
            },
        }
    }

    /// A model.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`].
    pub fn get(&self, name: &str) -> Result<Loaded, ModelError> {
        match self.slots().get(name) {
            Some(Slot::Ready(loaded)) => Ok(loaded.clone()),
            Some(Slot::Loading) | None => Err(ModelError::NotLoaded(name.to_owned())),
        }
    }

    /// The models that answer, in order of their names.
    pub fn ready(&self) -> Vec<(String, Loaded)> {
        let ready = |(name, slot): (&String, &Slot)| match slot {
            Slot::Ready(loaded) => Some((name.clone(), loaded.clone())),
            Slot::Loading => None,
        };
        self.slots().iter().filter_map(ready).collect()
    }

    /// The only model there is.
    pub(super) fn only(&self) -> Result<Arc<Engine>, ModelError> {
        let mut ready = self.ready();
        match ready.len() {
            1 => Ok(ready.remove(0).1.engine),
            count => Err(ModelError::Unnamed(count)),
        }
    }

    fn reserve<'a>(&'a self, name: &'a str) -> Result<Reserved<'a>, ModelError> {
        let mut slots = self.slots();
        match slots.get(name) {
            Some(Slot::Loading) => return Err(ModelError::BeingLoaded(name.to_owned())),
            Some(Slot::Ready(_)) => return Err(ModelError::AlreadyLoaded(name.to_owned())),
            None => {}
        }
        if slots.len() >= self.models {
            return Err(ModelError::TooMany(slots.len()));
        }
        slots.insert(name.to_owned(), Slot::Loading);
        Ok(Reserved { registry: self, name, filled: false })
    }

    /// Nothing that runs under the lock can leave the map half changed.
    fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that is being loaded. Dropping this, also in a panic, makes the name free again.
struct Reserved<'a> {
    registry: &'a Registry,
    name: &'a str,
    filled: bool,
}

impl Reserved<'_> {
    fn fill(mut self, loaded: Loaded) {
        self.registry.slots().insert(self.name.to_owned(), Slot::Ready(loaded));
        self.filled = true;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.registry.slots().remove(self.name);
        }
    }
}

fn check_name(name: &str) -> Result<(), ModelError> {
    if (1..=MAX_NAME_CHARACTERS).contains(&name.chars().count()) && !name.contains(|c: char| c.is_control() || c == '/')
    {
        return Ok(());
    }
    Err(ModelError::Name(name.to_owned()))
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
