//! What is particular to graphs for GPUs, run by ONNX Runtime on the CPU. Attention reads a part of a long context, or
//! computes in f32; weights have few bits; a large vocabulary is searched in parts.

use std::path::{Path, PathBuf};

use bundle::manifest::{Manifest, WEIGHTS_FILE, attended_lengths};
use bundle::{Dtype, Operators, Quantization};
use completion::text::TokenId;
use engine_build::BuildOptions;
use foretype::quality::{self, Gate};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use scheduler::backend::{Backend, Batch, Outputs, Selected};
use serde_json::Value;

use crate::goldens::{folders, max_difference, read_expected};
use crate::support::{RaggedRow, all_logits, build_with, load, ragged_difference, repository};

/// Positions of a context with three lengths of attention.
pub const LONG: u32 = 600;

/// A golden whose positions have no table, said to have more of them: that changes no tensor.
pub fn with_long_context(folder: &Path, golden: &str) -> PathBuf {
    let (golden, checkpoint) = (repository("tests/goldens").join(golden), folder.join("checkpoint"));
    std::fs::create_dir(&checkpoint).unwrap();
    for name in ["tokenizer.json", "model.safetensors"] {
        std::fs::copy(golden.join(name), checkpoint.join(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(golden.join("config.json")).unwrap()).unwrap();
    for key in ["max_position_embeddings", "seq_length"] {
        config[key] = LONG.into();
    }
    std::fs::write(checkpoint.join("config.json"), config.to_string()).unwrap();
    checkpoint
}

fn built(checkpoint: &Path, change: impl FnOnce(&mut BuildOptions)) -> (tempfile::TempDir, PathBuf, Manifest) {
    build_with(checkpoint, |options| {
        options.dtype = Dtype::F16;
        change(options);
    })
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|at| (at * 37 + at / 7) % 280).collect()
}

/// How many positions attention reads follows from the whole batch. So this is also why a row's numbers don't follow
/// from those beside it.
#[test]
fn attention_over_a_part_of_a_long_context_changes_no_bit() {
    assert_eq!(attended_lengths(LONG).collect::<Vec<_>>(), [64, 256, LONG]);
    assert_eq!(attended_lengths(128).collect::<Vec<_>>(), [128], "the default context is read as a whole");
    for golden in ["llama", "bloom"] {
        parts_are_as_the_whole(golden);
    }
}

fn parts_are_as_the_whole(golden: &str) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = with_long_context(folder.path(), golden);
    for dtype in [Dtype::F32, Dtype::F16] {
        let open = |context| {
            let change = |options: &mut BuildOptions| {
                (options.dtype, options.operators, options.context) = (dtype, Some(Operators::Onnx), Some(context));
            };
            build_with(&checkpoint, change)
        };
        let (_long, bundle, manifest) = open(LONG);
        let mut parts = load(&bundle, &manifest);
        let (_short, bundle, manifest) = open(120);
        let mut whole = load(&bundle, &manifest);
        // A prompt, then steps of one and of several tokens across the first border.
        let text = tokens(118);
        for (past, len) in [(0, 40), (40, 1), (41, 22), (63, 1), (64, 1), (65, 2), (67, 50)] {
            let piece = &text[past..past + len];
            let logits = [&mut parts, &mut whole].map(|backend| all_logits(&mut **backend, past, piece));
            assert!(logits[0] == logits[1], "{golden}, {dtype:?}: {len} tokens behind {past}");
        }
        // Rows of all three lengths, alone and together.
        let text = tokens(400);
        let rows: Vec<RaggedRow> =
            [(30, 29), (100, 90), (250, 249), (400, 396)].map(|(len, past)| row(&text[..len], past)).into();
        let difference = ragged_in_chunks(&mut *parts, &rows);
        println!("{golden} with a context of {LONG}, {dtype:?}: rows alone and together differ by {difference:.1e}");
        assert!(difference <= if dtype == Dtype::F16 { 0.05 } else { 1e-4 }, "{golden}, {dtype:?}: {difference}");
    }
}

fn row(tokens: &[u32], past: usize) -> RaggedRow<'_> {
    RaggedRow { source: None, tokens, past }
}

/// As `ragged_difference`, for rows longer than a chunk: each is computed in pieces first, alone.
fn ragged_in_chunks(backend: &mut dyn Backend, rows: &[RaggedRow]) -> f32 {
    let chunk = backend.limits().chunk;
    let mut alone = Vec::new();
    for row in rows {
        for start in (0..row.past).step_by(chunk) {
            all_logits(backend, start, &row.tokens[start..row.past.min(start + chunk)]);
        }
        alone.push(all_logits(backend, row.past, &row.tokens[row.past..]).pop().unwrap());
    }
    // Each lane gets what its row has behind it by the same pieces.
    let mut out = Outputs::default();
    let longest = rows.iter().map(|row| row.past).max().unwrap_or(0);
    for start in (0..longest).step_by(chunk) {
        let mut batch = Batch::default();
        for row in rows {
            // A row that is there already computes its last piece again.
            let start = start.min(row.past.saturating_sub(chunk));
            let end = row.past.min(start + chunk);
            batch.push_row(start, row.tokens[start..end].iter().copied().map(TokenId));
        }
        batch.selected.push(Selected { row: 0, offset: 0, full: false });
        backend.forward(&batch, &mut out).unwrap();
    }
    let mut batch = Batch::default();
    for (r, row) in rows.iter().enumerate() {
        batch.push_row(row.past, row.tokens[row.past..].iter().copied().map(TokenId));
        batch.selected.push(Selected { row: r, offset: row.tokens.len() - row.past - 1, full: true });
    }
    backend.forward(&batch, &mut out).unwrap();
    let together = out.logits.chunks_exact(backend.limits().vocab);
    together.zip(&alone).map(|(row, alone)| max_difference(row, alone)).fold(0.0, f32::max)
}

