//! The weights of a checkpoint: the tensors of all shards, and their values in pieces.
//!
//! Data is read in pieces by positioned reads. Memory therefore does not grow with the model, and a file that shrinks
//! during the read gives an error instead of a fault. This file does not know what a tensor is for.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use safetensors::Dtype;
use serde::Deserialize;

use super::adapter::LowRank;
use super::error::WeightsError;
use super::factors::{Axis, Factors};
use super::folder::{FileError, Folder};
use super::header::read_header;
use super::torch::{TorchTensor, read_tensors};

/// The files that may hold the weights, each as a whole and as an index of shards, in the order in which transformers
/// looks for them.
const FILES: [(&str, &str); 2] =
    [("model.safetensors", "model.safetensors.index.json"), ("pytorch_model.bin", "pytorch_model.bin.index.json")];

/// Elements per piece: 1 MiB of f32, small enough to stay in cache between the steps.
const PIECE_ELEMENTS: usize = 256 << 10;

/// How a checkpoint stores a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    F32,
    F16,
    Bf16,
}

impl Stored {
    fn bytes(self) -> usize {
        match self {
            Stored::F32 => 4,
            Stored::F16 | Stored::Bf16 => 2,
        }
    }

    /// The name that safetensors uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stored::F32 => "F32",
            Stored::F16 => "F16",
            Stored::Bf16 => "BF16",
        }
    }
}

/// One tensor of a checkpoint: what it is and where its bytes are.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) stored: Stored,
    pub(crate) elements: u64,
    shard: usize,
    /// Of the first element.
    offset_bytes: u64,
    /// Elements of the stored tensor before the first.
    skipped: u64,
    /// What an adapter adds.
    added: Option<Arc<LowRank>>,
    /// What its elements are multiplied with.
    factors: Option<Arc<Factors>>,
}

impl Tensor {
    /// The tensor without its first `elements`.
    pub(crate) fn without_first(&self, elements: u64) -> Self {
        let skipped = elements.min(self.elements);
        Self {
            elements: self.elements - skipped,
            offset_bytes: self.offset_bytes + skipped * self.stored.bytes() as u64,
            skipped: self.skipped + skipped,
            ..self.clone()
        }
    }
}

/// A tensor as a header lists it, before its type is known to be supported.
#[derive(Clone, Debug)]
struct Entry {
    /// The name in the checkpoint.
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    shard: usize,
    offset_bytes: u64,
    added: Option<Arc<LowRank>>,
    factors: Option<Arc<Factors>>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    file: File,
    /// Whether the file holds copies of another shard's tensors.
    copies: bool,
}

/// All tensors of all shards.
#[derive(Debug)]
pub(crate) struct Weights {
    shards: Vec<Shard>,
    entries: HashMap<String, Entry>,
    /// Names the files of adapters.
    others: String,
}

impl Weights {
    /// Opens every shard and reads every header; no tensor data.
    pub(crate) fn open(folder: &Folder) -> Result<Self, WeightsError> {
        Self::open_files(folder, shard_names(folder)?)
    }

    /// Opens the files of these names.
    pub(crate) fn open_files(folder: &Folder, names: Vec<String>) -> Result<Self, WeightsError> {
        let mut weights = Self { shards: Vec::new(), entries: HashMap::new(), others: String::new() };
        for name in names {
            weights.add_shard(folder, name)?;
        }
        Ok(weights)
    }

    /// Names the files as they are now: one that is written again has another time.
    pub(crate) fn identity(&self) -> Result<String, FileError> {
        let name = |shard: &Shard| {
            let broken = |source| FileError::Io { path: PathBuf::from(&shard.name), source };
            let found = shard.file.metadata().map_err(broken)?;
            let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
            Ok(format!("{} {} {times:?}\n", shard.name, found.len()))
        };
        let own: String = self.shards.iter().filter(|shard| !shard.copies).map(name).collect::<Result<_, _>>()?;
        Ok(own + &self.others)
    }

    /// Adds other files to the identity.
    pub(crate) fn depend_on(&mut self, files: String) {
        self.others.push_str(&files);
    }

    /// The weight of a module: the tensor of its name, also where the checkpoint leaves out or adds the name of the
    /// part that all layers are in.
    pub(crate) fn module_weight(&self, module: &str) -> Option<String> {
        let full = format!("{module}.weight");
        if self.contains(&full) {
            return Some(full);
        }
        let shorter = full.split_once('.').map(|(_, rest)| rest).filter(|name| self.contains(name));
        let mut longer = self.entries.keys().filter(|name| name.split_once('.').is_some_and(|(_, rest)| rest == full));
        shorter.map(str::to_owned).or_else(|| longer.next().cloned())
    }

    pub(crate) fn shape(&self, name: &str) -> Option<Vec<u64>> {
        self.entries.get(name).map(|entry| entry.shape.clone())
    }

