//! Encoder-decoders on the backend `tensorrt`, on the simulator: both graphs run, rows read the sources that they name,
//! and what doesn't fit is refused.

use std::path::{Path, PathBuf};

use backends::cuda::Driver;
use backends::options::BackendOptions;
use backends::tensorrt::{Options, load};
use bundle::Manifest;
use completion::text::TokenId;
use engine_build::plan::{ENGINES, Part, Range};
use foretype::engine::{Engine, EngineOptions};
use foretype::metrics::Metrics;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use scheduler::backend::{Backend, BackendError, Batch, Limits, Outputs, Selected, SourceSlot};
use serde_json::json;
use tensorrt::Flavour;

use crate::encoder_decoder::{GOLDENS, folder, read};
use crate::goldens::max_difference;
use crate::simulator::Simulator;
use crate::support::{TestServer, backend_options, logits_of, request_options};
use crate::tensorrt::{TOLERANCE, assert_same, backend, bundle, options as on, reference, shapes};

fn t5(name: &str) -> (tempfile::TempDir, PathBuf, Manifest) {
    bundle(&format!("tests/goldens/t5/{name}"))
}

#[test]
fn every_golden_has_the_logits_that_onnx_runtime_has() {
    for name in GOLDENS {
        let (_folder, bundle, manifest) = t5(name);
        let mut reference = reference(&bundle, &manifest);
        for flavour in Flavour::ALL {
            let (_simulator, mut backend) = backend(flavour, &bundle, &manifest);
            assert_eq!(backend.limits().source, reference.limits().source);
            for (index, (source, golden)) in read(&folder(name)).into_iter().enumerate() {
                let slot = SourceSlot(index % 3);
                backend.encode(slot, &source).unwrap();
                reference.encode(slot, &source).unwrap();
                compare((&mut *backend, &mut *reference), slot, 0, &golden.prompt);
                for (step, token) in golden.greedy.iter().enumerate() {
                    compare((&mut *backend, &mut *reference), slot, golden.prompt.len() + step, &[*token]);
                }
            }
        }
    }
}

/// Computes the same row on both, and compares all its positions.
#[track_caller]
fn compare((found, expected): (&mut dyn Backend, &mut dyn Backend), slot: SourceSlot, past: usize, tokens: &[u32]) {
    let found = logits_of(found, Some(slot), past, tokens);
    let expected = logits_of(expected, Some(slot), past, tokens);
    assert_eq!((found.len(), expected.len()), (tokens.len(), tokens.len()));
    let worst = found.iter().zip(&expected).map(|(a, b)| max_difference(a, b)).fold(0f32, f32::max);
    assert!(worst <= TOLERANCE, "{slot:?} behind {past}: {worst}");
}

/// Rows of several sources side by side, which come and go, on two backends.
struct Readers {
    rng: ChaCha8Rng,
    /// Tokens of the source in each slot.
    slots: Vec<Vec<TokenId>>,
    /// The slot that a lane reads, and its valid positions.
    lanes: Vec<(usize, usize)>,
}

impl Readers {
    fn new(limits: &Limits) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(11);
        Self { rng, slots: vec![Vec::new(); limits.source.unwrap().slots], lanes: vec![(0, 0); limits.lanes] }
    }

    /// A new source for a slot; whoever read the old one begins anew.
    fn source(&mut self, limits: &Limits) -> (SourceSlot, Vec<TokenId>) {
        let empty = self.slots.iter().position(Vec::is_empty);
        let slot = empty.unwrap_or_else(|| self.rng.random_range(0..self.slots.len()));
        // Mostly short ones, so that widths change.
        let longest = if self.rng.random_bool(0.7) { 12 } else { limits.source.unwrap().tokens };
        let len = self.rng.random_range(1..=longest);
        let tokens: Vec<_> = (0..len).map(|_| TokenId(self.rng.random_range(0..limits.vocab as u32))).collect();
        self.slots[slot].clone_from(&tokens);
        self.lanes.iter_mut().filter(|(reads, _)| *reads == slot).for_each(|(_, past)| *past = 0);
        (SourceSlot(slot), tokens)
    }

    fn batch(&mut self, limits: &Limits) -> Batch {
        let filled: Vec<usize> = (0..self.slots.len()).filter(|slot| !self.slots[*slot].is_empty()).collect();
        let rows = self.rng.random_range(1..=limits.lanes);
        let longest = if self.rng.random_bool(0.8) { 1 } else { self.rng.random_range(2..=6) };
        let mut batch = Batch::default();
        for lane in 0..rows {
            let (mut slot, mut past) = self.lanes[lane];
            let is_new = self.slots[slot].is_empty() || self.rng.random_bool(0.1);
            if is_new {
                (slot, past) = (filled[self.rng.random_range(0..filled.len())], 0);
            }
            if past + longest > limits.context {
                past = 0;
            }
            let len = if lane == 0 { longest } else { self.rng.random_range(1..=longest) };
            let tokens: Vec<_> = (0..len).map(|_| TokenId(self.rng.random_range(0..limits.vocab as u32))).collect();
            batch.push_row_of(Some(SourceSlot(slot)), past, tokens);
            batch.selected.push(Selected { row: lane, offset: len - 1, full: self.rng.random_bool(0.2) });
            self.lanes[lane] = (slot, past + len);
        }
        batch
    }
}

