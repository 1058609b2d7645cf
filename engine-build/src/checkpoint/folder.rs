//! Files of a checkpoint folder, read with limits and with errors that name the file.
//!
//! Symbolic links are followed: the Hugging Face cache consists of them. This file does not interpret the contents.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// No JSON or merges file of a real checkpoint comes near this; a larger one is a mistake.
const TEXT_LIMIT_BYTES: u64 = 512 << 20;

/// Why a folder or a file in it cannot be read.
#[derive(Debug, Error)]
pub enum FileError {
    /// Nothing is at the path.
    #[error("{0} does not exist: pass the folder that `save_pretrained` wrote")]
    FolderMissing(PathBuf),
    /// The path names a file.
    #[error("{0} is not a folder: pass the folder that holds config.json and the weights")]
    NotAFolder(PathBuf),
    /// A link whose target is gone.
    #[error("{path} is a link to {target}, which does not exist: download the checkpoint again, or copy its files")]
    DanglingLink {
        /// The symbolic link.
        path: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// A file of no bytes.
    #[error("{0} is empty: its download or copy was probably cut short")]
    Empty(PathBuf),
    /// A folder where a file should be.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// A text file beyond any sensible size.
    #[error("{path} has {bytes} bytes, more than the {TEXT_LIMIT_BYTES} that a file of its kind may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Size of the file, in bytes.
        bytes: u64,
    },
    /// The operating system refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// A folder that exists.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Self { path: path.to_owned() }),
            Ok(_) => Err(FileError::NotAFolder(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FileError::FolderMissing(path.to_owned())),
            Err(source) => Err(FileError::Io { path: path.to_owned(), source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The file and its size, or `None` where the folder has no entry of that name.
    pub(crate) fn file(&self, name: &str) -> Result<Option<(File, u64)>, FileError> {
        let path = self.join(name);
        let io_error = |source| FileError::Io { path: path.clone(), source };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return match fs::read_link(&path) {
                    Ok(target) => Err(FileError::DanglingLink { path, target }),
                    Err(_) => Ok(None),
                };
            }
            Err(source) => return Err(io_error(source)),
        };
        if !metadata.is_file() {
            return Err(FileError::NotAFile(path));
        }
        if metadata.len() == 0 {
            return Err(FileError::Empty(path));
        }
        let file = File::open(&path).map_err(io_error)?;
        Ok(Some((file, metadata.len())))
    }

    /// The bytes of a JSON or text file, or `None` where the folder has no entry of that name.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let Some((file, bytes)) = self.file(name)? else {
            return Ok(None);
        };
        let path = self.join(name);
        if bytes > TEXT_LIMIT_BYTES {
            return Err(FileError::TooLarge { path, bytes });
        }
        let mut content = Vec::new();
        file.take(TEXT_LIMIT_BYTES).read_to_end(&mut content).map_err(|source| FileError::Io { path, source })?;
        Ok(Some(content))
    }

    /// The names of all entries that end in `suffix`, sorted.
    pub(crate) fn names_ending(&self, suffix: &str) -> Result<Vec<String>, FileError> {
        let io_error = |source| FileError::Io { path: self.path.clone(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io_error)? {
            let name = entry.map_err(io_error)?.file_name().to_string_lossy().into_owned();
            if name.ends_with(suffix) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}
