//! Builds of tiny checkpoints that the tests write themselves: no network, no fixtures, no Python.

mod broken;
mod bundles;
mod operators;
#[cfg(feature = "tensorrt")]
mod plans;
mod random;
mod tiny;
mod tokenizers;
