//! The models of a server: the one that it was started with, or several, loaded and unloaded by name.
//!
//! [`registry`] holds models by name, [`single`] the one of a server that has no more, and [`versions`] those of one
//! model. [`intake`] loads them within a budget of memory, [`root`] bounds where they come from, [`folder`] finds or
//! builds the bundle of a folder, [`error`] has the errors. [`named`] tells folders from models elsewhere, and
//! downloads these. Loading blocks, so callers keep it off their event loop. No HTTP here but that of downloads.

mod budget;
pub mod error;
pub mod folder;
pub mod intake;
pub mod named;
pub mod registry;
pub mod root;
pub mod single;
pub mod versions;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::error::{LoadError, MAX_NAME_CHARACTERS, ModelError};
use self::intake::drain;
pub use self::intake::{FolderLoader, Intake, Opened, Start};
pub use self::registry::{Registry, RegistryLimits};
pub use self::root::{ModelsRoot, SAGEMAKER_MODELS};
pub use self::single::Single;
pub use self::versions::{Change, Named, Versions};
use crate::engine::{Engine, ExtrasChange};

/// What the server knows of the one model that it was started with.
#[derive(Clone)]
pub enum ModelState {
    /// The model is being built or loaded.
    Loading,
    /// The model is being downloaded from there.
    Downloading(String),
    /// The model answers, in these versions.
    Ready(Versions),
    /// The model can't be loaded.
    Failed(String),
}

/// The models of a server: one, or several by name.
#[derive(Clone)]
pub enum Models {
    /// The one that the server was started with.
    Single(Arc<Single>),
    /// Several models, by name.
    Multi(Arc<Registry>),
}

impl From<watch::Sender<ModelState>> for Models {
    /// One model, which isn't swapped.
    fn from(state: watch::Sender<ModelState>) -> Self {
        Self::Single(Arc::new(Single::new(state, None)))
    }
}

impl From<Arc<Registry>> for Models {
    fn from(registry: Arc<Registry>) -> Self {
        Self::Multi(registry)
    }
}

impl Models {
    /// The one model, if there is one and it is ready.
    ///
    /// # Errors
    /// Why there is none.
    pub fn only(&self) -> Result<Versions, ModelError> {
        match self {
            Self::Single(model) => model.versions(),
            Self::Multi(_) => Err(ModelError::ByName),
        }
    }

    /// The model that is named, or the only one if none is, and the number of the version if the name has one.
    ///
    /// # Errors
    /// If there is no such model, or none is named and there are several.
    pub fn find(&self, name: Option<&str>) -> Result<Named, ModelError> {
        let Some(name) = name else {
            let versions = match self {
                Self::Single(model) => model.versions()?,
                Self::Multi(registry) => registry.only()?,
            };
            return Ok(Named { versions, number: None });
        };
        // A model's own name may look like that of a version.
        if let Some(versions) = self.model(name)? {
            return Ok(Named { versions, number: None });
        }
        let not_loaded = || ModelError::NotLoaded(name.to_owned());
        let (model, number) = versions::split(name);
        let versions = self.model(model)?.filter(|_| number.is_some()).ok_or_else(not_loaded)?;
        versions.get(number)?;
        Ok(Named { versions, number })
    }

    /// The versions of a model of exactly that name, if there is one.
    fn model(&self, name: &str) -> Result<Option<Versions>, ModelError> {
        match self {
            Self::Single(model) => Ok(Some(model.versions()?).filter(|versions| versions.name() == name)),
            Self::Multi(registry) => Ok(registry.get(name).ok()),
        }
    }

    /// Loads a version of a model beside those that answer, or divides the requests among its versions. Blocks. Returns
    /// the versions then, and the number of the one that it was about.
    ///
    /// # Errors
    /// There is no such model or no room for another version, or the folder can't be loaded. Then nothing has changed.
    pub fn change(&self, name: &str, change: &Change) -> Result<Named, ModelError> {
        let (model, number) = self.model_of(name);
        match change {
            Change::Load(url) => self.load_beside(model, number, url)?,
            Change::Share(_) if number.is_some() => return Err(ModelError::Shares),
            Change::Share(weights) => self.update(model, |now| Ok((now.shared(weights)?, ())))?,
        }
        self.find(Some(name))
    }

