//! The one model of a server, and the versions that take its place.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tokio::sync::watch;

use super::ModelState;
use super::error::ModelError;
use super::intake::{Intake, drain};
use crate::engine::Engine;

/// The model that a server was started with.
pub struct Single {
    state: watch::Sender<ModelState>,
    /// Loads its next versions, where operators may ask for them.
    intake: Option<Arc<Intake>>,
    /// Held while a version is loaded.
    swapping: Mutex<()>,
}

impl Single {
    /// A model of that state.
    pub fn new(state: watch::Sender<ModelState>, intake: Option<Arc<Intake>>) -> Self {
        Self { state, intake, swapping: Mutex::new(()) }
    }

    /// Looks at the state. It doesn't change meanwhile.
    pub fn look<T>(&self, look: impl FnOnce(&ModelState) -> T) -> T {
        look(&self.state.borrow())
    }

    /// The model, if it is ready.
    ///
    /// # Errors
    /// Why it isn't.
    pub fn engine(&self) -> Result<Arc<Engine>, ModelError> {
        self.look(|state| match state {
            ModelState::Ready(engine) => Ok(Arc::clone(engine)),
            ModelState::Loading | ModelState::Downloading(_) => Err(ModelError::Loading),
            ModelState::Failed(_) => Err(ModelError::Failed),
        })
    }

    /// Puts a version in the model's place.
    pub(super) fn swap(&self, name: &str, url: &str) -> Result<Arc<Engine>, ModelError> {
        let intake = self.intake.as_ref().ok_or(ModelError::OneModel)?;
        let _alone = match self.swapping.try_lock() {
            Ok(alone) => alone,
            // A load that panicked has changed nothing.
            Err(TryLockError::Poisoned(alone)) => PoisonError::into_inner(alone),
            Err(TryLockError::WouldBlock) => return Err(ModelError::BeingLoaded(name.to_owned())),
        };
        let old = self.engine()?;
        if old.name() != name {
            return Err(ModelError::NotLoaded(name.to_owned()));
        }
        let new = Arc::new(intake.load_beside(&old, url)?);
        drop(self.state.send_replace(ModelState::Ready(Arc::clone(&new))));
        new.catch_up(&old);
        drain(old);
        Ok(new)
    }
}
