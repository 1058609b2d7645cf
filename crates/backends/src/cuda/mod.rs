//! CUDA devices through the driver of this machine, if there is one: memory, one stream, graphs, kernels.
//!
//! The library is loaded at run time, so the same binary starts without it. `driver` is the fenced part with the C
//! functions; engines use `device`, `memory`, `stream` and `kernel`. This module knows no models.
//!
//! Work on a [`Stream`] runs in order and asynchronously. The host must not touch [`Pinned`] memory that queued work
//! uses before [`Stream::synchronize`] returns. Device memory is freed only after a synchronization.

mod device;
mod driver;
mod kernel;
mod memory;
mod stream;

pub use self::device::{Device, DeviceMemoryInfo};
pub use self::driver::{CudaError, Driver, DriverError};
pub use self::kernel::{Blocks, Kernel};
pub use self::memory::{DeviceMemory, Element, Pinned};
pub use self::stream::{Extent, Graph, Region, Stream};
