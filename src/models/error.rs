//! The errors of loading and finding a model.

use std::path::PathBuf;

use engine_build::error::is_full_disk;

use super::folder::IntakeError;
use super::versions::{MAX_VERSIONS, MAX_WEIGHT};
use crate::engine::EngineError;

/// Most characters of a model's name.
pub const MAX_NAME_CHARACTERS: usize = 256;

/// Why a server has no such model, or can't have it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The server's one model isn't ready yet.
    #[error("the model is being loaded")]
    Loading,
    /// The server's one model can't be loaded.
    #[error("the model could not be loaded")]
    Failed,
    /// There is no one model.
    #[error("this server holds models by name")]
    ByName,
    /// Clients don't get this.
    #[error("what people type is told to operators only")]
    ForOperators,
    /// There are no models by name.
    #[error("this server holds one model")]
    OneModel,
    /// Several models are loaded, or none, and none is named.
    #[error("no model is named, and there are {0} to choose from")]
    Unnamed(usize),
    /// There is no model of that name.
    #[error("the model {0:?} is not loaded")]
    NotLoaded(String),
    /// The name is taken.
    #[error("the model {0:?} is loaded already")]
    AlreadyLoaded(String),
    /// The name is taken by a model that isn't ready yet.
    #[error("the model {0:?} is being loaded")]
    BeingLoaded(String),
    /// The version can't go while it has requests.
    #[error("the version {0:?} has a share of its model's requests")]
    HasShare(String),
    /// There are as many versions of that model as may be.
    #[error("the model {0:?} has {MAX_VERSIONS} versions, and no more may be")]
    TooManyVersions(String),
    /// The weights make no shares.
    #[error("shares must be whole numbers from 0 to {MAX_WEIGHT} by version, and one of them above 0")]
    Shares,
    /// The name isn't allowed.
    #[error("{0:?} is no model's name; it must be 1 to {MAX_NAME_CHARACTERS} characters without slashes and controls")]
    Name(String),
    /// That many models are loaded, which is the limit.
    #[error("{0} models are loaded, and no more may be")]
    TooMany(usize),
    /// The models' memory is used up.
    #[error("the model needs {needed} MiB, and {used} of {limit} MiB are used")]
    Memory {
        /// MiB that the model needs.
        needed: u64,
        /// MiB that the loaded models take.
        used: u64,
        /// MiB for all models.
        limit: u64,
    },
    /// The models' memory is used up, so that a new version can't be loaded beside the old one.
    #[error(
        "the new version needs {needed} MiB beside the old one, and {used} of {limit} MiB are used; the old one goes on"
    )]
    NoRoomBeside {
        /// MiB that the new version needs.
        needed: u64,
        /// MiB that the loaded models take.
        used: u64,
        /// MiB for all models.
        limit: u64,
    },
    /// The folder isn't where models are.
    #[error("url is {url}; it must be a folder below {}, links resolved", root.display())]
    Outside {
        /// What the client named.
        url: String,
        /// Where models are.
        root: PathBuf,
    },
    /// The extras can't be used.
    #[error(transparent)]
    Extras(EngineError),
    /// The folder can't be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl LoadError {
    /// Whether there was no room on the disk for a bundle or a download: another try may find some.
    pub fn is_full_disk(&self) -> bool {
        match self {
            Self::Folder(IntakeError::Build(error)) => error.is_full_disk(),
            Self::Folder(IntakeError::Cache { source, .. }) => is_full_disk(source),
            #[cfg(feature = "remote")]
            Self::Folder(IntakeError::Source(error)) => match error {
                sources::SourceError::Disk { .. } => true,
                sources::SourceError::Write { source, .. } => is_full_disk(source),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Why a folder can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no bundle.
    #[error(transparent)]
    Folder(#[from] IntakeError),
    /// What the command line asks for can't be had.
    #[error("{0}")]
    Backend(String),
    /// The bundle can't be served.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
