//! Why an adapter isn't added.

use std::path::PathBuf;

use thiserror::Error;

use super::ELEMENTS_LIMIT;

/// An error in an adapter.
#[derive(Debug, Error)]
pub enum AdapterError {
    /// A file that every adapter has.
    #[error("{folder} has no {file}: an adapter is the folder that PEFT's `save_pretrained` wrote")]
    Missing {
        /// The adapter's folder.
        folder: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// A setting whose mathematics isn't that of plain LoRA.
    #[error(
        "adapter_config.json sets `{field}` to {found}, which is not supported here; merge the adapter with PEFT's \
         `merge_and_unload` and save the model"
    )]
    Setting {
        /// Name of the field.
        field: String,
        /// The value, shortened.
        found: String,
    },
    /// A tensor that isn't one of LoRA's two matrices.
    #[error(
        "the adapter has the tensor {0}, which is no matrix lora_A or lora_B of a linear layer; merge the adapter with \
         PEFT's `merge_and_unload` and save the model"
    )]
    Tensor(String),
    /// One of the two matrices is missing, or they don't fit together.
    #[error("the adapter's matrices lora_A and lora_B of {0} are incomplete, or of different ranks")]
    Half(String),
    /// No matrices.
    #[error("the adapter has no matrices lora_A and lora_B")]
    Empty,
    /// A module that the checkpoint doesn't have.
    #[error("the adapter changes {0}, but the checkpoint has no weight of that name: it belongs to another model")]
    NoTarget(String),
    /// Matrices for a layer of another size.
    #[error("the adapter's matrices of {module} have the shapes {pair:?}, which don't fit the weight's {shape:?}")]
    Shape {
        /// Name of the module.
        module: String,
        /// Shapes of `lora_A` and `lora_B`.
        pair: [[u64; 2]; 2],
        /// Shape of the weight.
        shape: Vec<u64>,
    },
    /// Too many numbers for a build to keep in memory.
    #[error("the adapter has {0} numbers, more than the {ELEMENTS_LIMIT} that a build keeps in memory")]
    TooLarge(u64),
}
