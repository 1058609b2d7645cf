//! Models by name, each with its versions, loaded on demand within a memory budget.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{MAX_NAME_CHARACTERS, ModelError};
use super::intake::{FolderLoader, Intake};
use super::root::ModelsRoot;
use super::versions::{self, Versions};

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

/// The state of a name.
struct Slot {
    /// What answers; nothing while the first version is being loaded.
    versions: Option<Versions>,
    /// Whether a version is being loaded.
    loading: bool,
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
        let loading = self.reserve(name)?;
        let engine = Arc::new(self.intake.load(name, url)?);
        engine.release();
        let versions = Some(Versions::of_model(name.to_owned(), engine));
        self.slots().insert(name.to_owned(), Slot { versions, loading: true });
        drop(loading);
        Ok(())
    }

    /// Who loads further versions of a model, and the right to load one: one at a time.
    pub(super) fn begin<'a>(&'a self, name: &'a str) -> Result<(&'a Intake, LoadingOf<'a>), ModelError> {
        let mut slots = self.slots();
        let slot = slots.get_mut(name).ok_or_else(|| ModelError::NotLoaded(name.to_owned()))?;
        if std::mem::replace(&mut slot.loading, true) {
            return Err(ModelError::BeingLoaded(name.to_owned()));
        }
        Ok((&self.intake, LoadingOf { registry: self, name }))
    }

    /// Changes a model's versions at once, for all requests from then on.
    pub(super) fn update<T>(
        &self,
        name: &str,
        change: impl FnOnce(&Versions) -> Result<(Versions, T), ModelError>,
    ) -> Result<T, ModelError> {
        let mut slots = self.slots();
        let versions = slots.get_mut(name).and_then(|slot| slot.versions.as_mut());
        let versions = versions.ok_or_else(|| ModelError::NotLoaded(name.to_owned()))?;
        let (new, value) = change(versions)?;
        // Whoever asked has what is gone, so that nothing ends under the lock.
        *versions = new;
        Ok(value)
    }

    /// Bytes of the models that are held.
    pub fn reserved_bytes(&self) -> u64 {
        self.intake.reserved_bytes()
    }

    /// Removes a model; requests that run are answered.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`] or [`ModelError::BeingLoaded`].
    pub fn unload(&self, name: &str) -> Result<Versions, ModelError> {
        match self.slots().entry(name.to_owned()) {
            Entry::Vacant(_) => Err(ModelError::NotLoaded(name.to_owned())),
            Entry::Occupied(slot) if slot.get().loading => Err(ModelError::BeingLoaded(name.to_owned())),
            Entry::Occupied(slot) => slot.remove().versions.ok_or_else(|| ModelError::NotLoaded(name.to_owned())),
        }
    }

    /// A model's versions.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`].
    pub fn get(&self, name: &str) -> Result<Versions, ModelError> {
        let versions = self.slots().get(name).and_then(|slot| slot.versions.clone());
        versions.ok_or_else(|| ModelError::NotLoaded(name.to_owned()))
    }

    /// The models that answer, in order of their names.
    pub fn ready(&self) -> Vec<Versions> {
        self.slots().values().filter_map(|slot| slot.versions.clone()).collect()
    }

    /// The only model there is.
    pub(super) fn only(&self) -> Result<Versions, ModelError> {
        let mut ready = self.ready();
        match ready.len() {
            1 => Ok(ready.remove(0)),
            count => Err(ModelError::Unnamed(count)),
        }
    }

    fn reserve<'a>(&'a self, name: &'a str) -> Result<LoadingOf<'a>, ModelError> {
        let mut slots = self.slots();
        match slots.get(name) {
            Some(Slot { versions: None, .. }) => return Err(ModelError::BeingLoaded(name.to_owned())),
            Some(_) => return Err(ModelError::AlreadyLoaded(name.to_owned())),
            None => {}
        }
        if slots.len() >= self.models {
            return Err(ModelError::TooMany(slots.len()));
        }
        slots.insert(name.to_owned(), Slot { versions: None, loading: true });
        Ok(LoadingOf { registry: self, name })
    }

    /// Nothing that runs under the lock can leave the map half changed.
    fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model of which a version is being loaded. Dropping this, also in a panic, says that it no longer is; a name
/// without a version is free again.
pub(super) struct LoadingOf<'a> {
    registry: &'a Registry,
    name: &'a str,
}

impl Drop for LoadingOf<'_> {
    fn drop(&mut self) {
        let mut slots = self.registry.slots();
        match slots.get_mut(self.name) {
            Some(Slot { versions: None, .. }) => drop(slots.remove(self.name)),
            Some(slot) => slot.loading = false,
            None => {}
        }
    }
}

fn check_name(name: &str) -> Result<(), ModelError> {
    let is_version = versions::split(name).1.is_some();
    let allowed = !is_version && !name.contains(|c: char| c.is_control() || c == '/');
    if allowed && (1..=MAX_NAME_CHARACTERS).contains(&name.chars().count()) {
        return Ok(());
    }
    Err(ModelError::Name(name.to_owned()))
}
