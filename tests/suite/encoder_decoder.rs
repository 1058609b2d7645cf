//! Encoder-decoders against Hugging Face transformers, on tiny checkpoints of odd shapes; and what is peculiar to
//! serving them.

use std::path::{Path, PathBuf};

use backends::onnxruntime::cuda::CudaOptions;
use backends::options::{self, BackendOptions};
use bundle::{Dtype, Operators, Quantization};
use completion::text::TokenId;
use engine_build::BuildOptions;
use foretype::engine::Engine;
use foretype::metrics::Metrics;
use safetensors::SafeTensors;
use scheduler::backend::{Backend, SourceSlot};
use serde_json::{Value, json};

use crate::goldens::{Golden, max_difference, read_expected};
use crate::support::{
    RaggedRow, TestServer, backend_options, build_with, engine_options, load, logits_of, ragged_difference, repository,
};

/// Largest difference of a logit from transformers' fp32 one.
const TOLERANCE: f32 = 1e-4;
/// The same for a bundle in f16.
const F16_TOLERANCE: f32 = 0.2;
/// Largest difference of a logit that depends on the rows beside it.
const RAGGED_TOLERANCE: f32 = 1e-5;

pub const GOLDENS: [&str; 3] = ["relu", "gated", "long"];

pub fn folder(name: &str) -> PathBuf {
    repository("tests/goldens/t5").join(name)
}

/// What transformers made of prompts, and the sources that it read.
pub fn read(folder: &Path) -> Vec<(Vec<TokenId>, Golden)> {
    let path = folder.join("expected.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let source = |i: usize| -> Vec<TokenId> {
        let tensor = file.tensor(&format!("source.{i}")).unwrap();
        tensor.data().chunks_exact(8).map(|b| TokenId(i64::from_le_bytes(b.try_into().unwrap()) as u32)).collect()
    };
    read_expected(&path).into_iter().enumerate().map(|(i, golden)| (source(i), golden)).collect()
}

/// Reads a source into a slot and computes the logits of every prompt position.
fn answer(backend: &mut dyn Backend, slot: usize, source: &[TokenId], prompt: &[u32]) -> Vec<Vec<f32>> {
    backend.encode(SourceSlot(slot), source).unwrap();
    logits_of(backend, Some(SourceSlot(slot)), 0, prompt)
}

fn worst_difference(backend: &mut dyn Backend, goldens: &[(Vec<TokenId>, Golden)]) -> f32 {
    let mut worst = 0f32;
    for (source, golden) in goldens {
        let rows = answer(backend, 3, source, &golden.prompt);
        assert_eq!(rows.len(), golden.logits.len());
        let differences = rows.iter().zip(&golden.logits).map(|(row, expected)| max_difference(row, expected));
        worst = differences.fold(worst, f32::max);
    }
    worst
}

#[test]
fn logits_and_greedy_tokens_equal_transformers() {
    for (name, operators) in GOLDENS.iter().flat_map(|name| [Operators::Onnx, Operators::Foretype].map(|o| (name, o))) {
        let (_folder, bundle, manifest) = build_with(&folder(name), |options| options.operators = Some(operators));
        let mut backend = load(&bundle, &manifest);
        let goldens = read(&folder(name));
        let worst = worst_difference(&mut *backend, &goldens);
        println!("encoder-decoder: {name}, {operators:?}: largest difference {worst:.1e}");
        assert!(worst <= TOLERANCE, "{name}, {operators:?}: {worst}");
        for (source, golden) in &goldens {
            let mut row = answer(&mut *backend, 0, source, &golden.prompt).pop().unwrap();
            for (step, &expected) in golden.greedy.iter().enumerate() {
                let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
                assert_eq!(best, expected, "{name}, step {step}");
                let past = golden.prompt.len() + step;
                row = logits_of(&mut *backend, Some(SourceSlot(0)), past, &[best]).pop().unwrap();
            }
        }
    }
}

#[test]
fn half_precision_is_near_transformers() {
    for name in GOLDENS {
        let (_folder, bundle, manifest) = build_with(&folder(name), |options| options.dtype = Dtype::F16);
        let worst = worst_difference(&mut *load(&bundle, &manifest), &read(&folder(name)));
        println!("encoder-decoder: {name}, f16: largest difference {worst:.1e}");
        assert!(worst <= F16_TOLERANCE, "{name}: {worst}");
    }
}

