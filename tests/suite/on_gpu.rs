//! On a real GPU, with a real engine: the same answers as ONNX Runtime on the CPU. `make gpu-test` and the kit say
//! which engine, in FORETYPE_GPU_BACKEND; without it there is nothing to do, and that is said. `cpu` tries the tests
//! themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::tensorrt::Flavour;
use backends::cuda::{CudaError, DeviceMemory, Driver, Extent, Pinned, Region};
use backends::onnxruntime::cuda::CudaOptions;
use backends::options::{self, BackendOptions};
use backends::{onnxruntime, tensorrt};
use bundle::Manifest;
use completion::text::TokenId;
use rand::Rng;
use scheduler::backend::{Backend, Batch, Outputs, Selected, SourceSlot};
use scheduler::scheduler::Scheduler;

use crate::encoder_decoder::{GOLDENS, folder, read};
use crate::goldens::{max_difference, read_expected};
use crate::replay::{Nearness, Replayed, replay};
use crate::support::{all_logits, backend_options, logits_of, repository};
use crate::tensorrt::bundle;
use crate::tensorrt_steps::Crowd;

/// Most that logits may differ. A GPU rounds to f16 after each operator, and ONNX Runtime on the CPU after few. NumPy
/// with the GPU's rounding differs from f32 by 0.009 (root mean square) and at most 0.22, in logits with a standard
/// deviation of 3. A row that is wrong differs by several units.
const MEAN_BOUND: f64 = 0.03;
const LARGEST_BOUND: f32 = 1.0;

/// How far two engines' numbers are apart.
#[derive(Default)]
struct Difference {
    largest: f32,
    squares: f64,
    numbers: usize,
}

impl Difference {
    fn add(&mut self, found: &[f32], expected: &[f32]) {
        self.largest = self.largest.max(max_difference(found, expected));
        self.squares += found.iter().zip(expected).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        self.numbers += found.len();
    }

    /// Says how far `what` is apart, and fails if that is too far.
    fn check(&self, what: &str) {
        let mean = (self.squares / self.numbers as f64).sqrt();
        println!("on_gpu: {what}: difference {mean:.1e}, at most {:.1e}", self.largest);
        // What is no number is within no bound.
        assert!(mean <= MEAN_BOUND && self.largest <= LARGEST_BOUND, "{what}: {mean}, at most {}", self.largest);
    }
}

/// The engine that was asked for.
fn engine(bundle: &Path, graphs: bool) -> Option<BackendOptions> {
    let Ok(backend) = std::env::var("FORETYPE_GPU_BACKEND") else {
        require::absent(
            "engines on a GPU",
            "FORETYPE_GPU_BACKEND names none; `make gpu-test` does where there is a GPU",
        );
        return None;
    };
    let onnxruntime = onnxruntime::Options { pool_bytes: 1 << 20, ..backend_options() };
    let flavour = match backend.as_str() {
        "onnxruntime" => {
            let library = std::env::var_os("FORETYPE_ONNXRUNTIME_GPU").map(PathBuf::from);
            let cuda = CudaOptions { graphs, ..CudaOptions::default() };
            return Some(BackendOptions::OnnxRuntimeCuda(onnxruntime::Options { library, ..onnxruntime }, cuda));
        }
        "cpu" => {
            let library = std::env::var_os("FORETYPE_ONNXRUNTIME_GPU").map(PathBuf::from);
            return Some(BackendOptions::OnnxRuntime(onnxruntime::Options { library, ..onnxruntime }));
        }
        other => other.parse::<Flavour>().unwrap(),
    };
    Some(BackendOptions::TensorRt(tensorrt::Options {
        flavour,
        library: std::env::var_os("FORETYPE_TENSORRT").map(PathBuf::from),
        driver: None,
        device: 0,
        devices: 1,
        lanes: 16,
        chunk: 64,
        pool_bytes: 1 << 20,
        graphs,
        engines: bundle.join("built-here"),
    }))
}

fn on_cpu(bundle: &Path, manifest: &Manifest) -> Box<dyn Backend> {
    // One process has one ONNX Runtime; the GPU build has the CPU, too.
    let library = std::env::var_os("FORETYPE_ONNXRUNTIME_GPU").map(PathBuf::from);
    let options = onnxruntime::Options { library, pool_bytes: 1 << 20, ..backend_options() };
    onnxruntime::load(bundle, manifest, &options).unwrap()
}

