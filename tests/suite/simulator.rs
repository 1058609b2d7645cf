//! The stand-in for the CUDA driver and the simulator of TensorRT, built on first use and steered from here. The one
//! module of the tests with `unsafe`: it calls what those libraries export for tests.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[cfg(feature = "tensorrt")]
use {
    bundle::Manifest,
    bundle::manifest::{ENCODER_FILE, ENCODER_WEIGHTS_FILE, GRAPH_FILE, WEIGHTS_FILE, attended_lengths},
    engine_build::plan::{ENGINES, Part, PlanShapes, ProfileShapes, Range},
    sha2::{Digest, Sha256},
    std::fmt::Write,
    tensorrt::Flavour,
};

use libloading::Library;

use crate::support::repository;

/// Where the libraries are built: beside the tests' ONNX Runtime, which the simulator needs.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        let out = exe.parent().and_then(Path::parent).unwrap().join("simulator");
        // Where tools/tensorrt_headers.sh puts them: beside the profiles' folders.
        let headers = out.ancestors().nth(2).map(|target| target.join("tensorrt-headers"));
        let headers = headers.filter(|folder| folder.is_dir()).unwrap_or_default();
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

    /// How often a function was called; without a name, all of the driver's.
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

    /// The devices' name and number of multiprocessors.
    pub fn gpu(&self, name: &str, multiprocessors: i32) {
        let name = CString::new(name).unwrap();
        // SAFETY: as above.
        unsafe {
            let function = self.driver.get::<unsafe extern "C" fn(*const i8, i32)>(b"standin_name\0").unwrap();
            function(name.as_ptr(), multiprocessors);
        }
    }

    /// The CUDA version that the driver supports, such as 11040.
    pub fn version(&self, version: i32) {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn(i32)>(b"standin_version\0").unwrap()(version) }
    }

    /// Objects of the driver that were not destroyed.
    pub fn alive(&self) -> i64 {
        number(&self.driver, b"standin_alive\0")
    }

    /// Bytes in use on a device, what TensorRT took included.
    pub fn used(&self, device: i32) -> i64 {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn(i32) -> i64>(b"standin_used\0").unwrap()(device) }
    }

    /// Holds calls of `cuStreamSynchronize` that have waited, or lets them return; how many are held.
    pub fn hold(&self, hold: bool) -> i32 {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn(i32) -> i32>(b"standin_hold\0").unwrap()(i32::from(hold)) }
    }

    /// Ends injected failures and what they did to the device.
    pub fn recover(&self) {
        // SAFETY: as above.
        unsafe { self.driver.get::<unsafe extern "C" fn()>(b"standin_recover\0").unwrap()() }
    }
}

#[cfg(feature = "tensorrt")]
static KEPT: std::sync::Mutex<Vec<tensorrt::Library>> = std::sync::Mutex::new(Vec::new());

/// The simulator of one flavour, on a driver of its own.
#[cfg(feature = "tensorrt")]
pub struct Simulator {
    pub flavour: Flavour,
    /// TensorRT's file.
    pub path: PathBuf,
    library: Library,
    opened: tensorrt::Library,
    pub stand_in: StandIn,
}

#[cfg(feature = "tensorrt")]
impl Simulator {
    pub fn new(flavour: Flavour) -> Self {
        let stand_in = StandIn::new();
        let name = if flavour == Flavour::Rtx { "libtensorrt_rtx.so" } else { "libtensorrt.so" };
        let path = copied(name, stand_in._folder.path());
        let library = open(&path);
        let opened = tensorrt::Library::open(flavour, Some(&path)).unwrap();
        // Libraries stay for good, and what they keep would look lost to a leak checker.
        KEPT.lock().unwrap().push(opened.clone());
        Self { flavour, path, library, opened, stand_in }
    }

    /// Objects of TensorRT that were not destroyed.
    pub fn alive(&self) -> i64 {
        number(&self.library, b"simulator_alive\0")
    }

    /// Engines can't be captured from now on.
    pub fn refuse_capture(&self) {
        self.set(b"simulator_refuse_capture\0", 1);
    }

    /// Execution contexts that were ever made.
    pub fn contexts(&self) -> i64 {
        number(&self.library, b"simulator_contexts\0")
    }

    /// Kernels that TensorRT-RTX has compiled.
    pub fn compiled(&self) -> i64 {
        number(&self.library, b"simulator_compiled\0")
    }

    /// Makes no runtime from now on, as TensorRT does without a usable driver.
    pub fn break_down(&self) {
        self.set(b"simulator_break\0", 1);
    }

    /// The GPU's architecture, as TensorRT sees it.
    pub fn architecture(&self, architecture: i32) {
        self.set(b"simulator_architecture\0", architecture);
    }

