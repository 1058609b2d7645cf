//! Reading a Hugging Face checkpoint: `config.json` and the safetensors weights.
//!
//! What a family makes of the fields and tensors is in `families`; the tokenizer's files are in `tokenizer`.

pub(crate) mod config;
pub(crate) mod folder;
pub(crate) mod header;
pub(crate) mod weights;

pub(crate) use config::Config;
pub(crate) use folder::Folder;
pub(crate) use weights::{Tensor, Weights};

use config::ConfigError;

use crate::error::BuildError;

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
