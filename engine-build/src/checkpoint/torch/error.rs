//! Why a file of `torch.save` isn't read.

use thiserror::Error;

use super::PICKLE_LIMIT_BYTES;
use super::values::VALUES_LIMIT;

/// An error in a weights file of PyTorch. Nothing in the file has been executed, whatever it is.
#[derive(Debug, Error)]
pub enum TorchError {
    /// The operating system refused, or the file became shorter.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Neither of the two formats.
    #[error("it is no file that `torch.save` writes: its first bytes are neither those of an archive nor of a pickle")]
    Format,
    /// The archive is damaged.
    #[error("its archive is damaged: {0}")]
    Archive(#[from] zip::result::ZipError),
    /// The archive lacks something, or has something that PyTorch doesn't write.
    #[error("its archive {0}")]
    Entries(&'static str),
    /// A compressed entry.
    #[error("its entry `{0}` is compressed, and `torch.save` stores entries as they are; save the model again")]
    Compressed(String),
    /// Numbers in the other order of bytes.
    #[error("its numbers are big-endian, which is not read here; save the model again on another machine")]
    BigEndian,
    /// A pickle beyond any sensible size.
    #[error("its pickle has {0} bytes, more than the {PICKLE_LIMIT_BYTES} that a list of tensors may have")]
    PickleBytes(u64),
    /// More values than a list of tensors has.
    #[error("its pickle makes more than {VALUES_LIMIT} values, which no list of tensors needs")]
    Values,
    /// An opcode that no list of tensors needs.
    #[error("its pickle has the opcode {name} at byte {at}, which no list of tensors needs; nothing was executed")]
    Opcode {
        /// The opcode's name in Python's `pickletools`, or its number.
        name: String,
        /// Position in the pickle.
        at: usize,
    },
    /// A function or class that no list of tensors needs.
    #[error("its pickle names `{module}.{name}`, which no list of tensors needs; nothing was executed")]
    Global {
        /// The Python module.
        module: String,
        /// The name in the module.
        name: String,
    },
    /// The pickle breaks a rule of the format.
    #[error("its pickle is broken at byte {at}: {what}")]
    Broken {
        /// What is wrong.
        what: &'static str,
        /// Position in the pickle.
        at: usize,
    },
    /// The pickle isn't a model's state.
    #[error("it holds {0}, not a dictionary of names and tensors: save `model.state_dict()`")]
    NoState(&'static str),
    /// A value of the state that is no tensor.
    #[error("it holds {found} under `{name}`, where a model's state has a tensor: save `model.state_dict()`")]
    NoTensor {
        /// The name.
        name: String,
        /// What is there.
        found: &'static str,
    },
    /// A tensor whose numbers are nowhere.
    #[error("its storage `{0}` is missing; download the file again")]
    StorageMissing(String),
    /// Fewer bytes than the numbers of a storage need.
    #[error("its storage `{key}` has only {bytes} bytes, fewer than its numbers need; download the file again")]
    StorageShort {
        /// The storage.
        key: String,
        /// The bytes that are there.
        bytes: u64,
    },
    /// Storages of one name and several types or sizes.
    #[error("its storage `{0}` is named twice, with different types or sizes")]
    StorageTwice(String),
}
