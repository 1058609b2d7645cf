//! Models that lie elsewhere, copied to a folder of this machine.
//!
//! - [`Source`]: what a text names that is no folder: `org/name[@revision]`, or the address of a store or server.
//! - [`fetch`]: the folder with a source's files, which is downloaded as far as it isn't there yet.
//! - `hub`: the Hugging Face Hub with its own tools' cache and variables; `store`: S3, Google Cloud Storage and Azure;
//!   `web`: a folder of any web server. Each lists files with their sizes and checksums.
//! - `choice`: which of a repository's files a model needs. `transfer`: a file, in parts side by side, resumed where a
//!   killed download stopped, checked by its checksum.
//!
//! Memory doesn't grow with a file. Deliberately absent: uploads, and anything about what the files hold.

mod choice;
mod error;
mod hub;
mod journal;
mod options;
mod origin;
mod source;
mod store;
mod transfer;
mod web;

pub use error::SourceError;
pub use options::{Options, Progress};
pub use source::Source;

use std::path::PathBuf;

/// The folder with a source's files, downloaded as far as needed.
///
/// # Errors
/// A [`SourceError`]: one sentence that says what failed and what would be right. What was downloaded until then stays,
/// and the next call goes on from there.
pub fn fetch(source: &Source, options: &Options, progress: &dyn Progress) -> Result<PathBuf, SourceError> {
    // Fails where another part of the process has chosen already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| SourceError::Write { path: PathBuf::new(), source })?;
    runtime.block_on(async {
        match source {
            Source::Hub(model) => hub::fetch(model, options, progress).await,
            Source::Store(url) => store::fetch(url, options, progress).await,
            Source::Web(url) => web::fetch(url, options, progress).await,
        }
    })
}
