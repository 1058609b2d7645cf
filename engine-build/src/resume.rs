//! A weights file that continues where a killed build stopped.
//!
//! A journal lies beside the file. Its first line names the build; each further line is a checkpoint: a length of the
//! file and the checksum of everything up to it. The next build of the same name reads the file again, which its own
//! checksum needs anyway, and continues at the last checkpoint whose checksum is right. Whatever a crash left in either
//! file is therefore detected.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::hashed::Hashed;
use bundle::manifest::hexadecimal;

const LOCK: &str = "lock";
/// Bytes that are read again at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Makes a folder this process's own until the file returned is dropped, and removes all from it but the files `keep`
/// and their journals. `None` if another process has it.
pub(crate) fn claim(folder: &Path, keep: &[&str]) -> io::Result<Option<File>> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(LOCK);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    if lock.try_lock().is_err() {
        return Ok(None);
    }
    // Whoever had it may have finished, and the folder be gone with the file that is locked now.
    let (locked, there) = (lock.metadata()?, path.metadata());
    let is_there = there.is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino()));
    if !is_there {
        return Ok(None);
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is = |name: &str| entry.file_name() == name;
        if !is(LOCK) && !keep.iter().any(|name| is(name) || is(&journal(name))) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(Some(lock))
}

/// A file's journal.
fn journal(name: &str) -> String {
    format!("{name}.journal")
}

/// Removes the journals of files: this build will not be resumed.
pub(crate) fn forget(folder: &Path, names: &[&str]) -> io::Result<()> {
    names.iter().try_for_each(|name| remove(&folder.join(journal(name))))
}

/// Removes the lock from a folder that has its own name now: until then the other name must stay taken.
pub(crate) fn release(folder: &Path) -> io::Result<()> {
    remove(&folder.join(LOCK))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file in the making, hashed as it is written.
pub(crate) struct Resumable {
    file: Hashed<BufWriter<File>>,
    journal: File,
}

impl Resumable {
    /// Opens a file for the build that `identity` names, at the end of what is there of it.
    pub(crate) fn open(folder: &Path, name: &str, identity: &str) -> io::Result<Self> {
        let open = |path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let (mut file, mut journal) = (open(folder.join(name))?, open(folder.join(self::journal(name)))?);
        let mut text = Vec::new();
        journal.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let (hasher, bytes) = match text.split_once('\n') {
            Some((first, checkpoints)) if first == identity => last_intact(&file, checkpoints)?,
            _ => (Sha256::new(), 0),
        };
        file.set_len(bytes)?;
        file.seek(SeekFrom::Start(bytes))?;
        journal.set_len(0)?;
        journal.seek(SeekFrom::Start(0))?;
        writeln!(journal, "{identity}")?;
        let mut resumed = Self { file: Hashed::resumed(BufWriter::new(file), hasher, bytes), journal };
        resumed.mark()?;
        Ok(resumed)
    }

    /// Bytes that are there.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Notes that a build that is killed from now on may go on from here.
    pub(crate) fn mark(&mut self) -> io::Result<()> {
        self.file.flush()?;
        writeln!(self.journal, "{}", checkpoint(self.file.bytes(), &self.file.sha256()))
    }

    /// Bytes and checksum of the whole file, which is on the disk then.
    pub(crate) fn close(mut self) -> io::Result<(u64, String)> {
        self.file.flush()?;
        self.file.get_ref().get_ref().sync_all()?;
        Ok((self.file.bytes(), self.file.sha256()))
    }
}

impl Write for Resumable {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.file.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A checkpoint: a line of the journal.
fn checkpoint(bytes: u64, sha256: &str) -> String {
    format!("{bytes} {sha256}")
}

/// Finds the last checkpoint up to which a file is as the journal says: the state of the checksum there, and the length
/// in bytes.
fn last_intact(mut file: &File, checkpoints: &str) -> io::Result<(Sha256, u64)> {
    let mut piece = vec![0; PIECE_BYTES];
    let (mut hasher, mut read) = (Sha256::new(), 0);
    let (mut good, mut end) = (hasher.clone(), 0);
    for line in checkpoints.lines() {
        let bytes = line.split_once(' ').and_then(|(bytes, _)| bytes.parse::<u64>().ok());
        let Some(bytes) = bytes.filter(|&bytes| bytes >= read) else { break };
        while read < bytes {
            let wanted = PIECE_BYTES.min(usize::try_from(bytes - read).unwrap_or(PIECE_BYTES));
            let found = file.read(&mut piece[..wanted])?;
            if found == 0 {
                return Ok((good, end));
            }
            hasher.update(&piece[..found]);
            read += found as u64;
        }
        if checkpoint(bytes, &hexadecimal(&hasher.clone().finalize())) != line {
            break;
        }
        (good, end) = (hasher.clone(), bytes);
    }
    Ok((good, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `content` in runs of 7 bytes with a mark after each, as far as `until`.
    fn write(folder: &Path, identity: &str, content: &[u8], until: usize) -> u64 {
        let mut file = Resumable::open(folder, "data", identity).unwrap();
        let found = file.bytes();
        for run in content[found as usize..until].chunks(7) {
            file.write_all(run).unwrap();
            file.mark().unwrap();
        }
        assert_eq!(file.close().unwrap().1, hexadecimal(&Sha256::digest(&content[..until])));
        found
    }

    #[test]
    fn whatever_is_cut_off_or_spoilt_the_file_comes_out_whole() {
        let content: Vec<u8> = (0..70).map(|i| i as u8 * 3).collect();
        let folder = tempfile::tempdir().unwrap();
        let (data, journal) = (folder.path().join("data"), folder.path().join(super::journal("data")));
        write(folder.path(), "a", &content, 70);
        let (all, lines) = (std::fs::read(&data).unwrap(), std::fs::read(&journal).unwrap());
        let mut resumed = 0;
        for kept in 0..=all.len() {
            for noted in (0..=lines.len()).step_by(37) {
                let spoilt = kept % 3 == 0 && kept > 0;
                let mut left = all[..kept].to_vec();
                left.iter_mut().skip(kept / 2).take(usize::from(spoilt)).for_each(|byte| *byte ^= 1);
                std::fs::write(&data, &left).unwrap();
                std::fs::write(&journal, &lines[..noted]).unwrap();
                let found = write(folder.path(), "a", &content, 70) as usize;
                assert!(found <= if spoilt { kept / 2 } else { kept }, "{found} of {kept}");
                assert_eq!(std::fs::read(&data).unwrap(), content, "{kept} bytes, {noted} of the journal");
                resumed += usize::from(found > 0);
            }
        }
        assert!(resumed > 300, "{resumed}");
        assert_eq!(write(folder.path(), "a", &content, 70), 70, "all of it is there");
        assert_eq!(write(folder.path(), "b", &content, 70), 0, "another build starts over");
    }

    #[test]
    fn a_folder_is_one_processs_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("partial");
        let held = claim(&folder, &["data"]).unwrap();
        assert!(held.is_some() && claim(&folder, &["data"]).unwrap().is_none());
        ["data", "other"].iter().for_each(|name| std::fs::write(folder.join(name), "x").unwrap());
        drop(held);
        assert!(claim(&folder, &["data"]).unwrap().is_some());
        assert!(folder.join("data").exists() && !folder.join("other").exists());
    }
}
