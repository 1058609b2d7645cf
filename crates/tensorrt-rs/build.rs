//! Compiles the shim against TensorRT's headers, once for each flavour whose headers are found.
//!
//! They are looked for in `TENSORRT_INCLUDE_DIR`; failing that, where `tools/tensorrt_headers.sh` puts them and in the
//! system's include path. A folder holds the headers themselves, or one folder for each flavour (`enterprise`, `rtx`).

use std::env;
use std::path::{Path, PathBuf};

/// A flavour, its folder's name, and the namespaces that its classes are put into.
struct Flavour {
    name: &'static str,
    rtx: bool,
    major: u32,
}

const FLAVOURS: [Flavour; 2] =
    [Flavour { name: "enterprise", rtx: false, major: 11 }, Flavour { name: "rtx", rtx: true, major: 1 }];

fn main() {
    for flavour in FLAVOURS {
        println!("cargo:rustc-check-cfg=cfg(shim_{})", flavour.name);
    }
    println!("cargo:rerun-if-env-changed=TENSORRT_INCLUDE_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=shim");
    if env::var_os("CARGO_FEATURE_SHIM").is_none() {
        return;
    }
    let places = places();
    let found: Vec<_> = FLAVOURS.iter().filter_map(|flavour| Some((flavour, find(flavour, &places)?))).collect();
    assert!(
        !found.is_empty(),
        "TensorRT's headers (NvInfer.h, NvOnnxParser.h; TensorRT 11 or TensorRT-RTX 1) are in none of {}: \
         run tools/tensorrt_headers.sh, name their folder with TENSORRT_INCLUDE_DIR, or build without the feature \
         `tensorrt`",
        places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
    );
    for (flavour, headers) in found {
        println!("cargo:rerun-if-changed={}", headers.join("NvInferVersion.h").display());
        compile(flavour, &headers);
        println!("cargo:rustc-cfg=shim_{}", flavour.name);
    }
}

fn places() -> Vec<PathBuf> {
    if let Some(place) = env::var_os("TENSORRT_INCLUDE_DIR") {
        return vec![place.into()];
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target));
    let multiarch = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it"));
    [target.join("tensorrt-headers"), multiarch.into(), "/usr/include".into(), "/usr/local/tensorrt/include".into()]
        .into()
}

/// The folder with the flavour's headers.
fn find(flavour: &Flavour, places: &[PathBuf]) -> Option<PathBuf> {
    let folders = places.iter().flat_map(|place| [place.join(flavour.name), place.clone()]);
    folders.into_iter().find(|folder| {
        println!("cargo:rerun-if-changed={}", folder.join("NvInferVersion.h").display());
        folder.join("NvOnnxParser.h").is_file() && is_flavour(folder, flavour)
    })
}

/// The headers say which product they belong to by the names of their version macros.
fn is_flavour(folder: &Path, flavour: &Flavour) -> bool {
    let text = std::fs::read_to_string(folder.join("NvInferVersion.h")).unwrap_or_default();
    let value = |name: &str| {
        let line =
            text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' '))?;
        line.split_whitespace().next()?.parse::<u32>().ok()
    };
    let (rtx, enterprise) = (value("TRT_MAJOR_RTX"), value("TRT_MAJOR_ENTERPRISE"));
    (if flavour.rtx { rtx } else { enterprise }) == Some(flavour.major)
}

fn compile(flavour: &Flavour, headers: &Path) {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").file("shim/shim.cpp").include("shim").include("shim/cuda");
    // As system headers: warnings about what NVIDIA wrote are not ours to mend.
    build.flag("-isystem").flag(headers);
    for flag in ["-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"] {
        build.flag(flag);
    }
    build.define("TENSORRT_SHIM", &*format!("tensorrt_shim_{}", flavour.name));
    build.define("nvinfer1", &*format!("nvinfer1_{}", flavour.name));
    build.define("nvonnxparser", &*format!("nvonnxparser_{}", flavour.name));
    if flavour.rtx {
        build.define("TENSORRT_SHIM_RTX", None);
    }
    build.compile(&format!("tensorrt_shim_{}", flavour.name));
}