/// The largest and the mean difference of a golden's logits from transformers'.
fn differences(backend: &mut dyn Backend, folder: &Path) -> [f32; 2] {
    let (mut largest, mut sum, mut count) = (0f32, 0f64, 0usize);
    for golden in read_expected(&folder.join("expected.safetensors")) {
        let rows = all_logits(backend, 0, &golden.prompt);
        for (row, expected) in rows.iter().zip(&golden.logits) {
            largest = largest.max(max_difference(row, expected));
            sum += row.iter().zip(expected).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>();
            count += row.len();
        }
    }
    [largest, (sum / count as f64) as f32]
}

#[test]
fn attention_in_f32_is_nearer_to_transformers_than_in_f16() {
    let (mut sums, mut nearer) = ([0f32; 2], 0);
    for (name, folder) in folders() {
        let open = |f32_attention| built(&folder, |options| options.f32_attention = f32_attention);
        let [half, full] = [false, true].map(|f32_attention| {
            let (_folder, bundle, manifest) = open(f32_attention);
            differences(&mut *load(&bundle, &manifest), &folder)
        });
        println!("goldens: {name}, f16: mean difference {:.2e} with attention in f16, {:.2e} in f32", half[1], full[1]);
        sums = [sums[0] + half[1], sums[1] + full[1]];
        nearer += usize::from(full[1] <= half[1]);
    }
    assert!(sums[1] < sums[0] && 2 * nearer > folders().len(), "{sums:?}, {nearer}");
}

/// A golden with a vocabulary of 8,200: its rows again and again, so that logits are equal in all parts of it.
fn with_large_vocabulary(folder: &Path) -> PathBuf {
    const TOKENS: usize = 8200;
    let (golden, checkpoint) = (repository("tests/goldens/plain"), folder.join("checkpoint"));
    std::fs::create_dir(&checkpoint).unwrap();
    std::fs::copy(golden.join("tokenizer.json"), checkpoint.join("tokenizer.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&std::fs::read(golden.join("config.json")).unwrap()).unwrap();
    config["vocab_size"] = TOKENS.into();
    std::fs::write(checkpoint.join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = file
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            let is_vocabulary = name.ends_with("wte.weight");
            let row_bytes = tensor.data().len() / tensor.shape()[0];
            let repeated = || tensor.data().iter().copied().cycle().take(TOKENS * row_bytes).collect();
            let shape = tensor.shape().to_vec();
            if is_vocabulary {
                (name, vec![TOKENS, shape[1]], repeated())
            } else {
                (name, shape, tensor.data().to_vec())
            }
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &checkpoint.join("model.safetensors")).unwrap();
    checkpoint
}

#[test]
fn a_vocabulary_that_is_searched_in_parts_has_the_same_best_tokens_in_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = with_large_vocabulary(folder.path());
    let (_folder, bundle, manifest) = built(&checkpoint, |_| ());
    let graph = std::fs::read(bundle.join("model.onnx")).unwrap();
    assert!(graph.windows(12).any(|bytes| bytes == b"head/winners"), "it is searched in parts");
    let mut backend = load(&bundle, &manifest);
    let mut batch = Batch::default();
    batch.push_row(0, tokens(20).into_iter().map(TokenId));
    batch.selected.extend((0..20).map(|offset| Selected { row: 0, offset, full: true }));
    let mut out = Outputs::default();
    backend.forward(&batch, &mut out).unwrap();
    let (vocab, top_k) = (backend.limits().vocab, backend.limits().top_k);
    let mut ties = 0;
    for (at, row) in out.logits.chunks_exact(vocab).enumerate() {
        let mut order: Vec<u32> = (0..vocab as u32).collect();
        let logit = |id: &u32| row[*id as usize];
        // Stable: equal ones stay in the order of their ids.
        order.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
        let listed = at * top_k..(at + 1) * top_k;
        assert_eq!(out.top_ids[listed.clone()], order[..top_k], "position {at}");
        assert!(order.iter().zip(&out.top_logits[listed]).all(|(id, listed)| logit(id) == *listed));
        ties += order[..top_k].windows(2).filter(|pair| logit(&pair[0]) == logit(&pair[1])).count();
    }
    assert!(ties > 500, "{ties} equal neighbours");
}

/// Bytes of a bundle's weights.
fn weights(bundle: &Path) -> u64 {
    std::fs::metadata(bundle.join(WEIGHTS_FILE)).unwrap().len()
}

#[test]
fn weights_in_few_bits_are_smaller_and_near() {
    let checkpoint = repository("tests/goldens/plain");
    let (_folder, half, manifest) = built(&checkpoint, |_| ());
    let mut reference = load(&half, &manifest);
    let text = tokens(40);
    let expected = all_logits(&mut *reference, 0, &text).concat();
    let spread = expected.iter().map(|logit| logit.abs()).sum::<f32>() / expected.len() as f32;
    let mut lost = Vec::new();
    for (quantization, block) in [(Quantization::Int8, 64), (Quantization::Int4, 32), (Quantization::Int4, 64)] {
        let change = |options: &mut BuildOptions| (options.quantization, options.block) = (quantization, block);
        let (_folder, bundle, manifest) = built(&checkpoint, change);
        assert_eq!((manifest.model.quantization, manifest.model.dtype), (quantization, Dtype::F16));
        assert!(weights(&bundle) < weights(&half));
        let mut backend = load(&bundle, &manifest);
        let found = all_logits(&mut *backend, 0, &text).concat();
        let mean = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).sum::<f32>() / found.len() as f32;
        println!("plain, {quantization:?} in blocks of {block}: mean difference of a logit {:.4}", mean / spread);
        lost.push(mean / spread);
        let rows = [row(&text[..20], 19), row(&text[..9], 2), row(&text, 30)];
        assert!(ragged_difference(&mut *backend, &rows) < 0.05);
    }
    assert!(lost[0] < 0.1 && lost[0] < lost[1] && lost[1] < lost[2] && lost[2] < 1.0, "{lost:?}");
}

