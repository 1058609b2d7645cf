//! `foretype build --target`: TensorRT plans as a person builds them. With NVIDIA's own TensorRT-RTX, which needs no
//! GPU for it: `FORETYPE_TENSORRT_RTX` names its folder, as `tools/tensorrt_rtx.sh` fetches it; `make test` does that.

use std::path::Path;
#[cfg(feature = "tensorrt")]
use std::path::PathBuf;
use std::process::{Command, Output};

use bundle::{Dtype, Manifest};

use crate::simulator::StandIn;
use crate::support::repository;

fn foretype(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretype"));
    for variable in ["FORETYPE_MODEL", "FORETYPE_TENSORRT", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    command.args(arguments).output().unwrap()
}

/// What a refused command said.
fn refusal(arguments: &[&str]) -> String {
    let output = foretype(arguments);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn mistakes_are_answered_before_anything_is_built() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, out) = (repository("tests/goldens/plain"), folder.path().join("bundle"));
    let cases: [(&[&str], &str); 11] = [
        (&["--target", "cuda"], "[possible values: onnxruntime, tensorrt, tensorrt-rtx]"),
        (&["--target", "tensorrt-rtx", "--sm", "86,ampere"], "`ampere` is no GPU architecture: 75, 80, 86 and 89 are"),
        (&["--target", "tensorrt-rtx", "--prefill-batch", "1,20,10"], "`1,20,10` is not MIN,OPT,MAX"),
        (&["--target", "tensorrt-rtx", "--decode-batch", "0,1,10"], "`0,1,10` is not MIN,OPT,MAX"),
        (&["--target", "tensorrt-rtx", "--prefill-tokens", "8"], "`8` is not MIN,OPT,MAX"),
        (&["--target", "tensorrt", "--dtype", "f32"], "built from f16: leave out --dtype"),
        (&["--target", "tensorrt", "--for", "cpu"], "leave out --for, or say --for gpu"),
        (&["--target", "tensorrt", "--operators", "foretype"], "leave out --operators"),
        (&["--for", "cpu", "--precision", "int4"], "ask for f16, with `--for gpu`"),
        (&["--for", "gpu", "--quantize", "int4", "--block", "48"], "ask for 32, 64 or 128"),
        (&["--for", "tpu"], "[possible values: cpu, gpu]"),
    ];
    for (flags, message) in cases {
        let error = refusal(&[&["build", text(&plain), "--out", text(&out)], flags].concat());
        assert!(error.contains(message), "{flags:?}: {error}");
    }
    let error = refusal(&["build", text(&plain)]);
    assert!(error.contains("--out is missing"), "{error}");
    // No library, or none that could be used: said before the bundle is built.
    let error = refusal(&["build", text(&plain), "--out", text(&out), "--target", "tensorrt"]);
    if cfg!(feature = "tensorrt") {
        assert!(error.contains("TensorRT was not found (looked for ") && error.contains("libnvinfer.so.11"), "{error}");
    } else {
        assert!(error.contains("this program was built without TensorRT"), "{error}");
    }
    assert!(!out.exists());
}

/// What makes one binary for every machine: it asks the loader for neither TensorRT nor CUDA.
#[test]
fn the_binary_needs_neither_tensorrt_nor_cuda() {
    let output = Command::new("readelf").args(["-dW", env!("CARGO_BIN_EXE_foretype")]).output().unwrap();
    let needed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(needed.contains("NEEDED") && needed.contains("libc.so"), "{needed}");
    for library in ["nvinfer", "tensorrt", "onnxparser", "libcuda", "libcudart"] {
        assert!(!needed.contains(library), "{library}: {needed}");
    }
}

/// The folder of NVIDIA's library, where somebody fetched it.
#[cfg(feature = "tensorrt")]
fn tensorrt_rtx() -> Option<PathBuf> {
    let fetched = repository("target/tensorrt-rtx");
    let found = std::env::var_os("FORETYPE_TENSORRT_RTX").map(PathBuf::from).or(fetched.exists().then_some(fetched));
    if found.is_none() {
        require::skip(
            "plans of TensorRT-RTX",
            "FORETYPE_TENSORRT_RTX isn't set: run tools/tensorrt_rtx.sh target/tensorrt-rtx",
        );
    }
    found
}

#[cfg(feature = "tensorrt")]
#[test]
fn a_plan_is_built_added_to_packed_and_refused_when_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let (demo, bundle) = (repository("models/demo"), folder.path().join("bundle"));
    let Some(library) = tensorrt_rtx() else { return };
    let rtx = ["--target", "tensorrt-rtx", "--tensorrt", text(&library)];
    let built = foretype(&[&["build", text(&demo), "--out", text(&bundle), "--sm", "75"], &rtx[..]].concat());
    assert!(built.status.success(), "{built:?}");
    let said = String::from_utf8_lossy(&built.stdout);
    assert!(
        said.contains("built demo (gpt2")
            && said.contains("by TensorRT-RTX 1.7.1 for SM75 (up to 10 rows of 42 tokens"),
        "{said}"
    );

    // A bundle goes in, too, and gets one plan more.
    let flags = ["build", text(&bundle), "--sm", "86,80", "--prefill-batch", "1,2,32", "--decode-batch", "1,8,32"];
    let added = foretype(&[&flags[..], &rtx].concat());
    let said = String::from_utf8_lossy(&added.stdout);
    assert!(said.contains("for SM80, SM86 (up to 32 rows of 42 tokens") && !said.contains("built demo"), "{added:?}");
    let engines = bundle.join("engines");
    let mut names: Vec<_> =
        std::fs::read_dir(&engines).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = ["sm75.json", "sm75.plan", "sm80+86.json", "sm80+86.plan"];
    assert_eq!(names, expected.map(|name| format!("tensorrt-rtx-1.7.1-{name}")));

    let archive = folder.path().join("model.tar.gz");
    let packed = foretype(&["pack", text(&bundle), "--out", text(&archive)]);
    assert!(packed.status.success(), "{packed:?}");
    let listed = Command::new("tar").args(["-tzf", text(&archive)]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(names.iter().all(|name| listed.contains(&format!("engines/{name}"))), "{listed}");
    let plan = engines.join(&names[1]);
    let mut bytes = std::fs::read(&plan).unwrap();
    bytes.pop();
    std::fs::write(&plan, bytes).unwrap();
    let error = refusal(&["pack", text(&bundle), "--out", text(&archive)]);
    assert!(error.contains("bytes, and its record says"), "{error}");

    if !Path::new("/dev/nvidiactl").exists() {
        let error = refusal(&[&["build", text(&bundle)], &rtx[..]].concat());
        assert!(error.contains("no GPU to build for") && error.contains("--sm 75,86,89"), "{error}");
    }
    // As TensorRT it is of another name, and so not found.
    let error = refusal(&["build", text(&bundle), "--target", "tensorrt", "--tensorrt", text(&library)]);
    assert!(error.contains("TensorRT was not found") && error.contains("libnvinfer.so.11"), "{error}");
}

