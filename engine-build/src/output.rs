//! The bundle's folder on disk: written under a temporary name, then renamed in one step.
//!
//! A reader therefore sees the old bundle or the new one, never a mixture. The next build of the same output continues
//! what a killed build left. Other files decide the contents.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::BuildError;
use crate::hashed::Hashed;
use crate::resume::{self, Resumable};
use bundle::manifest::{self, FileEntry, Manifest};

/// Files that a build goes on with after its process was killed.
const RESUMABLE: [&str; 2] = [manifest::WEIGHTS_FILE, manifest::ENCODER_WEIGHTS_FILE];

/// A bundle in the making, removed when it is dropped unfinished.
#[derive(Debug)]
pub(crate) struct PartialBundle {
    out: PathBuf,
    partial: PathBuf,
    files: Vec<FileEntry>,
    /// Held as long as the folder is this process's.
    _lock: Option<File>,
    finished: bool,
}

impl PartialBundle {
    /// Takes `OUT.partial` beside `out`, which must be absent, an empty folder or a bundle. Makes `OUT.partial-PID-N`
    /// if another process is at the former.
    pub(crate) fn create(out: &Path) -> Result<Self, BuildError> {
        let out = check_output(out)?;
        if let Some(parent) = out.parent() {
            fs::create_dir_all(parent).map_err(write_error(parent))?;
        }
        let partial = beside(&out, "partial")?;
        if let Some(lock) = resume::claim(&partial, &RESUMABLE).map_err(write_error(&partial))? {
            return Ok(Self { out, partial, files: Vec::new(), _lock: Some(lock), finished: false });
        }
        let partial = sibling(&out, "partial")?;
        // Left behind by an earlier process of the same id that was killed.
        remove_folder(&partial).map_err(write_error(&partial))?;
        fs::create_dir(&partial).map_err(write_error(&partial))?;
        Ok(Self { out, partial, files: Vec::new(), _lock: None, finished: false })
    }

    /// Adds a large file, or goes on with the one that a killed build of the same `identity` left.
    pub(crate) fn add_resumable(
        &mut self,
        name: &str,
        identity: &str,
        write: impl FnOnce(&mut Resumable) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let path = self.partial.join(name);
        let mut file = Resumable::open(&self.partial, name, identity).map_err(write_error(&path))?;
        write(&mut file)?;
        let (bytes, sha256) = file.close().map_err(write_error(&path))?;
        self.files.push(FileEntry { path: name.to_owned(), bytes, sha256 });
        Ok(())
    }

    /// Adds a file whose content `write` streams.
    pub(crate) fn add(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let path = self.partial.join(name);
        let file = File::create(&path).map_err(write_error(&path))?;
        let mut writer = Hashed::new(BufWriter::new(file));
        write(&mut writer)?;
        writer.flush().and_then(|()| writer.get_ref().get_ref().sync_all()).map_err(write_error(&path))?;
        self.files.push(FileEntry { path: name.to_owned(), bytes: writer.bytes(), sha256: writer.sha256() });
        Ok(())
    }

    /// Where the files lie until the bundle is finished.
    pub(crate) fn folder(&self) -> &Path {
        &self.partial
    }

    /// The files added so far.
    pub(crate) fn files(&self) -> Vec<FileEntry> {
        self.files.clone()
    }

    /// Writes the manifest, gives it its checksum, and moves the bundle to its place; one that was there is removed.
    ///
    /// All of it is on the disk before it has its name: a machine that stops leaves a whole bundle or none.
    pub(crate) fn finish(mut self, manifest: &mut Manifest) -> Result<(), BuildError> {
        let path = self.partial.join(manifest::FILE);
        let json =
            manifest.to_json().map_err(|source| BuildError::Write { path: path.clone(), source: source.into() })?;
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(&json)?;
            file.sync_all()
        };
        write().map_err(write_error(&path))?;
        // What is too large for a server is refused before it replaces anything.
        Manifest::parse(&path, &json).map_err(|error| BuildError::Refused(error.into()))?;
        resume::forget(&self.partial, &RESUMABLE).map_err(write_error(&self.partial))?;
        sync_folder(&self.partial).map_err(write_error(&self.partial))?;
        self.replace().map_err(write_error(&self.out))?;
        self.finished = true;
        Ok(())
    }

    fn replace(&self) -> io::Result<()> {
        let replaced = sibling(&self.out, "replaced").map_err(io::Error::other)?;
        let existed = self.out.exists();
        if existed {
            remove_folder(&replaced)?;
            fs::rename(&self.out, &replaced)?;
        }
        if let Err(error) = fs::rename(&self.partial, &self.out) {
            if existed {
                fs::rename(&replaced, &self.out)?;
            }
            return Err(error);
        }
        resume::release(&self.out)?;
        sync_folder(self.out.parent().unwrap_or(&self.out))?;
        remove_folder(&replaced)
    }
}

impl Drop for PartialBundle {
    fn drop(&mut self) {
        if !self.finished {
            // The error that led here is the one to report; what cannot be removed is at least named `partial`.
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// The folder to write, with links resolved, if it may be written.
fn check_output(out: &Path) -> Result<PathBuf, BuildError> {
    let metadata = match fs::metadata(out) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !out.is_symlink() => {
            return std::path::absolute(out).map_err(write_error(out));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BuildError::Occupied(out.to_owned())),
        Err(error) => return Err(write_error(out)(error)),
    };
    let empty = |out: &Path| fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_none());
    if !metadata.is_dir() || !(manifest::is_bundle(out) || empty(out)) {
        return Err(BuildError::Occupied(out.to_owned()));
    }
    fs::canonicalize(out).map_err(write_error(out))
}

/// The path `OUT.ROLE-PID-N` beside `out`, for this call: several threads may build at once.
fn sibling(out: &Path, role: &str) -> Result<PathBuf, BuildError> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    beside(out, &format!("{role}-{}-{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed)))
}

/// A name beside `out` with something added.
fn beside(out: &Path, ending: &str) -> Result<PathBuf, BuildError> {
    let name = out.file_name().ok_or_else(|| BuildError::OutputName(out.to_owned()))?;
    let mut name = name.to_os_string();
    name.push(format!(".{ending}"));
    Ok(out.with_file_name(name))
}

/// Brings a folder's entries to the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write_error(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::Write { path, source }
}
