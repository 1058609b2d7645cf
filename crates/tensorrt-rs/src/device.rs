//! The GPU that an engine is built for, as the CUDA driver reports it.
//!
//! Three driver calls, which need neither a CUDA context nor a toolkit. Callers that run engines bring everything else
//! about CUDA.

use std::ffi::{c_int, c_uint};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::error::Error;
use crate::types::Sm;

const DRIVER: &str = "libcuda.so.1";
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

/// The architecture of CUDA's first device, for which TensorRT builds by default.
///
/// # Errors
/// [`Error::NoGpu`]: no driver, or no GPU that it knows.
#[doc(alias = "cuDeviceGetAttribute")]
pub fn current_architecture() -> Result<Sm, Error> {
    // SAFETY: NVIDIA's driver, as the system's loader finds it; it stays loaded, because it does not survive being
    // unloaded.
    let driver = unsafe { Handle::open(Some(DRIVER), RTLD_NOW | RTLD_LOCAL) };
    let driver = std::mem::ManuallyDrop::new(driver.map_err(|error| Error::NoGpu(error.to_string()))?);
    let missing = |_| Error::NoGpu(format!("{DRIVER} is not CUDA's driver"));
    let failed = |call: &str, code: c_int| match code {
        0 => Ok(()),
        code => Err(Error::NoGpu(format!("{call} failed with CUDA error {code}"))),
    };
    // SAFETY: the signatures are those of the driver's interface, which has not changed since its first version.
    let (init, attribute) = unsafe {
        (
            driver.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit").map_err(missing)?,
            driver
                .get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>(b"cuDeviceGetAttribute")
                .map_err(missing)?,
        )
    };
    // SAFETY: takes no pointer, and may be called again.
    failed("cuInit", unsafe { init(0) })?;
    let mut capability = [0; 2];
    for (value, which) in capability.iter_mut().zip(COMPUTE_CAPABILITY) {
        // SAFETY: `value` can be written; device 0 need not exist, and then the call says so.
        failed("cuDeviceGetAttribute", unsafe { attribute(value, which, 0) })?;
    }
    let [major, minor] = capability.map(|number| u32::try_from(number).unwrap_or(0));
    Ok(Sm(major * 10 + minor))
}
