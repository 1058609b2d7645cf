//! Reading a Hugging Face checkpoint: `config.json` and the weights, as safetensors or as `torch.save` writes them.
//!
//! `families` interprets the fields and tensors; the tokenizer's files are in `tokenizer`.

pub(crate) mod adapter;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod factors;
pub(crate) mod folder;
pub(crate) mod header;
pub(crate) mod torch;
pub(crate) mod transpose;
pub(crate) mod weights;

pub(crate) use config::Config;
pub(crate) use factors::Axis;
pub(crate) use folder::Folder;
pub(crate) use transpose::{Interleaved, Stacked};
pub(crate) use weights::{Tensor, Weights};

use std::path::Path;

use config::ConfigError;

use crate::error::BuildError;

/// Reads every value of every tensor in a checkpoint's weights, as a build would, and counts them.
///
/// # Errors
/// As of a build: a broken file, a tensor of a type that isn't supported, or a value that is no number.
pub fn check_weights(checkpoint: &Path) -> Result<u64, BuildError> {
    let weights = Weights::open(&Folder::open(checkpoint)?)?;
    let mut values = 0;
    for (name, shape) in weights.shapes() {
        let tensor = weights.tensor(name, shape)?;
        weights.read(&tensor, tensor.elements, |_, piece| {
            values += piece.len() as u64;
            Ok::<_, BuildError>(())
        })?;
    }
    Ok(values)
}

/// The two configuration files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Configs {
    pub(crate) model: Config,
    /// `generation_config.json`, or empty.
    pub(crate) generation: Config,
}

impl Configs {
    pub(crate) fn read(folder: &Folder) -> Result<Self, BuildError> {
        let Some(model) = folder.read("config.json")? else {
            return Err(ConfigError::Missing(folder.path().to_owned()).into());
        };
        let generation = folder.read("generation_config.json")?;
        Ok(Self {
            model: Config::parse("config.json", &model)?,
            generation: generation
                .map(|bytes| Config::parse("generation_config.json", &bytes))
                .transpose()?
                .unwrap_or_default(),
        })
    }
}
