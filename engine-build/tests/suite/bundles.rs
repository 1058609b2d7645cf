//! What a built bundle holds, and how tampering with it shows.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::symlink;

use bundle::manifest::{GRAPH_FILE, ManifestError, WEIGHTS_FILE};
use bundle::{Dtype, Manifest, Operators, is_bundle, is_checkpoint};
use engine_build::{BuildError, BuildOptions, Progress, build, default_context};
use half::{bf16, f16};
use safetensors::Dtype as StoredDtype;
use serde_json::{Value, json};

use crate::tiny::{HIDDEN, POSITIONS, Tiny, VOCAB, float_tensor, floats, sealed, tensors};

/// Bytes of a page, on which every tensor of the weights file starts.
const PAGE: usize = 4096;

fn weights(tiny: &Tiny) -> Vec<u8> {
    fs::read(tiny.out().join(WEIGHTS_FILE)).expect("the weights")
}

/// Builds in ONNX's own operators, which take matrices as they are.
fn build_plain(tiny: &Tiny) -> Manifest {
    build(&BuildOptions { operators: Some(Operators::Onnx), ..tiny.options() }, &()).expect("a bundle")
}

#[test]
fn manifest_describes_the_model_and_reads_back() {
    let tiny = Tiny::new();
    let manifest = tiny.build().expect("a bundle");
    assert_eq!(Manifest::load(&tiny.out()).expect("a manifest"), manifest);
    manifest.verify_checksums(&tiny.out()).expect("intact");
    assert_eq!((manifest.name.as_str(), manifest.family.as_str()), ("checkpoint", "gpt2"));
    assert_eq!((manifest.model.context, manifest.model.positions), (16, 16));
    assert_eq!((manifest.model.vocab, manifest.model.vocab_padded, manifest.model.top_k), (257, 264, 64));
    assert_eq!((manifest.tokens.start, manifest.tokens.end_of_text.as_slice()), (256, &[256][..]));
    assert_eq!((manifest.source.parameters, manifest.source.dtype.as_str()), (3_944, "F32"));
    let json = fs::read_to_string(tiny.out().join("manifest.json")).expect("the manifest");
    assert!(!json.contains(&tiny.root().to_string_lossy().into_owned()), "an absolute path: {json}");
    assert!(is_bundle(&tiny.out()) && !is_checkpoint(&tiny.out()));
    assert!(is_checkpoint(&tiny.checkpoint()) && !is_bundle(&tiny.checkpoint()));
}

#[test]
fn options_shape_the_bundle() {
    let tiny = Tiny::new();
    let template = tiny.root().join("template");
    std::fs::write(&template, "q{input}\n").unwrap();
    let options = BuildOptions {
        name: Some("queries".into()),
        context: Some(5),
        top_k: 1000,
        template: Some(template.clone()),
        dtype: Dtype::F16,
        ..tiny.options()
    };
    let manifest = build(&options, &()).expect("a bundle");
    assert_eq!(manifest.name, "queries");
    assert_eq!(std::fs::read_to_string(tiny.out().join("template.txt")).unwrap(), "q{input}\n");
    assert!(manifest.file("template.txt").is_some());
    assert_eq!((manifest.model.context, manifest.model.top_k, manifest.model.dtype), (5, 257, Dtype::F16));
    assert_eq!([default_context(1024), default_context(64)], [128, 64]);
    for (text, words) in
        [("no place", "{input} once"), ("{input}{input}", "2 times"), ("many tokens{input}", "of the 5")]
    {
        std::fs::write(&template, text).unwrap();
        let error = build(&options, &()).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("template"), "{error}");
    }
}

#[test]
fn weights_are_the_checkpoints_padded_and_on_pages() {
    let tiny = Tiny::new();
    build_plain(&tiny);
    let stored = tensors("");
    let bytes = weights(&tiny);
    let vocabulary = floats(&bytes[..264 * HIDDEN * 4]);
    assert_eq!(vocabulary[..VOCAB * HIDDEN], floats(&stored["wte.weight"].bytes));
    assert!(vocabulary[VOCAB * HIDDEN..].iter().all(|value| *value == 0.0));
    let positions = (264 * HIDDEN * 4usize).next_multiple_of(PAGE);
    assert_eq!(floats(&bytes[positions..][..POSITIONS * HIDDEN * 4]), floats(&stored["wpe.weight"].bytes));
}

