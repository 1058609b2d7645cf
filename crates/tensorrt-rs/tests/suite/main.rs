//! The crate from outside, as far as this build has it.

#[cfg(feature = "shim")]
mod shim;

#[cfg(not(feature = "shim"))]
#[test]
fn the_shim_is_in_this_build() {
    require::skip("tests of the crate `tensorrt`", "it is built without the feature `shim`; `make test` has it");
}
