//! The errors of finding a library ([`LoadError`]), and of a call into one ([`Error`]).

use std::fmt;
use std::path::PathBuf;

use crate::types::{Flavour, Version};

/// Why there is no usable library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// This program was built without the flavour's headers.
    #[error("this program was built without {0}: build it with the feature `tensorrt` and {0}'s headers")]
    NotCompiledIn(Flavour),
    /// None of the usual places holds the library.
    #[error(
        "{flavour} was not found (looked for {looked_for}): install {flavour} {major}, or name the folder of its \
         libraries"
    )]
    NotFound {
        /// The flavour that was looked for.
        flavour: Flavour,
        /// The major version that this program can use.
        major: u32,
        /// Every file that was tried, with commas between them.
        looked_for: String,
    },
    /// The file can't be loaded as a shared library.
    #[error("{} can't be loaded as {flavour}: {reason}", path.display())]
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The flavour that was wanted.
        flavour: Flavour,
        /// The loader's words.
        reason: String,
    },
    /// The file is another library.
    #[error("{} is not {flavour}: it has no `{symbol}`", path.display())]
    NoSymbol {
        /// The file.
        path: PathBuf,
        /// The flavour that was expected.
        flavour: Flavour,
        /// The symbol that the library lacks.
        symbol: &'static str,
    },
    /// The library's classes are laid out differently from those that this program was compiled for.
    #[error(
        "{} is {flavour} {found}; this program needs {oldest} or newer, and older than {}.0",
        path.display(),
        oldest.major + 1
    )]
    WrongVersion {
        /// The file.
        path: PathBuf,
        /// The flavour of the library.
        flavour: Flavour,
        /// The version of the library that was found.
        found: Version,
        /// The oldest that would do.
        oldest: Version,
    },
}

/// Why a call had no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library is missing or unusable.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// TensorRT refused.
    #[error("{flavour} refused `{call}`: {messages}", messages = Said(messages))]
    Refused {
        /// The flavour of the library.
        flavour: Flavour,
        /// TensorRT's own name of the call.
        call: &'static str,
        /// The messages that the library logged, in order; often empty when memory is short.
        messages: Vec<String>,
    },
    /// The ONNX file can't be turned into a network.
    #[error("{} can't be parsed by {flavour}: {messages}", path.display(), messages = Said(messages))]
    Parse {
        /// The flavour of the library.
        flavour: Flavour,
        /// The file.
        path: PathBuf,
        /// Node by node, what is wrong.
        messages: Vec<String>,
    },
    /// The flavour can't do this at all.
    #[error("{0} has no `{1}`")]
    Unsupported(Flavour, &'static str),
    /// There is no GPU to build for.
    #[error("this machine has no GPU to build for ({0}): name architectures, such as --sm 75,86,89")]
    NoGpu(String),
    /// A value that no library would take.
    #[error("{0}")]
    Argument(String),
}

/// Messages as one sentence.
struct Said<'a>(&'a [String]);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("it gave no reason"),
            messages => f.write_str(&messages.join("; ")),
        }
    }
}
