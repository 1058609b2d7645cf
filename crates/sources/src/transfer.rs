//! Downloads: files in parts side by side, into a folder of contents and a folder of names that link to them.
//!
//! The layout is that of the Hub's own tools: `blobs/IDENTITY`, and `snapshots/REVISION/NAME`, a link. A content that
//! is there is complete. One that is being downloaded is called `IDENTITY.part`, and a journal beside it says which
//! parts are there.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};

use crate::error::SourceError;
use crate::journal::Journal;
use crate::options::{Options, Progress};
use crate::origin::{Failure, Remote};

/// First pause between two attempts; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// How often somebody who waits looks whether they should go on.
const GLANCE: Duration = Duration::from_millis(100);

/// Bytes that are hashed at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Downloads what is missing of a snapshot, and returns its folder.
pub(crate) async fn snapshot(
    root: &Path,
    revision: &str,
    files: &[Remote],
    (options, progress): (&Options, &dyn Progress),
) -> Result<PathBuf, SourceError> {
    let (blobs, folder) = (root.join("blobs"), root.join("snapshots").join(revision));
    for path in [&blobs, &folder] {
        fs::create_dir_all(path).map_err(write_error(path))?;
    }
    check_disk(&blobs, files)?;
    for file in files {
        let blob = blobs.join(&file.identity);
        if !blob.exists() {
            download(file, &blob, options, progress).await?;
        }
        let (link, target) = (folder.join(&file.name), Path::new("../../blobs").join(&file.identity));
        if fs::read_link(&link).ok().as_deref() != Some(&target) {
            let new = folder.join(format!(".{}.new", file.name));
            let _ = fs::remove_file(&new);
            symlink(&target, &new).and_then(|()| fs::rename(&new, &link)).map_err(write_error(&link))?;
        }
    }
    Ok(folder)
}

