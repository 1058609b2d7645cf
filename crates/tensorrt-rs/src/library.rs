//! Finds a TensorRT library and loads it, with errors that say what is missing. A loaded library is never unloaded.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, LoadError};
use crate::logger::Logger;
use crate::sys::{TrtLogger, TrtShim, table};
use crate::types::{Flavour, Version};

/// A loaded library. Clones are the same one.
///
/// It is never unloaded: NVIDIA's libraries keep threads and static objects that don't survive it.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

struct Inner {
    flavour: Flavour,
    table: &'static TrtShim,
    version: Version,
    /// The library as it was loaded: a path, or the bare name that the loader found.
    path: PathBuf,
    handle: ManuallyDrop<Handle>,
    runtime: Factory,
    logger: Logger,
    parser: OnceLock<Result<Factory, LoadError>>,
}

/// One of the library's exported functions, as the shim wants it.
#[derive(Clone, Copy)]
pub(crate) struct Factory(*mut c_void);

// SAFETY: the address of code in a library that is never unloaded.
unsafe impl Send for Factory {}
// SAFETY: as above.
unsafe impl Sync for Factory {}

impl Factory {
    pub(crate) fn as_ptr(self) -> *mut c_void {
        self.0
    }
}

/// The file names of a flavour's libraries.
fn file_names(flavour: Flavour, major: u32) -> (String, String) {
    match flavour {
        Flavour::Enterprise => (format!("libnvinfer.so.{major}"), format!("libnvonnxparser.so.{major}")),
        Flavour::Rtx => (format!("libtensorrt_rtx.so.{major}"), format!("libtensorrt_onnxparser_rtx.so.{major}")),
    }
}

/// The oldest version whose vtables are those of the headers, as far as the shim calls into them.
fn oldest(flavour: Flavour, major: u32) -> Version {
    match flavour {
        Flavour::Enterprise => Version { major, minor: 0, patch: 0 },
        // 1.5 took functions out of the middle of several classes; since then they were added at the end.
        Flavour::Rtx => Version { major, minor: 5, patch: 0 },
    }
}

impl Library {
    /// The version of the headers that this program was compiled with, if the flavour is compiled in.
    pub fn headers_version(flavour: Flavour) -> Option<Version> {
        table(flavour).map(headers_version)
    }

    /// Loads a flavour's library.
    ///
    /// `place` is the file, or the folder that holds it and its ONNX parser. Without it, they are looked for beside the
    /// running binary, one folder up, and where the system's loader looks (`LD_LIBRARY_PATH`).
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn open(flavour: Flavour, place: Option<&Path>) -> Result<Self, LoadError> {
        let table = table(flavour).ok_or(LoadError::NotCompiledIn(flavour))?;
        let headers = headers_version(table);
        let (name, _) = file_names(flavour, headers.major);
        let candidates = candidates(&name, place);
        let mut looked_for = Vec::new();
        for path in candidates {
            let bare = path.components().count() == 1;
            if !bare && !path.is_file() {
                looked_for.push(path.display().to_string());
                continue;
            }
            match load(&path) {
                Ok(handle) => return Self::with(flavour, table, path, handle),
                Err(_) if bare => looked_for.push(format!("{name} in the system's libraries")),
                Err(reason) => return Err(LoadError::Unloadable { path, flavour, reason }),
            }
        }
        Err(LoadError::NotFound { flavour, major: headers.major, looked_for: looked_for.join(", ") })
    }

