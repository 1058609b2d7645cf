//! Tiny tokenizers for tests.
#![allow(clippy::unwrap_used, reason = "only tests use it")]

use serde_json::{Value, json};

use super::{Text, TokenId};

/// A text side over the characters of `alphabet` (space as ' ') and `merges`. Its start and end is the last id.
pub fn tiny(alphabet: &str, merges: &[(&str, &str)]) -> Text {
    let spell = |text: &str| text.replace(' ', "Ġ");
    let mut tokens: Vec<String> = alphabet.chars().map(|c| spell(&c.to_string())).collect();
    tokens.extend(merges.iter().map(|(left, right)| spell(&format!("{left}{right}"))));
    let end = tokens.len() as u32;
    let mut vocab: serde_json::Map<String, _> =
        tokens.iter().zip(0u32..).map(|(t, id)| (t.clone(), json!(id))).collect();
    vocab.insert("<|endoftext|>".into(), json!(end));
    let merges: Vec<_> = merges.iter().map(|(left, right)| json!([spell(left), spell(right)])).collect();
    let added = json!([special(end, "<|endoftext|>")]);
    let json = tokenizer_json(&vocab.into(), &json!(merges), &added);
    Text::from_json(&json, TokenId(end), &[TokenId(end)], "").unwrap()
}

fn special(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true
    })
}

/// A text side of Llama's kind: pieces of `abc`, every byte, and `<s>`, which starts every prompt. `</s>` ends a text.
pub fn byte_fallback() -> Text {
    let pieces = ["<unk>", "<s>", "</s>"].map(String::from).into_iter();
    let pieces = pieces.chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let pieces = pieces.chain(["▁", "a", "b", "c", "▁a", "▁b", "ab", "▁ab"].map(String::from));
    let vocab: serde_json::Map<String, _> = pieces.zip(0u32..).map(|(piece, id)| (piece, json!(id))).collect();
    let merges = json!([["▁", "a"], ["▁", "b"], ["a", "b"], ["▁", "ab"]]);
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }
        ] },
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } }
        },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 }
        ] },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges
        }
    });
    Text::from_json(&json.to_string(), TokenId(1), &[TokenId(2)], "").unwrap()
}

/// The `tokenizer.json` of GPT-2's real vocabulary, if `FORETYPE_GPT2_VOCAB` names its folder.
pub fn gpt2_json() -> Option<String> {
    let folder = std::path::PathBuf::from(std::env::var_os("FORETYPE_GPT2_VOCAB")?);
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
    let vocab: Value = serde_json::from_str(&read("encoder.json")).unwrap();
    let merges: Vec<String> = read("vocab.bpe").lines().skip(1).map(String::from).collect();
    let end = json!([{
        "id": 50256, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true
    }]);
    Some(tokenizer_json(&vocab, &json!(merges), &end))
}

/// The text side of GPT-2's real vocabulary, as [`gpt2_json`].
pub fn gpt2() -> Option<Text> {
    Some(Text::from_json(&gpt2_json()?, TokenId(50256), &[TokenId(50256)], "").unwrap())
}

/// A `tokenizer.json` of GPT-2's kind.
pub fn tokenizer_json(vocab: &Value, merges: &Value, added_tokens: &Value) -> String {
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": vocab, "merges": merges
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level, "model": model
    });
    tokenizer.to_string()
}
