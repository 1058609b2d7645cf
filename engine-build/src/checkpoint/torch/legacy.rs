//! The format of `torch.save` before PyTorch 1.6, in which many published models are: five pickles one behind the
//! other, and then the storages, each behind its number of elements.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::error::TorchError;
use super::values::{Heap, Value};
use super::{PICKLE_LIMIT_BYTES, Place, TorchTensor, run, tensors};

/// The first pickle: a number that stands for the format, of more bits than others here.
pub(super) const MAGIC: [u8; 15] =
    [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];

/// The second pickle: the format's version.
const VERSION: i64 = 1001;

/// Lists the tensors of a file.
pub(super) fn read(file: &File, file_bytes: u64) -> Result<Vec<TorchTensor>, TorchError> {
    let mut start = vec![0; usize::try_from(file_bytes.min(PICKLE_LIMIT_BYTES)).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut start, 0)?;
    let mut heap = Heap::default();
    let mut at = MAGIC.len();
    let mut next = || -> Result<(Value, usize), TorchError> {
        let (value, bytes) = run(&start[at..], &mut heap)?;
        at += bytes;
        Ok((value, at))
    };
    let (version, _) = next()?;
    if !matches!(version, Value::Int(VERSION)) {
        return Err(TorchError::Broken { what: "its version is not 1001", at });
    }
    let (machine, _) = next()?;
    let (state, _) = next()?;
    let (keys, end) = next()?;
    if is_big_endian(&machine, &heap) {
        return Err(TorchError::BigEndian);
    }
    let Value::Sequence(keys) = keys else {
        return Err(TorchError::Broken { what: "the keys of its storages are no list", at: end });
    };
    let mut places = HashMap::new();
    let mut position = end as u64;
    for key in heap.sequence(keys) {
        let Value::Text(key) = key else {
            return Err(TorchError::Broken { what: "the key of a storage is no text", at: end });
        };
        let missing = || TorchError::StorageMissing(key.escape_debug().take(60).collect());
        let storage = heap.storage_of(key).ok_or_else(missing)?;
        let mut elements = [0; 8];
        file.read_exact_at(&mut elements, position)?;
        let bytes = storage.bytes().filter(|_| u64::from_le_bytes(elements) == storage.elements);
        let offset_bytes = position + elements.len() as u64;
        let end = bytes.and_then(|bytes| offset_bytes.checked_add(bytes)).filter(|end| *end <= file_bytes);
        let Some(end) = end else {
            return Err(TorchError::StorageShort { key: key.to_string(), bytes: file_bytes.saturating_sub(position) });
        };
        places.insert(&**key, Place { offset_bytes, bytes: end - offset_bytes });
        position = end;
    }
    tensors(&state, &heap, &places)
}

/// What the third pickle says about the machine that wrote the file.
fn is_big_endian(machine: &Value, heap: &Heap) -> bool {
    let Value::Dict(machine) = machine else { return false };
    heap.dict(*machine).iter().any(
        |(name, value)| matches!((name, value), (Value::Text(name), Value::Bool(false)) if &**name == "little_endian"),
    )
}
