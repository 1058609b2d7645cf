//! Tiny tokenizers for tests.
#![allow(clippy::unwrap_used, reason = "only tests use it")]

use serde_json::{Value, json};

use super::{Text, TokenId};

/// A text side over the characters of `alphabet` (space as ' ') and `merges`; `<|endoftext|>`, its start and end, is the last id.
pub fn tiny(alphabet: &str, merges: &[(&str, &str)]) -> Text {
    let spell = |text: &str| text.replace(' ', "Ġ");
    let mut tokens: Vec<String> = alphabet.chars().map(|c| spell(&c.to_string())).collect();
    tokens.extend(merges.iter().map(|(left, right)| spell(&format!("{left}{right}"))));
    let end = tokens.len() as u32;
    let mut vocab: serde_json::Map<String, _> =
        tokens.iter().zip(0u32..).map(|(t, id)| (t.clone(), json!(id))).collect();
    vocab.insert("<|endoftext|>".into(), json!(end));
    let merges: Vec<_> = merges.iter().map(|(left, right)| json!([spell(left), spell(right)])).collect();
    let added = json!([{ "id": end, "content": "<|endoftext|>", "special": true }]);
    let json = tokenizer_json(&vocab.into(), &json!(merges), &added);
    Text::from_json(&json, TokenId(end), &[TokenId(end)], "").unwrap()
}

/// GPT-2's real vocabulary, if `FORETYPE_GPT2_VOCAB` names its folder.
pub fn gpt2() -> Option<Text> {
    let folder = std::path::PathBuf::from(std::env::var_os("FORETYPE_GPT2_VOCAB")?);
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
    let vocab: serde_json::Value = serde_json::from_str(&read("encoder.json")).unwrap();
    let merges: Vec<String> = read("vocab.bpe").lines().skip(1).map(String::from).collect();
    let end = json!([{ "id": 50256, "content": "<|endoftext|>", "special": true }]);
    Some(Text::from_json(&tokenizer_json(&vocab, &json!(merges), &end), TokenId(50256), &[TokenId(50256)], "").unwrap())
}

fn tokenizer_json(vocab: &Value, merges: &Value, added_tokens: &Value) -> String {
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added_tokens,
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "vocab": vocab, "merges": merges }
    });
    tokenizer.to_string()
}
