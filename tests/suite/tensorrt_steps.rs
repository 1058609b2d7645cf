//! What steps cost on the backend `tensorrt` once it is prepared, on the simulator: replays of graphs, few copies,
//! nothing new. And what preparing takes.

use std::path::Path;
use std::sync::Arc;

use backends::cuda::Driver;
use backends::options::BackendOptions;
use backends::tensorrt::{Options, load};
use bundle::Manifest;
use completion::text::TokenId;
use foretype::engine::{Engine, EngineOptions};
use foretype::metrics::Metrics;
use foretype::models::RegistryLimits;
use rand::{Rng, SeedableRng};
use scheduler::backend::{Batch, KvCopy, Lane, Outputs, Page, Selected};
use scheduler::scheduler::Scheduler;
use tensorrt::Flavour;

use crate::http_client::RegistryServer;
use crate::replay::{Nearness, Replayed, replay};
use crate::simulator::Simulator;
use crate::support::{backend_options, request_options};
use crate::tensorrt::{assert_same, backend, bundle, decode, options, reference, shapes};

/// Sequences in lanes and pages, and random things done to them, the same on two backends.
pub struct Crowd {
    pub rng: rand_chacha::ChaCha8Rng,
    /// Valid positions of each lane.
    lanes: Vec<usize>,
    /// How many pages, from the first, hold something.
    pages: usize,
}

impl Crowd {
    pub fn new(seed: u64, lanes: usize) -> Self {
        Self { rng: rand_chacha::ChaCha8Rng::seed_from_u64(seed), lanes: vec![0; lanes], pages: 0 }
    }

    pub fn batch(&mut self, limits: &scheduler::backend::Limits) -> Batch {
        let mut batch = Batch::default();
        let rows = self.rng.random_range(1..=limits.lanes);
        // Mostly decoding; sometimes prompts of several lengths.
        let longest = if self.rng.random_bool(0.6) { 1 } else { self.rng.random_range(2..=limits.chunk.min(9)) };
        for lane in 0..rows {
            // A sequence that is too long, or that nobody wants any more, is freed and another begins.
            if self.lanes[lane] + longest > limits.context || self.rng.random_bool(0.02) {
                self.lanes[lane] = 0;
            }
            let len = if lane == 0 { longest } else { self.rng.random_range(1..=longest) };
            let tokens: Vec<_> = (0..len).map(|_| TokenId(self.rng.random_range(0..limits.vocab as u32))).collect();
            batch.push_row(self.lanes[lane], tokens);
            self.lanes[lane] += len;
            if lane == 0 || self.rng.random_bool(0.7) {
                // Sometimes more positions than the last.
                let first = if self.rng.random_bool(0.2) { 0 } else { len - 1 };
                let full = self.rng.random_bool(0.1);
                batch.selected.extend((first..len).map(|offset| Selected { row: lane, offset, full }));
            }
        }
        batch.selected.truncate(limits.selected);
        batch
    }

    /// A fork through pages: the beginning of one lane becomes that of another.
    pub fn fork(&mut self, limits: &scheduler::backend::Limits) -> Vec<KvCopy> {
        let (from, to) = (self.rng.random_range(0..limits.lanes), self.rng.random_range(0..limits.lanes));
        let length = self.lanes[from].min(limits.pages);
        let mut copies = Vec::new();
        for position in 0..length {
            copies.push(KvCopy::Store { lane: Lane(from), position, page: Page(position) });
        }
        for position in 0..length {
            copies.push(KvCopy::Load { page: Page(position), lane: Lane(to), position });
        }
        self.lanes[to] = length;
        self.pages = self.pages.max(length);
        copies
    }
}

/// What must not happen once an engine is prepared: contexts, captures and allocations made so far.
fn made(simulator: &Simulator) -> [i64; 5] {
    let calls = ["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags", "cuMemAlloc_v2", "cuMemHostAlloc"];
    let calls = calls.map(|call| simulator.stand_in.calls(call));
    [simulator.contexts(), calls[0], calls[1], calls[2], calls[3]]
}

