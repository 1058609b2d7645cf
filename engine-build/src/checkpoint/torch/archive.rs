//! The archive that `torch.save` writes: `NAME/data.pkl` and a file `NAME/data/KEY` for each storage, uncompressed.
//!
//! The crate `zip` reads the directory; the storages are then read where they lie. Names are only compared: nothing is
//! unpacked.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};

use zip::{CompressionMethod, ZipArchive};

use super::error::TorchError;
use super::values::Heap;
use super::{PICKLE_LIMIT_BYTES, Place, TorchTensor, run, tensors};

/// The pickle's name in the archive's only folder.
const PICKLE: &str = "/data.pkl";

/// Entries of an archive; a model has one for each tensor.
const ENTRIES_LIMIT: usize = 1 << 17;

/// Lists the tensors of an archive.
pub(super) fn read(file: &File) -> Result<Vec<TorchTensor>, TorchError> {
    let mut archive = ZipArchive::new(BufReader::new(file))?;
    if archive.len() > ENTRIES_LIMIT || archive.has_duplicate_names() {
        return Err(TorchError::Entries("has more entries than a model, or two of one name"));
    }
    let mut places = HashMap::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index)?;
        let name = entry.name()?.into_owned();
        if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
            return Err(TorchError::Compressed(name.chars().take(60).flat_map(char::escape_debug).collect()));
        }
        let start = entry.data_start().ok_or(TorchError::Entries("has an entry without data"))?;
        let end = start.checked_add(entry.size()).filter(|_| entry.size() == entry.compressed_size());
        if end.is_none_or(|end| end > file_bytes(file)) {
            return Err(TorchError::Entries("has an entry that reaches beyond its end; download it again"));
        }
        places.insert(name, Place { offset_bytes: start, bytes: entry.size() });
    }
    let mut folders = places.keys().filter_map(|name| name.strip_suffix(PICKLE)).filter(|name| !name.contains('/'));
    let (Some(folder), None) = (folders.next().map(str::to_owned), folders.next()) else {
        return Err(TorchError::Entries("should have one folder with a file data.pkl: it is none of `torch.save`"));
    };
    if let Some(order) = content(&mut archive, &format!("{folder}/byteorder"), 16)?
        && order != b"little"
    {
        return Err(TorchError::BigEndian);
    }
    let pickle = content(&mut archive, &format!("{folder}{PICKLE}"), PICKLE_LIMIT_BYTES)?.unwrap_or_default();
    let mut heap = Heap::default();
    let (state, _) = run(&pickle, &mut heap)?;
    let storages = format!("{folder}/data/");
    let by_key = places.iter().filter_map(|(name, place)| Some((name.strip_prefix(&storages)?, *place)));
    tensors(&state, &heap, &by_key.collect())
}

/// The bytes of a small entry, checked by its checksum.
fn content(archive: &mut ZipArchive<BufReader<&File>>, name: &str, limit: u64) -> Result<Option<Vec<u8>>, TorchError> {
    let Some(index) = archive.index_for_name(name) else { return Ok(None) };
    let entry = archive.by_index(index)?;
    if entry.size() > limit {
        return Err(TorchError::PickleBytes(entry.size()));
    }
    let mut bytes = Vec::new();
    entry.take(limit).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn file_bytes(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}
