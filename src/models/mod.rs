//! The models that a server holds: one, which it was started with, or several, which come and go by name within a budget.
//!
//! Loading blocks, so callers with an event loop do it elsewhere. Knows no HTTP; how a folder becomes an [`Engine`] is the
//! loader's business.

pub mod folder;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::engine::Engine;
use crate::error::{Error, Kind};

/// Most characters of a model's name.
pub const MAX_NAME_CHARACTERS: usize = 256;

/// What the server knows of the one model that it was started with.
#[derive(Clone)]
pub enum ModelState {
    /// It is being built or loaded.
    Loading,
    /// It answers.
    Ready(Arc<Engine>),
    /// It can't be loaded.
    Failed(String),
}

/// The models that a server holds.
#[derive(Clone)]
pub enum Models {
    /// One, which it was started with.
    Single(watch::Receiver<ModelState>),
    /// Several, by name.
    Multi(Arc<Shelf>),
}

impl From<watch::Receiver<ModelState>> for Models {
    fn from(model: watch::Receiver<ModelState>) -> Self {
        Self::Single(model)
    }
}

impl From<Arc<Shelf>> for Models {
    fn from(shelf: Arc<Shelf>) -> Self {
        Self::Multi(shelf)
    }
}

impl Models {
    /// The one model, if there is one and it is ready.
    ///
    /// # Errors
    /// Why there is none.
    pub fn only(&self) -> Result<Arc<Engine>, Error> {
        let not_ready = |message: &str| Err(Error::new(Kind::NotReady, message));
        match self {
            Self::Single(model) => match &*model.borrow() {
                ModelState::Ready(engine) => Ok(Arc::clone(engine)),
                ModelState::Loading => not_ready("the model is being loaded; GET /ping says when it is ready"),
                ModelState::Failed(_) => not_ready("the model could not be loaded; the server's log says why"),
            },
            Self::Multi(_) => Err(Error::new(
                Kind::ModelNotFound,
                "this server holds models by name; use POST /models/{name}/invoke, and GET /models for the names",
            )),
        }
    }

    /// The models by name.
    ///
    /// # Errors
    /// If the server was started with one model.
    pub fn shelf(&self) -> Result<&Shelf, Error> {
        match self {
            Self::Multi(shelf) => Ok(shelf),
            Self::Single(_) => Err(Error::new(
                Kind::NotFound,
                "this server holds one model; start it with --multi-model (SAGEMAKER_MULTI_MODEL=true) to load models by name",
            )),
        }
    }

    /// The model that a request names, or the only one if it names none.
    ///
    /// # Errors
    /// If there is no such model, or none is named and there are several.
    pub fn named(&self, name: Option<&str>) -> Result<Arc<Engine>, Error> {
        match self {
            Self::Single(_) => {
                let engine = self.only()?;
                match name {
                    Some(name) if name != engine.name() => Err(not_found(name)),
                    _ => Ok(engine),
                }
            }
            Self::Multi(shelf) => match name {
                Some(name) => Ok(Arc::clone(&shelf.get(name)?.engine)),
                None => shelf.only(),
            },
        }
    }

    /// The models that answer now.
    pub fn engines(&self) -> Vec<Arc<Engine>> {
        match self {
            Self::Single(_) => self.only().into_iter().collect(),
            Self::Multi(shelf) => {
                shelf.list().iter().filter_map(|(name, _)| shelf.get(name).ok()).map(|loaded| loaded.engine).collect()
            }
        }
    }

    /// The names that requests may use now.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Single(_) => self.only().map(|engine| engine.name().to_owned()).into_iter().collect(),
            Self::Multi(shelf) => shelf.list().into_iter().map(|(name, _)| name).collect(),
        }
    }
}

/// Loads the engine of a folder.
pub type Loader = Box<dyn Fn(&Path) -> Result<Engine, Error> + Send + Sync>;

/// Bounds on what a shelf holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShelfLimits {
    /// Memory of all models together, in bytes.
    pub bytes: u64,
    /// Number of models.
    pub models: usize,
}

/// Models by name, loaded on demand.
pub struct Shelf {
    load: Loader,
    limits: ShelfLimits,
    places: Mutex<BTreeMap<String, Place>>,
}

/// A model on a shelf.
#[derive(Clone)]
pub struct Loaded {
    /// The folder it came from.
    pub url: String,
    /// It.
    pub engine: Arc<Engine>,
}

/// What a name stands for.
enum Place {
    /// Somebody is loading it.
    Loading,
    /// It answers.
    Ready(Loaded),
}

impl Shelf {
    /// An empty one.
    pub fn new(load: Loader, limits: ShelfLimits) -> Self {
        Self { load, limits, places: Mutex::new(BTreeMap::new()) }
    }