    /// Adds to a tensor wherever it is read.
    pub(crate) fn adapt(&mut self, name: String, added: Arc<LowRank>) {
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.added = Some(added);
        }
    }

    /// A tensor by a second name. Factors of one are not the other's.
    pub(crate) fn alias(&mut self, name: &str, alias: &str) {
        if let Some(entry) = self.entries.get(name).cloned() {
            self.entries.insert(alias.to_owned(), entry);
        }
    }

    /// Multiplies the rows or columns of a tensor wherever it is read.
    pub(crate) fn scale(&mut self, name: &str, axis: Axis, by: &[f32]) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let factors = entry.factors.as_deref().cloned().or_else(|| Factors::ones(&entry.shape));
        entry.factors = factors.map(|mut factors| {
            factors.multiply(axis, by);
            Arc::new(factors)
        });
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The names and shapes of all tensors.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&str, &[u64])> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry.shape.as_slice()))
    }

    /// The tensor of that name, if it has that shape and a supported type.
    pub(crate) fn tensor(&self, name: &str, shape: &[u64]) -> Result<Tensor, WeightsError> {
        let entry = self.entries.get(name).ok_or_else(|| WeightsError::TensorMissing(name.into()))?;
        let stored = match entry.dtype {
            Dtype::F32 => Stored::F32,
            Dtype::F16 => Stored::F16,
            Dtype::BF16 => Stored::Bf16,
            other => return Err(WeightsError::Dtype { tensor: name.into(), found: format!("{other:?}") }),
        };
        if entry.shape != shape {
            let (found, expected) = (entry.shape.clone(), shape.to_vec());
            return Err(WeightsError::Shape { tensor: name.into(), found, expected });
        }
        Ok(Tensor {
            name: entry.name.clone(),
            stored,
            elements: shape.iter().product(),
            shard: entry.shard,
            offset_bytes: entry.offset_bytes,
            skipped: 0,
            added: entry.added.clone(),
            factors: entry.factors.clone(),
        })
    }

    /// Hands the first `elements` values of a tensor to `each`, in order and in pieces, together with the index of the
    /// piece's first element. Fails on a value that is not finite.
    pub(crate) fn read<E: From<WeightsError>>(
        &self,
        tensor: &Tensor,
        elements: u64,
        mut each: impl FnMut(u64, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = elements.min(tensor.elements);
        let mut raw = Vec::new();
        let mut values = vec![0.0; PIECE_ELEMENTS];
        let mut start = 0;
        while start < end {
            let count = usize::try_from(end - start).unwrap_or(usize::MAX).min(PIECE_ELEMENTS);
            self.read_slice(tensor, start, &mut values[..count], &mut raw)?;
            each(start, &values[..count])?;
            start += count as u64;
        }
        Ok(())
    }

    /// Fills `values` with a tensor's elements from `start` on; `raw` is memory to use again. Fails on a value that is
    /// not finite.
    pub(crate) fn read_slice(
        &self,
        tensor: &Tensor,
        start: u64,
        values: &mut [f32],
        raw: &mut Vec<u8>,
    ) -> Result<(), WeightsError> {
        let shard = &self.shards[tensor.shard];
        let width = tensor.stored.bytes();
        raw.resize(values.len() * width, 0);
        shard
            .file
            .read_exact_at(raw, tensor.offset_bytes + start * width as u64)
            .map_err(|source| WeightsError::File(FileError::Io { path: PathBuf::from(&shard.name), source }))?;
        decode(tensor.stored, raw, values);
        if let Some(added) = &tensor.added {
            added.add_to(tensor.skipped + start, values);
        }
        if let Some(factors) = &tensor.factors {
            factors.apply(tensor.skipped + start, values);
        }
        require_finite(tensor, start, values)
    }

    fn add_shard(&mut self, folder: &Folder, name: String) -> Result<(), WeightsError> {
        let (mut file, bytes) = folder.file(&name)?.ok_or_else(|| WeightsError::ShardMissing(name.clone()))?;
        if !name.ends_with(".safetensors") {
            return self.add_torch(name, file, bytes);
        }
        let header = read_header(&name, &mut file, bytes)?;
        let shard = self.shards.len();
        self.shards.push(Shard { name, file, copies: false });
        for (tensor, info) in header.metadata.tensors() {
            let entry = Entry {
                name: tensor.clone(),
                dtype: info.dtype,
                shape: info.shape.iter().map(|&size| size as u64).collect(),
                shard,
                offset_bytes: header.data_start + info.data_offsets.0 as u64,
                added: None,
                factors: None,
            };
            self.add(entry)?;
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry) -> Result<(), WeightsError> {
        let (tensor, second) = (entry.name.clone(), self.shards[entry.shard].name.clone());
        match self.entries.insert(tensor.clone(), entry) {
            Some(other) => {
                Err(WeightsError::Duplicate { tensor, first: self.shards[other.shard].name.clone(), second })
            }
            None => Ok(()),
        }
    }

    /// Adds the tensors of a file of `torch.save`, and copies of those that aren't stored row by row.
    fn add_torch(&mut self, name: String, file: File, bytes: u64) -> Result<(), WeightsError> {
        let tensors =
            read_tensors(&file, bytes).map_err(|source| WeightsError::Torch { file: name.clone(), source })?;
        let shard = self.shards.len();
        let copies = copy_strided(&file, bytes, &tensors)?;
        self.shards.push(Shard { name: name.clone(), file, copies: false });
        let (copies, mut offsets) = copies.map_or((None, Vec::new()), |(copies, offsets)| (Some(copies), offsets));
        self.shards.extend(copies.map(|file| Shard { name, file, copies: true }));
        offsets.reverse();
        for TorchTensor { name, dtype, shape, offset_bytes, strided } in tensors {
            let copied = strided.and_then(|_| offsets.pop());
            let (shard, offset_bytes) = copied.map_or((shard, offset_bytes), |offset| (shard + 1, offset));
            self.add(Entry { name, dtype, shape, shard, offset_bytes, added: None, factors: None })?;
        }
        Ok(())
    }
}

/// Copies the tensors that aren't stored row by row into a temporary file, and says where each begins in it.
fn copy_strided(
    from: &File,
    from_bytes: u64,
    tensors: &[TorchTensor],
) -> Result<Option<(File, Vec<u64>)>, WeightsError> {
    let mut copies = None;
    let mut end = 0;
    for tensor in tensors {
        let Some(strided) = &tensor.strided else { continue };
        let failed = |source| WeightsError::Order { tensor: tensor.name.clone(), source };
        if copies.is_none() {
            copies = Some((tempfile::tempfile().map_err(failed)?, Vec::new()));
        }
        let Some((to, offsets)) = &mut copies else { continue };
        offsets.push(end);
        let width = tensor.dtype.bitsize() / 8;
        end += strided.elements() * width as u64;
        // Any number of tensors may be views of one storage.
        if end > from_bytes {
            return Err(failed(io::Error::other("together such tensors are larger than the file")));
        }
        strided.copy(from, tensor.offset_bytes, width, to).map_err(failed)?;
    }
    Ok(copies)
}

/// The files that hold the weights.
fn shard_names(folder: &Folder) -> Result<Vec<String>, WeightsError> {
    for (single, index) in FILES {
        if folder.file(single)?.is_some() {
            return Ok(vec![single.to_owned()]);
        }
        if let Some(json) = folder.read(index)? {
            return index_shards(index, &json);
        }
    }
    // Shards without their index. A file that ends in .bin may be anything.
    let names = folder.names_ending(".safetensors")?;
    if !names.is_empty() {
        return Ok(names);
    }
    for suffix in [".bin", ".h5", ".msgpack", ".pt", ".pth", ".ckpt"] {
        if let Some(file) = folder.names_ending(suffix)?.into_iter().next() {
            return Err(WeightsError::OtherFormat { file });
        }
    }
    Err(WeightsError::Missing(folder.path().to_owned()))
}

/// The shards that an index names, each a file of the same folder.
pub(crate) fn index_shards(index: &'static str, json: &[u8]) -> Result<Vec<String>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let index: Index = serde_json::from_slice(json).map_err(|source| WeightsError::IndexJson { index, source })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    for name in &names {
        let mut components = Path::new(name).components();
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain {
            return Err(WeightsError::ShardPath(name.clone()));
        }
    }
    Ok(names.into_iter().collect())
}

