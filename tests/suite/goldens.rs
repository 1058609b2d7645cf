//! The whole path from checkpoint to logits against Hugging Face transformers, on tiny checkpoints of odd shapes.

use std::path::Path;

use completion::text::TokenId;
use safetensors::SafeTensors;
use scheduler::backend::{Backend, Batch, Outputs, Selected};

use backends::onnxruntime::{self, CpuLevel, Options};
use bundle::{Dtype, Manifest, Operators};

use crate::support::{RaggedRow, all_logits, backend_options, build, build_with, load, ragged_difference, repository};

/// Largest difference of a logit from transformers' fp32 one. The goldens' weights are large, so that outputs vary:
/// transformers itself is up to 2.2e-4 away from an fp64 computation, and the mildest mistake the goldens can tell is
/// 4e-3.
const TOLERANCE: f32 = 1e-3;
/// The same for the newer families, whose goldens' weights are smaller.
const FAMILY_TOLERANCE: f32 = 1e-4;
/// The same for a bundle in f16, whose numbers have 11 bits. Not asked of GPT-2's goldens: their large weights over few
/// numbers multiply the rounding.
const F16_TOLERANCE: f32 = 0.2;
/// Largest difference of a logit that depends on the rows beside it.
const RAGGED_TOLERANCE: f32 = 1e-4;
/// Greedy choices may differ where the two best logits are nearer than this.
const TIE: f32 = 1e-4;

/// A prompt and what transformers made of it.
pub struct Golden {
    pub prompt: Vec<u32>,
    /// Of every position, or of the last one only.
    pub logits: Vec<Vec<f32>>,
    pub greedy: Vec<u32>,
    /// Best minus second best logit at each greedy step.
    pub gap: Vec<f32>,
}

/// Reads `expected.safetensors`.
pub fn read_expected(path: &Path) -> Vec<Golden> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: String| file.tensor(&name).unwrap().data().to_vec();
    let integers =
        |name| numbers(name).chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    let floats = |name| -> Vec<f32> {
        numbers(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let golden = |i: usize| {
        let width = file.tensor(&format!("logits.{i}")).unwrap().shape()[1];
        Golden {
            prompt: integers(format!("prompt.{i}")),
            logits: floats(format!("logits.{i}")).chunks_exact(width).map(<[f32]>::to_vec).collect(),
            greedy: integers(format!("greedy.{i}")),
            gap: floats(format!("gap.{i}")),
        }
    };
    let count = file.names().iter().filter(|name| name.starts_with("prompt.")).count();
    (0..count).map(golden).collect()
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Decodes greedily, one token a step, and compares up to the first near tie. Returns how many tokens were equal.
pub fn check_greedy(backend: &mut dyn Backend, golden: &Golden, name: &str) -> usize {
    let mut row = all_logits(backend, 0, &golden.prompt).pop().unwrap();
    for (step, (&expected, &gap)) in golden.greedy.iter().zip(&golden.gap).enumerate() {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        if best != expected {
            assert!(gap < TIE, "{name}: step {step} chose {best}, transformers {expected}, by {gap}");
            return step;
        }
        if step + 1 < golden.greedy.len() {
            row = all_logits(backend, golden.prompt.len() + step, &[best]).pop().unwrap();
        }
    }
    golden.greedy.len()
}

pub fn folders() -> Vec<(String, std::path::PathBuf)> {
    let mut folders: Vec<_> =
        std::fs::read_dir(repository("tests/goldens")).unwrap().map(|e| e.unwrap().path()).collect();
    folders.retain(|path| path.join("expected.safetensors").is_file());
    folders.sort();
    assert!(folders.len() >= 10, "{folders:?}");
    folders.into_iter().map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), p)).collect()
}

/// What computes a golden: ONNX's operators, or foretype's own at a CPU level.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Onnx,
    Foretype(CpuLevel),
}

/// Every form that this machine can compute. Says which levels it lacks.
fn forms() -> Vec<Form> {
    for level in CpuLevel::ALL.into_iter().filter(|level| !level.is_available()) {
        require::absent(&format!("goldens at CPU level {level}"), "this machine lacks it");
    }
    std::iter::once(Form::Onnx).chain(CpuLevel::available().map(Form::Foretype)).collect()
}

impl Form {
    /// The bundle of a checkpoint, loaded; the folder has to outlive the engine.
    fn open(self, checkpoint: &Path) -> (tempfile::TempDir, Box<dyn Backend>, Manifest) {
        let (operators, cpu_level) = match self {
            Form::Onnx => (Operators::Onnx, CpuLevel::detect()),
            Form::Foretype(level) => (Operators::Foretype, level),
        };
        let (folder, bundle, manifest) = build_with(checkpoint, |options| options.operators = Some(operators));
        let backend = onnxruntime::load(&bundle, &manifest, &Options { cpu_level, ..backend_options() }).unwrap();
        (folder, backend, manifest)
    }
}

