//! The format of a foretype bundle, which the builder writes and the server and the backends read.
//!
//! - [`manifest`]: `manifest.json`, the names of the other files, and the checks of both.
//! - [`limits`]: bounds on the manifest's numbers.
//! - [`extras`]: the blocklist and the popular queries that a bundle may contain.
//! - [`template`]: the text around every input that a bundle may contain.
//!
//! Deliberately absent: how a bundle is built (the crate `engine-build`), and TensorRT plans, which belong to one GPU.

pub mod extras;
pub mod limits;
pub mod manifest;
pub mod template;

pub use self::manifest::{Dtype, Manifest, ManifestError, Operators, Quantization, is_bundle, is_checkpoint};
pub use self::template::{Template, TemplateError};
