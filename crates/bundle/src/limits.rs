//! Bounds on the numbers of a manifest, and the rules that hold between them.
//!
//! A server sizes its memory by a manifest's numbers, so it believes none of them. Each has a bound, far above any
//! model of today. Those that cost memory must also fit the bytes of the bundle's files.

use std::path::{Component, Path};

use crate::manifest::{
    Dtype, ENCODER_FILE, ENCODER_WEIGHTS_FILE, GRAPH_FILE, Manifest, ManifestError, ModelInfo, NO_CHECKSUM, Operators,
    Quantization, WEIGHTS_FILE, is_sha256,
};

/// Most bytes of `manifest.json`.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// Most bytes of the tokenizer: a server reads it whole.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Most bytes of any other file of a bundle.
pub const MAX_FILE_BYTES: u64 = 1 << 50;
/// Most files of a bundle.
pub const MAX_FILES: usize = 64;
/// Most layers.
pub const MAX_LAYERS: u32 = 1 << 10;
/// Most heads of queries, and so of keys and values.
pub const MAX_HEADS: u32 = 1 << 10;
/// Most elements of a head.
pub const MAX_HEAD_DIM: u32 = 1 << 12;
/// Largest hidden state.
pub const MAX_HIDDEN: u32 = 1 << 17;
/// Most positions of a KV cache.
pub const MAX_CONTEXT: u32 = 1 << 20;
/// Most positions that a model may have been made for.
pub const MAX_POSITIONS: u32 = 1 << 24;
/// Largest vocabulary.
pub const MAX_VOCAB: u32 = 1 << 20;
/// Most candidates that a graph returns for a position.
pub const MAX_TOP_K: u32 = 1 << 16;
/// Most tokens of a source.
pub const MAX_SOURCE: u32 = 1 << 16;
/// Most tokens that end a text.
pub const MAX_ENDS: usize = 1 << 10;

/// Checks a manifest that was read.
pub(crate) fn check(manifest: &Manifest) -> Result<(), ManifestError> {
    check_numbers(manifest)?;
    check_rules(manifest)?;
    check_weights(manifest)?;
    let inside = |path: &str| {
        let mut components = Path::new(path).components();
        !path.is_empty() && components.all(|component| matches!(component, Component::Normal(_)))
    };
    if let Some(entry) = manifest.files.iter().find(|entry| !inside(&entry.path)) {
        return Err(ManifestError::Path(entry.path.clone()));
    }
    // No file has the one that stands for the manifest's own while that is computed.
    match manifest.files.iter().all(|entry| is_sha256(&entry.sha256) && entry.sha256 != NO_CHECKSUM) {
        true => Ok(()),
        false => Err(ManifestError::Inconsistent("a file's `sha256` is not 64 lowercase hexadecimal digits of a file")),
    }
}

/// Each number by itself.
fn check_numbers(manifest: &Manifest) -> Result<(), ManifestError> {
    let model = &manifest.model;
    let sizes = [
        ("layers", model.layers, MAX_LAYERS),
        ("heads", model.heads, MAX_HEADS),
        ("kv_heads", model.kv_heads, MAX_HEADS),
        ("head_dim", model.head_dim, MAX_HEAD_DIM),
        ("hidden", model.hidden, MAX_HIDDEN),
        ("context", model.context, MAX_CONTEXT),
        ("positions", model.positions, MAX_POSITIONS),
        ("vocab", model.vocab, MAX_VOCAB),
        ("top_k", model.top_k, MAX_TOP_K),
        ("source", model.source.unwrap_or(1), MAX_SOURCE),
    ];
    for (field, found, most) in sizes {
        in_range(field, found.into(), 1, most.into())?;
    }
    in_range("end_of_text", manifest.tokens.end_of_text.len() as u64, 0, MAX_ENDS as u64)?;
    in_range("files", manifest.files.len() as u64, 0, MAX_FILES as u64)?;
    for entry in &manifest.files {
        let most = if entry.path == manifest.tokenizer.file { MAX_TOKENIZER_BYTES } else { MAX_FILE_BYTES };
        in_range("bytes", entry.bytes, 0, most)?;
    }
    Ok(())
}

