//! Fuzz targets: everything that reads what others wrote. See `README.md`.

pub mod bodies;

/// The fuzzer ends at the first panic. Where a library's panics are caught and reported as errors, only those that get
/// out of the target count; the fuzzer takes an unwinding target for a crash, too.
pub fn let_panics_unwind() {
    std::panic::set_hook(Box::new(|_| {}));
}
