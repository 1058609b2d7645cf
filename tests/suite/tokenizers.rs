//! Checkpoints with each kind of tokenizer, through the server: what people type is completed, and answers say how.

use std::path::Path;

use foretype::engine::Engine;
use foretype::metrics::Metrics;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::support::{TestServer, build, engine_options, repository};

/// The matrix with a row for each token.
const EMBEDDING: &str = "transformer.wte.weight";

/// Writes the plain golden's checkpoint with another tokenizer. Its rows of the embedding come again, a little larger,
/// for as many tokens as that has.
fn write_checkpoint(folder: &Path, tokenizer: &Value) {
    let plain = repository("tests/goldens/plain");
    let ids = tokenizer["model"]["vocab"].as_object().unwrap().values();
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let tokens = ids.chain(added.iter().map(|token| &token["id"])).map(|id| id.as_u64().unwrap()).max().unwrap() + 1;
    let end = added.iter().find(|token| ["<|endoftext|>", "</s>"].iter().any(|end| token["content"] == *end));
    let mut config: Value = serde_json::from_slice(&std::fs::read(plain.join("config.json")).unwrap()).unwrap();
    let end = end.unwrap()["id"].clone();
    (config["vocab_size"], config["bos_token_id"], config["eos_token_id"]) = (json!(tokens), end.clone(), end);
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();

    let file = std::fs::read(plain.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let rows = tensors.tensor(EMBEDDING).unwrap();
    let (count, width) = (rows.shape()[0], rows.shape()[1]);
    let mut more = Vec::new();
    for token in 0..tokens as usize {
        let scale = 1.0 + (token / count) as f32 / 16.0;
        let row = rows.data()[token % count * width * 4..][..width * 4].chunks_exact(4);
        more.extend(row.flat_map(|x| (scale * f32::from_le_bytes(x.try_into().unwrap())).to_le_bytes()));
    }
    let others = tensors.iter().filter(|(name, _)| *name != EMBEDDING);
    let others: Vec<_> = others.map(|(name, tensor)| (name.to_owned(), tensor)).collect();
    let embedding = TensorView::new(Dtype::F32, vec![tokens as usize, width], &more).unwrap();
    let all = others.into_iter().chain([(EMBEDDING.to_owned(), embedding)]);
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(all, None).unwrap()).unwrap();
}

fn serve(tokenizer: &Value) -> (tempfile::TempDir, tempfile::TempDir, TestServer) {
    let checkpoint = tempfile::tempdir().unwrap();
    write_checkpoint(checkpoint.path(), tokenizer);
    let (folder, bundle, manifest) = build(checkpoint.path(), None);
    let engine = Engine::load(&bundle, &manifest, &engine_options(), &Metrics::new()).unwrap();
    (checkpoint, folder, TestServer::with(engine))
}

/// Completes a text. The suggestions begin with `shown`.
fn complete(server: &TestServer, typed: &str, shown: &str) -> Value {
    let answer = server.post(&json!({ "input": typed, "max_new_tokens": 3, "suggestions": 5 }).to_string());
    let json = answer.json();
    assert_eq!(answer.status, 200, "{typed:?}: {json}");
    let suggestions = json["suggestions"].as_array().unwrap();
    assert!(!suggestions.is_empty(), "{typed:?}: {json}");
    for suggestion in suggestions {
        let text = suggestion["text"].as_str().unwrap();
        assert!(text.starts_with(shown) && text.len() > shown.len(), "{typed:?}: {json}");
        let completion = suggestion["completion"].as_str();
        assert_eq!(completion, text.strip_prefix(shown), "{typed:?}: {json}");
    }
    json
}

#[test]
fn every_kind_of_tokenizer_completes_what_people_type_exactly() {
    let mut kinds = 0;
    for entry in std::fs::read_dir(repository("tests/goldens/tokenizers")).unwrap() {
        let path = entry.unwrap().path();
        let tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let (_checkpoint, _folder, server) = serve(&tokenizer);
        println!("tokenizers: {}", path.display());
        for typed in ["solar", " solar", "heat exch", "US10,123", " 2024", "12", "日本", "naïve café", "<tool_", "a  b"]
        {
            assert_eq!(complete(&server, typed, typed)["method"], "exact", "{typed:?}");
        }
        let composes = tokenizer["normalizer"]["type"] == "NFC";
        let decomposed = "cafe\u{301}";
        let answer = server.post(&json!({ "input": decomposed, "max_new_tokens": 3 }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.json());
        let shown = if composes { "café" } else { decomposed };
        for suggestion in answer.json()["suggestions"].as_array().unwrap() {
            assert!(suggestion["text"].as_str().unwrap().starts_with(shown), "{suggestion}");
            assert_eq!(suggestion["completion"].is_null(), composes, "{suggestion}");
        }
        assert!(!answer.json()["suggestions"].as_array().unwrap().is_empty());
        complete_pasted(&server);
        kinds += 1;
    }
    assert_eq!(kinds, 7);
}

/// A tab is a space, and so is a line break at the end.
fn complete_pasted(server: &TestServer) {
    let answer = server.post(&json!({ "input": "heat\tpump\r\n", "max_new_tokens": 3 }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.json());
    for suggestion in answer.json()["suggestions"].as_array().unwrap() {
        assert!(suggestion["text"].as_str().unwrap().starts_with("heat pump "), "{suggestion}");
    }
}

#[test]
fn answers_say_what_is_healed() {
    let path = repository("tests/goldens/plain/tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    tokenizer["normalizer"] = json!({ "type": "NFKC" });
    let (_checkpoint, _folder, server) = serve(&tokenizer);
    assert_eq!(complete(&server, "heat exch", "heat exch")["method"], "healed");
}
