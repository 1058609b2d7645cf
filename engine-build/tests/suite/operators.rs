//! Bundles of foretype's own operators, in f32 and int8.

use std::fs;

use bundle::manifest::{GRAPH_FILE, WEIGHTS_FILE};
use bundle::{Dtype, Manifest, Operators, Quantization};
use engine_build::{BuildOptions, build};
use serde_json::json;

use crate::tiny::{HIDDEN, Tiny, VOCAB, floats, sealed, tensors};

/// Builds with these operators and returns the manifest and the weights file.
fn built(operators: Option<Operators>, quantization: Quantization) -> (Manifest, Vec<u8>) {
    let tiny = Tiny::new();
    let manifest = build(&BuildOptions { operators, quantization, ..tiny.options() }, &()).expect("a bundle");
    manifest.verify_checksums(&tiny.out()).expect("intact");
    assert_eq!(Manifest::load(&tiny.out()).expect("a manifest"), manifest);
    let graph = fs::read(tiny.out().join(GRAPH_FILE)).expect("the graph");
    let own = graph.windows(8).any(|window| window == b"foretype");
    assert_eq!(own, manifest.model.operators == Operators::Foretype, "the domain is imported where it is used");
    (manifest, fs::read(tiny.out().join(WEIGHTS_FILE)).expect("the weights"))
}

fn checkpoint_vocabulary() -> Vec<f32> {
    floats(&tensors("")["wte.weight"].bytes)
}

#[test]
fn f32_weights_are_the_checkpoints_in_panels() {
    let (manifest, bytes) = built(Some(Operators::Foretype), Quantization::None);
    assert_eq!((manifest.model.operators, manifest.model.quantization), (Operators::Foretype, Quantization::None));
    // The vocabulary comes first.
    let expected = checkpoint_vocabulary();
    for (at, bytes) in bytes[..4 * 272 * HIDDEN].as_chunks::<4>().0.iter().enumerate() {
        let (panel, input, lane) = (at / (16 * HIDDEN), at / 16 % HIDDEN, at % 16);
        let token = 16 * panel + lane;
        let value = if token < VOCAB { expected[token * HIDDEN + input] } else { 0.0 };
        assert_eq!(f32::from_le_bytes(*bytes), value, "input {input} of token {token}");
    }
    let (standard, _) = built(Some(Operators::Onnx), Quantization::None);
    assert_eq!(manifest.source, standard.source, "the source is the same, whatever is made of it");
}

#[test]
fn int8_weights_are_the_checkpoints_with_a_scale_each() {
    let (manifest, bytes) = built(None, Quantization::Int8);
    assert_eq!((manifest.model.operators, manifest.model.quantization), (Operators::Foretype, Quantization::Int8));
    let scales = &bytes[(272 * HIDDEN).next_multiple_of(4096)..][..4 * 272];
    let expected = checkpoint_vocabulary();
    for token in 0..272 {
        let scale = f32::from_le_bytes(scales.as_chunks::<4>().0[token]);
        for input in 0..HIDDEN {
            let at = (token / 16 * HIDDEN / 4 + input / 4) * 64 + token % 16 * 4 + input % 4;
            let found = f32::from(i16::from(bytes[at]) - 128) * scale;
            let value = if token < VOCAB { expected[token * HIDDEN + input] } else { 0.0 };
            assert!((found - value).abs() <= 0.51 * scale, "input {input} of token {token}: {found}, not {value}");
        }
    }
    let (whole, _) = built(Some(Operators::Foretype), Quantization::None);
    assert_eq!(manifest.source, whole.source);
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let tiny = Tiny::new();
    for (dtype, operators, quantization, fragment) in [
        (Dtype::F16, Some(Operators::Foretype), Quantization::None, "compute in f32"),
        (Dtype::F32, None, Quantization::Int4, "for GPUs: ask for f16"),
        (Dtype::F32, Some(Operators::Onnx), Quantization::Int8, "only foretype's own operators read it"),
    ] {
        let options = BuildOptions { dtype, operators, quantization, ..tiny.options() };
        let error = build(&options, &()).expect_err("a contradiction").to_string();
        assert!(error.contains(fragment), "{error}");
        assert!(!tiny.out().exists());
    }
    let manifest = build(&BuildOptions { dtype: Dtype::F16, ..tiny.options() }, &()).expect("a bundle");
    assert_eq!(manifest.model.operators, Operators::Onnx, "f16 is never rewritten");
}

#[test]
fn manifests_from_before_are_of_onnx_operators() {
    let tiny = Tiny::new();
    let mut manifest = serde_json::to_value(tiny.build().expect("a bundle")).expect("JSON");
    let model = manifest["model"].as_object_mut().expect("an object");
    model.remove("operators");
    model.remove("quantization");
    fs::write(tiny.out().join("manifest.json"), sealed(&manifest)).expect("written");
    let read = Manifest::load(&tiny.out()).expect("an old manifest");
    assert_eq!((read.model.operators, read.model.quantization), (Operators::Onnx, Quantization::None));

    for (field, value, fragment) in
        [("quantization", "int8", "`quantization` is one that"), ("operators", "tpu", "unknown variant")]
    {
        let mut changed = manifest.clone();
        changed["model"][field] = json!(value);
        fs::write(tiny.out().join("manifest.json"), sealed(&changed)).expect("written");
        let error = Manifest::load(&tiny.out()).expect_err(field).to_string();
        assert!(error.contains(fragment), "{error}");
    }
}