#[test]
fn a_bundle_is_for_what_was_said_or_for_the_machines_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, bundle) = (repository("tests/goldens/plain"), folder.path().join("bundle"));
    let dtype = |arguments: &[&str], driver: &Path| {
        let build = ["build", text(&checkpoint), "--out", text(&bundle), "--cuda-driver", text(driver)];
        let done = foretype(&[&build[..], arguments].concat());
        assert!(done.status.success(), "{done:?}");
        Manifest::load(&bundle).unwrap().model.dtype
    };
    let (stand_in, none) = (StandIn::new(), folder.path().join("libcuda.so"));
    let cases: [(&[&str], Dtype, Dtype); 5] = [
        (&[], Dtype::F16, Dtype::F32),
        (&["--for", "cpu"], Dtype::F32, Dtype::F32),
        (&["--for", "gpu"], Dtype::F16, Dtype::F16),
        (&["--dtype", "f32"], Dtype::F32, Dtype::F32),
        (&["--operators", "foretype"], Dtype::F32, Dtype::F32),
    ];
    for (arguments, with_gpu, without) in cases {
        assert_eq!(dtype(arguments, &stand_in.cuda), with_gpu, "{arguments:?} with a GPU");
        assert_eq!(dtype(arguments, &none), without, "{arguments:?} without one");
    }
}

#[cfg(feature = "tensorrt")]
#[test]
fn plans_are_built_for_instance_types() {
    let folder = tempfile::tempdir().unwrap();
    let (demo, bundle) = (repository("models/demo"), folder.path().join("bundle"));
    let built = foretype(&["build", text(&demo), "--out", text(&bundle), "--for", "gpu"]);
    assert!(built.status.success(), "{built:?}");
    let plan = |types: &str| ["plan", text(&bundle), "--for", types].map(str::to_owned);
    let refused = |types| refusal(&plan(types).each_ref().map(|argument| &**argument));
    assert!(refused("ml.g5.xlarge,ml.g9.xlarge").contains("`ml.g9.xlarge` is no instance type"));
    assert!(refused("ml.p3.2xlarge").contains("V100 of SM70, and TensorRT needs SM75"));
    let h100 = refused("ml.p5.48xlarge");
    assert!(h100.contains("has no kernels for ml.p5.48xlarge (H100, SM90)") && h100.contains("first start"), "{h100}");
    let Some(library) = tensorrt_rtx() else { return };
    let types = "ml.g6.xlarge,ml.g5.xlarge,ml.g6e.2xlarge,120";
    let done = foretype(&["plan", text(&bundle), "--for", types, "--tensorrt", text(&library)]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("a plan by TensorRT-RTX 1.7.1 for SM86, SM89, SM120 (up to 10 rows"), "{done:?}");
    assert!(bundle.join("engines/tensorrt-rtx-1.7.1-sm86+89+120.plan").is_file());
}

#[cfg(feature = "tensorrt")]
#[test]
fn an_encoder_decoder_gets_a_plan_for_each_graph_and_both_are_packed() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, bundle) = (repository("tests/goldens/t5/gated"), folder.path().join("bundle"));
    let Some(library) = tensorrt_rtx() else { return };
    let rtx = ["--target", "tensorrt-rtx", "--tensorrt", text(&library)];
    let build = ["build", text(&checkpoint), "--out", text(&bundle)];
    let error = refusal(&[&build[..], &rtx, &["--sm", "75"]].concat());
    assert!(error.contains("no f32 matrices on SM75"), "{error}");
    let built = foretype(&[&build[..], &rtx, &["--sm", "86"]].concat());
    let said = String::from_utf8_lossy(&built.stdout).into_owned();
    assert!(built.status.success(), "{built:?}");
    assert!(
        said.contains("a plan of the encoder by TensorRT-RTX 1.7.1 for SM86 (sources of up to 48 tokens"),
        "{said}"
    );
    assert!(said.contains("a plan by TensorRT-RTX 1.7.1 for SM86 (up to 10 rows of 42 tokens"), "{said}");

    let archive = folder.path().join("model.tar.gz");
    let packed = foretype(&["pack", text(&bundle), "--out", text(&archive)]);
    assert!(packed.status.success(), "{packed:?}");
    let listed = Command::new("tar").args(["-tzf", text(&archive)]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in ["sm86.plan", "sm86.json", "sm86-encoder.plan", "sm86-encoder.json"] {
        assert!(listed.contains(&format!("engines/tensorrt-rtx-1.7.1-{name}")), "{name}: {listed}");
    }
}