#[test]
fn goldens_and_the_demo_have_the_logits_of_the_cpu() {
    for checkpoint in
        ["tests/goldens/plain", "tests/goldens/fp16", "tests/goldens/relu", "tests/goldens/untied", "models/demo"]
    {
        let (_folder, bundle, manifest) = bundle(checkpoint);
        let Some(options) = engine(&bundle, true) else { return };
        if manifest.model.hidden < 32 && matches!(options, BackendOptions::TensorRt(_)) {
            require::absent(&format!("{checkpoint} on a GPU"), "TensorRT-RTX can't build hidden sizes below 32");
            continue;
        }
        let mut reference = on_cpu(&bundle, &manifest);
        let mut backend = options::load(&bundle, &manifest, &options).unwrap();
        let expected = repository(checkpoint).join("expected.safetensors");
        let prompts: Vec<Vec<u32>> = if expected.is_file() {
            read_expected(&expected).into_iter().take(6).map(|golden| golden.prompt).collect()
        } else {
            (1..6u32).map(|i| (0..4 * i).map(|t| (31 * i + 7 * t) % manifest.model.vocab).collect()).collect()
        };
        let mut difference = Difference::default();
        for prompt in &prompts {
            let rows = all_logits(&mut *backend, 0, prompt);
            for (row, expected) in rows.iter().zip(all_logits(&mut *reference, 0, prompt)) {
                difference.add(row, &expected);
            }
        }
        difference.check(checkpoint);
    }
}

#[test]
fn encoder_decoders_have_the_logits_of_the_cpu() {
    for name in GOLDENS {
        let (_folder, bundle, manifest) = bundle(&format!("tests/goldens/t5/{name}"));
        let Some(options) = engine(&bundle, true) else { return };
        if matches!(options, BackendOptions::OnnxRuntimeCuda(..)) {
            require::absent("encoder-decoders on a GPU", "ONNX Runtime runs them on the CPU only");
            return;
        }
        let mut reference = on_cpu(&bundle, &manifest);
        let mut backend = options::load(&bundle, &manifest, &options).unwrap();
        let mut difference = Difference::default();
        for (index, (source, golden)) in read(&folder(name)).into_iter().enumerate() {
            let slot = SourceSlot(index % 3);
            let rows = [&mut *backend, &mut *reference].map(|backend| {
                backend.encode(slot, &source).unwrap();
                logits_of(backend, Some(slot), 0, &golden.prompt)
            });
            rows[0].iter().zip(&rows[1]).for_each(|(found, expected)| difference.add(found, expected));
        }
        difference.check(name);
    }
}

#[test]
fn replayed_graphs_equal_runs_one_by_one() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let run = |graphs| -> Option<Vec<Outputs>> {
        let mut backend = options::load(&bundle, &manifest, &engine(&bundle, graphs)?).unwrap();
        let steps = (0..12u32).map(|step| {
            let mut batch = Batch::default();
            for row in 0..10 {
                let tokens = (0..if step == 0 { 4 } else { 1 }).map(|t| TokenId(50 + 7 * row + t + step));
                batch.push_row(if step == 0 { 0 } else { 3 + step as usize }, tokens);
                batch.selected.push(Selected { row: row as usize, offset: 0, full: false });
            }
            let mut out = Outputs::default();
            backend.forward(&batch, &mut out).unwrap();
            out
        });
        Some(steps.collect())
    };
    let Some(replayed) = run(true) else { return };
    for (step, (a, b)) in replayed.iter().zip(&run(false).unwrap()).enumerate() {
        assert_eq!(a.top_ids, b.top_ids, "step {step}");
        assert!(max_difference(&a.top_logits, &b.top_logits) <= 1e-3, "step {step}");
    }
}

