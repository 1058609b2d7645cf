//! The CUDA driver's functions, looked up by name in its library. Their result codes become errors here and nowhere
//! else.
//!
//! Every function is called as NVIDIA's documentation of the driver API describes it; the signatures are those of its
//! header `cuda.h`, version 12 and later.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The driver's file on Linux: installed by the driver's package, or mounted into containers beside the devices.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest CUDA version that a driver has to support, major and minor: engines are built with CUDA 12 and later.
const OLDEST_CUDA: (i32, i32) = (12, 0);

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CudaError {
    /// Name of the driver's function.
    pub call: &'static str,
    /// The result code that the function returned; see `CUresult` in NVIDIA's documentation.
    pub code: i32,
    /// The code's name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
}

impl CudaError {
    /// Whether the device's memory is used up.
    pub fn is_out_of_memory(&self) -> bool {
        const OUT_OF_MEMORY: i32 = 2;
        self.code == OUT_OF_MEMORY
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the CUDA call {} failed with {} ({})", self.call, self.name, self.code)
    }
}

/// Why there is no CUDA.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    /// The library can't be loaded.
    #[error("the CUDA driver {} can't be loaded: {reason}", path.display())]
    Missing {
        /// The path or name of the library that was looked for.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The library lacks a function.
    #[error(
        "{} has no {function}: it is too old, or no CUDA driver; one for CUDA 12 or later is needed",
        path.display()
    )]
    TooOld {
        /// The library's file.
        path: PathBuf,
        /// Name of the missing function.
        function: &'static str,
    },
    /// The driver supports only old versions of CUDA.
    #[error(
        "the CUDA driver {} supports CUDA {major}.{minor}, and CUDA 12.0 or later is needed: install NVIDIA's driver \
         525 or later",
        path.display()
    )]
    OldCuda {
        /// The library's file.
        path: PathBuf,
        /// Major number of the CUDA version that the driver supports.
        major: i32,
        /// Minor number of that version.
        minor: i32,
    },
    /// A call of the driver failed.
    #[error(transparent)]
    Call(#[from] CudaError),
}

impl DriverError {
    /// Whether the machine has no GPU at all, as far as the driver or its absence can tell.
    pub fn is_without_gpu(&self) -> bool {
        const NO_DEVICE: i32 = 100;
        match self {
            // The kernel's part of the driver makes this file, also where the library is missing.
            Self::Missing { .. } => !Path::new("/dev/nvidiactl").exists(),
            Self::Call(error) => error.code == NO_DEVICE,
            Self::TooOld { .. } | Self::OldCuda { .. } => false,
        }
    }
}

/// The layout of `CUDA_MEMCPY3D`; only memory of the device is copied, so arrays and host pointers stay null.
#[repr(C)]
pub(super) struct Copy3d {
    pub(super) source: Copy3dSide,
    pub(super) target: Copy3dSide,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

/// The source's or the destination's half of `CUDA_MEMCPY3D`.
#[repr(C)]
pub(super) struct Copy3dSide {
    pub(super) x_bytes: usize,
    pub(super) y: usize,
    pub(super) z: usize,
    pub(super) lod: usize,
    pub(super) memory_type: c_uint,
    pub(super) host: *mut c_void,
    pub(super) device: u64,
    pub(super) array: *mut c_void,
    pub(super) reserved: *mut c_void,
    pub(super) pitch: usize,
    pub(super) height: usize,
}

/// Declares [`Functions`], the table of driver functions, and the code that looks each of them up by its name.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*);)*) => {
        /// The driver's functions. All return a `CUresult`.
        #[expect(non_snake_case, reason = "the driver's names")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// Finds all of them.
            fn find(library: &libloading::Library, path: &Path) -> Result<Self, DriverError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is only used with the signature that NVIDIA's documentation gives it, and
                        // no longer than the library, which is never unloaded.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| DriverError::TooOld { path: path.to_owned(), function: stringify!($name) })?
                    },)*
                })
            }
        }
    };
}

