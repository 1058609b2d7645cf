//! Weights as `torch.save` writes them: `pytorch_model.bin`, as an archive or in the format before PyTorch 1.6.
//!
//! - [`machine`]: the pickle that lists the tensors, read without executing anything; [`globals`]: what it may name.
//! - [`archive`], [`legacy`]: where the storages' bytes are.
//! - [`strided`]: tensors that aren't stored row by row.
//!
//! A pickle is a program, and Python runs it. Here it is data: a stack of plain values, four constructors that PyTorch
//! needs, and a sentence for everything else. No tensor data is read but that of tensors that are stored transposed.

mod archive;
mod error;
mod globals;
mod legacy;
mod machine;
mod strided;
mod values;

#[cfg(test)]
mod malicious;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use safetensors::Dtype;

pub use error::TorchError;
pub(crate) use strided::Strided;

use machine::Machine;
use values::{Heap, Value};

/// Longest pickle of a weights file; that of a model of 10,000 tensors has about 2 MB.
const PICKLE_LIMIT_BYTES: u64 = 16 << 20;

/// Most tensors of a weights file, and most bytes of a tensor's name.
const TENSORS_LIMIT: usize = 1 << 16;
const NAME_LIMIT_BYTES: usize = 512;

/// A tensor of a weights file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TorchTensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    /// Offset of the first element in the file, in bytes.
    pub(crate) offset_bytes: u64,
    /// How the elements lie, where that isn't row by row.
    pub(crate) strided: Option<Strided>,
}

/// Where a storage's bytes are in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset_bytes: u64,
    bytes: u64,
}

/// Lists the tensors of `file`, which has `file_bytes` bytes.
pub(crate) fn read_tensors(file: &File, file_bytes: u64) -> Result<Vec<TorchTensor>, TorchError> {
    let mut start = [0; legacy::MAGIC.len()];
    let known = usize::try_from(file_bytes).map_or(start.len(), |bytes| bytes.min(start.len()));
    file.read_exact_at(&mut start[..known], 0)?;
    if start.starts_with(b"PK") {
        return archive::read(file);
    }
    if start == legacy::MAGIC {
        return legacy::read(file, file_bytes);
    }
    Err(TorchError::Format)
}

/// The tensors of a state, whose storages lie at `places`.
fn tensors(state: &Value, heap: &Heap, places: &HashMap<&str, Place>) -> Result<Vec<TorchTensor>, TorchError> {
    let Value::Dict(state) = state else { return Err(TorchError::NoState(state.kind())) };
    let mut tensors = Vec::new();
    if heap.dict(*state).len() > TENSORS_LIMIT {
        return Err(TorchError::Values);
    }
    for (name, value) in heap.dict(*state) {
        let is_name = |name: &&str| name.len() <= NAME_LIMIT_BYTES && !name.contains(char::is_control);
        let Some(name) = name.text().filter(is_name) else {
            return Err(TorchError::NoState("a dictionary whose keys are no names"));
        };
        let Value::Tensor(tensor) = value else {
            return Err(TorchError::NoTensor { name: name.to_string(), found: value.kind() });
        };
        let tensor = heap.tensor(*tensor);
        let storage = heap.storage(tensor.storage);
        let place = places.get(&*storage.key).ok_or_else(|| TorchError::StorageMissing(storage.key.to_string()))?;
        let needed = storage.bytes().filter(|needed| *needed <= place.bytes);
        if needed.is_none() {
            return Err(TorchError::StorageShort { key: storage.key.to_string(), bytes: place.bytes });
        }
        tensors.push(TorchTensor {
            name: name.to_string(),
            dtype: storage.dtype,
            shape: tensor.shape.clone(),
            // Within the storage, as the machine has checked: this can't overflow.
            offset_bytes: place.offset_bytes + tensor.offset * storage.width(),
            strided: Strided::of(&tensor.shape, &tensor.strides),
        });
    }
    Ok(tensors)
}

/// Runs one pickle, and says how many bytes it has.
fn run<'a>(pickle: &'a [u8], heap: &'a mut Heap) -> Result<(Value, usize), TorchError> {
    Machine::new(pickle, heap).run()
}