#[test]
fn the_gate_measures_weights_in_few_bits_and_refuses_what_loses_too_much() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle");
    let build = |checkpoint: &str, quantization, force| {
        let mut options = BuildOptions::new(repository(checkpoint), &out);
        (options.dtype, options.quantization, options.block) = (Dtype::F16, quantization, 32);
        quality::build(&options, &Gate { force, ..Gate::default() }, &())
    };
    for (quantization, least_agreement) in [(Quantization::Int8, 0.95), (Quantization::Int4, 0.7)] {
        let measured = build("models/demo", quantization, true).unwrap().quality.unwrap();
        println!("demo, {quantization:?} for GPUs: {}", quality::describe(&measured));
        assert!(measured.top1_agreement >= least_agreement && measured.kl_nats > 0.0, "{measured:?}");
    }
    let before = Manifest::load(&out).unwrap();
    let error = build("tests/goldens/plain", Quantization::Int4, false).unwrap_err().to_string();
    assert!(error.contains("quantization changes this model too much"), "{error}");
    assert_eq!(Manifest::load(&out).unwrap(), before, "the bundle that was there is untouched");
}

/// SmolLM2-135M, the one trained model of real size here.
#[test]
fn a_real_model_in_few_bits_for_gpus() {
    let Some(checkpoint) = std::env::var_os("FORETYPE_REAL_MODEL") else {
        return require::skip("SmolLM2 for GPUs in few bits", "FORETYPE_REAL_MODEL isn't set: run tools/real_model.sh");
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bundle");
    let mut options = BuildOptions::new(Path::new(&checkpoint), &out);
    (options.dtype, options.quantization) = (Dtype::F16, Quantization::Int8);
    let manifest = quality::build(&options, &Gate::default(), &()).unwrap();
    println!("SmolLM2, int8 for GPUs: {}", quality::describe(&manifest.quality.unwrap()));
}

/// On the simulator, which runs the graph with the shapes that it is given.
#[cfg(feature = "tensorrt")]
#[test]
fn an_engine_on_a_gpu_prepares_each_length_of_attention_and_computes_the_same() {
    use crate::tensorrt::{TOLERANCE, backend, reference};

    let folder = tempfile::tempdir().unwrap();
    let (_folder, bundle, manifest) =
        built(&with_long_context(folder.path(), "llama"), |options| options.context = Some(LONG));
    let mut reference = reference(&bundle, &manifest);
    let text = tokens(420);
    for flavour in tensorrt::Flavour::ALL {
        let (simulator, mut backend) = backend(flavour, &bundle, &manifest);
        let launches = || simulator.stand_in.calls("cuGraphLaunch");
        let (prepared, mut steps) = (launches(), 0);
        for start in (0..400).step_by(20) {
            for (past, len) in [(start, 18), (start + 18, 1), (start + 19, 1)] {
                let piece = &text[past..past + len];
                let found = all_logits(&mut *backend, past, piece);
                for (row, expected) in found.iter().zip(all_logits(&mut *reference, past, piece)) {
                    assert!(max_difference(row, &expected) <= TOLERANCE, "{flavour}: {len} behind {past}");
                }
                steps += 1;
            }
        }
        assert_eq!(launches() - prepared, steps, "every step has a graph that was captured before");
    }
}
