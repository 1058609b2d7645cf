//! Finds and loads the ONNX Runtime library, once per process, with errors that say what is missing.
//!
//! The library is loaded at run time, so the same binary starts on a machine without it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ort::environment::Environment;

/// Why there is no usable ONNX Runtime.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// No path was given and none of the usual places holds the library.
    #[error(
        "ONNX Runtime was not found (looked for libonnxruntime.so* in {places}): install version 1.{minor} and name \
         the file with --onnxruntime or FORETYPE_ONNXRUNTIME, or put it beside the binary",
        places = .0.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "), minor = ort::MINOR_VERSION
    )]
    NotFound(Vec<PathBuf>),
    /// The named file can't be loaded as a shared library.
    #[error("{} can't be loaded as ONNX Runtime: {reason}", path.display())]
    Unloadable {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The library is older than the API this program was written for.
    #[error("{} is ONNX Runtime {found}; 1.{} or newer is needed", path.display(), ort::MINOR_VERSION)]
    WrongVersion {
        /// The file.
        path: PathBuf,
        /// The version of the library that was found.
        found: String,
    },
}

/// ONNX Runtime allows one environment in a process; sessions keep it alive.
static ENVIRONMENT: Mutex<Option<Environment>> = Mutex::new(None);

/// The process's environment, loading the library on the first call.
///
/// `path` names the library file; without it, it is looked for beside the running binary. Later calls return the
/// environment of the first, whatever their path.
///
/// # Errors
/// See [`LibraryError`].
pub fn environment(path: Option<&Path>) -> Result<Environment, LibraryError> {
    let mut environment = ENVIRONMENT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(environment) = &*environment {
        return Ok(environment.clone());
    }
    let path = match path {
        Some(path) => path.to_path_buf(),
        None => find()?,
    };
    let unloadable = |reason: String| LibraryError::Unloadable { path: path.clone(), reason };
    if !path.is_file() {
        return Err(unloadable("there is no such file".into()));
    }
    let builder = ort::init_from(&path).map_err(|error| match error {
        ort::LoadDynamicError::BadVersion { version_str, path } => {
            LibraryError::WrongVersion { path, found: version_str }
        }
        ort::LoadDynamicError::MissingApi { .. } => {
            unloadable("it has no OrtGetApiBase, so it is another library".into())
        }
        other => unloadable(other.to_string()),
    })?;
    let built = builder.with_name("foretype").with_telemetry(false).build().map_err(|e| unloadable(e.to_string()))?;
    built.set_log_level(ort::logging::LogLevel::Error);
    Ok(environment.insert(built).clone())
}

/// Looks beside the binary, in `lib/` beside it, and one folder up (where test binaries run from `deps/`).
fn find() -> Result<PathBuf, LibraryError> {
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)).unwrap_or_default();
    let mut places = vec![beside.clone(), beside.join("lib")];
    places.extend(beside.parent().map(Path::to_path_buf));
    match places.iter().find_map(|place| library_in(place)) {
        Some(found) => Ok(found),
        None => Err(LibraryError::NotFound(places)),
    }
}

/// The newest `libonnxruntime.so*` in a folder (`.dylib` on macOS).
fn library_in(folder: &Path) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("libonnxruntime.so") || (name.starts_with("libonnxruntime.") && name.ends_with(".dylib"))
        })
        .collect();
    found.sort();
    found.pop()
}
