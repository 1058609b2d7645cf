//! Kinds of tokenizers, and the one made from the older files.

use std::fs;

use bundle::manifest::TokenizerKind;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use crate::tiny::{Tiny, tokenizer, vocabulary};

#[test]
fn anything_but_gpt2s_rules_is_another_kind() {
    let cases: [(&str, Value, Option<&str>); 9] = [
        ("/model/dropout", json!(null), None),
        ("/pre_tokenizer/add_prefix_space", json!(true), None),
        ("/model/dropout", json!(0.1), Some("dropout")),
        ("/model/unk_token", json!("!"), Some("unknown token")),
        ("/model/end_of_word_suffix", json!("</w>"), Some("suffix")),
        ("/model/byte_fallback", json!(true), Some("fallback")),
        ("/model/ignore_merges", json!(true), Some("bypass")),
        ("/normalizer", json!({"type": "Lowercase"}), Some("normalized")),
        ("/pre_tokenizer/use_regex", json!(false), Some("pattern")),
    ];
    for (pointer, value, difference) in cases {
        let tiny = Tiny::new();
        let mut changed = tokenizer();
        *changed.pointer_mut(pointer).expect("the field") = value.clone();
        tiny.write_json("tokenizer.json", &changed);
        let info = tiny.build().expect(pointer).tokenizer;
        match difference {
            None => assert_eq!((info.kind, info.reason.as_ref()), (TokenizerKind::ByteLevelBpe, None), "{pointer}"),
            Some(difference) => {
                assert_eq!(info.kind, TokenizerKind::Other, "{pointer}");
                assert!(info.reason.as_ref().is_some_and(|reason| reason.contains(difference)), "{info:?}");
            }
        }
        assert_eq!(info.add_prefix_space, pointer.ends_with("add_prefix_space"));
    }
}

#[test]
fn older_files_make_a_tokenizer_of_gpt2s_kind() {
    let tiny = Tiny::new();
    tiny.remove("tokenizer.json");
    let mut vocabulary = vocabulary();
    vocabulary.as_object_mut().expect("an object").remove("<|endoftext|>");
    for (token, id) in [("th", 256), ("the", 257), ("\u{120}the", 258), ("<|endoftext|>", 259)] {
        vocabulary[token] = json!(id);
    }
    tiny.write_json("vocab.json", &vocabulary);
    tiny.write("merges.txt", "#version: 0.2\nt h\nth e\n\u{120} the\n");
    tiny.write_json(
        "tokenizer_config.json",
        &json!({"added_tokens_decoder": {
            "259": {"content": "<|endoftext|>", "special": true},
            "260": {"content": "[PAD]", "special": true}
        }}),
    );
    tiny.set("vocab_size", json!(261));
    tiny.edit(|w| _ = w.insert("transformer.wte.weight".into(), crate::tiny::float_tensor(&[261, 8])));
    let info = tiny.build().expect("a bundle").tokenizer;
    assert_eq!(info.kind, TokenizerKind::ByteLevelBpe);

    let json = fs::read(tiny.out().join("tokenizer.json")).expect("the tokenizer");
    let tokenizer = Tokenizer::from_bytes(json).expect("a tokenizer");
    let encoding = tokenizer.encode("the the<|endoftext|>[PAD]", false).expect("encoded");
    assert_eq!(encoding.get_ids(), [257, 258, 259, 260]);
    assert_eq!(tokenizer.decode(&[257, 258], true).expect("decoded"), "the the");
    assert_eq!(tokenizer.decode(&[259, 257], true).expect("decoded"), "the", "special tokens are skipped");
}
