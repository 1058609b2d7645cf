//! What each family's configuration can get wrong, on the golden checkpoints of its kind.

use std::fs;

use bundle::Dtype;
use engine_build::{BuildOptions, build};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::tiny::Tiny;

/// The golden, the field, its new value, and what the message must say.
type Case = (&'static str, &'static str, Value, &'static [&'static str]);

#[test]
fn impossible_configurations_are_refused_in_one_sentence() {
    let cases: [Case; 35] = [
        ("bloom", "n_head", json!(5), &["`hidden_size` 48", "`n_head` 5"]),
        ("bloom", "apply_residual_connection_post_layernorm", json!(true), &["`apply_residual", "isn't normalized"]),
        ("gptj", "rotary_dim", json!(7), &["7 of a head's 16", "even"]),
        ("gptj", "rotary_dim", json!(18), &["18 of a head's 16"]),
        ("gptj", "n_head", json!(5), &["`n_embd` 48", "`n_head` 5"]),
        (
            "gptj",
            "architectures",
            json!(["GPTJForQuestionAnswering"]),
            &["`GPTJForQuestionAnswering`", "GPTJForCausalLM"],
        ),
        ("gptj_full", "tie_word_embeddings", json!("yes"), &["`tie_word_embeddings`", "true or false"]),
        ("neo", "num_heads", json!(5), &["`hidden_size` 36", "`num_heads` 5"]),
        ("neo", "window_size", json!(0), &["`window_size`", "from 1"]),
        ("neox", "/rope_parameters/partial_rotary_factor", json!(0.2), &["3 of a head's 16"]),
        ("neox", "/rope_parameters/rope_type", json!("dynamic"), &["`rope_type`", "`dynamic`", "llama3"]),
        ("neox", "rope_parameters", json!([1]), &["`rope_parameters`", "an object"]),
        ("neox", "intermediate_size", json!(null), &["no `intermediate_size`"]),
        ("neox", "hidden_act", json!("snake"), &["`snake`", "gelu_new"]),
        (
            "neox_sequential",
            "attention_bias",
            json!(true),
            &["no tensor gpt_neox.layers.0.attention.query_key_value.bias"],
        ),
        ("llama", "num_key_value_heads", json!(4), &["`num_attention_heads` 6", "`num_key_value_heads` 4"]),
        ("llama", "num_key_value_heads", json!(3), &["self_attn.k_proj.weight", "[16, 48]", "[24, 48]"]),
        ("llama", "head_dim", json!(7), &["7 of a head's 7", "even"]),
        ("llama", "head_dim", json!(16_777_216), &["`num_attention_heads` 6 times `head_dim` 16777216"]),
        ("llama", "mlp_bias", json!(true), &["no tensor model.layers.0.mlp.up_proj.bias"]),
        ("llama", "model_type", json!("mistral"), &["`LlamaForCausalLM`", "MistralForCausalLM"]),
        ("llama_wide", "/rope_parameters/factor", json!(null), &["no `factor`"]),
        ("llama_wide", "/rope_parameters/low_freq_factor", json!(-1), &["`low_freq_factor`", "above 0"]),
        ("llama_wide", "/rope_parameters/high_freq_factor", json!(1), &["`high_freq_factor`", "`low_freq_factor`"]),
        (
            "opt",
            "layer_norm_elementwise_affine",
            json!(false),
            &["`layer_norm_elementwise_affine`", "normalizations with weights"],
        ),
        ("opt", "word_embed_proj_dim", json!(32), &["model.decoder.embed_tokens.weight", "[281, 48]", "[281, 32]"]),
        ("opt_post", "ffn_dim", json!(null), &["no `ffn_dim`"]),
        ("t5/relu", "relative_attention_num_buckets", json!(7), &["`relative_attention_num_buckets`", "7", "even"]),
        ("t5/relu", "relative_attention_max_distance", json!(5), &["`relative_attention_max_distance`", "above half"]),
        ("t5/relu", "d_kv", json!(13), &["SelfAttention.q.weight", "[42, 36]", "[39, 36]"]),
        ("t5/relu", "n_positions", json!(16_385), &["`n_positions`", "up to 16384"]),
        ("t5/relu", "architectures", json!(["T5EncoderModel"]), &["`T5EncoderModel`", "T5ForConditionalGeneration"]),
        ("t5/gated", "feed_forward_proj", json!("gated-snake"), &["`gated-snake`", "gelu_new"]),
        ("t5/gated", "num_decoder_layers", json!(3), &["no tensor decoder.block.2.layer.0"]),
        ("qwen2", "rms_norm_eps", json!(0), &["`rms_norm_eps`", "above 0"]),
    ];
    for (name, pointer, value, fragments) in cases {
        let golden = Tiny::golden(name);
        golden.set(pointer, value.clone());
        let error = golden.build().expect_err(pointer).to_string();
        for fragment in fragments {
            assert!(error.contains(fragment), "{name} {pointer} {value}: {fragment:?} is not in: {error}");
        }
        assert!(!error.contains('\n') && error.len() < 500, "{name} {pointer}: not one sentence: {error}");
        assert!(!golden.out().exists(), "{name} {pointer}: something was left behind");
    }
}

