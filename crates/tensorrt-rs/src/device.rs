//! The GPU that an engine is built for, as the CUDA driver reports it.
//!
//! Five driver calls, which need neither a CUDA context nor a toolkit. Callers that run engines bring everything else
//! about CUDA.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::error::Error;
use crate::types::Sm;

const DRIVER: &str = "libcuda.so.1";
const NAME_BYTES: usize = 256;
/// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, and CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT.
const ATTRIBUTES: [c_int; 3] = [75, 76, 16];

/// What TensorRT's choice of kernels depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The GPU's name, such as `NVIDIA A10G`.
    pub name: String,
    /// The GPU's architecture.
    pub sm: Sm,
    /// Number of its streaming multiprocessors.
    pub multiprocessors: u32,
    /// The CUDA version that the driver supports, major and minor.
    pub cuda: (i32, i32),
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {} multiprocessors)", self.name, self.sm, self.multiprocessors)
    }
}

/// A GPU by its index, from 0. `driver` is the CUDA driver's file; the system's if absent.
///
/// # Errors
/// [`Error::NoGpu`]: no driver, or no such GPU.
#[doc(alias = "cuDeviceGetAttribute")]
pub fn gpu(index: usize, driver: Option<&Path>) -> Result<Gpu, Error> {
    let file = driver.map_or(OsStr::new(DRIVER), Path::as_os_str);
    // SAFETY: NVIDIA's driver, as the system's loader finds it or the caller names it; it stays loaded, because it does
    // not survive being unloaded.
    let library = unsafe { Handle::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    let library = ManuallyDrop::new(library.map_err(|error| Error::NoGpu(error.to_string()))?);
    let missing = |_| Error::NoGpu(format!("{} is not CUDA's driver", file.display()));
    let failed = |call: &str, code: c_int| match code {
        0 => Ok(()),
        code => Err(Error::NoGpu(format!("{call} failed with CUDA error {code}"))),
    };
    // SAFETY: the signatures are those of the driver's interface, which has not changed since its first version.
    let (init, version, get, get_name, attribute) = unsafe {
        (
            library.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit").map_err(missing)?,
            library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion").map_err(missing)?,
            library.get::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>(b"cuDeviceGet").map_err(missing)?,
            library
                .get::<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(b"cuDeviceGetName")
                .map_err(missing)?,
            library
                .get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>(b"cuDeviceGetAttribute")
                .map_err(missing)?,
        )
    };
    let (mut number, mut device) = (0, 0);
    let mut name = [0u8; NAME_BYTES];
    let mut values = [0; ATTRIBUTES.len()];
    let index = c_int::try_from(index).unwrap_or(c_int::MAX);
    // SAFETY: every pointer is valid for one integer, or for as many bytes as is said; a call that fails ends this.
    unsafe {
        failed("cuInit", init(0))?;
        failed("cuDriverGetVersion", version(&mut number))?;
        failed("cuDeviceGet", get(&mut device, index))?;
        failed("cuDeviceGetName", get_name(name.as_mut_ptr().cast(), NAME_BYTES as c_int - 1, device))?;
        for (value, which) in values.iter_mut().zip(ATTRIBUTES) {
            failed("cuDeviceGetAttribute", attribute(value, which, device))?;
        }
    }
    let [major, minor, multiprocessors] = values.map(|value| u32::try_from(value).unwrap_or(0));
    let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Gpu { name, sm: Sm(major * 10 + minor), multiprocessors, cuda: (number / 1000, number % 1000 / 10) })
}
