//! Every way a checkpoint or a request can be broken has its own sentence, and leaves nothing behind.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use bundle::Dtype;
use engine_build::{BuildOptions, build};
use safetensors::Dtype as StoredDtype;
use serde_json::json;

use crate::tiny::{Stored, Tiny, float_tensor, poke, tensors, tokenizer, vocabulary};

/// What is broken, how, and what the message must say.
type Case = (&'static str, fn(&Tiny), &'static [&'static str]);

const CONFIG: [Case; 18] = [
    (
        "folder missing",
        |t| fs::remove_dir_all(t.checkpoint()).expect("removed"),
        &["does not exist", "save_pretrained"],
    ),
    (
        "not a folder",
        |t| {
            fs::remove_dir_all(t.checkpoint()).expect("removed");
            fs::write(t.checkpoint(), "x").expect("written");
        },
        &["is not a folder"],
    ),
    ("no config", |t| t.remove("config.json"), &["has no config.json"]),
    ("config not JSON", |t| t.write("config.json", "{\"n_embd\": "), &["config.json is not JSON", "line 1"]),
    ("config not an object", |t| t.write("config.json", "[1]"), &["config.json holds no JSON object"]),
    ("config empty", |t| t.write("config.json", ""), &["config.json is empty"]),
    (
        "config a folder",
        |t| {
            t.remove("config.json");
            fs::create_dir(t.path("config.json")).expect("made");
        },
        &["not a regular file"],
    ),
    ("missing field", |t| t.set("n_embd", json!(null)), &["no `n_embd`"]),
    ("wrong type", |t| t.set("n_head", json!("two")), &["`n_head`", "\"two\"", "whole number"]),
    ("no layers", |t| t.set("n_layer", json!(0)), &["`n_layer`", "as 0", "from 1"]),
    (
        "no model type",
        |t| {
            t.set("model_type", json!(null));
            t.set("architectures", json!(null));
        },
        &["no `model_type`"],
    ),
    (
        "other model type",
        |t| t.set("model_type", json!("mamba")),
        &["`mamba`", "GPT2LMHeadModel", "GPTNeoXForCausalLM"],
    ),
    (
        "other architecture",
        |t| t.set("architectures", json!(["GPT2ForSequenceClassification"])),
        &["`GPT2ForSequenceClassification`", "GPT2LMHeadModel"],
    ),
    ("other activation", |t| t.set("activation_function", json!("laplace")), &["`laplace`", "gelu_new", "silu"]),
    ("cross attention", |t| t.set("add_cross_attention", json!(true)), &["`add_cross_attention`"]),
    ("heads do not divide", |t| t.set("n_head", json!(3)), &["`n_embd` 8", "`n_head` 3", "same whole size"]),
    ("start token out of range", |t| t.set("bos_token_id", json!(50256)), &["`bos_token_id` is 50256", "257"]),
    (
        "end of text of a wrong type",
        |t| t.set("eos_token_id", json!({"id": 1})),
        &["`eos_token_id`", "list of token ids"],
    ),
];

const WEIGHTS: [Case; 22] = [
    ("no weights", |t| t.remove("model.safetensors"), &["has no weights", "model.safetensors"]),
    (
        "a pickle that is cut short",
        |t| {
            t.remove("model.safetensors");
            t.write("pytorch_model.bin", "PK");
        },
        &["pytorch_model.bin is refused", "archive is damaged"],
    ),
    (
        "TensorFlow only",
        |t| {
            t.remove("model.safetensors");
            t.write("tf_model.h5", "HDF");
        },
        &["tf_model.h5", "safe_serialization=True"],
    ),
    ("empty weights", |t| t.write("model.safetensors", ""), &["model.safetensors is empty"]),
    ("shorter than the prefix", |t| t.write("model.safetensors", "abc"), &["truncated", "3 bytes"]),
    ("truncated header", |t| cut(t, 100), &["truncated", "100 bytes"]),
    ("truncated data", |t| cut(t, 12_000), &["truncated", "12000 bytes", "download"]),
    ("trailing bytes", |t| grow(t), &["5 bytes behind its last tensor"]),
    ("huge header", |t| t.write("model.safetensors", [0xff; 64]), &["claims a header of 18446744073709551615 bytes"]),
    (
        "header not JSON",
        |t| t.write("model.safetensors", header("{nonsense")),
        &["header of model.safetensors", "JSON"],
    ),
    (
        "overlapping tensors",
        |t| {
            let tensor = |from: u32| json!({"dtype": "F32", "shape": [1], "data_offsets": [from, from + 4]});
            let json = json!({"a": tensor(0), "b": tensor(2)}).to_string();
            t.write("model.safetensors", [header(&json), vec![0; 6]].concat());
        },
        &["header of model.safetensors", "invalid offset"],
    ),
    (
        "unknown type",
        |t| t.write("model.safetensors", header(r#"{"a":{"dtype":"F12","shape":[0],"data_offsets":[0,0]}}"#)),
        &["header of model.safetensors", "F12"],
    ),
    (
        "missing tensor",
        |t| t.edit(|w| _ = w.remove("transformer.h.1.mlp.c_fc.bias")),
        &["no tensor transformer.h.1.mlp.c_fc.bias"],
    ),
    ("missing head", |t| t.set("tie_word_embeddings", json!(false)), &["no tensor lm_head.weight"]),
    (
        "wrong shape",
        |t| t.edit(|w| _ = w.insert("transformer.wte.weight".into(), float_tensor(&[200, 8]))),
        &["transformer.wte.weight", "[200, 8]", "[257, 8]"],
    ),
    (
        "int8",
        |t| {
            let stored = Stored { dtype: StoredDtype::I8, shape: vec![8, 24], bytes: vec![1; 192] };
            t.edit(|w| _ = w.insert("transformer.h.0.attn.c_attn.weight".into(), stored));
        },
        &["transformer.h.0.attn.c_attn.weight", "I8", "BF16"],
    ),
    (
        "NaN",
        |t| t.edit(|w| poke(w, "transformer.h.0.mlp.c_fc.weight", 77, f32::NAN)),
        &["h.0.mlp.c_fc.weight", "NaN", "index 77"],
    ),
    (
        "infinity",
        |t| t.edit(|w| poke(w, "transformer.wte.weight", 2055, f32::INFINITY)),
        &["wte.weight", "inf", "index 2055"],
    ),
    (
        "index not JSON",
        |t| {
            t.shard();
            t.write("model.safetensors.index.json", "{}");
        },
        &["index.json", "weight_map"],
    ),
    (
        "missing shard",
        |t| {
            t.shard();
            t.remove("model-00002-of-00002.safetensors");
        },
        &["index of shards names model-00002-of-00002.safetensors", "missing"],
    ),
    (
        "shard outside",
        |t| {
            t.shard();
            t.write_json("model.safetensors.index.json", &json!({"weight_map": {"a": "../x"}}));
        },
        &["`../x`", "outside"],
    ),
    (
        "tensor in two shards",
        |t| {
            t.write_tensors("other.safetensors", &tensors("transformer."));
            fs::rename(t.path("model.safetensors"), t.path("first.safetensors")).expect("renamed");
        },
        &["both first.safetensors and other.safetensors"],
    ),
];

const LINKS: [Case; 2] = [
    (
        "dangling weights",
        |t| {
            t.remove("model.safetensors");
            symlink("../blobs/abc", t.path("model.safetensors")).expect("linked");
        },
        &["model.safetensors", "link to ../blobs/abc"],
    ),
    (
        "dangling config",
        |t| {
            t.remove("config.json");
            symlink("gone", t.path("config.json")).expect("linked");
        },
        &["config.json", "link to gone"],
    ),
];

/// Writes a tokenizer whose normalizer has this table of SentencePiece, in base64.
fn write_charsmap(t: &Tiny, table: &str) {
    let mut tokenizer = tokenizer();
    tokenizer["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": table});
    t.write_json("tokenizer.json", &tokenizer);
}

const TOKENIZER: [Case; 16] = [
    (
        "generation configuration of a wrong type",
        |t| t.write_json("generation_config.json", &json!({"eos_token_id": "x"})),
        &["generation_config.json gives `eos_token_id` as \"x\""],
    ),
    (
        "generation configuration not JSON",
        |t| t.write("generation_config.json", "{"),
        &["generation_config.json is not JSON"],
    ),
    ("no tokenizer", |t| t.remove("tokenizer.json"), &["has no tokenizer", "merges.txt"]),
    (
        "a tokenizer that only Python runs",
        |t| {
            t.remove("tokenizer.json");
            t.write("tokenizer.model", "\n\u{e}");
        },
        &["only in tokenizer.model", "AutoTokenizer.from_pretrained", "tokenizer.json"],
    ),
    (
        "no merges",
        |t| {
            t.remove("tokenizer.json");
            t.write_json("vocab.json", &vocabulary());
        },
        &["has no tokenizer", "merges.txt"],
    ),
    ("not JSON", |t| t.write("tokenizer.json", "{"), &["tokenizer.json is not a tokenizer"]),
    ("another JSON", |t| t.write("tokenizer.json", "{\"a\": 1}"), &["tokenizer.json is not a tokenizer"]),
    (
        "cut short where the tokenizers crate panics",
        |t| {
            let json = tokenizer().to_string();
            t.write("tokenizer.json", &json[..json.find("decoder").expect("a decoder") + 12]);
        },
        &["tokenizer.json is not a tokenizer", "EOF"],
    ),
    (
        "a normalizer that the tokenizers crate panics on",
        |t| write_charsmap(t, "@"),
        &["tokenizer.json is not a tokenizer", "has not the fields"],
    ),
    (
        "a normalizer that the tokenizers crate takes gigabytes for",
        |t| write_charsmap(t, "AAAAfwAAAAAA"),
        &["tokenizer.json is not a tokenizer", "12 characters says that it has more"],
    ),
    (
        "the same without its last characters, which the crate doesn't need",
        |t| write_charsmap(t, "AAAAfwAAAAAAAAA"),
        &["tokenizer.json is not a tokenizer", "15 characters says that it has more"],
    ),
    (
        "more tokens than the model",
        |t| {
            let mut tokenizer = tokenizer();
            tokenizer["model"]["vocab"]["zzz"] = json!(257);
            t.write_json("tokenizer.json", &tokenizer);
        },
        &["id 257", "\"zzz\"", "vocabulary of 257"],
    ),
    ("merges of one token", |t| legacy(t, "#version: 0.2\na b\nabc\n"), &["merges.txt", "line 3"]),
    ("merges of unknown tokens", |t| legacy(t, "a zzz\n"), &["vocab.json with merges.txt", "zzz"]),
    (
        "added token out of order",
        |t| {
            legacy(t, "#version: 0.2\n");
            t.write_json("added_tokens.json", &json!({"<pad>": 300}));
        },
        &["\"<pad>\"", "300", "257"],
    ),
    (
        "no start token",
        |t| {
            t.set("bos_token_id", json!(null));
            let mut tokenizer = tokenizer();
            tokenizer["added_tokens"] = json!([]);
            tokenizer["model"]["vocab"].as_object_mut().expect("an object").remove("<|endoftext|>");
            t.write_json("tokenizer.json", &tokenizer);
        },
        &["no start token", "`bos_token_id`", "<|endoftext|>"],
    ),
];

#[test]
fn broken_checkpoints_are_refused_in_one_sentence() {
    for (name, break_it, fragments) in CONFIG.iter().chain(&WEIGHTS).chain(&LINKS).chain(&TOKENIZER) {
        let tiny = Tiny::new();
        break_it(&tiny);
        refuse(name, &tiny, &tiny.options(), fragments);
    }
}

/// What is wrong with the options, how, and what the message must say.
type OptionsCase = (&'static str, fn(&Tiny, &mut BuildOptions), &'static [&'static str]);

const OPTIONS: [OptionsCase; 4] = [
    ("too much context", |_, options| options.context = Some(17), &["context of 17", "16 positions"]),
    ("no context", |_, options| options.context = Some(0), &["context of 0", "1 to 16"]),
    ("no candidates", |_, options| options.top_k = 0, &["top-k of 0"]),
    (
        "too large for f16",
        |tiny, options| {
            tiny.edit(|w| poke(w, "transformer.h.0.mlp.c_fc.weight", 3, -70000.0));
            options.dtype = Dtype::F16;
        },
        &["h.0.mlp.c_fc.weight", "-70000", "index 3", "f32"],
    ),
];

#[test]
fn impossible_options_are_refused_in_one_sentence() {
    for (name, change, fragments) in OPTIONS {
        let tiny = Tiny::new();
        let mut options = tiny.options();
        change(&tiny, &mut options);
        refuse(name, &tiny, &options, fragments);
    }
}

#[test]
fn only_bundles_and_empty_folders_are_replaced() {
    let tiny = Tiny::new();
    let occupied = tiny.root().join("notes");
    fs::create_dir(&occupied).expect("made");
    fs::write(occupied.join("important.txt"), "keep me").expect("written");
    let file = tiny.root().join("file");
    fs::write(&file, "keep me").expect("written");
    let dangling = tiny.root().join("dangling");
    symlink("gone", &dangling).expect("linked");
    for out in [&occupied, &file, &dangling, &tiny.checkpoint()] {
        let options = BuildOptions { out: out.clone(), ..tiny.options() };
        let error = build(&options, &()).expect_err("occupied").to_string();
        assert!(error.contains("is not a bundle"), "{error}");
    }
    let options = BuildOptions { out: PathBuf::from("/"), ..tiny.options() };
    build(&options, &()).expect_err("the root folder");
    assert_eq!(fs::read_to_string(occupied.join("important.txt")).expect("kept"), "keep me");
    assert_eq!(fs::read_to_string(file).expect("kept"), "keep me");
}

/// Builds, and checks the message and that nothing is left.
fn refuse(name: &str, tiny: &Tiny, options: &BuildOptions, fragments: &[&str]) {
    let before = names(tiny);
    let error = build(options, &()).expect_err(name).to_string();
    for fragment in fragments {
        assert!(error.contains(fragment), "{name}: {fragment:?} is not in: {error}");
    }
    assert!(!error.contains('\n') && error.len() < 400, "{name}: not one sentence: {error}");
    assert_eq!(before, names(tiny), "{name}: something was left behind");
}

fn names(tiny: &Tiny) -> Vec<String> {
    let entries = fs::read_dir(tiny.root()).expect("the root");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn cut(tiny: &Tiny, bytes: u64) {
    let file = fs::File::options().write(true).open(tiny.path("model.safetensors")).expect("opened");
    file.set_len(bytes).expect("cut");
}

fn grow(tiny: &Tiny) {
    let mut bytes = fs::read(tiny.path("model.safetensors")).expect("read");
    bytes.extend([0; 5]);
    tiny.write("model.safetensors", bytes);
}

/// A safetensors file with this header and no data.
fn header(json: &str) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat()
}

fn legacy(tiny: &Tiny, merges: &str) {
    tiny.remove("tokenizer.json");
    tiny.write_json("vocab.json", &vocabulary());
    tiny.write("merges.txt", merges);
}