#[test]
fn random_readers_of_sources_that_come_and_go_equal_onnx_runtime() {
    let (_folder, bundle, manifest) = t5("gated");
    let mut reference = reference(&bundle, &manifest);
    let (simulator, mut backend) = backend(Flavour::Rtx, &bundle, &manifest);
    let limits = backend.limits().clone();
    let mut readers = Readers::new(&limits);
    let (mut found, mut expected) = (Outputs::default(), Outputs::default());
    for step in 0..1500 {
        if step == 0 || readers.rng.random_bool(0.1) {
            let (slot, tokens) = readers.source(&limits);
            backend.encode(slot, &tokens).unwrap();
            reference.encode(slot, &tokens).unwrap();
        }
        let batch = readers.batch(&limits);
        backend.forward(&batch, &mut found).unwrap_or_else(|error| panic!("step {step}: {error}"));
        reference.forward(&batch, &mut expected).unwrap();
        assert_same(&found, &expected, &format!("step {step}"));
    }
    assert!(simulator.stand_in.calls("cuGraphLaunch") > 500, "decoding is replayed");
    drop(backend);
    assert_eq!((simulator.alive(), simulator.stand_in.alive()), (0, 0));
}

#[test]
fn prompts_have_the_answers_that_they_have_on_onnx_runtime() {
    for name in ["gated", "long"] {
        let (_folder, bundle, manifest) = t5(name);
        let server = |backend: BackendOptions| {
            let options = EngineOptions { backend, requests: request_options() };
            TestServer::with(Engine::load(&bundle, &manifest, &options, &Metrics::new()).unwrap())
        };
        let reference = server(backend_options().into());
        for flavour in Flavour::ALL {
            let simulator = Simulator::new(flavour);
            simulator.write_plan(&bundle, &manifest, shapes(&manifest));
            let served = server(BackendOptions::TensorRt(on(&simulator, &bundle)));
            for parameters in
                [json!({"max_new_tokens": 12}), json!({"max_new_tokens": 9, "do_sample": true, "top_k": 20, "seed": 3})]
            {
                let inputs = ["how to grow tomatoes", "the name of the song", "how to grow", ""];
                let body = json!({"inputs": inputs, "parameters": parameters}).to_string();
                let [found, expected] = [&served, &reference].map(|server| server.post(&body));
                assert_eq!((found.status, expected.status), (200, 200), "{}", found.text);
                assert_eq!(found.json(), expected.json(), "{name} {flavour}");
            }
        }
    }
}

/// Reads a source and computes a prompt and some steps behind it.
fn answer(backend: &mut dyn Backend) -> Result<Vec<Outputs>, BackendError> {
    let source: Vec<_> = (5..14).map(TokenId).collect();
    backend.encode(SourceSlot(2), &source)?;
    let (mut batch, mut all) = (Batch::default(), Vec::new());
    for step in 0..4u32 {
        batch.clear();
        for row in 0..2 {
            batch.push_row_of(Some(SourceSlot(2)), step as usize, [TokenId(3 + step + row)]);
            batch.selected.push(Selected { row: row as usize, offset: 0, full: true });
        }
        let mut out = Outputs::default();
        backend.forward(&batch, &mut out)?;
        all.push(out);
    }
    Ok(all)
}

#[test]
fn a_reading_that_fails_names_its_call_and_the_next_one_works() {
    let (_folder, bundle, manifest) = t5("relu");
    let (simulator, mut backend) = backend(Flavour::Enterprise, &bundle, &manifest);
    let expected = answer(&mut *backend).unwrap();
    for (call, skip) in [("cuMemcpyHtoDAsync_v2", 0), ("cuStreamSynchronize", 0), ("cuMemcpy3DAsync_v2", 1)] {
        simulator.stand_in.fail(call, 999, skip);
        let error = answer(&mut *backend).unwrap_err().to_string();
        assert_eq!(error, format!("the engine failed: the CUDA call {call} failed with an unknown error (999)"));
        if call != "cuMemcpy3DAsync_v2" {
            let mut batch = Batch::default();
            batch.push_row_of(Some(SourceSlot(2)), 0, [TokenId(1)]);
            batch.selected.push(Selected { row: 0, offset: 0, full: false });
            let error = backend.forward(&batch, &mut Outputs::default()).unwrap_err().to_string();
            assert!(error.contains("nothing was read into the source slot 2"), "{error}");
        }
        assert_eq!(answer(&mut *backend).unwrap(), expected, "{call}");
    }
    let error = backend.encode(SourceSlot(99), &[TokenId(1)]).unwrap_err().to_string();
    assert!(error.contains("SourceSlot(99) of 17"), "{error}");
    drop(backend);
    assert_eq!((simulator.alive(), simulator.stand_in.alive()), (0, 0));
}

