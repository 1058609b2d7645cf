//! The stand-in for the CUDA driver and the simulator of TensorRT, built on first use and steered from here. The one module of
//! the tests with `unsafe`: it calls what those libraries export for tests.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

use crate::support::repository;

/// Where the libraries are built: beside the tests' ONNX Runtime, which the simulator needs.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let out = exe.parent().and_then(Path::parent).unwrap().join("simulator");
        let headers = std::env::var("TENSORRT_HEADERS").unwrap_or_default();
        let done = Command::new(repository("tests/simulator/build.sh")).arg(&out).arg(headers).status().unwrap();
        assert!(done.success(), "tests/simulator/build.sh failed: {done}");
        out
    })
}

/// A driver of one's own: a copy, so that tests that run side by side don't see each other's failures.
pub struct StandIn {
    /// The driver's file.
    pub cuda: PathBuf,
    driver: Library,
    _folder: tempfile::TempDir,
}

impl StandIn {
    pub fn new() -> Self {
        let folder = tempfile::tempdir_in(built()).unwrap();
        let cuda = copied("libcuda.so.1", folder.path());
        let driver = open(&cuda);
        Self { cuda, driver, _folder: folder }
    }

    /// The call of that name fails with `code`, after `skip` that don't; `work` is work on the device.
    pub fn fail(&self, call: &str, code: i32, skip: i32) {
        let call = CString::new(call).unwrap();
        // SAFETY: the function has this signature, in driver.cpp.
        unsafe {
            let function = self.driver.get::<unsafe extern "C" fn(*const i8, i32, i32)>(b"standin_fail\0").unwrap();
            function(call.as_ptr(), code, skip);
        }
    }

    /// How often a function was called.
    pub fn calls(&self, call: &str) -> i64 {
        let call = CString::new(call).unwrap();
        // SAFETY: as above.
        unsafe {
            let function = self.driver.get::<unsafe extern "C" fn(*const i8) -> i64>(b"standin_calls\0").unwrap();
            function(call.as_ptr())
        }
    }

    /// Which devices there are, of which architecture, with how much memory.
    pub fn device(&self, devices: i32, architecture: i32, bytes: u64) {
        // SAFETY: as above.
        unsafe {
            let function = self.driver.get::<unsafe extern "C" fn(i32, i32, u64)>(b"standin_device\0").unwrap();
            function(devices, architecture, bytes);
        }
    }

    /// Objects of the driver that were not destroyed.
    pub fn alive(&self) -> i64 {
        number(&self.driver, b"standin_alive\0")
    }

    /// Ends injected failures and what they did to the device.
    pub fn recover(&self) {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn()>(b"standin_recover\0").unwrap()() }
    }
}

fn copied(name: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(name);
    std::fs::copy(built().join(name), &copy).unwrap();
    copy
}

fn open(path: &Path) -> Library {
    // SAFETY: a library of this repository, without initialisers of its own.
    unsafe { Library::new(path) }.unwrap()
}

fn number(library: &Library, name: &[u8]) -> i64 {
    // SAFETY: the functions that are read with this take nothing and return a long.
    unsafe { library.get::<unsafe extern "C" fn() -> i64>(name).unwrap()() }
}