fn in_range(field: &'static str, found: u64, least: u64, most: u64) -> Result<(), ManifestError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(ManifestError::Limit { field, found, least, most })
}

/// What numbers say of each other.
fn check_rules(manifest: &Manifest) -> Result<(), ManifestError> {
    let ModelInfo { heads, kv_heads, context, positions, vocab, vocab_padded, top_k, .. } = manifest.model;
    let model = &manifest.model;
    let lists = |names: &[&str]| names.iter().all(|name| manifest.file(name).is_some());
    let rules = [
        (heads.checked_rem(kv_heads) == Some(0), "`heads` is not a multiple of `kv_heads`"),
        (context <= positions, "`context` is more than `positions`"),
        (vocab.checked_next_multiple_of(8) == Some(vocab_padded), "`vocab_padded` is not `vocab` rounded up to 8"),
        (top_k <= vocab, "`top_k` is more than `vocab`"),
        (
            match (model.quantization, model.operators) {
                (Quantization::None, _) | (Quantization::Int8, Operators::Foretype) => true,
                (Quantization::Int4, Operators::Foretype) => false,
                (_, Operators::Onnx) => model.dtype == Dtype::F16,
            },
            "`quantization` is one that its `operators` and `dtype` don't have",
        ),
        (
            model.operators == Operators::Onnx || model.dtype == Dtype::F32,
            "`operators` is `foretype`, but `dtype` is not `f32`",
        ),
        (
            model.source.is_none() || lists(&[ENCODER_FILE, ENCODER_WEIGHTS_FILE]),
            "there is a `source`, but `files` does not list the encoder",
        ),
        (manifest.tokens.start < vocab, "the start token is not below `vocab`"),
        (manifest.tokens.end_of_text.iter().all(|&id| id < vocab), "an end-of-text token is not below `vocab`"),
        (
            lists(&[GRAPH_FILE, WEIGHTS_FILE, &manifest.tokenizer.file]),
            "`files` does not list the graph, the weights and the tokenizer",
        ),
        (
            manifest.quality.is_none_or(|quality| (0.0..=1.0).contains(&quality.top1_agreement)),
            "`top1_agreement` is no share from 0 to 1",
        ),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        Some((_, broken)) => Err(ManifestError::Inconsistent(broken)),
        None => Ok(()),
    }
}