#[test]
fn random_ragged_steps_break_no_rule_equal_onnx_runtime_and_make_nothing_new() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let mut reference = reference(&bundle, &manifest);
    let (simulator, mut backend) = backend(Flavour::Rtx, &bundle, &manifest);
    let limits = backend.limits().clone();
    assert_eq!((&limits.lanes, &limits.context), (&reference.limits().lanes, &reference.limits().context));
    let mut crowd = Crowd::new(5, limits.lanes);
    let (mut found, mut expected) = (Outputs::default(), Outputs::default());
    let before = made(&simulator);
    for step in 0..2_000 {
        if crowd.rng.random_bool(0.2) {
            let copies = crowd.fork(&limits);
            backend.copy_kv(&copies).unwrap();
            reference.copy_kv(&copies).unwrap();
        } else {
            let batch = crowd.batch(&limits);
            backend.forward(&batch, &mut found).unwrap_or_else(|error| panic!("step {step}: {error}"));
            reference.forward(&batch, &mut expected).unwrap();
            assert_same(&found, &expected, &format!("step {step}"));
        }
    }
    assert_eq!(made(&simulator), before);
    let steps = simulator.stand_in.calls("cuMemcpyHtoDAsync_v2");
    let replayed = simulator.stand_in.calls("cuGraphLaunch");
    assert!(steps > 1_500 && 10 * replayed > 7 * steps, "{replayed} of {steps} steps are replayed");
    drop(backend);
    assert_eq!((simulator.alive(), simulator.stand_in.alive()), (0, 0));
}

#[test]
fn a_path_is_one_launch_whichever_lanes_get_it() {
    let (_folder, bundle, manifest) = bundle("models/demo");
    let (simulator, mut backend) = backend(Flavour::Enterprise, &bundle, &manifest);
    let path = 0..40;
    let copies = |call: &mut dyn FnMut()| {
        let done = || ["cuLaunchKernel", "cuMemcpy3DAsync_v2"].map(|call| simulator.stand_in.calls(call)).iter().sum();
        let before: i64 = done();
        call();
        done() - before
    };
    let stores: Vec<_> =
        path.clone().map(|position| KvCopy::Store { lane: Lane(0), position, page: Page(3 + position) }).collect();
    let loads = |lane| path.clone().map(move |position| KvCopy::Load { page: Page(3 + position), lane, position });
    let loads: Vec<_> = (0..10).flat_map(|lane| loads(Lane(lane))).collect();
    assert_eq!(copies(&mut || backend.copy_kv(&stores).unwrap()), 1);
    assert_eq!(copies(&mut || backend.copy_kv(&loads).unwrap()), 1);
    // What comes before a copy that can't be is done.
    let missing = KvCopy::Load { page: Page(0), lane: Lane(16), position: 0 };
    let mut refused = Ok(());
    assert_eq!(copies(&mut || refused = backend.copy_kv(&[stores[0], missing, stores[1]])), 1);
    assert!(refused.unwrap_err().to_string().contains("names something that does not exist"));
}

#[test]
fn memory_that_does_not_suffice_is_told_with_what_would_fit() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Rtx);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let options = options(&simulator, &bundle);
    // As much as four lanes take.
    simulator.stand_in.device(1, 86, 1 << 30);
    let four = load(&bundle, &manifest, &Options { lanes: 4, ..options.clone() }).unwrap();
    let memory = Driver::load(Some(&simulator.stand_in.cuda)).unwrap().open(0).unwrap().memory().unwrap();
    drop(four);
    simulator.stand_in.device(1, 86, (memory.total - memory.free) as u64);
    let error = load(&bundle, &manifest, &options).err().unwrap().to_string();
    assert!(error.contains("16 lanes") && error.contains("MiB are free"), "{error}");
    assert!(error.ends_with("--lanes 4 would fit"), "{error}");
    load(&bundle, &manifest, &Options { lanes: 4, ..options.clone() }).unwrap();
    // The driver has the last word.
    simulator.stand_in.device(1, 86, 1 << 30);
    simulator.stand_in.fail("cuMemAlloc_v2", 2, 1);
    let error = load(&bundle, &manifest, &options).err().unwrap().to_string();
    assert!(error.contains("device memory are needed"), "{error}");
    assert_eq!((simulator.alive(), simulator.stand_in.alive()), (0, 0));
}

#[test]
fn kernels_are_compiled_once_and_kept_from_start_to_start() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Rtx);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let compiled = || {
        let before = simulator.compiled();
        decode(&mut *load(&bundle, &manifest, &options(&simulator, &bundle)).unwrap()).unwrap();
        simulator.compiled() - before
    };
    let first = compiled();
    assert!(first > 10, "a kernel for each bucket: {first}");
    assert_eq!(compiled(), 0);
    let folder = std::fs::read_dir(bundle.join("built-here")).unwrap().next().unwrap().unwrap().path();
    let path = folder.join("kernels.bin");
    let mut changed = std::fs::read(&path).unwrap();
    changed[40] ^= 1;
    std::fs::write(&path, changed).unwrap();
    assert_eq!((compiled(), compiled()), (first, 0), "damaged kernels are compiled anew");
    // Where they can't be kept, the server starts all the same.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!((compiled(), compiled()), (first, first));
}

