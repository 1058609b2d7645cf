//! The backend `tensorrt` on the simulator: the same answers as ONNX Runtime on the same graph, whatever happens.

use std::path::{Path, PathBuf};

use backends::onnxruntime;
use backends::options::BackendOptions;
use backends::tensorrt::{Options, load};
use bundle::{Dtype, Manifest};
use completion::text::TokenId;
use engine_build::BuildOptions;
use engine_build::plan::PlanShapes;
use foretype::engine::{Completion, Engine, EngineOptions};
use foretype::metrics::Metrics;
use scheduler::backend::{Backend, BackendError, Batch, Outputs, Selected};
use tensorrt::Flavour;

use crate::goldens::{max_difference, read_expected};
use crate::simulator::Simulator;
use crate::support::{all_logits, backend_options, repository, request_options};

/// ONNX Runtime computes both sides, in the same precision.
pub const TOLERANCE: f32 = 1e-5;

/// A checkpoint as TensorRT wants it, in a folder that lives as long as the first result.
pub fn bundle(checkpoint: &str) -> (tempfile::TempDir, PathBuf, Manifest) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = BuildOptions::new(repository(checkpoint), folder.path().join("bundle"));
    options.dtype = Dtype::F16;
    let manifest = engine_build::build(&options, &()).unwrap();
    (folder, options.out, manifest)
}

pub fn shapes(manifest: &Manifest) -> PlanShapes {
    PlanShapes::for_server(16, 64).within(manifest.model.context).reading(manifest.model.source)
}

pub fn options(simulator: &Simulator, bundle: &Path) -> Options {
    Options {
        flavour: simulator.flavour,
        library: Some(simulator.path.clone()),
        driver: Some(simulator.stand_in.cuda.clone()),
        device: 0,
        devices: 1,
        lanes: 16,
        chunk: 64,
        pool_bytes: 1 << 20,
        graphs: true,
        engines: bundle.join("built-here"),
    }
}

/// A simulator with a plan of a bundle, and the backend on it.
pub fn backend(flavour: Flavour, bundle: &Path, manifest: &Manifest) -> (Simulator, Box<dyn Backend>) {
    let simulator = Simulator::new(flavour);
    simulator.write_plan(bundle, manifest, shapes(manifest));
    let backend = load(bundle, manifest, &options(&simulator, bundle)).unwrap();
    (simulator, backend)
}

pub fn reference(bundle: &Path, manifest: &Manifest) -> Box<dyn Backend> {
    let options = onnxruntime::Options { pool_bytes: 1 << 20, ..backend_options() };
    onnxruntime::load(bundle, manifest, &options).unwrap()
}

pub fn assert_same(found: &Outputs, expected: &Outputs, what: &str) {
    assert_eq!(found.top_ids, expected.top_ids, "{what}");
    for (a, b) in [
        (&found.top_logits, &expected.top_logits),
        (&found.logsumexp, &expected.logsumexp),
        (&found.logits, &expected.logits),
    ] {
        assert!(max_difference(a, b) <= TOLERANCE, "{what}");
    }
}

#[test]
fn every_golden_has_the_logits_that_onnx_runtime_has() {
    for entry in std::fs::read_dir(repository("tests/goldens")).unwrap().flatten() {
        let expected = entry.path().join("expected.safetensors");
        if !expected.is_file() {
            continue;
        }
        let name = format!("tests/goldens/{}", entry.file_name().to_string_lossy());
        let (_folder, bundle, manifest) = bundle(&name);
        let mut reference = reference(&bundle, &manifest);
        for flavour in Flavour::ALL {
            let (_simulator, mut backend) = backend(flavour, &bundle, &manifest);
            for golden in read_expected(&expected).iter().take(6) {
                let rows = all_logits(&mut *backend, 0, &golden.prompt);
                for (row, expected) in rows.iter().zip(all_logits(&mut *reference, 0, &golden.prompt)) {
                    assert!(max_difference(row, &expected) <= TOLERANCE, "{name} {flavour}");
                }
                for (step, &token) in golden.greedy.iter().enumerate() {
                    let past = golden.prompt.len() + step;
                    if past >= backend.limits().context {
                        break;
                    }
                    let (row, expected) =
                        (all_logits(&mut *backend, past, &[token]), all_logits(&mut *reference, past, &[token]));
                    assert!(max_difference(&row[0], &expected[0]) <= TOLERANCE, "{name} {flavour} step {step}");
                }
            }
        }
    }
}