    fn set(&self, name: &[u8], value: i32) {
        // SAFETY: these functions take an int and return nothing, in engine.cpp.
        unsafe { self.library.get::<unsafe extern "C" fn(i32)>(name).unwrap()(value) }
    }

    /// Writes what this simulator takes for the plans of a bundle, and their records. The result is the decoder's plan.
    pub fn write_plan(&self, bundle: &Path, manifest: &Manifest, shapes: PlanShapes) -> PathBuf {
        if manifest.model.source.is_some() {
            self.write_plan_of(Part::Encoder, bundle, manifest, shapes);
        }
        self.write_plan_of(Part::Decoder, bundle, manifest, shapes)
    }

    /// Writes one of them.
    pub fn write_plan_of(&self, part: Part, bundle: &Path, manifest: &Manifest, shapes: PlanShapes) -> PathBuf {
        let version = self.opened.version();
        let mut plan = format!("simulated plan 1\nlibrary {} {version}\nsm 86\n", self.flavour.name());
        writeln!(plan, "graph {}", bundle.join(files(part)[0]).display()).unwrap();
        let profiles = match part {
            Part::Decoder => {
                [shapes.prefill, shapes.decode].map(|profile| decoder_inputs(manifest, shapes, profile)).into()
            }
            Part::Encoder => vec![vec![("input_ids".to_owned(), vec![Range::new(1, 1, 1), shapes.source.unwrap()])]],
        };
        for profile in profiles {
            plan.push_str("profile\n");
            for (name, extents) in profile {
                let numbers = [|r: &Range| r.min, |r: &Range| r.opt, |r: &Range| r.max]
                    .map(|pick| extents.iter().map(|r| pick(r).to_string()).collect::<Vec<_>>().join(" "));
                writeln!(plan, "input {name} {} {}", extents.len(), numbers.join(" ")).unwrap();
            }
        }
        let fnv =
            plan.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        writeln!(plan, "checksum {fnv:016x}").unwrap();
        self.write_record((part, bundle), manifest, shapes, &plan)
    }

    fn write_record(
        &self,
        (part, bundle): (Part, &Path),
        manifest: &Manifest,
        shapes: PlanShapes,
        plan: &str,
    ) -> PathBuf {
        let version = self.opened.version().to_string();
        let suffix = if part == Part::Encoder { "-encoder" } else { "" };
        let name = format!("{}-{version}-sm86{suffix}.plan", self.flavour.name());
        let sha256: String = Sha256::digest(plan).iter().map(|byte| format!("{byte:02x}")).collect();
        let graph: Vec<_> = files(part).iter().map(|file| manifest.file(file).unwrap()).collect();
        let record = serde_json::json!({
            "format": 1, "part": part, "flavour": self.flavour.name(), "version": version, "architectures": [86],
            "shapes": shapes, "plan": { "path": name, "bytes": plan.len(), "sha256": sha256 }, "graph": graph,
            "tool": "the simulator's tests",
        });
        let engines = bundle.join(ENGINES);
        std::fs::create_dir_all(&engines).unwrap();
        let path = engines.join(name);
        std::fs::write(&path, plan).unwrap();
        std::fs::write(path.with_extension("json"), record.to_string()).unwrap();
        path
    }
}

/// The files of a graph.
#[cfg(feature = "tensorrt")]
fn files(part: Part) -> [&'static str; 2] {
    match part {
        Part::Decoder => [GRAPH_FILE, WEIGHTS_FILE],
        Part::Encoder => [ENCODER_FILE, ENCODER_WEIGHTS_FILE],
    }
}

/// The decoder's inputs in a profile.
#[cfg(feature = "tensorrt")]
fn decoder_inputs(manifest: &Manifest, shapes: PlanShapes, profile: ProfileShapes) -> Vec<(String, Vec<Range>)> {
    let ProfileShapes { batch, tokens, select } = profile;
    let model = &manifest.model;
    let [heads, context, head_dim] = [model.kv_heads, model.context, model.head_dim].map(|n| Range::new(n, n, n));
    let inputs = [("input_ids", vec![batch, tokens]), ("past_len", vec![batch]), ("select", vec![select])];
    let mut inputs: Vec<_> = inputs.into_iter().map(|(name, extents)| (name.to_owned(), extents)).collect();
    if attended_lengths(model.context).count() > 1 {
        inputs.push(("slots".to_owned(), vec![Range::new(1, 1, model.context)]));
    }
    inputs.extend(shapes.source.map(|_| ("source_len".to_owned(), vec![batch])));
    for (layer, kv) in (0..model.layers).flat_map(|layer| [(layer, 'k'), (layer, 'v')]) {
        inputs.push((format!("past_{kv}_{layer}"), vec![batch, heads, context, head_dim]));
        let cross = |source| (format!("cross_{kv}_{layer}"), vec![batch, heads, source, head_dim]);
        inputs.extend(shapes.source.map(cross));
    }
    inputs
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