#[test]
fn memory_of_sources_is_counted() {
    let (_folder, bundle, manifest) = t5("long");
    let simulator = Simulator::new(Flavour::Rtx);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    let options = on(&simulator, &bundle);
    let three = load(&bundle, &manifest, &Options { lanes: 3, ..options.clone() }).unwrap();
    let memory = Driver::load(Some(&simulator.stand_in.cuda)).unwrap().open(0).unwrap().memory().unwrap();
    drop(three);
    simulator.stand_in.device(1, 86, (memory.total - memory.free) as u64);
    let error = load(&bundle, &manifest, &options).err().unwrap().to_string();
    assert!(error.contains("16 lanes") && error.ends_with("--lanes 3 would fit"), "{error}");
    load(&bundle, &manifest, &Options { lanes: 3, ..options }).unwrap();
}

/// The files of the encoder's plan: the plan and its record.
fn encoder_files(decoder: &Path) -> [PathBuf; 2] {
    let name = decoder.file_stem().unwrap().to_string_lossy();
    ["plan", "json"].map(|extension| decoder.with_file_name(format!("{name}-encoder.{extension}")))
}

#[test]
fn an_encoders_plan_that_does_not_fit_is_told_from_both_sides() {
    let (_folder, bundle, manifest) = t5("relu");
    let simulator = Simulator::new(Flavour::Rtx);
    let refused = |what: &str| {
        let error = load(&bundle, &manifest, &on(&simulator, &bundle)).err().unwrap().to_string();
        assert!(error.contains(what), "{error}");
    };
    let write = |part, bundle: &Path, manifest: &Manifest, shapes| {
        simulator.write_plan_of(part, bundle, manifest, shapes);
    };
    let decoder = simulator.write_plan_of(Part::Decoder, &bundle, &manifest, shapes(&manifest));
    refused("there is no plan of the encoder in");
    let [plan, record] = encoder_files(&decoder);
    write(Part::Encoder, &bundle, &manifest, shapes(&manifest));
    load(&bundle, &manifest, &on(&simulator, &bundle)).unwrap();

    let whole = std::fs::read(&plan).unwrap();
    std::fs::write(&plan, &whole[..whole.len() - 9]).unwrap();
    refused(&format!("-encoder.plan has {} bytes", whole.len() - 9));
    std::fs::write(&plan, &whole).unwrap();

    // Another length of sources, in either.
    for part in [Part::Encoder, Part::Decoder] {
        let shorter = shapes(&manifest).reading(Some(40));
        write(part, &bundle, &manifest, shorter);
        refused("reads sources of up to 40 tokens, and the model's have up to 48: build it again here");
        write(part, &bundle, &manifest, shapes(&manifest));
    }

    // The encoder of another model.
    let (_other_folder, other, other_manifest) = t5("gated");
    let others = simulator.write_plan(&other, &other_manifest, shapes(&other_manifest));
    for (from, to) in encoder_files(&others).iter().zip([&plan, &record]) {
        std::fs::copy(from, to).unwrap();
    }
    refused("-encoder.plan was built from encoder.onnx with the SHA-256");

    // One whose record says what it is not: the decoder's, as the encoder's.
    std::fs::copy(&decoder, &plan).unwrap();
    let said = std::fs::read_to_string(decoder.with_extension("json")).unwrap();
    let mut said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["part"] = json!("encoder");
    said["plan"]["path"] = json!(plan.file_name().unwrap().to_string_lossy());
    let names = ["encoder.onnx", "encoder.weights"];
    said["graph"] = json!(names.map(|name| manifest.file(name).unwrap()));
    std::fs::write(&record, said.to_string()).unwrap();
    refused("the plan's tensor cross_k_0 is");
    assert_eq!((simulator.alive(), simulator.stand_in.alive()), (0, 0));
    assert!(bundle.join(ENGINES).is_dir());
}

#[test]
fn a_source_beyond_the_profile_is_refused_by_tensorrt() {
    let (_folder, bundle, manifest) = t5("relu");
    let simulator = Simulator::new(Flavour::Enterprise);
    simulator.write_plan(&bundle, &manifest, shapes(&manifest));
    // A record that promises more than the plan takes.
    let shorter = engine_build::plan::PlanShapes { source: Some(Range::new(1, 8, 8)), ..shapes(&manifest) };
    let path = simulator.write_plan_of(Part::Encoder, &bundle, &manifest, shorter).with_extension("json");
    let record = std::fs::read_to_string(&path).unwrap();
    assert!(record.contains("\"source\":[1,8,8]"), "{record}");
    std::fs::write(&path, record.replace("[1,8,8]", "[1,8,48]")).unwrap();
    let mut backend = load(&bundle, &manifest, &on(&simulator, &bundle)).unwrap();
    backend.encode(SourceSlot(0), &[TokenId(3); 8]).unwrap();
    let error = backend.encode(SourceSlot(0), &[TokenId(3); 9]).unwrap_err().to_string();
    assert!(error.contains("input_ids [1,9] is outside profile 0"), "{error}");
}
