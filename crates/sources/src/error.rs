//! Why a source's files aren't here.

use std::io;
use std::path::PathBuf;

/// An error of a download, in one sentence.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A text that looks like an address, and is none.
    #[error("`{text}` is no address of a model: {reason}")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A source without the files of a model.
    #[error("{from} holds neither a foretype bundle (manifest.json) nor a checkpoint (config.json and weights)")]
    NoModel {
        /// The source.
        from: String,
    },
    /// A file that should be there.
    #[error("there is no {what}; compare the name and the revision")]
    Absent {
        /// What isn't there.
        what: String,
    },
    /// A source that wants other credentials, or any.
    #[error("{what} may not be read ({status}); {hint}")]
    Denied {
        /// What was asked for.
        what: String,
        /// The HTTP status.
        status: u16,
        /// Where credentials come from.
        hint: &'static str,
    },
    /// The other side doesn't answer, or something else than what was asked for, also when asked again.
    #[error("{what} can't be downloaded: {reason}; what is there is kept, and the next start goes on from it")]
    Transfer {
        /// What was asked for.
        what: String,
        /// The last attempt's failure.
        reason: String,
    },
    /// A file that isn't what its source says it is.
    #[error(
        "{file} has the checksum {found} and should have {expected}: it was damaged on its way, and comes again at the \
         next start"
    )]
    Checksum {
        /// The file.
        file: String,
        /// SHA-256 of what came.
        found: String,
        /// SHA-256 that the source gives.
        expected: String,
    },
    /// Not enough space.
    #[error(
        "the model needs {needed_mib} MiB more in {}, which has {free_mib} MiB; make room, or name another folder",
        .folder.display()
    )]
    Disk {
        /// The folder of the cache.
        folder: PathBuf,
        /// MiB that the files still need.
        needed_mib: u64,
        /// MiB that are free.
        free_mib: u64,
    },
    /// No download may be tried, and the files aren't all there.
    #[error("HF_HUB_OFFLINE is set and {0} is not in the cache; unset it once, to download the model")]
    Offline(String),
    /// The cache can't be written.
    #[error("{} can't be written: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Whoever waited doesn't any more.
    #[error("the download was stopped")]
    Cancelled,
}