#[test]
fn logits_and_greedy_tokens_equal_transformers() {
    let forms = forms();
    for ((name, folder), form) in folders().iter().flat_map(|golden| forms.iter().map(move |form| (golden, form))) {
        let (_folder, mut backend, manifest) = form.open(folder);
        let mut worst = 0f32;
        for golden in read_expected(&folder.join("expected.safetensors")) {
            let rows = all_logits(&mut *backend, 0, &golden.prompt);
            assert_eq!(rows.len(), golden.logits.len());
            for (row, expected) in rows.iter().zip(&golden.logits) {
                worst = worst.max(max_difference(row, expected));
            }
            check_greedy(&mut *backend, &golden, name);
        }
        println!("goldens: {name}, {form:?}: largest difference {worst:.1e}");
        let tolerance = if manifest.family == "gpt2" { TOLERANCE } else { FAMILY_TOLERANCE };
        assert!(worst <= tolerance, "{name}, {form:?}: {worst}");
    }
}

#[test]
fn half_precision_is_near_transformers() {
    for (name, folder) in folders() {
        let (_folder, bundle, manifest) = build_with(&folder, |options| options.dtype = Dtype::F16);
        if manifest.family == "gpt2" {
            continue;
        }
        let mut backend = load(&bundle, &manifest);
        let mut worst = 0f32;
        for golden in read_expected(&folder.join("expected.safetensors")) {
            let rows = all_logits(&mut *backend, 0, &golden.prompt);
            for (row, expected) in rows.iter().zip(&golden.logits) {
                worst = worst.max(max_difference(row, expected));
            }
        }
        println!("goldens: {name}, f16: largest difference {worst:.1e}");
        assert!(worst <= F16_TOLERANCE, "{name}: {worst}");
    }
}

/// Rows at different positions, some with one token, some with many, some with keys and values that came from pages:
/// each must compute what it computes alone.
#[test]
fn a_ragged_batch_equals_each_row_alone() {
    let forms = forms();
    for ((name, folder), form) in folders().iter().flat_map(|golden| forms.iter().map(move |form| (golden, form))) {
        let (_folder, mut backend, _) = form.open(folder);
        // Every row, padded to the longest, has to fit behind the longest past.
        let fitting = 4..=backend.limits().context / 2;
        let mut goldens = read_expected(&folder.join("expected.safetensors"));
        goldens.retain(|golden| fitting.contains(&golden.prompt.len()));
        goldens.truncate(8);
        assert!(goldens.len() >= 3, "{name}: too few rows to be ragged");
        // Every second row keeps but one token to compute.
        let past = |r: usize, golden: &Golden| if r.is_multiple_of(2) { golden.prompt.len() - 1 } else { r % 3 };
        let rows = goldens.iter().enumerate().map(|(r, golden)| RaggedRow {
            source: None,
            tokens: &golden.prompt,
            past: past(r, golden),
        });
        let rows: Vec<RaggedRow> = rows.collect();
        let difference = ragged_difference(&mut *backend, &rows);
        assert!(difference <= RAGGED_TOLERANCE, "{name}, {form:?}: {difference}");
    }
}

#[test]
fn top_k_and_logsumexp_agree_with_the_row() {
    let (_folder, bundle, manifest) = build(&repository("tests/goldens/relu"), None);
    let mut backend = load(&bundle, &manifest);
    let mut batch = Batch::default();
    batch.push_row(0, [TokenId(1), TokenId(2), TokenId(3)]);
    batch.selected.extend((0..3).map(|offset| Selected { row: 0, offset, full: offset != 1 }));
    let mut out = Outputs::default();
    backend.forward(&batch, &mut out).unwrap();
    let (vocab, top_k) = (backend.limits().vocab, backend.limits().top_k);
    assert_eq!(out.logits.len(), 2 * vocab, "only the marked rows come back, without padding");
    for (row, at) in out.logits.chunks_exact(vocab).zip([0, 2]) {
        let mut sorted = row.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(sorted[..top_k], out.top_logits[at * top_k..(at + 1) * top_k]);
        assert!(out.top_ids[at * top_k..(at + 1) * top_k].iter().all(|&id| (id as usize) < vocab));
        let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln() as f32;
        assert!((lse - out.logsumexp[at]).abs() < 1e-4);
    }
}
