//! The models of a server: the one that it was started with, or several, loaded and unloaded by name.
//!
//! [`registry`] holds models by name, [`single`] the one of a server that has no more. [`intake`] loads them within a
//! budget of memory, [`root`] bounds where they come from, [`folder`] finds or builds the bundle of a folder, [`error`]
//! has the errors. [`named`] tells folders from models elsewhere, and
//! downloads these. Loading blocks, so callers keep it off their event loop. No HTTP here but that of downloads.

mod budget;
pub mod error;
pub mod folder;
pub mod intake;
pub mod named;
pub mod registry;
pub mod root;
pub mod single;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::error::{LoadError, MAX_NAME_CHARACTERS, ModelError};
pub use self::intake::{FolderLoader, Intake, Opened};
pub use self::registry::{Registry, RegistryLimits};
pub use self::root::{ModelsRoot, SAGEMAKER_MODELS};
pub use self::single::Single;
use crate::engine::{Engine, ExtrasChange};

/// What the server knows of the one model that it was started with.
#[derive(Clone)]
pub enum ModelState {
    /// The model is being built or loaded.
    Loading,
    /// The model is being downloaded from there.
    Downloading(String),
    /// The model answers.
    Ready(Arc<Engine>),
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
    pub fn only(&self) -> Result<Arc<Engine>, ModelError> {
        match self {
            Self::Single(model) => model.engine(),
            Self::Multi(_) => Err(ModelError::ByName),
        }
    }

    /// Loads a version of a model beside the one that answers, and puts it in that one's place. Blocks.
    ///
    /// # Errors
    /// There is no such model or no room for both, or the folder can't be loaded. Then the old one goes on.
    pub fn swap(&self, name: &str, url: &str) -> Result<Arc<Engine>, ModelError> {
        match self {
            Self::Single(model) => model.swap(name, url),
            Self::Multi(registry) => registry.swap(name, url),
        }
    }

    /// Changes a model's extras. Blocks while they are read. Returns the version that has them.
    ///
    /// # Errors
    /// There is no such model, or what is wrong with the extras, in which line. Then nothing has changed.
    pub fn change_extras(&self, name: &str, change: &ExtrasChange) -> Result<Arc<Engine>, ModelError> {
        loop {
            let engine = self.named(Some(name))?;
            engine.change_extras(change).map_err(ModelError::Extras)?;
            // A newer version may have taken this one's place meanwhile.
            if Arc::ptr_eq(&engine, &self.named(Some(name))?) {
                return Ok(engine);
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

    /// The model that a request names, or the only one if it names none.
    ///
    /// # Errors
    /// If there is no such model, or none is named and there are several.
    pub fn named(&self, name: Option<&str>) -> Result<Arc<Engine>, ModelError> {
        match self {
            Self::Single(_) => {
                let engine = self.only()?;
                match name {
                    Some(name) if name != engine.name() => Err(ModelError::NotLoaded(name.to_owned())),
                    _ => Ok(engine),
                }
            }
            Self::Multi(registry) => match name {
                Some(name) => registry.get(name),
                None => registry.only(),
            },
        }
    }

    /// The models that answer now.
    pub fn engines(&self) -> Vec<Arc<Engine>> {
        match self {
            Self::Single(_) => self.only().into_iter().collect(),
            Self::Multi(registry) => registry.ready().into_iter().map(|(_, engine)| engine).collect(),
        }
    }

    /// The names that requests may use now.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Single(_) => self.only().map(|engine| engine.name().to_owned()).into_iter().collect(),
            Self::Multi(registry) => registry.ready().into_iter().map(|(name, _)| name).collect(),
        }
    }
}