/// Refuses a download that the disk has no room for.
fn check_disk(blobs: &Path, files: &[Remote]) -> Result<(), SourceError> {
    let missing = files.iter().filter(|file| !blobs.join(&file.identity).exists());
    let needed = missing.fold(0_u64, |sum, file| {
        let there = fs::metadata(partial(&blobs.join(&file.identity))).map_or(0, |part| part.blocks() * 512);
        sum.saturating_add(file.bytes.saturating_sub(there))
    });
    let disk = rustix::fs::statvfs(blobs).map_err(|error| write_error(blobs)(error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed > free {
        let (needed_mib, free_mib) = (needed.div_ceil(1 << 20), free >> 20);
        return Err(SourceError::Disk { folder: blobs.to_owned(), needed_mib, free_mib });
    }
    Ok(())
}

/// Downloads one file.
async fn download(remote: &Remote, blob: &Path, options: &Options, progress: &dyn Progress) -> Result<(), SourceError> {
    let path = partial(blob);
    let written = write_error(&path);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(write_error(&path))?;
    while file.try_lock().is_err() {
        // Another process downloads the same.
        pause(GLANCE, progress).await?;
    }
    if blob.exists() {
        return Ok(());
    }
    file.set_len(remote.bytes).map_err(write_error(&path))?;
    let journal_path = path.with_extension("journal");
    let identity = format!("{} {} {}", remote.identity, remote.bytes, options.part_bytes);
    let journal = Journal::open(&journal_path, &identity).map_err(write_error(&journal_path))?;
    let part = |index: u64| index * options.part_bytes..((index + 1) * options.part_bytes).min(remote.bytes);
    let parts = 0..remote.bytes.div_ceil(options.part_bytes);
    progress.file(&remote.name, remote.bytes);
    parts.clone().filter(|index| journal.has(*index)).for_each(|index| progress.advance(length(&part(index))));
    let missing: Vec<u64> = parts.filter(|index| !journal.has(*index)).collect();
    let hashing = remote.sha256.is_some().then(|| Hashing::start(&file)).transpose().map_err(write_error(&path))?;
    let front = |journal: &Journal| (journal.front() * options.part_bytes).min(remote.bytes);
    hashing.iter().for_each(|hashing| hashing.may_read(front(&journal)));
    let journal = RefCell::new(journal);
    stream::iter(missing)
        .map(|index| {
            let (file, journal, hashing, path) = (&file, &journal, &hashing, &path);
            async move {
                read_part(remote, part(index), file, (options, progress)).await?;
                let mut journal = journal.borrow_mut();
                journal.add(index).map_err(write_error(path))?;
                hashing.iter().for_each(|hashing| hashing.may_read(front(&journal)));
                Ok::<_, SourceError>(())
            }
        })
        .buffer_unordered(options.parallel.max(1))
        .try_collect::<()>()
        .await?;
    if let (Some(hashing), Some(expected)) = (hashing, &remote.sha256) {
        let found = hashing.finish().map_err(write_error(&path))?;
        if !found.eq_ignore_ascii_case(expected) {
            let _ = (fs::remove_file(&path), fs::remove_file(&journal_path));
            return Err(SourceError::Checksum { file: remote.name.clone(), found, expected: expected.clone() });
        }
    }
    file.sync_all().and_then(|()| fs::rename(&path, blob)).map_err(written)?;
    let _ = fs::remove_file(&journal_path);
    Ok(())
}

/// Reads a part into its place, in as many attempts as it takes while each brings something.
async fn read_part(
    remote: &Remote,
    range: Range<u64>,
    file: &File,
    (options, progress): (&Options, &dyn Progress),
) -> Result<(), SourceError> {
    let (mut at, mut failures) = (range.start, 0);
    while at < range.end {
        let before = at;
        let outcome = async {
            let opened = timeout(options.patience, remote.read(at..range.end)).await;
            let mut pieces = opened.map_err(|_| Failure::again("nothing came for too long"))??;
            while at < range.end {
                let piece = timeout(options.patience, pieces.next()).await;
                let piece = piece.map_err(|_| Failure::again("nothing came for too long"))?;
                let piece = piece.ok_or_else(|| Failure::again("the answer ended too early"))?;
                let piece = piece.map_err(Failure::again)?;
                if piece.len() as u64 > range.end - at {
                    return Err(Failure::again("more came than was asked for"));
                }
                file.write_all_at(&piece, at)
                    .map_err(|error| Failure::Final(write_error(Path::new(&remote.name))(error)))?;
                at += piece.len() as u64;
                progress.advance(piece.len() as u64);
                if progress.is_cancelled() {
                    return Err(Failure::Final(SourceError::Cancelled));
                }
            }
            Ok(())
        };
        if let Err(failure) = outcome.await {
            failures = if at > before { 1 } else { failures + 1 };
            recover(failure, failures, &remote.name, (options, progress)).await?;
        }
    }
    Ok(())
}

/// Waits before the next attempt, or fails if there should be none.
async fn recover(
    failure: Failure,
    failures: u32,
    what: &str,
    (options, progress): (&Options, &dyn Progress),
) -> Result<(), SourceError> {
    let (reason, after) = match failure {
        Failure::Final(error) => return Err(error),
        Failure::Again { reason, after } => (reason, after),
    };
    if failures >= options.attempts {
        return Err(SourceError::Transfer { what: what.to_owned(), reason });
    }
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.min(10));
    let wait = after.unwrap_or(doubled).min(options.longest_pause);
    tracing::warn!(file = what, reason, wait_ms = wait.as_millis() as u64, "the download is tried again");
    pause(wait, progress).await
}

/// Asks until there is an answer, as often as options say.
pub(crate) async fn ask<T, F: Future<Output = Result<T, Failure>>>(
    what: &str,
    (options, progress): (&Options, &dyn Progress),
    mut attempt: impl FnMut() -> F,
) -> Result<T, SourceError> {
    let mut failures = 0;
    loop {
        let answer = timeout(options.patience, attempt()).await;
        match answer.unwrap_or_else(|_| Err(Failure::again("nothing came for too long"))) {
            Ok(answer) => return Ok(answer),
            Err(failure) => {
                failures += 1;
                recover(failure, failures, what, (options, progress)).await?;
            }
        }
    }
}

async fn pause(mut wait: Duration, progress: &dyn Progress) -> Result<(), SourceError> {
    while !wait.is_zero() {
        if progress.is_cancelled() {
            return Err(SourceError::Cancelled);
        }
        let step = wait.min(GLANCE);
        sleep(step).await;
        wait -= step;
    }
    Ok(())
}

/// A thread that hashes a file as its beginning grows.
struct Hashing {
    ends: mpsc::Sender<u64>,
    thread: JoinHandle<io::Result<String>>,
}

impl Hashing {
    fn start(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (ends, received) = mpsc::channel();
        let work = move || {
            let (mut hasher, mut at, mut piece) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
            for end in received {
                while at < end {
                    let count = piece.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                    file.read_exact_at(&mut piece[..count], at)?;
                    hasher.update(&piece[..count]);
                    at += count as u64;
                }
            }
            Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
        };
        let thread = std::thread::Builder::new().name("checksum".into()).spawn(work)?;
        Ok(Self { ends, thread })
    }

    /// The bytes up to there are written.
    fn may_read(&self, end: u64) {
        // A thread that failed says why at the end.
        let _ = self.ends.send(end);
    }

    fn finish(self) -> io::Result<String> {
        drop(self.ends);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the checksum's thread panicked")))
    }
}

fn partial(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// An error of a file or folder of the cache.
pub(crate) fn write_error(path: &Path) -> impl Fn(io::Error) -> SourceError + '_ {
    move |source| SourceError::Write { path: path.to_owned(), source }
}

/// A small file's bytes; `None` if there is none.
pub(crate) fn small(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}
