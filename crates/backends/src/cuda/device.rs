//! A CUDA device and its primary context.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use tensorrt::{Gpu, Sm};

use super::driver::{CudaError, Driver};

const ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;
const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;
const NAME_BYTES: usize = 256;

/// A device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemoryInfo {
    /// Memory that can be allocated, in bytes.
    pub free: usize,
    /// Total memory of the device, in bytes.
    pub total: usize,
}

/// A device that is in use. Its context is the primary one, which it shares with every library in the process.
pub struct Device {
    pub(super) driver: Arc<Driver>,
    ordinal: usize,
    handle: c_int,
    context: *mut c_void,
    name: String,
    capability: u32,
    multiprocessors: u32,
}

// SAFETY: the driver's contexts may be used from any thread that makes them current, by several at once.
unsafe impl Send for Device {}
// SAFETY: as above; all fields are fixed.
unsafe impl Sync for Device {}

impl Driver {
    /// Takes a device into use, counted from 0.
    ///
    /// # Errors
    /// The driver's, also if there is no such device.
    pub fn open(self: &Arc<Self>, ordinal: usize) -> Result<Arc<Device>, CudaError> {
        Device::open(Arc::clone(self), ordinal).map(Arc::new)
    }
}

impl Device {
    pub(super) fn open(driver: Arc<Driver>, ordinal: usize) -> Result<Self, CudaError> {
        let functions = &driver.functions;
        let mut handle = 0;
        let index = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is valid for one integer.
        driver.check("cuDeviceGet", unsafe { (functions.cuDeviceGet)(&mut handle, index) })?;
        let mut bytes = [0u8; NAME_BYTES];
        // SAFETY: the pointer is valid for the stated number of bytes, and the handle is the driver's.
        driver.check("cuDeviceGetName", unsafe {
            (functions.cuDeviceGetName)(bytes.as_mut_ptr().cast(), NAME_BYTES as c_int - 1, handle)
        })?;
        let name = CStr::from_bytes_until_nul(&bytes).map(|name| name.to_string_lossy().into_owned());
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the pointer is valid for one integer, and the handle is the driver's.
            let code = unsafe { (functions.cuDeviceGetAttribute)(&mut value, attribute, handle) };
            driver.check("cuDeviceGetAttribute", code).map(|()| u32::try_from(value).unwrap_or(0))
        };
        let major = attribute(ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let capability = 10 * major + attribute(ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let multiprocessors = attribute(ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is valid for one pointer. Released once, in `drop`.
        let code = unsafe { (functions.cuDevicePrimaryCtxRetain)(&mut context, handle) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let name = name.unwrap_or_default();
        Ok(Self { ordinal, handle, context, name, capability, multiprocessors, driver })
    }

    /// Index of the GPU, from 0.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The GPU's name, such as `NVIDIA A10G`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GPU's compute capability times ten, such as 86.
    pub fn capability(&self) -> u32 {
        self.capability
    }

    /// What TensorRT's choice of kernels depends on.
    ///
    /// # Errors
    /// The driver's.
    pub fn describe(&self) -> Result<Gpu, CudaError> {
        let (name, sm) = (self.name.clone(), Sm(self.capability));
        Ok(Gpu { name, sm, multiprocessors: self.multiprocessors, cuda: self.driver.version()? })
    }

    /// Makes it the calling thread's: what every other call assumes.
    ///
    /// # Errors
    /// The driver's.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as this lives.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.functions.cuCtxSetCurrent)(self.context) })
    }

    /// Its memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<DeviceMemoryInfo, CudaError> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for one integer.
        let code = unsafe { (self.driver.functions.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.driver.check("cuMemGetInfo_v2", code)?;
        Ok(DeviceMemoryInfo { free, total })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`; everything made in it held this device.
        let code = unsafe { (self.driver.functions.cuDevicePrimaryCtxRelease_v2)(self.handle) };
        if let Err(error) = self.driver.check("cuDevicePrimaryCtxRelease_v2", code) {
            tracing::warn!(%error, "a device is not released cleanly");
        }
    }
}
