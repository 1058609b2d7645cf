//! What a download may use, and how it tells of its progress.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// Whoever is told how far a download is.
pub trait Progress: Sync {
    /// A file of so many bytes is downloaded from now on.
    fn file(&self, name: &str, bytes: u64);
    /// More bytes of it are there.
    fn advance(&self, bytes: u64);
    /// Whether the download should stop.
    fn is_cancelled(&self) -> bool;
}

impl Progress for () {
    fn file(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// The settings of a download.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for the files of stores and web servers. The Hub's have a cache of their own.
    pub cache: PathBuf,
    /// Environment variables: those of the Hub's own tools, and those of stores.
    pub variables: HashMap<String, String>,
    /// Bytes of a part of a file.
    pub part_bytes: u64,
    /// Parts that are downloaded at once.
    pub parallel: usize,
    /// Attempts for each part, of which each begins where the last ended.
    pub attempts: u32,
    /// Time without any bytes after which an attempt has failed.
    pub patience: Duration,
    /// Longest pause between two attempts, also if the other side asks for a longer one.
    pub longest_pause: Duration,
}

impl Options {
    /// The defaults: 8 parts of 16 MiB at once.
    pub fn new(cache: PathBuf) -> Self {
        Self {
            cache,
            variables: std::env::vars().collect(),
            part_bytes: 16 << 20,
            parallel: 8,
            attempts: 8,
            patience: Duration::from_secs(30),
            longest_pause: Duration::from_secs(60),
        }
    }

    /// A variable that is set to something.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a variable says yes, as the Hub's own tools read it.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.variable(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
    }
}
