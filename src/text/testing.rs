//! Tiny tokenizers for tests.

use serde_json::json;

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
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{ "id": end, "content": "<|endoftext|>", "special": true }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "vocab": vocab, "merges": merges }
    });
    Text::from_json(&tokenizer.to_string(), TokenId(end), &[TokenId(end)], "").unwrap()
}