/// Little-endian bytes to f32; `values` has one slot per element of `raw`.
fn decode(stored: Stored, raw: &[u8], values: &mut [f32]) {
    match stored {
        Stored::F32 => {
            for (value, bytes) in values.iter_mut().zip(raw.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Stored::F16 => {
            let halves: Vec<half::f16> =
                raw.as_chunks::<2>().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes)).collect();
            halves.convert_to_f32_slice(values);
        }
        Stored::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(raw.as_chunks::<2>().0) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
    }
}

fn require_finite(tensor: &Tensor, start: u64, values: &[f32]) -> Result<(), WeightsError> {
    // A fold without an early exit, so that the compiler vectorizes the test; the search runs only on failure.
    let all_finite = values.iter().fold(true, |finite, value| finite & value.is_finite());
    if all_finite {
        return Ok(());
    }
    let (at, value) = values.iter().enumerate().find(|(_, value)| !value.is_finite()).unwrap_or((0, &f32::NAN));
    Err(WeightsError::NotFinite { tensor: tensor.name.clone(), index: start + at as u64, value: *value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_decode_to_the_values_they_stand_for() {
        let mut values = [0.0; 3];
        let raw: Vec<u8> = [1.5f32, -2.0, 0.25].iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
        decode(Stored::F16, &raw, &mut values);
        assert_eq!(values, [1.5, -2.0, 0.25]);
        let raw: Vec<u8> = [1.5f32, -2.0, 0.25].iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        decode(Stored::Bf16, &raw, &mut values);
        assert_eq!(values, [1.5, -2.0, 0.25]);
    }

    #[test]
    fn shards_stay_in_the_folder() {
        let index = |name: &str| format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#).into_bytes();
        assert_eq!(index_shards("i", &index("a.safetensors")).expect("a plain name"), ["a.safetensors"]);
        for outside in ["../a", "/a", "a/../../b", "a/b", "", ".", ".."] {
            assert!(matches!(index_shards("i", &index(outside)), Err(WeightsError::ShardPath(_))), "{outside}");
        }
    }
}