    /// Loads a model. Blocks until it answers or can't; two loads of one name don't run beside each other.
    ///
    /// # Errors
    /// [`Kind::ModelExists`], [`Kind::OutOfMemory`], [`Kind::InvalidValue`] for a bad name, or the loader's.
    pub fn load(&self, name: &str, url: &str) -> Result<(), Error> {
        check_name(name)?;
        let reserved = self.reserve(name)?;
        let folder = Path::new(url);
        // The files' sizes are less than what the model will take; a model that can't fit isn't loaded at all.
        self.check_budget(folder_bytes(folder))?;
        let engine = (self.load)(folder)?;
        reserved.fill(Loaded { url: url.to_owned(), engine: Arc::new(engine) })
    }

    /// Takes a model off; requests that run are answered.
    ///
    /// # Errors
    /// [`Kind::ModelNotFound`], or [`Kind::ModelExists`] while it is being loaded.
    pub fn unload(&self, name: &str) -> Result<Loaded, Error> {
        match self.places().entry(name.to_owned()) {
            Entry::Vacant(_) => Err(not_found(name)),
            Entry::Occupied(place) => match place.get() {
                Place::Loading => Err(being_loaded(name)),
                Place::Ready(loaded) => {
                    let loaded = loaded.clone();
                    place.remove();
                    Ok(loaded)
                }
            },
        }
    }

    /// A model.
    ///
    /// # Errors
    /// [`Kind::ModelNotFound`].
    pub fn get(&self, name: &str) -> Result<Loaded, Error> {
        match self.places().get(name) {
            Some(Place::Ready(loaded)) => Ok(loaded.clone()),
            Some(Place::Loading) | None => Err(not_found(name)),
        }
    }

    /// Names and folders of the models, by name.
    pub fn list(&self) -> Vec<(String, String)> {
        let ready = |(name, place): (&String, &Place)| match place {
            Place::Ready(loaded) => Some((name.clone(), loaded.url.clone())),
            Place::Loading => None,
        };
        self.places().iter().filter_map(ready).collect()
    }

    /// The only model there is.
    fn only(&self) -> Result<Arc<Engine>, Error> {
        let list = self.list();
        match list.as_slice() {
            [(name, _)] => Ok(self.get(name)?.engine),
            list => Err(Error::new(
                Kind::ModelNotFound,
                format!("model is missing, and there are {} to choose from; GET /models has their names", list.len()),
            )),
        }
    }

    fn reserve<'a>(&'a self, name: &'a str) -> Result<Reserved<'a>, Error> {
        let mut places = self.places();
        match places.get(name) {
            Some(Place::Loading) => return Err(being_loaded(name)),
            Some(Place::Ready(_)) => {
                return Err(Error::new(Kind::ModelExists, format!("the model {name:?} is loaded already")));
            }
            None => {}
        }
        if places.len() >= self.limits.models {
            let message =
                format!("{} models are loaded, and no more may be; DELETE /models/{{name}} first", places.len());
            return Err(Error::new(Kind::OutOfMemory, message));
        }
        places.insert(name.to_owned(), Place::Loading);
        Ok(Reserved { shelf: self, name, filled: false })
    }

    fn check_budget(&self, wanted: u64) -> Result<(), Error> {
        check_budget(&self.places(), wanted, self.limits.bytes)
    }

    /// Nothing that runs under the lock can leave the map half changed.
    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_budget(places: &BTreeMap<String, Place>, wanted: u64, limit: u64) -> Result<(), Error> {
    let bytes = |place: &Place| if let Place::Ready(loaded) = place { loaded.engine.memory_bytes() } else { 0 };
    let used: u64 = places.values().map(bytes).sum();
    if used.saturating_add(wanted) <= limit {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let message = format!(
        "the model needs {} MiB, and {} of {} MiB are used; DELETE /models/{{name}} first, or raise --models-mib",
        mib(wanted),
        mib(used),
        mib(limit)
    );
    Err(Error::new(Kind::OutOfMemory, message))
}

/// A name that is being loaded. Dropping it, also in a panic, makes the name free again.
struct Reserved<'a> {
    shelf: &'a Shelf,
    name: &'a str,
    filled: bool,
}

impl Reserved<'_> {
    fn fill(mut self, loaded: Loaded) -> Result<(), Error> {
        let mut places = self.shelf.places();
        check_budget(&places, loaded.engine.memory_bytes(), self.shelf.limits.bytes)?;
        places.insert(self.name.to_owned(), Place::Ready(loaded));
        self.filled = true;
        Ok(())
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.shelf.places().remove(self.name);
        }
    }
}

/// The error for a name that no model has.
pub fn not_found(name: &str) -> Error {
    Error::new(Kind::ModelNotFound, format!("the model {name:?} is not loaded"))
}

fn being_loaded(name: &str) -> Error {
    Error::new(Kind::ModelExists, format!("the model {name:?} is being loaded"))
}

fn check_name(name: &str) -> Result<(), Error> {
    if (1..=MAX_NAME_CHARACTERS).contains(&name.chars().count()) && !name.contains(|c: char| c.is_control() || c == '/')
    {
        return Ok(());
    }
    let message = format!(
        "model_name is {name:?}; it must be 1 to {MAX_NAME_CHARACTERS} characters without slashes and controls"
    );
    Err(Error::new(Kind::InvalidValue, message))
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