/// Ragged steps, and forks that copy keys and values through pages, on both sides.
#[test]
fn random_steps_and_copies_have_the_logits_of_the_cpu() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let Some(options) = engine(&bundle, true) else { return };
    let mut reference = on_cpu(&bundle, &manifest);
    let mut backend = options::load(&bundle, &manifest, &options).unwrap();
    let limits = backend.limits().clone();
    let mut crowd = Crowd::new(7, limits.lanes);
    let (mut found, mut expected) = (Outputs::default(), Outputs::default());
    let (mut difference, mut copied) = (Difference::default(), 0);
    for _ in 0..require::cases(2_000) {
        if crowd.rng.random_bool(0.2) {
            let copies = crowd.fork(&limits);
            copied += copies.len();
            backend.copy_kv(&copies).unwrap();
            reference.copy_kv(&copies).unwrap();
            continue;
        }
        let batch = crowd.batch(&limits);
        backend.forward(&batch, &mut found).unwrap();
        reference.forward(&batch, &mut expected).unwrap();
        for (found, expected) in [
            (&found.top_logits, &expected.top_logits),
            (&found.logsumexp, &expected.logsumexp),
            (&found.logits, &expected.logits),
        ] {
            difference.add(found, expected);
        }
    }
    difference.check(&format!("random steps and {copied} copies"));
    assert!(copied > 1_000, "{copied} copies");
}

#[test]
fn keystrokes_have_the_suggestions_of_the_cpu() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let Some(options) = engine(&bundle, true) else { return };
    let keystrokes = require::cases(2_000);
    let text = Arc::new(foretype::engine::read_text(&bundle, &manifest).unwrap());
    let backend = options::load(&bundle, &manifest, &options).unwrap();
    let (limits, tree_bytes) = (backend.limits().clone(), 8 << 20);
    let bound = limits.pages * limits.page_bytes + tree_bytes;
    let cold = Scheduler::new(on_cpu(&bundle, &manifest), tree_bytes);
    // A suggestion's log-probability is a sum over its tokens, each as far apart as logits are.
    let near = Nearness { equal: 0.1, tie: 0.1 };
    let Replayed { equal, explained } =
        replay(&text, (Scheduler::new(backend, tree_bytes), cold), near, limits.context, bound, keystrokes);
    println!("on_gpu: {equal} of {keystrokes} keystrokes have the list of the CPU, in its order");
    println!("on_gpu: {explained} have it but for suggestions of nearly equal probability");
    assert!(10 * equal >= 9 * keystrokes && 100 * explained >= 99 * keystrokes, "{equal}, {explained} of {keystrokes}");
}

#[test]
fn pinned_memory_reaches_the_device_and_comes_back_through_a_captured_copy() {
    if !std::env::var("FORETYPE_GPU_BACKEND").is_ok_and(|backend| backend != "cpu") {
        require::absent("pinned memory of a GPU", "FORETYPE_GPU_BACKEND names no engine on one");
        return;
    }
    const ELEMENTS: usize = 1 << 20;
    let stream = Driver::load(None).unwrap().open(0).unwrap().stream().unwrap();
    let memory = || DeviceMemory::new(&stream, 8 * ELEMENTS).unwrap();
    let (from, to, mut staged) = (memory(), memory(), Pinned::<i64>::new(&stream, ELEMENTS).unwrap());
    let rows = Region { offset: 0, pitch: 8 << 10, rows: ELEMENTS >> 10 };
    let all = Extent { width: 8 << 10, height: ELEMENTS >> 10, depth: 1 };
    let mut graph = stream.capture::<CudaError>(|| stream.copy((&to, rows), (&from, rows), all)).unwrap();
    for round in 0..20 {
        staged.as_mut_slice().iter_mut().enumerate().for_each(|(i, x)| *x = round * i as i64);
        stream.upload(&from, &mut staged, ELEMENTS).unwrap();
        // SAFETY: both memories live until the stream is synchronised below.
        unsafe { graph.launch() }.unwrap();
        stream.synchronize().unwrap();
        staged.as_mut_slice().fill(-1);
        stream.download(&mut staged, 0, (&to, 0), ELEMENTS).unwrap();
        stream.synchronize().unwrap();
        assert!(staged.as_slice().iter().enumerate().all(|(i, x)| *x == round * i as i64), "round {round}");
        // Every second row of 1,024 elements, side by side.
        let every_second = Region { offset: 0, pitch: 16 << 10, rows: ELEMENTS >> 11 };
        let half = Extent { width: 8 << 10, height: ELEMENTS >> 11, depth: 1 };
        stream.download_rows(&mut staged, 0, (&to, every_second), half).unwrap();
        stream.synchronize().unwrap();
        let strided = |i: usize| round * (i + (i & !1023)) as i64;
        assert!(staged.as_slice()[..ELEMENTS / 2].iter().enumerate().all(|(i, x)| *x == strided(i)), "round {round}");
    }
}
