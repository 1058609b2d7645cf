//! The one model of a server, and the versions that take its place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tokio::sync::watch;

use super::ModelState;
use super::error::ModelError;
use super::intake::Intake;
use super::versions::Versions;

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

    /// The versions of the model, if it is ready.
    ///
    /// # Errors
    /// Why it isn't.
    pub fn versions(&self) -> Result<Versions, ModelError> {
        self.look(|state| match state {
            ModelState::Ready(versions) => Ok(versions.clone()),
            ModelState::Loading | ModelState::Downloading(_) => Err(ModelError::Loading),
            ModelState::Failed(_) => Err(ModelError::Failed),
        })
    }

    /// Who loads further versions, and the right to load one: one at a time.
    pub(super) fn begin(&self, name: &str) -> Result<(&Intake, MutexGuard<'_, ()>), ModelError> {
        let intake = self.intake.as_ref().ok_or(ModelError::OneModel)?;
        match self.swapping.try_lock() {
            Ok(alone) => Ok((intake, alone)),
            // A load that panicked has changed nothing.
            Err(TryLockError::Poisoned(alone)) => Ok((intake, PoisonError::into_inner(alone))),
            Err(TryLockError::WouldBlock) => Err(ModelError::BeingLoaded(name.to_owned())),
        }
    }

    /// Changes the versions at once, for all requests from then on.
    pub(super) fn update<T>(
        &self,
        change: impl FnOnce(&Versions) -> Result<(Versions, T), ModelError>,
    ) -> Result<T, ModelError> {
        let mut result = self.versions().map(|_| None);
        self.state.send_if_modified(|state| {
            let ModelState::Ready(versions) = state else { return false };
            match change(versions) {
                Ok((new, value)) => {
                    // The old ones are no longer used here, so none of them ends under the lock.
                    (*versions, result) = (new, Ok(Some(value)));
                    true
                }
                Err(error) => {
                    result = Err(error);
                    false
                }
            }
        });
        result?.ok_or(ModelError::Loading)
    }
}