#[test]
fn local_attention_is_served_within_its_window_and_refused_beyond() {
    for name in ["neo", "mistral"] {
        let golden = Tiny::golden(name);
        let manifest = golden.build().expect(name);
        assert_eq!((manifest.model.context, manifest.model.positions), (32, 48), "{name}");
        let wider = BuildOptions { context: Some(33), ..golden.options() };
        let error = build(&wider, &()).expect_err(name).to_string();
        assert!(error.contains("context of 33") && error.contains("window is 32"), "{error}");
    }
    let golden = Tiny::golden("neo");
    golden.set("attention_types", json!([[["global"], 2]]));
    assert_eq!(golden.build().expect("global attention").model.context, 48);
    let golden = Tiny::golden("mistral");
    golden.set("sliding_window", json!(null));
    assert_eq!(golden.build().expect("no window").model.context, 48);
    let golden = Tiny::golden("qwen2");
    golden.set("sliding_window", json!(8));
    assert_eq!(golden.build().expect("a window that is off").model.context, 32);
    golden.set("use_sliding_window", json!(true));
    assert_eq!(golden.build().expect("a window that is on").model.context, 8);
}

#[test]
fn bad_weights_are_named_as_the_checkpoint_names_them() {
    let golden = Tiny::golden("llama");
    // bf16: 2^17 is beyond f16, and fine in f32.
    golden.poke_half("model.layers.1.self_attn.k_proj.weight", 50, [0x00, 0x48]);
    golden.build().expect("an f32 bundle");
    let error = build(&BuildOptions { dtype: Dtype::F16, ..golden.options() }, &()).expect_err("f16").to_string();
    for fragment in ["model.layers.1.self_attn.k_proj.weight", "131072", "index 50", "f32"] {
        assert!(error.contains(fragment), "{fragment:?} is not in: {error}");
    }
    let golden = Tiny::golden("neox");
    golden.poke_half("gpt_neox.layers.0.attention.query_key_value.bias", 20, [0x00, 0x7e]); // f16: NaN
    let error = golden.build().expect_err("NaN").to_string();
    for fragment in ["gpt_neox.layers.0.attention.query_key_value.bias", "NaN", "index 20"] {
        assert!(error.contains(fragment), "{fragment:?} is not in: {error}");
    }
}

#[test]
fn manifests_say_how_many_heads_the_cache_has() {
    for (name, family, heads, kv_heads, head_dim, hidden) in [
        ("gptj", "gptj", 3, 3, 16, 48),
        ("neox", "gpt_neox", 3, 3, 16, 48),
        ("llama", "llama", 6, 2, 8, 48),
        ("llama_wide", "llama", 3, 1, 16, 36),
        ("mistral", "mistral", 4, 2, 10, 40),
        ("qwen2", "qwen2", 6, 3, 8, 48),
        ("opt_post", "opt", 4, 4, 10, 40),
        ("bloom", "bloom", 6, 6, 8, 48),
        ("t5/relu", "t5", 3, 3, 14, 36),
    ] {
        let manifest = Tiny::golden(name).build().expect(name);
        let model = &manifest.model;
        assert_eq!(manifest.family, family);
        assert_eq!((model.heads, model.kv_heads, model.head_dim, model.hidden), (heads, kv_heads, head_dim, hidden));
    }
}

#[test]
fn an_encoder_decoder_has_two_graphs_and_a_start_for_its_answers() {
    let golden = Tiny::golden("t5/long");
    let manifest = golden.build().expect("a bundle");
    assert_eq!((manifest.model.source, manifest.model.positions, manifest.model.context), (Some(200), 200, 128));
    assert_eq!((manifest.tokens.start, manifest.tokens.end_of_text.as_slice()), (0, &[1][..]));
    manifest.verify_checksums(&golden.out()).expect("every file");
    assert!(engine_build::is_encoder_decoder(&golden.checkpoint()));
    assert!(!engine_build::is_encoder_decoder(&Tiny::golden("opt").checkpoint()));
    let tiny = 32 * 283; // The embedding, which is the head too, counts once.
    let block = 4 * 24 * 32;
    let network = 3 * 32 * 48;
    let biases = 2 * 2 * 32;
    let norms = 32 * (2 + 1 + 3 + 1);
    assert_eq!(manifest.source.parameters, tiny + 3 * block + 2 * network + biases + norms);

    golden.set("decoder_start_token_id", Value::Null);
    golden.build().expect("generation_config.json has it too");
    golden.remove("generation_config.json");
    let error = golden.build().expect_err("no start").to_string();
    assert!(error.contains("`decoder_start_token_id`"), "{error}");
}

/// Values that are often nearly right.
fn json_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2..70i64).prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        proptest::sample::select(vec!["default", "linear", "llama3", "gelu", "local", ""]).prop_map(Value::from),
        Just(json!({"rope_type": "llama3", "factor": 1e-9, "low_freq_factor": 1, "high_freq_factor": 1,
            "original_max_position_embeddings": 1})),
        Just(json!([[["local"], 1], {}])),
    ]
}

/// Golden checkpoints of different families.
const FAMILIES: [&str; 10] =
    ["bloom", "gptj", "neo", "neox", "llama", "llama_wide", "mistral", "opt_post", "qwen2", "t5/gated"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_fields_of_any_family(
        name in proptest::sample::select(FAMILIES.to_vec()),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), json_value()), 1..4),
    ) {
        let golden = Tiny::golden(name);
        let config: Value = serde_json::from_slice(&fs::read(golden.path("config.json")).expect("read")).expect("JSON");
        let fields: Vec<&String> = config.as_object().expect("an object").keys().collect();
        for (field, value) in changes {
            let name: &&String = field.get(&fields);
            golden.set(name, value);
        }
        let built = golden.build();
        prop_assert_eq!(built.is_ok(), golden.out().exists());
    }
}
