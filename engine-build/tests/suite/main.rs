//! Builds of tiny checkpoints: those that the tests write themselves, and the goldens. No network, no Python.

mod broken;
mod bundles;
mod families;
mod operators;
#[cfg(feature = "tensorrt")]
mod plans;
mod random;
mod resume;
mod tiny;
mod tokenizers;

#[cfg(not(feature = "tensorrt"))]
#[test]
fn tensorrt_is_in_this_build() {
    require::skip("plans of TensorRT-RTX", "the suite is built without the feature `tensorrt`; `make test` has it");
}