/// Rows of sources of different lengths, some with their past in pages: each must compute what it computes alone.
#[test]
fn a_ragged_batch_equals_each_row_alone() {
    for (name, operators) in GOLDENS.iter().flat_map(|name| [Operators::Onnx, Operators::Foretype].map(|o| (name, o))) {
        let (_folder, bundle, manifest) = build_with(&folder(name), |options| options.operators = Some(operators));
        let mut backend = load(&bundle, &manifest);
        let goldens = read(&folder(name));
        for (r, (source, _)) in goldens.iter().enumerate() {
            backend.encode(SourceSlot(r), source).unwrap();
        }
        let past = |r: usize, golden: &Golden| if r.is_multiple_of(2) { golden.prompt.len() - 1 } else { 0 };
        let rows = goldens.iter().enumerate().map(|(r, (_, golden))| RaggedRow {
            source: Some(SourceSlot(r)),
            tokens: &golden.prompt,
            past: past(r, golden),
        });
        let rows: Vec<RaggedRow> = rows.collect();
        let difference = ragged_difference(&mut *backend, &rows);
        assert!(difference <= RAGGED_TOLERANCE, "{name}, {operators:?}: {difference}");
        // A slot's new source is what its rows read, wherever an older copy of it still is.
        let (source, golden) = &goldens[1];
        let alone = logits_of(&mut *backend, Some(SourceSlot(1)), 0, &golden.prompt);
        let changed = answer(&mut *backend, 0, source, &golden.prompt);
        let difference = max_difference(changed.last().unwrap(), alone.last().unwrap());
        assert!(difference <= RAGGED_TOLERANCE, "{name}: {difference}");
    }
}

fn engine(name: &str) -> Engine {
    let (_folder, bundle, manifest) = build_with(&folder(name), |_| {});
    Engine::load(&bundle, &manifest, &engine_options(), &Metrics::new()).unwrap()
}

fn texts(answer: &Value) -> Vec<String> {
    answer.as_array().unwrap().iter().map(|one| one["generated_text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn prompts_are_read_and_answered() {
    let server = TestServer::with(engine("gated"));
    let generate = |inputs: Value, seed: u64| {
        let parameters = json!({"max_new_tokens": 12, "do_sample": true, "temperature": 0.7, "seed": seed});
        let answer = server.post(&json!({"inputs": inputs, "parameters": parameters}).to_string());
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    let prompts =
        ["how to grow tomatoes", "the name of the song <extra_id_0> film", "how to grow", "\u{1f345} unknown\nlines"];
    let together = texts(&generate(json!(prompts), 5));
    for (prompt, text) in prompts.iter().zip(&together) {
        assert_eq!(texts(&generate(json!([prompt]), 5))[0], *text, "{prompt:?} beside others");
        assert!(!text.starts_with(' ') && !text.contains('<'), "{text:?}");
    }
    assert!(together.iter().collect::<std::collections::HashSet<_>>().len() >= 3, "{together:?}");

    // Samples of one prompt share its source, and are those that each seed gives.
    let body = json!({"prompt": "how to grow", "n": 3, "max_tokens": 6, "temperature": 0.9, "seed": 4});
    let answer = server.send("POST", "/v1/completions", Some("application/json"), body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 3);
    let read = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(read >= 4, "the source and its end are what was read: {answer}");

    let stream = json!({"inputs": prompts[0], "stream": true, "parameters": {"max_new_tokens": 5}}).to_string();
    let answer = server.post(&stream);
    assert!(answer.status == 200 && answer.text.contains("generated_text"), "{}", answer.text);
}

#[test]
fn what_an_encoder_decoder_cannot_do_is_said() {
    let server = TestServer::with(engine("long"));
    let answer = server.post(r#"{"input": "how to"}"#);
    assert_eq!(answer.status, 400);
    assert!(answer.text.contains("invalid_input") && answer.text.contains("inputs"), "{}", answer.text);
    let long = "a ".repeat(99);
    let server = TestServer::with(engine("relu"));
    let answer = server.post(&json!({"inputs": long}).to_string());
    assert_eq!(answer.status, 400);
    assert!(answer.text.contains("reads at most 48"), "{}", answer.text);
    let empty = server.post(r#"{"inputs": ""}"#);
    assert_eq!(empty.status, 200, "an end alone is a source: {}", empty.text);

    let out = tempfile::tempdir().unwrap();
    let plain = BuildOptions::new(folder("relu"), out.path().join("bundle"));
    let int8 = BuildOptions { quantization: Quantization::Int8, ..plain };
    let error = engine_build::build(&int8, &()).unwrap_err().to_string();
    assert!(error.contains("int8") && error.contains("encoder-decoder"), "{error}");

    let (_folder, bundle, manifest) = build_with(&folder("relu"), |options| options.dtype = Dtype::F16);
    let cuda = BackendOptions::OnnxRuntimeCuda(backend_options(), CudaOptions::default());
    let error = options::load(&bundle, &manifest, &cuda).err().unwrap().to_string();
    assert!(error.contains("does on the CPU only: use --device cpu, or TensorRT"), "{error}");
}