    /// Removes a version that has no share of the requests. Returns it; its last requests are answered.
    ///
    /// # Errors
    /// There is no such version, or it has a share.
    pub fn remove_version(&self, model: &str, number: u64) -> Result<Arc<Engine>, ModelError> {
        self.update(model, |now| now.without(number))
    }

    /// The model and the version that a name means, where the model need not be there.
    pub fn model_of<'a>(&self, name: &'a str) -> (&'a str, Option<u64>) {
        match versions::split(name) {
            (_, Some(_)) if self.model(name).is_ok_and(|model| model.is_some()) => (name, None),
            split => split,
        }
    }

    /// Loads a version: with a number of its own beside the others, without one in the place of those that answer.
    fn load_beside(&self, model: &str, number: Option<u64>, url: &str) -> Result<(), ModelError> {
        let (old, new, gone);
        match self {
            Self::Single(single) => {
                let (intake, _alone) = single.begin(model)?;
                old = self.find(Some(model))?.versions;
                new = intake.load_beside(&old, number, url)?;
                gone = self.put(model, number, &new)?;
            }
            Self::Multi(registry) => {
                let (intake, _alone) = registry.begin(model)?;
                old = registry.get(model)?;
                new = intake.load_beside(&old, number, url)?;
                gone = self.put(model, number, &new)?;
            }
        }
        new.catch_up(old.main());
        drop(old);
        gone.into_iter().for_each(drain);
        Ok(())
    }

    /// Lets a version have its place. Returns those that have none any more.
    fn put(&self, model: &str, number: Option<u64>, new: &Arc<Engine>) -> Result<Vec<Arc<Engine>>, ModelError> {
        self.update(model, |now| match number {
            Some(_) => Ok((now.with(Arc::clone(new)), Vec::new())),
            None => Ok(now.replaced(new)),
        })
    }

    fn update<T>(
        &self,
        model: &str,
        change: impl FnOnce(&Versions) -> Result<(Versions, T), ModelError>,
    ) -> Result<T, ModelError> {
        match self {
            Self::Single(single) => single.update(|now| match now.name() == model {
                true => change(now),
                false => Err(ModelError::NotLoaded(model.to_owned())),
            }),
            Self::Multi(registry) => registry.update(model, change),
        }
    }

    /// Changes the extras of a version, or of all versions of a model. Blocks while they are read. Returns the versions
    /// that have them.
    ///
    /// # Errors
    /// There is no such model, or what is wrong with the extras, in which line. Then nothing has changed.
    pub fn change_extras(&self, name: &str, change: &ExtrasChange) -> Result<Named, ModelError> {
        loop {
            let found = self.find(Some(name))?;
            let is_meant = |engine: &&Arc<Engine>| found.number.is_none_or(|number| engine.version().number == number);
            let mut engines = found.versions.engines().filter(is_meant);
            engines.try_for_each(|engine| engine.change_extras(change)).map_err(ModelError::Extras)?;
            // Another version may have come meanwhile.
            let now = self.find(Some(name))?;
            if now.versions.engines().all(|new| found.versions.engines().any(|old| Arc::ptr_eq(old, new))) {
                return Ok(now);
            }
        }
    }

    /// The models by name.
    ///
    /// # Errors
    /// If the server was started with one model.
    pub fn registry(&self) -> Result<&Registry, ModelError> {
        match self {
            Self::Multi(registry) => Ok(registry),
            Self::Single(_) => Err(ModelError::OneModel),
        }
    }

    /// The models that answer now.
    pub fn ready(&self) -> Vec<Versions> {
        match self {
            Self::Single(model) => model.versions().into_iter().collect(),
            Self::Multi(registry) => registry.ready(),
        }
    }
}
