//! The input and output tensors of an engine of a bundle's graph. Addresses are set by name, for these types.

use bundle::manifest::{Dtype, ModelInfo};
use engine_build::plan::Part;
use tensorrt::{DataType, Engine, IoTensor};

use super::LoadError;
use crate::readings::SLOTS;

/// A tensor's name, whether it goes in, and its type.
type Expected = (String, bool, DataType);

fn tensor(name: &str, is_input: bool, data_type: DataType) -> Expected {
    (name.to_owned(), is_input, data_type)
}

/// Whether the engine is told how much of the caches attention reads.
pub(super) fn has_slots(engine: &Engine) -> bool {
    engine.tensors().iter().any(|tensor| tensor.name == SLOTS)
}

fn decoder(model: &ModelInfo, cache: DataType, has_slots: bool) -> Vec<Expected> {
    let mut expected = vec![
        tensor("input_ids", true, DataType::I64),
        tensor("past_len", true, DataType::I64),
        tensor("select", true, DataType::I64),
        tensor("logits", false, DataType::F32),
        tensor("topv", false, DataType::F32),
        tensor("topi", false, DataType::I64),
        tensor("lse", false, DataType::F32),
    ];
    for (kv, layer) in pairs(model) {
        expected.push((format!("past_{kv}_{layer}"), true, cache));
        expected.push((format!("present_{kv}_{layer}"), false, cache));
    }
    if has_slots {
        expected.push(tensor(SLOTS, true, DataType::I64));
    }
    if model.source.is_some() {
        expected.push(tensor("source_len", true, DataType::I64));
        expected.extend(pairs(model).map(|(kv, layer)| (format!("cross_{kv}_{layer}"), true, cache)));
    }
    expected
}

fn encoder(model: &ModelInfo, cache: DataType) -> Vec<Expected> {
    let mut expected = vec![tensor("input_ids", true, DataType::I64)];
    expected.extend(pairs(model).map(|(kv, layer)| (format!("cross_{kv}_{layer}"), false, cache)));
    expected
}

/// Keys and values of every layer of the decoder.
fn pairs(model: &ModelInfo) -> impl Iterator<Item = (char, u32)> {
    (0..model.layers).flat_map(|layer| [('k', layer), ('v', layer)])
}

/// Compares what the engine takes and gives with the bundle's graph.
///
/// # Errors
/// [`LoadError::Tensor`].
pub(super) fn check_tensors(engine: &Engine, part: Part, model: &ModelInfo) -> Result<(), LoadError> {
    let cache = if model.dtype == Dtype::F16 { DataType::F16 } else { DataType::F32 };
    let expected = match part {
        Part::Decoder => decoder(model, cache, has_slots(engine)),
        Part::Encoder => encoder(model, cache),
    };
    let tensors = engine.tensors();
    for (name, is_input, data_type) in &expected {
        let wrong = |what: &str| Err(LoadError::Tensor(format!("tensor {name} {what}")));
        let Some(tensor) = tensors.iter().find(|tensor| tensor.name == *name) else { return wrong("is missing") };
        if tensor.is_input != *is_input || tensor.data_type != *data_type || tensor.on_host {
            return wrong(&format!("is {tensor:?}, where {data_type:?} in device memory is expected"));
        }
        if !is_in_place(tensor) {
            return wrong("is not updated in place");
        }
    }
    match tensors.iter().find(|tensor| expected.iter().all(|(name, ..)| *name != tensor.name)) {
        Some(other) => Err(LoadError::Tensor(format!("tensor {} is not the graph's", other.name))),
        None => Ok(()),
    }
}

/// A cache's present is its past, as far as the engine says.
fn is_in_place(tensor: &IoTensor) -> bool {
    let past = tensor.name.strip_prefix("present_").map(|cache| format!("past_{cache}"));
    tensor.alias_of.is_none() || tensor.alias_of == past
}
