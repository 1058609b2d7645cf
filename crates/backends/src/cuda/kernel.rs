//! A kernel of this program, from PTX that the driver compiles for its GPU.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use super::driver::CudaError;
use super::stream::Stream;

/// The numbers of blocks of a launch, and the threads of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Blocks in the first direction.
    pub x: u32,
    /// Blocks in the second direction.
    pub y: u32,
    /// Threads of a block, at most 1,024.
    pub threads: u32,
}

/// A kernel, and the stream that it is launched on.
pub struct Kernel {
    stream: Arc<Stream>,
    module: *mut c_void,
    function: *mut c_void,
}

// SAFETY: a module belongs to a context and to no thread; without `Sync` it is used by one at a time.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Compiles PTX for the stream's device and finds the kernel of that name in it.
    ///
    /// # Errors
    /// The driver's.
    pub fn load(stream: &Arc<Stream>, ptx: &CStr, name: &CStr) -> Result<Self, CudaError> {
        stream.device.make_current()?;
        let driver = &stream.device.driver;
        let mut module = std::ptr::null_mut();
        // SAFETY: the pointer is valid for one pointer, and the text ends with a zero byte; the context is current.
        let code = unsafe { (driver.functions.cuModuleLoadData)(&mut module, ptx.as_ptr()) };
        driver.check("cuModuleLoadData", code)?;
        let mut kernel = Self { stream: Arc::clone(stream), module, function: std::ptr::null_mut() };
        // SAFETY: as above; the module is alive as long as the kernel.
        let code =
            unsafe { (driver.functions.cuModuleGetFunction)(&mut kernel.function, kernel.module, name.as_ptr()) };
        driver.check("cuModuleGetFunction", code)?;
        Ok(kernel)
    }

    /// Puts a launch on the stream. The parameter is copied during the call.
    ///
    /// # Safety
    /// The parameter is the kernel's only one, in its layout. The memory that it names is on the stream's device, has
    /// the size that the kernel assumes, and stays until the stream is synchronised.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn launch<T>(&self, blocks: Blocks, parameter: &T) -> Result<(), CudaError> {
        let driver = &self.stream.device.driver;
        let Blocks { x, y, threads } = blocks;
        let mut parameters = [std::ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        // SAFETY: function and stream are alive; the driver reads the parameter during the call, and the caller vouches
        // for its layout and for the memory.
        driver.check("cuLaunchKernel", unsafe {
            (driver.functions.cuLaunchKernel)(
                self.function,
                x,
                y,
                1,
                threads,
                1,
                1,
                0,
                self.stream.raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let driver = &self.stream.device.driver;
        let unloaded = self.stream.device.make_current().and_then(|()| self.stream.synchronize()).and_then(|()| {
            // SAFETY: loaded in `load`, unloaded once; nothing on the stream uses it any more.
            driver.check("cuModuleUnload", unsafe { (driver.functions.cuModuleUnload)(self.module) })
        });
        if let Err(error) = unloaded {
            tracing::warn!(%error, "a kernel is not unloaded");
        }
    }
}