#[test]
fn the_demo_suggests_what_it_suggests_on_onnx_runtime() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = |backend: BackendOptions| {
        let options = EngineOptions { backend, requests: request_options() };
        Engine::load(&bundle, &manifest, &options, &Metrics::new()).unwrap()
    };
    let suggest = |engine: &Engine, input: &str| -> Vec<(String, f64)> {
        let completion = Completion { input: input.into(), ..Completion::default() };
        let answer = runtime.block_on(engine.complete(&completion)).unwrap();
        answer.result.suggestions.iter().map(|s| (s.text.clone(), s.logprob)).collect()
    };
    let reference = engine(backend_options().into());
    for flavour in Flavour::ALL {
        let simulator = Simulator::new(flavour);
        simulator.write_plan(&bundle, &manifest, shapes(&manifest));
        let engine = engine(BackendOptions::TensorRt(options(&simulator, &bundle)));
        for input in ["l", "lithium ion", "wireless char", "TTL:(heat exch", "a method of manuf", "battery OR "] {
            let (found, expected) = (suggest(&engine, input), suggest(&reference, input));
            assert!(!found.is_empty());
            assert_eq!(found.len(), expected.len(), "{input}");
            for ((text, logprob), (expected, expected_logprob)) in found.iter().zip(&expected) {
                assert_eq!(text, expected, "{input}");
                assert!((logprob - expected_logprob).abs() < 1e-3, "{input}");
            }
        }
    }
}

/// Some steps of decoding after a prompt.
pub fn decode(backend: &mut dyn Backend) -> Result<Vec<Outputs>, BackendError> {
    let (mut batch, mut all) = (Batch::default(), Vec::new());
    for step in 0..6 {
        batch.clear();
        for row in 0..3 {
            let tokens = (0..if step == 0 { 4 } else { 1 }).map(|t| TokenId(5 + row + t + step));
            batch.push_row(if step == 0 { 0 } else { 3 + step as usize }, tokens);
            batch.selected.push(Selected { row: row as usize, offset: 0, full: row == 1 });
        }
        let mut out = Outputs::default();
        backend.forward(&batch, &mut out)?;
        all.push(out);
    }
    Ok(all)
}

#[test]
fn replayed_graphs_equal_runs_one_by_one_and_engines_that_cannot_be_captured_work() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    for flavour in Flavour::ALL {
        let (replayed, mut backend) = backend(flavour, &bundle, &manifest);
        let expected = decode(&mut *backend).unwrap();
        assert_eq!(replayed.stand_in.calls("cuGraphLaunch"), 6, "the prompt, too");

        let plain = Simulator::new(flavour);
        let mut backend = load(&bundle, &manifest, &Options { graphs: false, ..options(&plain, &bundle) }).unwrap();
        assert_eq!(decode(&mut *backend).unwrap(), expected);
        assert_eq!(plain.stand_in.calls("cuStreamBeginCapture_v2"), 0);

        let refusing = Simulator::new(flavour);
        refusing.refuse_capture();
        let mut backend = load(&bundle, &manifest, &options(&refusing, &bundle)).unwrap();
        assert_eq!(decode(&mut *backend).unwrap(), expected);
        assert_eq!(refusing.stand_in.calls("cuGraphLaunch"), 0);
    }
}

#[test]
fn failures_of_cuda_name_their_call_and_the_next_step_works() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let (simulator, mut backend) = backend(Flavour::Rtx, &bundle, &manifest);
    let expected = decode(&mut *backend).unwrap();
    let calls =
        ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuCtxSetCurrent"];
    for call in calls {
        simulator.stand_in.fail(call, 999, 2);
        let error = decode(&mut *backend).unwrap_err().to_string();
        assert_eq!(error, format!("the engine failed: the CUDA call {call} failed with an unknown error (999)"));
        assert_eq!(decode(&mut *backend).unwrap(), expected, "{call}");
    }
    // What fails on the device is told by whoever waits for it, and nothing works afterwards.
    simulator.stand_in.fail("work", 700, 1);
    let error = decode(&mut *backend).unwrap_err().to_string();
    assert!(error.contains("cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{error}");
    decode(&mut *backend).unwrap_err();
    // A capture that fails is no failure of the step.
    let capturing = Simulator::new(Flavour::Rtx);
    capturing.stand_in.fail("cuStreamEndCapture", 901, 0);
    let mut backend = load(&bundle, &manifest, &options(&capturing, &bundle)).unwrap();
    assert_eq!(decode(&mut *backend).unwrap(), expected);
}

