//! LoRA adapters as PEFT saves them: `adapter_config.json` with `adapter_model.safetensors` or `adapter_model.bin`.
//!
//! A build adds an adapter to the weights as they are read, so that the bundle holds the merged model. The adapter's
//! matrices stay in memory meanwhile. [`settings`] says what is understood; [`low_rank`] has the arithmetic.

mod error;
mod low_rank;
mod settings;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub use error::AdapterError;
pub(crate) use low_rank::LowRank;

use super::config::Config;
use super::folder::Folder;
use super::weights::Weights;
use crate::error::BuildError;
use low_rank::{Matrix, Pair};
use settings::Settings;

/// The file that says what an adapter is.
const CONFIG: &str = "adapter_config.json";

/// The files that may hold an adapter's matrices.
const FILES: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// Most elements of all matrices of an adapter, which are in memory during a build: 4 GiB.
const ELEMENTS_LIMIT: u64 = 1 << 30;

/// Adds the adapter in a folder to a checkpoint's weights.
///
/// # Errors
/// An [`AdapterError`] for an adapter that isn't understood or doesn't fit, and the errors of broken files.
pub(crate) fn add(weights: &mut Weights, folder: &Path) -> Result<(), BuildError> {
    let folder = Folder::open(folder)?;
    let Some(json) = folder.read(CONFIG)? else {
        return Err(AdapterError::Missing { folder: folder.path().to_owned(), file: CONFIG }.into());
    };
    let settings = Settings::read(&Config::parse(CONFIG, &json)?, &json)?;
    let name = FILES.into_iter().find(|name| folder.join(name).exists());
    let name = name.ok_or_else(|| AdapterError::Missing { folder: folder.path().to_owned(), file: FILES[0] })?;
    let matrices = Weights::open_files(&folder, vec![name.to_owned()])?;
    weights.depend_on(matrices.identity()?);
    for (module, pair) in pairs(&matrices)? {
        let target = weights.module_weight(&module).ok_or_else(|| AdapterError::NoTarget(module.clone()))?;
        let shape = weights.shape(&target).unwrap_or_default();
        let scale = settings.scale(&module, pair.rank());
        let addition = LowRank::new(&pair, &shape, settings.fan_in_fan_out, scale);
        let addition = addition.ok_or_else(|| AdapterError::Shape { module, pair: pair.shapes(), shape })?;
        weights.adapt(target, Arc::new(addition));
    }
    Ok(())
}

/// The two matrices of each module, by the module's name in the model.
fn pairs(matrices: &Weights) -> Result<BTreeMap<String, Pair>, BuildError> {
    let total: u64 = matrices.shapes().map(|(_, shape)| shape.iter().product::<u64>()).sum();
    if total > ELEMENTS_LIMIT {
        return Err(AdapterError::TooLarge(total).into());
    }
    let mut found: BTreeMap<String, [Option<Matrix>; 2]> = BTreeMap::new();
    for (tensor, shape) in matrices.shapes() {
        let unknown = || AdapterError::Tensor(tensor.to_owned());
        let name = tensor.strip_prefix("base_model.model.").ok_or_else(unknown)?;
        let parts = [".lora_A.weight", ".lora_B.weight"].map(|suffix| name.strip_suffix(suffix));
        let (module, side) = match parts {
            [Some(module), _] => (module, 0),
            [_, Some(module)] => (module, 1),
            _ => return Err(unknown().into()),
        };
        let &[rows, columns] = shape else { return Err(unknown().into()) };
        let stored = matrices.tensor(tensor, shape)?;
        let mut values = Vec::with_capacity(usize::try_from(stored.elements).unwrap_or(0));
        matrices.read(&stored, stored.elements, |_, piece| {
            values.extend_from_slice(piece);
            Ok::<_, BuildError>(())
        })?;
        found.entry(module.to_owned()).or_default()[side] = Some(Matrix { rows, columns, values });
    }
    if found.is_empty() {
        return Err(AdapterError::Empty.into());
    }
    let pair = |(module, sides): (String, [Option<Matrix>; 2])| match sides {
        [Some(a), Some(b)] if a.rows == b.columns => Ok((module, Pair { a, b })),
        _ => Err(AdapterError::Half(module).into()),
    };
    found.into_iter().map(pair).collect()
}
