//! Builds of tiny checkpoints that the tests write themselves: no network, no fixtures, no Python.

mod broken;
mod bundles;
#[cfg(feature = "tensorrt")]
mod plans;
mod random;
mod tiny;
mod tokenizers;
