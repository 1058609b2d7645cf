//! The functions and classes that a list of tensors names, and what they make of their arguments.
//!
//! This is the whole list: nothing else that a pickle names exists here.

use safetensors::Dtype;

use super::error::TorchError;
use super::values::{Heap, Storage, TensorValue, Value};

/// Most dimensions of a tensor.
const DIMENSIONS_LIMIT: usize = 16;

/// A function or class that a pickle may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch._utils._rebuild_tensor`, of before PyTorch 0.4, and `_rebuild_tensor_v2`: a view of a storage.
    Tensor,
    /// `torch._utils._rebuild_parameter`: a tensor that is trained.
    Parameter,
    /// `torch.FloatStorage` and the like.
    Storage(Dtype),
}

impl Global {
    /// What a pickle means by a name.
    pub(super) fn named(module: &str, name: &str) -> Result<Self, TorchError> {
        let storage = |dtype| Ok(Global::Storage(dtype));
        match (module, name) {
            ("collections", "OrderedDict") => Ok(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Ok(Global::Tensor),
            ("torch._utils", "_rebuild_parameter") => Ok(Global::Parameter),
            ("torch", "FloatStorage") => storage(Dtype::F32),
            ("torch", "HalfStorage") => storage(Dtype::F16),
            ("torch", "BFloat16Storage") => storage(Dtype::BF16),
            ("torch", "DoubleStorage") => storage(Dtype::F64),
            ("torch", "LongStorage") => storage(Dtype::I64),
            ("torch", "IntStorage") => storage(Dtype::I32),
            ("torch", "ShortStorage") => storage(Dtype::I16),
            ("torch", "CharStorage") => storage(Dtype::I8),
            ("torch", "ByteStorage") => storage(Dtype::U8),
            ("torch", "BoolStorage") => storage(Dtype::BOOL),
            _ => Err(TorchError::Global { module: shortened(module), name: shortened(name) }),
        }
    }

    /// The value of a call, or what is wrong with it.
    pub(super) fn call(self, arguments: &[Value], heap: &mut Heap) -> Result<Value, &'static str> {
        match (self, arguments) {
            (Global::OrderedDict, []) => Ok(heap.new_dict()),
            (Global::Tensor, [storage, offset, shape, strides, ..]) if arguments.len() <= 7 => {
                let view = view([storage, offset, shape, strides], heap)?;
                Ok(heap.new_tensor(view))
            }
            (Global::Parameter, [tensor @ Value::Tensor(_), _, _]) => Ok(tensor.clone()),
            (Global::Storage(_), _) => Err("a storage is called, and storages come from the file"),
            _ => Err("a function gets other arguments than PyTorch gives it"),
        }
    }
}

/// The storage that a persistent id names: `('storage', class, key, device, elements)`, with a sixth element in the
/// format before PyTorch 1.6, which is `None` unless the storage is a view of another.
pub(super) fn storage(id: &[Value]) -> Result<Storage, &'static str> {
    let [
        Value::Text(kind),
        Value::Global(Global::Storage(dtype)),
        Value::Text(key),
        Value::Text(_),
        elements,
        rest @ ..,
    ] = id
    else {
        return Err("a persistent id is not of the form ('storage', class, key, device, elements)");
    };
    if &**kind != "storage" || !matches!(rest, [] | [Value::None]) {
        return Err("a persistent id names no storage, or a view of one");
    }
    let plain = !key.is_empty() && key.len() <= 64 && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !plain {
        return Err("the key of a storage should be a number or a word");
    }
    Ok(Storage { key: key.clone(), dtype: *dtype, elements: size(elements)? })
}

/// A view of a storage, if it lies within it.
fn view([storage, offset, shape, strides]: [&Value; 4], heap: &Heap) -> Result<TensorValue, &'static str> {
    let Value::Storage(storage) = *storage else { return Err("a tensor is not a view of a storage") };
    let (offset, shape, strides) = (size(offset)?, sizes(shape, heap)?, sizes(strides, heap)?);
    if shape.len() != strides.len() || shape.len() > DIMENSIONS_LIMIT {
        return Err("a tensor should have a stride for each dimension, and at most 16 dimensions");
    }
    let all = heap.storage(storage).elements;
    let beyond = "a tensor reaches beyond its storage";
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size)).ok_or(beyond)?;
    if elements > all {
        // Which also excludes tensors that repeat elements, and would be larger than the file.
        return Err("a tensor has more elements than its storage");
    }
    if elements > 0 {
        let reach = shape
            .iter()
            .zip(&strides)
            .try_fold(offset, |reach, (size, stride)| reach.checked_add((size - 1).checked_mul(*stride)?));
        reach.filter(|last| *last < all).ok_or(beyond)?;
    } else if offset > all {
        return Err(beyond);
    }
    Ok(TensorValue { storage, offset, shape, strides })
}

fn size(value: &Value) -> Result<u64, &'static str> {
    let Value::Int(size) = value else { return Err("a size should be a whole number") };
    u64::try_from(*size).map_err(|_| "a size should not be negative")
}

fn sizes(value: &Value, heap: &Heap) -> Result<Vec<u64>, &'static str> {
    let Value::Sequence(items) = value else { return Err("a shape should be a tuple of whole numbers") };
    heap.sequence(*items).iter().map(size).collect()
}

/// A name as an error shows it.
fn shortened(name: &str) -> String {
    name.chars().take(60).flat_map(char::escape_debug).collect()
}
