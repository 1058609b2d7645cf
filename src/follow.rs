//! Follows files that people or platforms replace while the server runs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

/// Between two looks at the files.
const EVERY: Duration = Duration::from_millis(500);

/// What tells a file from its older versions. Kubernetes and editors replace files, so that the time may be an old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

/// Files as they were when somebody looked.
#[derive(Clone, Debug)]
pub struct Followed {
    files: Vec<PathBuf>,
    seen: Vec<Option<Version>>,
}

impl Followed {
    /// Looks at files. To be called before they are read, so that no change is missed.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let seen = versions(&files);
        Self { files, seen }
    }

    /// Follows them on a thread of that name for as long as `held` has something, which `changed` gets each time that a
    /// file is another one.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start<T>(
        mut self,
        name: &str,
        held: impl Fn() -> Option<T> + Send + 'static,
        changed: impl Fn(&T) + Send + 'static,
    ) -> std::io::Result<()> {
        let follow = move || {
            while let Some(held) = held() {
                let now = versions(&self.files);
                if now != self.seen {
                    self.seen = now;
                    changed(&held);
                }
                drop(held);
                thread::sleep(EVERY);
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(follow).map(drop)
    }
}

fn versions(files: &[PathBuf]) -> Vec<Option<Version>> {
    files.iter().map(|file| version(file)).collect()
}

fn version(path: &Path) -> Option<Version> {
    let file = std::fs::metadata(path).ok()?;
    Some(Version { modified: file.modified().ok(), length: file.len(), inode: file.ino() })
}