functions! {
    cuInit: fn(c_uint);
    cuDriverGetVersion: fn(*mut c_int);
    cuDeviceGetCount: fn(*mut c_int);
    cuDeviceGet: fn(*mut c_int, c_int);
    cuDeviceGetName: fn(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute: fn(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain: fn(*mut *mut c_void, c_int);
    cuDevicePrimaryCtxRelease_v2: fn(c_int);
    cuCtxSetCurrent: fn(*mut c_void);
    cuMemGetInfo_v2: fn(*mut usize, *mut usize);
    cuMemAlloc_v2: fn(*mut u64, usize);
    cuMemFree_v2: fn(u64);
    cuMemHostAlloc: fn(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost: fn(*mut c_void);
    cuMemsetD8Async: fn(u64, u8, usize, *mut c_void);
    cuMemcpyHtoDAsync_v2: fn(u64, *const c_void, usize, *mut c_void);
    cuMemcpyDtoHAsync_v2: fn(*mut c_void, u64, usize, *mut c_void);
    cuMemcpy3DAsync_v2: fn(*const Copy3d, *mut c_void);
    cuModuleLoadData: fn(*mut *mut c_void, *const c_char);
    cuModuleGetFunction: fn(*mut *mut c_void, *mut c_void, *const c_char);
    cuModuleUnload: fn(*mut c_void);
    cuLaunchKernel: fn(*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void);
    cuStreamCreate: fn(*mut *mut c_void, c_uint);
    cuStreamDestroy_v2: fn(*mut c_void);
    cuStreamSynchronize: fn(*mut c_void);
    cuStreamBeginCapture_v2: fn(*mut c_void, c_int);
    cuStreamEndCapture: fn(*mut c_void, *mut *mut c_void);
    cuGraphInstantiateWithFlags: fn(*mut *mut c_void, *mut c_void, u64);
    cuGraphLaunch: fn(*mut c_void, *mut c_void);
    cuGraphExecDestroy: fn(*mut c_void);
    cuGraphDestroy: fn(*mut c_void);
    cuGetErrorName: fn(c_int, *mut *const c_char);
}

/// The CUDA driver, loaded and initialised.
pub struct Driver {
    pub(super) functions: Functions,
    path: PathBuf,
    /// Never unloaded: the driver leaves threads and exit handlers behind.
    _library: ManuallyDrop<libloading::Library>,
}

impl Driver {
    /// Loads the driver: the file that is named, or the system's.
    ///
    /// # Errors
    /// See [`DriverError`]. A machine without a driver is one of them, and so is a driver that finds no device or that
    /// supports no CUDA 12.
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>, DriverError> {
        let path = path.unwrap_or(Path::new(LIBRARY)).to_owned();
        // SAFETY: the file is the system's CUDA driver, or one that the operator named; its initialisers are trusted
        // with that.
        let library = unsafe { libloading::Library::new(&path) }
            .map_err(|error| DriverError::Missing { path: path.clone(), reason: error.to_string() })?;
        let functions = Functions::find(&library, &path)?;
        let driver = Self { functions, path, _library: ManuallyDrop::new(library) };
        let (major, minor) = driver.version()?;
        if (major, minor) < OLDEST_CUDA {
            return Err(DriverError::OldCuda { path: driver.path, major, minor });
        }
        // SAFETY: takes no pointers; may be called any number of times.
        driver.check("cuInit", unsafe { (driver.functions.cuInit)(0) })?;
        Ok(Arc::new(driver))
    }

    /// The file that the driver was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The CUDA version that the driver supports, as major and minor.
    ///
    /// # Errors
    /// The driver's.
    pub fn version(&self) -> Result<(i32, i32), CudaError> {
        let mut version = 0;
        // SAFETY: the pointer is valid for one integer.
        self.check("cuDriverGetVersion", unsafe { (self.functions.cuDriverGetVersion)(&mut version) })?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Number of devices.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: the pointer is valid for one integer.
        self.check("cuDeviceGetCount", unsafe { (self.functions.cuDeviceGetCount)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Makes a result an error that names the call.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the pointer is valid for one pointer; what comes back is null or a string that is never freed.
        let name = unsafe {
            let found = (self.functions.cuGetErrorName)(code, &mut name) == 0 && !name.is_null();
            found.then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        };
        Err(CudaError { call, code, name: name.unwrap_or_else(|| "an unknown error".into()) })
    }
}
