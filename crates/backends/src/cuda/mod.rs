//! CUDA devices through the driver that is on the machine, if there is one: memory, one stream, graphs.
//!
//! The library is loaded at run time, so the same binary starts without it. `driver` is the fenced part with the C
//! functions; `device`, `memory` and `stream` are what engines use. Nothing here knows models.
//!
//! Everything on a [`Stream`] runs in order and later. [`Pinned`] memory, which the device reads and writes meanwhile,
//! can't be touched before [`Stream::synchronize`]; device memory is freed only after it.

mod device;
mod driver;
mod memory;
mod stream;

pub use self::device::{Device, DeviceMemoryInfo};
pub use self::driver::{CudaError, Driver, DriverError};
pub use self::memory::{DeviceMemory, Element, Pinned};
pub use self::stream::{Extent, Graph, Region, Stream};