#[test]
fn half_precision_rounds_matrices_and_centres_the_vocabulary() {
    let tiny = Tiny::new();
    let manifest = build(&BuildOptions { dtype: Dtype::F16, ..tiny.options() }, &()).expect("a bundle");
    let bytes = weights(&tiny);
    let halves = bytes[..VOCAB * HIDDEN * 2].as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32());
    let mean = floats(&bytes[(264 * HIDDEN * 2usize).next_multiple_of(PAGE)..][..HIDDEN * 4]);
    for (at, (half, original)) in halves.zip(floats(&tensors("")["wte.weight"].bytes)).enumerate() {
        assert!((half + mean[at % HIDDEN] - original).abs() < 3e-4, "{half} at {at} and not {original}");
    }
    assert!(bytes[VOCAB * HIDDEN * 2..264 * HIDDEN * 2].iter().all(|byte| *byte == 0));
    let positions = (264 * HIDDEN * 2usize).next_multiple_of(PAGE) + PAGE;
    assert_eq!(bytes[positions..][..POSITIONS * HIDDEN * 4], tensors("")["wpe.weight"].bytes);
    manifest.verify(&tiny.out()).expect("intact");
}

#[test]
fn shards_names_and_links_do_not_change_the_bundle() {
    let plain = Tiny::new();
    let expected = plain.build().expect("a bundle").files;
    let same = |tiny: Tiny, what: &str| assert_eq!(tiny.build().expect(what).files, expected, "{what}");

    same(Tiny::new(), "a second build");
    let sharded = Tiny::new();
    sharded.shard();
    same(sharded, "shards with an index");
    let unindexed = Tiny::new();
    unindexed.shard();
    unindexed.remove("model.safetensors.index.json");
    same(unindexed, "shards without an index");
    let bare = Tiny::new();
    bare.write_tensors("model.safetensors", &tensors(""));
    same(bare, "names without a prefix");
    let linked = Tiny::new();
    for (number, name) in ["config.json", "model.safetensors", "tokenizer.json"].iter().enumerate() {
        let blob = linked.root().join(format!("blob-{number}"));
        fs::rename(linked.path(name), &blob).expect("moved");
        symlink(blob, linked.path(name)).expect("linked");
    }
    same(linked, "a cache of links");
    let tied = Tiny::new();
    tied.edit(|w| _ = w.insert("lm_head.weight".into(), float_tensor(&[VOCAB, HIDDEN])));
    same(tied, "a stored copy of the tied head");
}

#[test]
fn half_precision_checkpoints_widen_exactly() {
    for (dtype, narrow) in [
        (StoredDtype::F16, (|v: f32| f16::from_f32(v).to_bits()) as fn(f32) -> u16),
        (StoredDtype::BF16, |v: f32| bf16::from_f32(v).to_bits()),
    ] {
        let tiny = Tiny::new();
        tiny.edit(|w| {
            for tensor in w.values_mut() {
                tensor.bytes = floats(&tensor.bytes).into_iter().flat_map(|v| narrow(v).to_le_bytes()).collect();
                tensor.dtype = dtype;
            }
        });
        let manifest = build_plain(&tiny);
        assert_eq!(manifest.source.dtype, if dtype == StoredDtype::F16 { "F16" } else { "BF16" });
        let widen =
            |v: f32| if dtype == StoredDtype::F16 { f16::from_f32(v).to_f32() } else { bf16::from_f32(v).to_f32() };
        let expected: Vec<f32> = floats(&tensors("")["wte.weight"].bytes).into_iter().map(widen).collect();
        assert_eq!(floats(&weights(&tiny)[..VOCAB * HIDDEN * 4]), expected);
    }
}

#[test]
fn a_bundle_is_replaced_whole() {
    let tiny = Tiny::new();
    tiny.build().expect("a bundle");
    fs::create_dir(tiny.out().join("engines")).expect("made");
    let options = BuildOptions { name: Some("second".into()), ..tiny.options() };
    build(&options, &()).expect("a second bundle");
    assert_eq!(Manifest::load(&tiny.out()).expect("a manifest").name, "second");
    assert!(!tiny.out().join("engines").exists(), "plans of the replaced bundle are stale");

    tiny.edit(|w| crate::tiny::poke(w, "transformer.ln_f.bias", 0, f32::NAN));
    build(&tiny.options(), &()).expect_err("a NaN");
    Manifest::load(&tiny.out()).expect("still there").verify_checksums(&tiny.out()).expect("untouched");
    assert_eq!(fs::read_dir(tiny.root()).expect("the root").count(), 2, "only the checkpoint and the bundle are left");
}

#[test]
fn tokens_come_from_the_files_that_transformers_asks() {
    let tiny = Tiny::new();
    tiny.set("bos_token_id", json!(null));
    tiny.write_json("generation_config.json", &json!({"bos_token_id": 7, "eos_token_id": [8, 9]}));
    let tokens = tiny.build().expect("a bundle").tokens;
    assert_eq!((tokens.start, tokens.end_of_text.as_slice()), (7, &[8, 9][..]));
    tiny.remove("generation_config.json");
    tiny.set("eos_token_id", json!(null));
    let tokens = tiny.build().expect("a bundle").tokens;
    assert_eq!((tokens.start, tokens.end_of_text.as_slice()), (256, &[256][..]), "from the tokenizer");
}

