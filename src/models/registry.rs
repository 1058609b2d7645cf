//! Models by name, loaded on demand within a memory budget, and swapped for newer versions while they answer.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{MAX_NAME_CHARACTERS, ModelError};
use super::intake::{FolderLoader, Intake, drain};
use super::root::ModelsRoot;
use crate::engine::Engine;

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
    intake: Intake,
    /// Most models.
    models: usize,
    slots: Mutex<BTreeMap<String, Slot>>,
}

/// The state of a name: its model is loaded, or being loaded.
enum Slot {
    /// A model that is being loaded.
    Loading,
    /// A model that answers.
    Ready(Arc<Engine>),
    /// A model that answers, and whose next version is being loaded.
    Swapping(Arc<Engine>),
}

impl Registry {
    /// An empty registry.
    pub fn new(open: FolderLoader, limits: RegistryLimits) -> Self {
        Self { intake: Intake::new(open, limits.bytes), models: limits.models, slots: Mutex::default() }
    }

    /// The same registry, for models below a folder only.
    #[must_use]
    pub fn below(self, root: ModelsRoot) -> Self {
        Self { intake: self.intake.below(root), ..self }
    }

    /// Loads a model. Blocks until it answers or can't; two loads of one name don't run beside each other.
    ///
    /// # Errors
    /// The name is taken or not allowed, there is no room, or the folder can't be loaded.
    pub fn load(&self, name: &str, url: &str) -> Result<(), ModelError> {
        check_name(name)?;
        let reserved = self.reserve(name)?;
        let engine = self.intake.load(name, url)?;
        reserved.fill(Arc::new(engine));
        Ok(())
    }

    /// Loads a version beside the one that answers, and puts it in that one's place. Returns when requests get the new
    /// one, and the old one is gone unless its last answers take long.
    ///
    /// # Errors
    /// There is no such model or no room for both, or the folder can't be loaded. Then the old one goes on.
    pub(super) fn swap(&self, name: &str, url: &str) -> Result<Arc<Engine>, ModelError> {
        let swapping = self.begin_swap(name)?;
        let new = Arc::new(self.intake.load_beside(&swapping.old, url)?);
        let old = swapping.end(Arc::clone(&new));
        new.catch_up(&old);
        drain(old);
        Ok(new)
    }

    /// Bytes of the models that are held.
    pub fn reserved_bytes(&self) -> u64 {
        self.intake.reserved_bytes()
    }

    /// Removes a model; requests that run are answered.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`] or [`ModelError::BeingLoaded`].
    pub fn unload(&self, name: &str) -> Result<Arc<Engine>, ModelError> {
        match self.slots().entry(name.to_owned()) {
            Entry::Vacant(_) => Err(ModelError::NotLoaded(name.to_owned())),
            Entry::Occupied(slot) => match slot.get() {
                Slot::Loading | Slot::Swapping(_) => Err(ModelError::BeingLoaded(name.to_owned())),
                Slot::Ready(engine) => {
                    let engine = Arc::clone(engine);
                    slot.remove();
                    Ok(engine)
                }
            },
        }
    }

    /// A model.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`].
    pub fn get(&self, name: &str) -> Result<Arc<Engine>, ModelError> {
        let engine = self.slots().get(name).and_then(Slot::engine).map(Arc::clone);
        engine.ok_or_else(|| ModelError::NotLoaded(name.to_owned()))
    }

    /// The models that answer, in order of their names.
    pub fn ready(&self) -> Vec<(String, Arc<Engine>)> {
        let ready = |(name, slot): (&String, &Slot)| Some((name.clone(), Arc::clone(slot.engine()?)));
        self.slots().iter().filter_map(ready).collect()
    }

    /// The only model there is.
    pub(super) fn only(&self) -> Result<Arc<Engine>, ModelError> {
        let mut ready = self.ready();
        match ready.len() {
            1 => Ok(ready.remove(0).1),
            count => Err(ModelError::Unnamed(count)),
        }
    }

    fn reserve<'a>(&'a self, name: &'a str) -> Result<Reserved<'a>, ModelError> {
        let mut slots = self.slots();
        match slots.get(name) {
            Some(Slot::Loading) => return Err(ModelError::BeingLoaded(name.to_owned())),
            Some(Slot::Ready(_) | Slot::Swapping(_)) => return Err(ModelError::AlreadyLoaded(name.to_owned())),
            None => {}
        }
        if slots.len() >= self.models {
            return Err(ModelError::TooMany(slots.len()));
        }
        slots.insert(name.to_owned(), Slot::Loading);
        Ok(Reserved { registry: self, name, filled: false })
    }

    fn begin_swap<'a>(&'a self, name: &'a str) -> Result<Swapping<'a>, ModelError> {
        let mut slots = self.slots();
        let slot = slots.get_mut(name).ok_or_else(|| ModelError::NotLoaded(name.to_owned()))?;
        let Slot::Ready(old) = &*slot else { return Err(ModelError::BeingLoaded(name.to_owned())) };
        let old = Arc::clone(old);
        *slot = Slot::Swapping(Arc::clone(&old));
        Ok(Swapping { registry: self, name, old })
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
    fn fill(mut self, engine: Arc<Engine>) {
        self.registry.slots().insert(self.name.to_owned(), Slot::Ready(engine));
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

/// A name whose next version is being loaded. Dropping this, also in a panic, leaves it with the version in `old`.
struct Swapping<'a> {
    registry: &'a Registry,
    name: &'a str,
    /// The version that answers once this is dropped.
    old: Arc<Engine>,
}

impl Swapping<'_> {
    /// Switches to the new version; returns the old one.
    fn end(mut self, new: Arc<Engine>) -> Arc<Engine> {
        std::mem::replace(&mut self.old, new)
    }
}

impl Drop for Swapping<'_> {
    fn drop(&mut self) {
        self.registry.slots().insert(self.name.to_owned(), Slot::Ready(Arc::clone(&self.old)));
    }
}

impl Slot {
    /// The model that answers.
    fn engine(&self) -> Option<&Arc<Engine>> {
        match self {
            Self::Loading => None,
            Self::Ready(engine) | Self::Swapping(engine) => Some(engine),
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
