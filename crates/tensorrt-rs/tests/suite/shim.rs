//! The crate from outside. What needs NVIDIA's library is tested where there are models: in `engine-build`.

use std::path::{Path, PathBuf};

use static_assertions::{assert_impl_all, assert_not_impl_any};
use tensorrt::{
    Builder, BuilderConfig, Context, Engine, Flavour, HostMemory, Library, LoadError, Network, OptimizationProfile,
    Runtime, RuntimeCache,
};

assert_impl_all!(Library: Send, Sync, Clone);
assert_impl_all!(HostMemory: Send, Sync);
assert_impl_all!(OptimizationProfile: Send, Sync, Clone);
assert_not_impl_any!(Builder: Send, Sync);
assert_not_impl_any!(BuilderConfig: Send, Sync, Clone);
assert_not_impl_any!(Network: Send, Sync, Clone);
assert_impl_all!(Runtime: Send, Sync, Clone);
assert_impl_all!(Engine: Send, Sync, Clone);
assert_impl_all!(RuntimeCache: Send, Sync, Clone);
assert_impl_all!(Context: Send);
assert_not_impl_any!(Context: Sync, Clone);

#[test]
fn both_flavours_are_compiled_in() {
    let majors = Flavour::ALL.map(|flavour| Library::headers_version(flavour).map(|version| version.major));
    assert_eq!(majors, [Some(11), Some(1)]);
}

#[test]
fn a_missing_library_is_reported_with_every_place_that_was_tried() {
    let folder = tempfile::tempdir().unwrap();
    let error = Library::open(Flavour::Rtx, Some(folder.path())).unwrap_err();
    let expected = folder.path().join("libtensorrt_rtx.so.1").display().to_string();
    assert!(matches!(&error, LoadError::NotFound { looked_for, .. } if *looked_for == expected), "{error}");
    let error = Library::open(Flavour::Enterprise, None).unwrap_err().to_string();
    assert!(
        error.contains("libnvinfer.so.11 in the system's libraries") && error.contains("lib/libnvinfer"),
        "{error}"
    );
}

#[test]
fn what_is_no_tensorrt_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("libnvinfer.so.11");
    std::fs::write(&text, "a text").unwrap();
    let error = Library::open(Flavour::Enterprise, Some(folder.path())).unwrap_err();
    assert!(matches!(error, LoadError::Unloadable { .. }), "{error}");
    let error = Library::open(Flavour::Enterprise, Some(&c_library())).unwrap_err();
    assert!(matches!(error, LoadError::NoSymbol { symbol: "getInferLibMajorVersion", .. }), "{error}");
}

/// A library with the right symbols and another version.
#[test]
fn another_version_is_refused_with_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (Flavour::Enterprise, [10, 9, 0], "TensorRT 10.9.0; this program needs 11.0.0 or newer, and older than 12.0"),
        (Flavour::Enterprise, [12, 0, 0], "TensorRT 12.0.0;"),
        // Its vtables are others, although the major version is the same.
        (Flavour::Rtx, [1, 4, 0], "TensorRT-RTX 1.4.0; this program needs 1.5.0 or newer"),
    ];
    for (index, (flavour, version, message)) in cases.into_iter().enumerate() {
        let path = folder.path().join(format!("lib{index}.so"));
        fake_library(&path, version);
        let error = Library::open(flavour, Some(&path)).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let path = folder.path().join("newer.so");
    fake_library(&path, [11, 9, 3]);
    let library = Library::open(Flavour::Enterprise, Some(&path)).unwrap();
    assert_eq!(library.version().to_string(), "11.9.3");
    // It can't build, and its factory makes nothing.
    let error = Builder::new(&library).err().unwrap().to_string();
    assert!(error.contains("no `createInferBuilder_INTERNAL`"), "{error}");
    let error = Runtime::new(&library).err().unwrap().to_string();
    assert_eq!(error, "TensorRT refused `createInferRuntime`: it gave no reason");
}

fn fake_library(path: &Path, [major, minor, patch]: [i32; 3]) {
    let source = path.with_extension("c");
    let text = format!(
        "int getInferLibMajorVersion(void) {{ return {major}; }}
         int getInferLibMinorVersion(void) {{ return {minor}; }}
         int getInferLibPatchVersion(void) {{ return {patch}; }}
         void *createInferRuntime_INTERNAL(void *logger, int version) {{ (void)logger; (void)version; return 0; }}"
    );
    std::fs::write(&source, text).expect("it works");
    let done = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(path)
        .arg(source)
        .status()
        .expect("it works");
    assert!(done.success());
}

/// A library that is surely there.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it works");
    let line = maps.lines().find(|line| line.contains("/libc.so.6") || line.contains("/libc-2")).expect("it works");
    line[line.find('/').expect("it works")..].into()
}

/// What lets one binary run with and without TensorRT: the shim asks the linker for nothing but C++'s allocator.
#[test]
fn the_shim_has_no_undefined_symbol_of_tensorrt_or_cuda() {
    for flavour in ["enterprise", "rtx"] {
        let archive = Path::new(env!("OUT_DIR")).join(format!("libtensorrt_shim_{flavour}.a"));
        let output = std::process::Command::new("nm").args(["-uP"]).arg(&archive).output().expect("binutils");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        // Lines are `SYMBOL KIND`, with the object's name above them; the weak one is called where C++ is broken.
        let symbols = output.lines().filter(|line| !line.ends_with(':')).filter_map(|line| line.split(' ').next());
        let known = [
            "_Znwm",
            "_ZnwmRKSt9nothrow_t",
            "_ZSt7nothrow",
            "_ZdlPv",
            "_ZdlPvm",
            "_GLOBAL_OFFSET_TABLE_",
            "__cxa_pure_virtual",
        ];
        let foreign: Vec<_> = symbols.filter(|symbol| !known.contains(symbol) && !symbol.starts_with("mem")).collect();
        assert!(output.contains("_ZSt7nothrow"), "nm works: {output}");
        assert_eq!(foreign, Vec::<&str>::new(), "{flavour}");
    }
}
