//! Follows the file of keys: it is read again when it changes, and a broken one leaves the keys as they were.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, SystemTime};

use super::{Key, Keys, KeysError};

/// Between two looks at the file.
const EVERY: Duration = Duration::from_millis(500);

/// The keys of a file.
pub struct KeyFile {
    path: PathBuf,
    keys: RwLock<Arc<Keys>>,
}

/// What tells a file from its older versions. Kubernetes and editors replace files, so that the time may be an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl KeyFile {
    /// Reads a file of keys, and follows it on a thread of its own for as long as it is held.
    ///
    /// # Errors
    /// See [`KeysError`].
    pub fn open(path: &Path) -> Result<Arc<Self>, KeysError> {
        let mut seen = version(path);
        let keys = read(path, &Keys::default())?;
        tracing::info!(keys = keys.len(), "keys are asked for");
        let file = Arc::new(Self { path: path.to_owned(), keys: RwLock::new(Arc::new(keys)) });
        let followed = Arc::downgrade(&file);
        let follow = move || {
            while let Some(file) = followed.upgrade() {
                let now = version(&file.path);
                if now != seen {
                    seen = now;
                    file.read_again();
                }
                drop(file);
                thread::sleep(EVERY);
            }
        };
        thread::Builder::new().name("keys".into()).spawn(follow).map_err(|e| KeysError::Unreadable(e.kind()))?;
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

fn version(path: &Path) -> Option<Version> {
    use std::os::unix::fs::MetadataExt;
    let file = std::fs::metadata(path).ok()?;
    Some(Version { modified: file.modified().ok(), length: file.len(), inode: file.ino() })
}