    fn with(flavour: Flavour, table: &'static TrtShim, path: PathBuf, handle: Handle) -> Result<Self, LoadError> {
        let handle = ManuallyDrop::new(handle);
        let number = |symbol: &'static str| {
            let address = find(&handle, symbol).ok_or(LoadError::NoSymbol { path: path.clone(), flavour, symbol })?;
            // SAFETY: every TensorRT exports this function, without parameters, and it can be called at any time.
            let number = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> i32>(address.0)() };
            Ok(u32::try_from(number).unwrap_or(0))
        };
        let found = Version {
            major: number("getInferLibMajorVersion")?,
            minor: number("getInferLibMinorVersion")?,
            patch: number("getInferLibPatchVersion")?,
        };
        let oldest = oldest(flavour, headers_version(table).major);
        if found.major != oldest.major || found < oldest {
            return Err(LoadError::WrongVersion { path, flavour, found, oldest });
        }
        let symbol = "createInferRuntime_INTERNAL";
        let runtime = find(&handle, symbol).ok_or(LoadError::NoSymbol { path: path.clone(), flavour, symbol })?;
        let logger = Logger::new(table, flavour);
        Ok(Self(Arc::new(Inner {
            flavour,
            table,
            version: found,
            path,
            handle,
            runtime,
            logger,
            parser: OnceLock::new(),
        })))
    }

    /// The product that the library belongs to.
    pub fn flavour(&self) -> Flavour {
        self.0.flavour
    }

    /// The version of the loaded library.
    #[doc(alias = "getInferLibVersion")]
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// The file, or the bare name by which the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    pub(crate) fn table(&self) -> &'static TrtShim {
        self.0.table
    }

    pub(crate) fn logger(&self) -> *mut TrtLogger {
        self.0.logger.as_ptr()
    }

    pub(crate) fn runtime_factory(&self) -> Factory {
        self.0.runtime
    }

    /// The builder's factory; libraries that only run engines have none.
    pub(crate) fn builder_factory(&self) -> Result<Factory, LoadError> {
        let symbol = "createInferBuilder_INTERNAL";
        let missing = || LoadError::NoSymbol { path: self.0.path.clone(), flavour: self.0.flavour, symbol };
        find(&self.0.handle, symbol).ok_or_else(missing)
    }

    /// The ONNX parser's factory, from the library beside this one.
    pub(crate) fn parser_factory(&self) -> Result<Factory, LoadError> {
        self.0.parser.get_or_init(|| self.load_parser()).clone()
    }

    fn load_parser(&self) -> Result<Factory, LoadError> {
        let (_, name) = file_names(self.0.flavour, self.0.version.major);
        let path = self.0.path.with_file_name(&name);
        let unloadable = |reason| LoadError::Unloadable { path: path.clone(), flavour: self.0.flavour, reason };
        let handle = ManuallyDrop::new(load(&path).map_err(unloadable)?);
        let symbol = "createNvOnnxParser_INTERNAL";
        find(&handle, symbol).ok_or(LoadError::NoSymbol { path, flavour: self.0.flavour, symbol })
    }

    /// Runs one call, and where it has no result attaches what TensorRT logged meanwhile.
    pub(crate) fn attempt<T>(
        &self,
        call: &'static str,
        run: impl FnOnce(&'static TrtShim) -> Option<T>,
    ) -> Result<T, Error> {
        let mark = self.0.logger.mark();
        run(self.0.table).ok_or_else(|| {
            let messages = self.0.logger.errors_since(mark);
            Error::Refused { flavour: self.0.flavour, call, messages }
        })
    }

    /// The same for calls that say yes or no.
    pub(crate) fn accept(&self, call: &'static str, run: impl FnOnce(&'static TrtShim) -> bool) -> Result<(), Error> {
        self.attempt(call, |table| run(table).then_some(()))
    }

    /// An entry of the table that only one flavour has.
    pub(crate) fn entry<F>(&self, call: &'static str, entry: Option<F>) -> Result<F, Error> {
        entry.ok_or(Error::Unsupported(self.0.flavour, call))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.0.flavour, self.0.version, self.0.path.display())
    }
}

fn headers_version(table: &TrtShim) -> Version {
    let [major, minor, patch] = table.version.map(|number| u32::try_from(number).unwrap_or(0));
    Version { major, minor, patch }
}

/// The files to try, in order; a bare name is left to the system's loader.
fn candidates(name: &str, place: Option<&Path>) -> Vec<PathBuf> {
    if let Some(place) = place {
        return vec![if place.is_dir() { place.join(name) } else { place.to_owned() }];
    }
    let beside = std::env::current_exe().ok().and_then(|binary| Some(binary.parent()?.to_owned())).unwrap_or_default();
    let mut found = vec![beside.join(name), beside.join("lib").join(name)];
    found.extend(beside.parent().map(|folder| folder.join(name)));
    found.push(name.into());
    found
}

fn load(path: &Path) -> Result<Handle, String> {
    // SAFETY: loading runs the library's initializers; a caller that names a library trusts it to that extent.
    unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| error.to_string())
}

fn find(handle: &Handle, symbol: &'static str) -> Option<Factory> {
    // SAFETY: the symbol is read as an address only.
    let found = unsafe { handle.get::<*mut c_void>(symbol.as_bytes()) }.ok()?;
    Some(Factory(found.as_raw_ptr())).filter(|factory| !factory.0.is_null())
}
