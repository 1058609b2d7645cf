//! Files that begin with a checksum of the rest: what is cut off or written over is as good as absent.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::PlanError;

const SUM_BYTES: usize = 32;

/// The content of a file that [`write_sealed`] wrote; `None` if there is none, or a damaged one.
pub fn read_sealed(path: &Path) -> Option<Vec<u8>> {
    let mut content = fs::read(path).ok().filter(|bytes| bytes.len() >= SUM_BYTES)?;
    let sum: Vec<u8> = content.drain(..SUM_BYTES).collect();
    (Sha256::digest(&content).as_slice() == sum).then_some(content)
}

/// Writes a file and its folder; it appears whole or not at all.
///
/// # Errors
/// The folder or the file can't be written.
pub fn write_sealed(path: &Path, content: &[u8]) -> Result<(), PlanError> {
    let sum = Sha256::digest(content);
    let io = |source| PlanError::Io { path: path.to_owned(), source };
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(io)?;
    write_whole(path, &[sum.as_slice(), content]).map_err(io)
}

/// Writes a file of several pieces beside its place, and moves it there.
pub(super) fn write_whole(path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
    // Readable as the bundle's other files are: temporary files are their owner's alone unless this is said.
    let readable = fs::Permissions::from_mode(0o666);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut partial = tempfile::Builder::new().permissions(readable).tempfile_in(folder)?;
    pieces.iter().try_for_each(|piece| partial.write_all(piece)).and_then(|()| partial.as_file().sync_all())?;
    partial.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_absent() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/kernels.bin");
        assert_eq!(read_sealed(&path), None);
        for content in [&b""[..], b"compiled"] {
            write_sealed(&path, content).expect("written");
            assert_eq!(read_sealed(&path).as_deref(), Some(content));
        }
        let whole = fs::read(&path).expect("read");
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).expect("written");
            assert_eq!(read_sealed(&path), None, "{end}");
            let mut changed = whole.clone();
            changed[end] ^= 1;
            fs::write(&path, changed).expect("written");
            assert_eq!(read_sealed(&path), None, "{end}");
        }
    }
}