#[test]
fn tampering_shows() {
    let tiny = Tiny::new();
    let manifest = tiny.build().expect("a bundle");
    let path = tiny.out().join(WEIGHTS_FILE);
    let mut bytes = weights(&tiny);
    bytes[5] ^= 1;
    fs::write(&path, &bytes).expect("written");
    manifest.verify(&tiny.out()).expect("the size is right");
    assert!(matches!(manifest.verify_checksums(&tiny.out()), Err(ManifestError::Checksum(_))));
    bytes.pop();
    fs::write(&path, &bytes).expect("written");
    assert!(matches!(manifest.verify(&tiny.out()), Err(ManifestError::Size { .. })));
    fs::remove_file(&path).expect("removed");
    assert!(matches!(manifest.verify(&tiny.out()), Err(ManifestError::Io { .. })));
}

#[test]
fn manifests_that_cannot_be_true_are_refused() {
    let tiny = Tiny::new();
    let manifest = serde_json::to_value(tiny.build().expect("a bundle")).expect("JSON");
    let cases: [(&str, Value, &str); 12] = [
        ("/format", json!(2), "format 2"),
        ("/extra", json!(1), "unknown field"),
        ("/model/heads", json!(0), "`heads` is 0"),
        ("/model/hidden", json!(0), "`hidden` is 0"),
        ("/model/head_dim", json!(u32::MAX), "`head_dim` is 4294967295"),
        ("/model/layers", json!(1000), "the manifest's sizes need at least"),
        ("/model/kv_heads", json!(3), "not a multiple of `kv_heads`"),
        ("/model/context", json!(17), "`context`"),
        ("/model/vocab_padded", json!(257), "`vocab_padded`"),
        ("/tokens/start", json!(257), "start token"),
        ("/files/1/path", json!("x"), "does not list"),
        ("/files/3", json!({"path": "../x", "bytes": 1, "sha256": ""}), "outside the bundle"),
    ];
    for (pointer, value, fragment) in cases {
        let mut changed = manifest.clone();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        match changed.pointer_mut(parent).expect("the parent") {
            Value::Array(list) if key == "3" => list.push(value),
            parent => parent[key] = value,
        }
        fs::write(tiny.out().join("manifest.json"), sealed(&changed)).expect("written");
        let error = Manifest::load(&tiny.out()).expect_err(pointer).to_string();
        assert!(error.contains(fragment), "{pointer}: {error}");
    }
}

#[test]
fn progress_adds_up_to_its_totals() {
    #[derive(Default)]
    struct Recorder(RefCell<Vec<(String, u64, u64)>>);
    impl Progress for Recorder {
        fn stage(&self, name: &str, total_bytes: u64) {
            self.0.borrow_mut().push((name.to_owned(), total_bytes, 0));
        }
        fn advance(&self, bytes: u64) {
            self.0.borrow_mut().last_mut().expect("a stage first").2 += bytes;
        }
    }
    let tiny = Tiny::new();
    let recorder = Recorder::default();
    build(&tiny.options(), &recorder).expect("a bundle");
    let stages = recorder.0.into_inner();
    assert!(stages.iter().all(|(_, total, done)| total == done), "{stages:?}");
    assert!(stages.iter().any(|(_, total, _)| *total > 0), "{stages:?}");
    assert!(fs::metadata(tiny.out().join(GRAPH_FILE)).expect("the graph").len() < 64 << 10, "weights in the graph");
}

#[test]
fn a_cancelled_build_leaves_nothing_behind() {
    /// Cancels once some bytes are written.
    #[derive(Default)]
    struct Impatient(Cell<u64>);
    impl Progress for Impatient {
        fn stage(&self, _name: &str, _total_bytes: u64) {}
        fn advance(&self, bytes: u64) {
            self.0.set(self.0.get() + bytes);
        }
        fn is_cancelled(&self) -> bool {
            self.0.get() > 0
        }
    }
    let tiny = Tiny::new();
    let error = build(&tiny.options(), &Impatient::default()).expect_err("it was cancelled");
    assert!(matches!(error, BuildError::Cancelled), "{error}");
    let beside = fs::read_dir(tiny.out().parent().expect("a folder")).expect("its entries");
    let names: Vec<_> = beside.flatten().map(|entry| entry.file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("partial")), "{names:?}");
    assert!(!tiny.out().exists());
}
