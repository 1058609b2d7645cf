//! The shim's function table for each flavour, as bindgen reads it from `shim/shim.h`.
//!
//! `bindings.rs` is generated: `tools/tensorrt_bindings.sh` writes it, and `make lint` fails where it is out of date.

#[allow(clippy::all, dead_code, reason = "generated; not every function is linked in every build")]
mod bindings {
    include!("bindings.rs");
}

pub(crate) use bindings::{
    TrtBuilder, TrtConfig, TrtContext, TrtDims, TrtEngine, TrtLogger, TrtMemory, TrtMonitor, TrtMonitorFns, TrtNetwork,
    TrtParser, TrtParserError, TrtRuntime, TrtRuntimeCache, TrtRuntimeConfig, TrtShim, TrtTensor,
};

use std::ptr::NonNull;

use crate::types::Flavour;

/// Nothing lies below this address: it is the system's first page.
const FIRST_PAGE_BYTES: usize = 4096;

/// An object that a library's factory made. Without a usable driver, `libnvinfer_lean.so.11` adds an offset to a null
/// pointer and returns 0x228.
pub(crate) fn made<T>(raw: *mut T) -> Option<NonNull<T>> {
    NonNull::new(raw).filter(|raw| raw.addr().get() >= FIRST_PAGE_BYTES)
}

/// The flavour's table, if its headers were there when this was built.
pub(crate) fn table(flavour: Flavour) -> Option<&'static TrtShim> {
    match flavour {
        #[cfg(shim_enterprise)]
        // SAFETY: the function takes nothing and returns the address of a constant.
        Flavour::Enterprise => unsafe { bindings::tensorrt_shim_enterprise().as_ref() },
        #[cfg(shim_rtx)]
        // SAFETY: the function takes nothing and returns the address of a constant.
        Flavour::Rtx => unsafe { bindings::tensorrt_shim_rtx().as_ref() },
        #[allow(unreachable_patterns, reason = "reachable where a flavour is not compiled in")]
        _ => None,
    }
}

/// Calls an entry that every flavour has.
macro_rules! call {
    ($table:expr, $entry:ident $(, $argument:expr)* $(,)?) => {
        ($table.$entry.expect(concat!("every shim has ", stringify!($entry))))($($argument),*)
    };
}
pub(crate) use call;