#[test]
fn keystrokes_have_the_answers_of_the_cpu_and_make_nothing_new() {
    let keystrokes = require::cases(10_000);
    let (_folder, bundle, manifest) = bundle("models/demo");
    let text = Arc::new(foretype::engine::read_text(&bundle, &manifest).unwrap());
    let (simulator, backend) = backend(Flavour::Enterprise, &bundle, &manifest);
    let (limits, tree_bytes) = (backend.limits().clone(), 8 << 20);
    let bound = limits.pages * limits.page_bytes + tree_bytes;
    let before = made(&simulator);
    let cold = Scheduler::new(reference(&bundle, &manifest), tree_bytes);
    let counted = [
        "",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpy3DAsync_v2",
        "cuLaunchKernel",
        "cuGraphLaunch",
        "cuStreamBeginCapture_v2",
    ];
    let earlier = counted.map(|call| simulator.stand_in.calls(call));
    let warm = Scheduler::new(backend, tree_bytes);
    let Replayed { equal, explained } =
        replay(&text, (warm, cold), Nearness::ONE_ENGINE, limits.context, bound, keystrokes);
    assert_eq!(explained, keystrokes);
    let each = |index: usize| (simulator.stand_in.calls(counted[index]) - earlier[index]) as f64 / keystrokes as f64;
    let [calls, uploads, downloads, boxes, copies, replays, captures] = std::array::from_fn(each);
    println!(
        "keystrokes: {equal} of {keystrokes} equal the CPU's; a keystroke has {calls:.1} calls of the driver: \
         {uploads:.1} uploads, one for each step, {downloads:.1} downloads of top-k, {boxes:.1} of logits, \
         {copies:.1} launches that copy keys and values, {replays:.1} replays, {captures:.1} captures"
    );
    assert!(equal * 1000 >= keystrokes * 999, "{equal} of {keystrokes}");
    assert_eq!(made(&simulator), before);
    assert!(replays > 0.9 * uploads, "nearly every step is a replay");
    assert!(downloads == uploads && boxes <= 2.0 * uploads, "one download of top-k, few of logits a step");
    assert!(copies <= 2.0 * uploads, "at most one launch before a step and one behind it");
}

/// A server whose models are on the simulator, but for those of the folder `/cpu`.
fn server(bundle: &Path, manifest: &Manifest, on_gpu: Options) -> RegistryServer {
    let (bundle, manifest) = (bundle.to_owned(), manifest.clone());
    let load = move |folder: &Path| {
        let on_gpu = BackendOptions::TensorRt(on_gpu.clone());
        let backend = if folder.ends_with("cpu") { backend_options().into() } else { on_gpu };
        let options = EngineOptions { backend, requests: request_options() };
        Ok(Engine::load(&bundle, &manifest, &options, &Metrics::new())?)
    };
    RegistryServer::start(Box::new(load), RegistryLimits { bytes: 1 << 30, models: 4 })
}

#[test]
fn every_allocation_that_fails_is_told_leaves_nothing_and_other_models_go_on() {
    let (_folder, bundle, manifest) = bundle("tests/goldens/relu");
    let simulator = Simulator::new(Flavour::Rtx);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let server = server(&bundle, &manifest, options(&simulator, &bundle));
    let load = |name: &str| {
        let body = serde_json::json!({"model_name": name, "url": format!("/{name}")}).to_string();
        server.post("/models", &body)
    };
    let answer = |name: &str| {
        let answer = server.post(&format!("/models/{name}/invoke"), r#"{"input": "heat"}"#);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["suggestions"].clone()
    };
    assert_eq!(load("cpu").status, 200);
    let expected = answer("cpu");
    let mut counts = Vec::new();
    for (call, words) in [
        ("cuMemAlloc_v2", "MiB of device memory are needed"),
        ("cuMemHostAlloc", "MiB of device memory are needed"),
        ("cuModuleLoadData", "MiB of device memory are needed"),
        // Memory that a context takes for itself.
        ("take", "out of memory: a context needs"),
    ] {
        let mut failed = 0;
        loop {
            simulator.stand_in.fail(call, 2, failed);
            let loaded = load("gpu");
            if loaded.status == 200 {
                break;
            }
            assert!(loaded.text.contains(words), "{call} {failed}: {}", loaded.text);
            let left = (simulator.alive(), simulator.stand_in.alive(), simulator.stand_in.used(0));
            assert_eq!(left, (0, 0, 0), "{call} {failed}");
            assert_eq!(answer("cpu"), expected, "{call} {failed}");
            failed += 1;
        }
        counts.push((call, failed));
        simulator.stand_in.recover();
        assert_eq!(answer("gpu").as_array().map(Vec::len), expected.as_array().map(Vec::len));
        assert_eq!(server.call("DELETE", "/models/gpu").status, 200);
    }
    println!("allocations that failed in turn: {counts:?}");
    let least = [5, 3, 1, 10];
    assert!(counts.iter().zip(least).all(|((_, failed), least)| *failed >= least), "{counts:?}");
}