/// Under a leak checker (tests/simulator/leaks.sh), too.
#[test]
fn engines_come_and_go_without_leaving_anything() {
    let cycles = std::env::var("FORETYPE_CYCLES").map_or(10, |count| count.parse().unwrap());
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    for flavour in Flavour::ALL {
        let (simulator, first) = backend(flavour, &bundle, &manifest);
        drop(first);
        for _ in 0..cycles / 2 {
            let mut backend = load(&bundle, &manifest, &options(&simulator, &bundle)).unwrap();
            decode(&mut *backend).unwrap();
        }
        assert_eq!((simulator.alive(), simulator.stand_in.alive()), (0, 0));
    }
}

#[test]
fn a_plan_that_does_not_fit_is_told_from_both_sides_and_built_anew_if_possible() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Rtx);
    let refused = |what: &str| {
        let error = load(&bundle, &manifest, &options(&simulator, &bundle)).err().unwrap().to_string();
        // The simulator builds nothing: that it was tried is what is seen.
        assert!(error.contains("building one here failed"), "{error}");
        assert!(error.contains(what), "{error}");
    };
    refused("there is no plan in");
    let plan = simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let whole = std::fs::read(&plan).unwrap();
    std::fs::write(&plan, &whole[..whole.len() - 9]).unwrap();
    refused(&format!("has {} bytes", whole.len() - 9));
    let mut changed = whole.clone();
    changed[40] ^= 1;
    std::fs::write(&plan, &changed).unwrap();
    refused("has the SHA-256");
    std::fs::write(&plan, &whole).unwrap();
    simulator.stand_in.device(1, 75, 1 << 30);
    refused("this machine's GPU is");
    simulator.stand_in.device(1, 86, 1 << 30);
    load(&bundle, &manifest, &options(&simulator, &bundle)).unwrap();
    // The record fits, and TensorRT says otherwise.
    simulator.architecture(75);
    refused("another GPU architecture");
    simulator.architecture(86);
    // Kernels that were timed on another GPU of the same architecture.
    let path = plan.with_extension("json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["gpu"] = serde_json::json!({"name": "NVIDIA L4", "multiprocessors": 58, "cuda": "13.0"});
    std::fs::write(&path, record.to_string()).unwrap();
    refused("is for the NVIDIA L4 with 58 multiprocessors and CUDA 13.0, and this machine's GPU is host memory");
    simulator.stand_in.gpu("NVIDIA L4", 80);
    refused("this machine's GPU is NVIDIA L4 (SM86, 80 multiprocessors)");
    simulator.stand_in.gpu("NVIDIA L4", 58);
    load(&bundle, &manifest, &options(&simulator, &bundle)).unwrap();
}

/// The whole program: flags, the choice, the plan, suggestions.
#[test]
fn the_command_line_takes_the_engine_that_is_asked_for_or_the_best() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let simulator = Simulator::new(Flavour::Rtx);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let complete = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_foretype"));
        command.args(["complete", "lithium ion", "--json", "--lanes", "16", "--chunk", "64", "--model"]).arg(&bundle);
        command.arg("--cuda-driver").arg(&simulator.stand_in.cuda).arg("--tensorrt").arg(&simulator.path);
        let done = command.args(arguments).env("FORETYPE_LOG", "info").output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let answer: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        (done.status.success(), answer["suggestions"].to_string(), said)
    };
    let (ok, _, said) = complete(&["--backend", "tensorrt-rtx", "--device", "cuda:all"]);
    assert!(ok && said.contains("tensorrt-rtx on cuda:all"), "{said}");
    let (ok, reference, said) = complete(&["--backend", "onnxruntime"]);
    assert!(ok && said.contains("onnxruntime on cpu") && said.contains("it was asked for"), "{said}");
    for asked in ["tensorrt-rtx", "auto"] {
        let (ok, suggestions, said) = complete(&["--backend", asked]);
        assert!(ok && said.contains("tensorrt-rtx on cuda:0"), "{said}");
        assert_eq!(suggestions, reference);
    }
    for (arguments, reason) in [
        (vec!["--backend", "tensorrt"], "is TensorRT 1.7.1; this program needs 11.0.0 or newer"),
        (vec!["--backend", "tensorrt-rtx", "--device", "cuda:3"], "CUDA_ERROR_INVALID_DEVICE (101)"),
        (vec!["--backend", "tensorrt-rtx", "--device", "cpu"], "TensorRT runs on a GPU"),
        (vec!["--backend", "onnxruntime", "--device", "cuda"], "this ONNX Runtime has no CUDA provider"),
    ] {
        let (ok, _, said) = complete(&arguments);
        assert!(!ok && said.contains(reason), "{arguments:?}: {said}");
    }
}
