//! The values of a pickle: plain data, whose containers lie in one place and are named by their index.
//!
//! A container that contains itself is therefore possible and harmless, and freeing a deep one needs no recursion.

use std::collections::HashMap;
use std::rc::Rc;

use safetensors::Dtype;

use super::error::TorchError;
use super::globals::Global;

/// Most values that a pickle may make: about 100 MiB. A tensor makes about 30.
pub(super) const VALUES_LIMIT: usize = 2 << 20;

/// A value of a pickle. A copy of a container is the same container.
#[derive(Clone, Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(Rc<str>),
    /// A tuple or a list.
    Sequence(usize),
    Dict(usize),
    Global(Global),
    Storage(usize),
    Tensor(usize),
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// The kind of value, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) | Value::Int(_) | Value::Float => "a number",
            Value::Text(_) => "a text",
            Value::Sequence(_) => "a list",
            Value::Dict(_) => "a dictionary",
            Value::Global(_) => "a function or class",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

/// Numbers of one type that tensors are views of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    pub(super) key: Rc<str>,
    pub(super) dtype: Dtype,
    pub(super) elements: u64,
}

impl Storage {
    /// Bytes of an element.
    pub(super) fn width(&self) -> u64 {
        (self.dtype.bitsize() / 8) as u64
    }

    /// Bytes of all elements, unless that is beyond any file.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.elements.checked_mul(self.width())
    }
}

/// A view of a storage, checked to lie in it.
#[derive(Clone, Debug)]
pub(super) struct TensorValue {
    pub(super) storage: usize,
    /// Elements of the storage before the first.
    pub(super) offset: u64,
    pub(super) shape: Vec<u64>,
    /// Elements of the storage from one index to the next, for each dimension.
    pub(super) strides: Vec<u64>,
}

/// All containers of a file's pickles.
#[derive(Debug, Default)]
pub(super) struct Heap {
    sequences: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    storages: Vec<Storage>,
    by_key: HashMap<Rc<str>, usize>,
    tensors: Vec<TensorValue>,
    made: usize,
}

impl Heap {
    /// Counts a value that is made.
    pub(super) fn count(&mut self) -> Result<(), TorchError> {
        self.made += 1;
        if self.made > VALUES_LIMIT { Err(TorchError::Values) } else { Ok(()) }
    }

    pub(super) fn new_sequence(&mut self, items: Vec<Value>) -> Value {
        self.sequences.push(items);
        Value::Sequence(self.sequences.len() - 1)
    }

    pub(super) fn new_dict(&mut self) -> Value {
        self.dicts.push(Vec::new());
        Value::Dict(self.dicts.len() - 1)
    }

    pub(super) fn new_tensor(&mut self, tensor: TensorValue) -> Value {
        self.tensors.push(tensor);
        Value::Tensor(self.tensors.len() - 1)
    }

    /// The storage of a key, which is the same each time that the key is named.
    pub(super) fn new_storage(&mut self, storage: Storage) -> Result<Value, TorchError> {
        if let Some(&known) = self.by_key.get(&storage.key) {
            let same = self.storages[known] == storage;
            return if same {
                Ok(Value::Storage(known))
            } else {
                Err(TorchError::StorageTwice(storage.key.to_string()))
            };
        }
        self.by_key.insert(storage.key.clone(), self.storages.len());
        self.storages.push(storage);
        Ok(Value::Storage(self.storages.len() - 1))
    }

    pub(super) fn sequence(&self, index: usize) -> &[Value] {
        &self.sequences[index]
    }

    pub(super) fn sequence_mut(&mut self, index: usize) -> &mut Vec<Value> {
        &mut self.sequences[index]
    }

    pub(super) fn dict(&self, index: usize) -> &[(Value, Value)] {
        &self.dicts[index]
    }

    pub(super) fn dict_mut(&mut self, index: usize) -> &mut Vec<(Value, Value)> {
        &mut self.dicts[index]
    }

    pub(super) fn storage(&self, index: usize) -> &Storage {
        &self.storages[index]
    }

    pub(super) fn storage_of(&self, key: &str) -> Option<&Storage> {
        self.by_key.get(key).map(|&index| &self.storages[index])
    }

    pub(super) fn tensor(&self, index: usize) -> &TensorValue {
        &self.tensors[index]
    }
}
