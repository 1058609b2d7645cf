//! Follows the file of keys: it is read again when it changes, and a broken one leaves the keys as they were.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Key, Keys, KeysError};
use crate::follow::Followed;

/// The keys of a file.
pub struct KeyFile {
    path: PathBuf,
    keys: RwLock<Arc<Keys>>,
}

impl KeyFile {
    /// Reads a file of keys, and follows it on a thread of its own for as long as it is held.
    ///
    /// # Errors
    /// See [`KeysError`].
    pub fn open(path: &Path) -> Result<Arc<Self>, KeysError> {
        let followed = Followed::new(vec![path.to_owned()]);
        let keys = read(path, &Keys::default())?;
        tracing::info!(keys = keys.len(), "keys are asked for");
        let file = Arc::new(Self { path: path.to_owned(), keys: RwLock::new(Arc::new(keys)) });
        let held = Arc::downgrade(&file);
        let follow = followed.start("keys", move || held.upgrade(), |file| file.read_again());
        follow.map_err(|error| KeysError::Unreadable(error.kind()))?;
        Ok(file)
    }

    /// The key of a secret.
    pub fn find(&self, secret: &[u8]) -> Option<Arc<Key>> {
        self.keys().find(secret)
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn read_again(&self) {
        match read(&self.path, &self.keys()) {
            Ok(keys) => {
                tracing::info!(keys = keys.len(), "the keys were read again");
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
            }
            Err(error) => tracing::error!(%error, "the keys stay as they were"),
        }
    }
}

fn read(path: &Path, before: &Keys) -> Result<Keys, KeysError> {
    let json = std::fs::read(path).map_err(|error| KeysError::Unreadable(error.kind()))?;
    Keys::parse(&json, before)
}