/// The weights must have room for the attention's matrices of all layers, and for a row of each token.
///
/// That is less than what a model has. It is enough that no number of a manifest asks for memory out of proportion to
/// the file. A cache of keys and values has no more elements for a position than these matrices.
fn check_weights(manifest: &Manifest) -> Result<(), ManifestError> {
    let ModelInfo { layers, heads, kv_heads, head_dim, hidden, vocab, dtype, quantization, .. } = manifest.model;
    let element_bits = match (quantization, dtype) {
        (Quantization::Int4, _) => 4,
        (Quantization::Int8, _) => 8,
        (Quantization::None, Dtype::F16) => 16,
        (Quantization::None, Dtype::F32) => 32,
    };
    let product = |sizes: &[u32]| sizes.iter().map(|&size| u128::from(size)).product::<u128>();
    // Queries and output, keys and values.
    let layer = 2 * product(&[hidden, heads, head_dim]) + 2 * product(&[hidden, kv_heads, head_dim]);
    let needed = (element_bits * (u128::from(layers) * layer).max(u128::from(vocab))).div_ceil(8);
    let found = manifest.file(WEIGHTS_FILE).map_or(0, |entry| entry.bytes);
    if needed <= u128::from(found) {
        return Ok(());
    }
    Err(ManifestError::Weights { found, needed })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::manifest::seal;

    fn manifest() -> Value {
        let file = |path: &str, bytes: u64| json!({"path": path, "bytes": bytes, "sha256": "1".repeat(64)});
        json!({
            "format": crate::manifest::FORMAT, "checksum": "f".repeat(64), "name": "m", "family": "gpt2", "tool": "t",
            "model": {"layers": 2, "heads": 2, "kv_heads": 2, "head_dim": 8, "hidden": 16, "context": 8,
                "positions": 16, "vocab": 20, "vocab_padded": 24, "top_k": 4, "dtype": "f32"},
            "tokens": {"start": 0, "end_of_text": [0]},
            "tokenizer": {"file": "tokenizer.json", "kind": "byte_level_bpe", "add_prefix_space": false},
            "files": [file("model.onnx", 9), file("model.weights", 16384), file("tokenizer.json", 9)],
            "source": {"parameters": 9, "dtype": "F32"},
        })
    }

    fn parse(manifest: &Value) -> Result<Manifest, ManifestError> {
        let json = serde_json::to_vec(manifest).unwrap();
        Manifest::parse(Path::new("manifest.json"), &seal(&json).unwrap_or(json))
    }

    #[test]
    fn a_changed_manifest_is_noticed() {
        let sealed = seal(&serde_json::to_vec(&manifest()).unwrap()).unwrap();
        let path = Path::new("manifest.json");
        let mut read = Manifest::parse(path, &sealed).unwrap();
        let written = read.to_json().unwrap();
        assert_eq!(Manifest::parse(path, &written).unwrap(), read);
        let text = String::from_utf8(sealed).unwrap();
        for changed in [
            text.replacen("\"start\":0", "\"start\":1", 1),
            format!("{text} "),
            text.replacen(&read_checksum(&text), &"0".repeat(64), 1),
            text.replacen(&read_checksum(&text), "", 1),
        ] {
            assert_ne!(changed, text);
            let error = Manifest::parse(path, changed.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("is not the manifest that was built"), "{error}");
        }
    }

    #[test]
    fn the_checksum_is_found_beside_texts_that_look_like_it() {
        for look_alike in ["0".repeat(64), "f".repeat(64), format!("\"checksum\": \"{}\"", "0".repeat(65))] {
            let mut named = manifest();
            named["name"] = look_alike.clone().into();
            let mut read = parse(&named).unwrap();
            let written = read.to_json().unwrap();
            assert_eq!(Manifest::parse(Path::new("manifest.json"), &written).unwrap(), read, "{look_alike}");
        }
    }

    fn read_checksum(text: &str) -> String {
        serde_json::from_str::<Value>(text).unwrap()["checksum"].as_str().unwrap().to_owned()
    }

    #[test]
    fn no_size_is_believed_beyond_its_bound() {
        parse(&manifest()).unwrap();
        let sizes = ["layers", "heads", "kv_heads", "head_dim", "hidden", "context", "positions", "vocab", "top_k"];
        for size in sizes {
            for value in [0, 400_000_000, u64::from(u32::MAX)] {
                let mut wrong = manifest();
                wrong["model"][size] = value.into();
                let error = parse(&wrong).unwrap_err().to_string();
                assert!(error.contains(&format!("`{size}` is {value}")), "{error}");
            }
        }
        for digest in ["", "x", &"0".repeat(64), &"0".repeat(63), &"F".repeat(64)] {
            let mut wrong = manifest();
            wrong["files"][2]["sha256"] = digest.into();
            parse(&wrong).unwrap_err();
        }
        let mut wrong = manifest();
        wrong["files"][2]["bytes"] = (1_u64 << 40).into();
        assert!(parse(&wrong).unwrap_err().to_string().contains("`bytes` is"));
    }

    #[test]
    fn sizes_within_their_bounds_must_fit_the_weights() {
        for (size, value) in [("layers", 1000), ("hidden", 100_000), ("head_dim", 4096)] {
            let mut wrong = manifest();
            wrong["model"][size] = value.into();
            let error = parse(&wrong).unwrap_err().to_string();
            assert!(error.contains("model.weights has 16384 bytes, but"), "{error}");
        }
        let mut wrong = manifest();
        wrong["model"]["vocab"] = 800_000.into();
        wrong["model"]["vocab_padded"] = 800_000.into();
        assert!(parse(&wrong).unwrap_err().to_string().contains("need at least 3200000"));
    }
}
