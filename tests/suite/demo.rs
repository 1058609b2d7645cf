//! The demo model: what a newcomer sees must make sense.

use std::collections::HashSet;

use completion::TokenChoice;
use engine_build::BuildOptions;
use foretype::engine::{Completion, Engine, Generation};
use foretype::metrics::Metrics;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use scheduler::backend::Backend;

use crate::support::{TestServer, all_logits, build, demo_engine, engine_options, load, repository};

#[test]
fn the_demo_suggests_what_a_person_would_type() {
    let server = TestServer::with(demo_engine());
    // What was typed, and words of which each suggestion set must have some.
    let cases = [
        ("lithium ion", ["battery", "batteries", "cell"]),
        ("wireless char", ["wireless charging", "wireless charger", "wireless charge"]),
        ("TTL:(heat exch", ["TTL:(heat exchanger", "heat exchange", ")"]),
    ];
    for (typed, expected) in cases {
        let body = serde_json::json!({ "input": typed }).to_string();
        let answer = server.post(&body);
        assert_eq!(answer.status, 200);
        let json = answer.json();
        let suggestions = json["suggestions"].as_array().unwrap();
        let texts: HashSet<&str> = suggestions.iter().map(|s| s["text"].as_str().unwrap()).collect();
        println!("demo: {typed:?}: {texts:?}");
        assert!(texts.len() >= 5 && texts.len() == suggestions.len(), "{typed}: {texts:?}");
        assert!(texts.iter().all(|text| text.starts_with(typed)));
        assert!(suggestions.iter().all(|s| s["complete"] == true));
        assert!(texts.iter().any(|text| expected.iter().any(|word| text.contains(word))), "{typed}: {texts:?}");
        assert!(texts.iter().all(|text| text.matches('(').count() == text.matches(')').count()), "{texts:?}");
    }
}

#[test]
fn texts_that_the_demo_can_not_know_get_no_list() {
    let mut options = engine_options();
    options.requests.min_probability = 1e-6;
    let (_folder, bundle, manifest) = build(&repository("models/demo"), None);
    let server = TestServer::with(Engine::load(&bundle, &manifest, &options, &Metrics::new()).unwrap());
    let suggestions = |typed: &str, tolerance: &str| {
        let body = serde_json::json!({ "input": typed, "tolerance": tolerance }).to_string();
        let json = server.post(&body).json();
        assert_eq!(json["finish"], "complete", "{typed}: {json}");
        json["suggestions"].as_array().unwrap().len()
    };
    for tolerance in ["off", "auto"] {
        for unknown in ["\u{4e00}\u{79cd}\u{7528}\u{4e8e}", "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}"] {
            assert_eq!(suggestions(unknown, tolerance), 0, "{unknown} {tolerance}");
        }
        for known in ["wireless char", "US10123456", "IPC:H04L", "glossopharyngeal nerve"] {
            assert!(suggestions(known, tolerance) > 0, "{known} {tolerance}");
        }
    }
    // What is meant is known.
    assert_eq!(suggestions("\u{ff4c}\u{ff49}\u{ff54}\u{ff48}\u{ff49}", "off"), 0);
    assert!(suggestions("\u{ff4c}\u{ff49}\u{ff54}\u{ff48}\u{ff49}", "case") > 0);
}

/// The bytes of a text in full width need more positions than the model has; those of its plain form don't.
#[test]
fn a_text_in_full_width_may_be_longer_than_the_context() {
    let server = TestServer::with(demo_engine());
    let plain = "lithium ion battery separator f";
    let wide: String =
        plain.chars().map(|c| if c == ' ' { c } else { char::from_u32(c as u32 + 0xfee0).unwrap() }).collect();
    let ask = |typed: &str, tolerance: &str| {
        server.post(&serde_json::json!({ "input": typed, "tolerance": tolerance }).to_string())
    };
    assert_eq!(ask(&wide, "off").status, 400);
    let texts = |typed: &str| -> Vec<String> {
        let json = ask(typed, "auto").json();
        json["suggestions"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap().to_owned()).collect()
    };
    assert!(!texts(plain).is_empty() && texts(&wide) == texts(plain), "{:?}", texts(&wide));
}

/// Characters that fold to none, to several and to eighteen, that join others, and any others.
#[test]
fn texts_of_any_characters_are_answered() {
    let server = TestServer::with(demo_engine());
    let mut rng = StdRng::seed_from_u64(7);
    let rare: Vec<char> =
        "\u{fb03}\u{fdfa}\u{df}\u{130}\u{bd}\u{33a8}\u{2167}\u{301}\u{200d}\u{ad}\u{fe0f}\t aA7(\"".chars().collect();
    let mut texts: Vec<String> = rare.iter().map(|c| c.to_string().repeat(6)).collect();
    texts.extend((0..150).map(|_| {
        let any = |rng: &mut StdRng| char::from_u32(rng.random_range(0..0x3_0000)).unwrap_or('e');
        let character = |rng: &mut StdRng| if rng.random() { *rare.choose(rng).unwrap() } else { any(rng) };
        (0..rng.random_range(1..12)).map(|_| character(&mut rng)).collect()
    }));
    let mut answered = 0;
    for text in &texts {
        for tolerance in ["case", "auto"] {
            let answer = server.post(&serde_json::json!({ "input": text, "tolerance": tolerance }).to_string());
            assert!([200, 400].contains(&answer.status), "{text:?} {tolerance}: {} {}", answer.status, answer.text);
            answered += usize::from(answer.status == 200);
        }
    }
    assert!(answered > texts.len(), "{answered} of {} were answered", 2 * texts.len());
}

#[test]
fn the_demo_knows_what_is_meant() {
    let server = TestServer::with(demo_engine());
    let ask = |typed: &str, tolerance: &str| {
        let body = serde_json::json!({ "input": typed, "tolerance": tolerance }).to_string();
        let answer = server.post(&body);
        assert_eq!(answer.status, 200, "{typed}");
        answer.json()
    };
    let meant = [
        ("wirless char", "auto", "wireless char"),
        ("Wireless Char", "case", "wireless char"),
        ("WIRELESS CHAR", "auto", "wireless char"),
        ("lithum ion", "auto", "lithium ion"),
        ("battrey man", "auto", "battery man"),
        ("TTL:(heta exch", "auto", "TTL:(heat exch"),
        ("heat exchnager", "auto", "heat exchanger"),
        ("solra pan", "auto", "solar pan"),
        ("IPC:H01L21/02NOT TTL:(coil", "auto", "IPC:H01L21/02 NOT TTL:(coil"),
        ("TTL:(Heat Pump) N", "case", "TTL:(heat pump) N"),
        // The model doesn't know `$PARA`.
        ("\"xcharging station\" $PARA paym", "auto", "\"charging station\" $PARA paym"),
        ("\u{ff4c}\u{ff49}\u{ff54}\u{ff48}\u{ff49}\u{ff55}\u{ff4d}", "case", "lithium"),
    ];
    for (typed, tolerance, expected) in meant {
        let json = ask(typed, tolerance);
        let first = &json["suggestions"][0];
        assert_eq!(first["meant"], expected, "{typed}: {first}");
        assert!(first["text"].as_str().unwrap().starts_with(expected) && first["edits"] == 1, "{typed}: {first}");
        assert!(first.get("completion").is_none() && json["typed_probability"].as_f64().unwrap() < 1e-3, "{json}");
        let off = ask(typed, "off");
        let extends = |suggestion: &serde_json::Value| suggestion["text"].as_str().unwrap().starts_with(typed);
        assert!(off["suggestions"].as_array().unwrap().iter().all(extends), "{typed}: {off}");
    }
    // What is right stays first, and codes are typed as they are meant.
    for typed in ["wireless char", "heat pump $PRE3", "TTL:(lens"] {
        let first = &ask(typed, "auto")["suggestions"][0];
        assert!(first["edits"] == 0 && first["meant"] == typed, "{typed}: {first}");
    }
    assert_eq!(server.post(r#"{"input": "lens", "tolerance": "some"}"#).status, 400);
}

#[test]
fn keystrokes_share_work_and_answers_do_not_depend_on_it() {
    let (warm, runtime) = (demo_engine(), tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    let complete = |engine: &foretype::engine::Engine, input: &str| {
        let completion = Completion { input: input.to_owned(), ..Completion::default() };
        runtime.block_on(engine.complete(&completion)).unwrap()
    };
    let query = "wireless charging coil";
    // Over the whole query: how far one search computes ahead follows what was measured when its engine was loaded.
    let (mut warm_positions, mut cold_positions) = (0, 0);
    for end in (1..=query.len()).step_by(3) {
        let typed = &query[..end];
        let (warm, cold) = (complete(&warm, typed), complete(&demo_engine(), typed));
        let texts = |answer: &scheduler::Answer<completion::Completions>| -> Vec<String> {
            answer.result.suggestions.iter().map(|s| s.text.clone()).collect()
        };
        assert_eq!(texts(&warm), texts(&cold), "{typed:?}");
        for (a, b) in warm.result.suggestions.iter().zip(&cold.result.suggestions) {
            assert!((a.logprob - b.logprob).abs() < 1e-3, "{a:?} {b:?}");
        }
        warm_positions += warm.usage.positions_computed;
        cold_positions += cold.usage.positions_computed;
    }
    println!("demo: {warm_positions} positions against {cold_positions}");
    assert!(warm_positions * 4 < cold_positions * 3, "{warm_positions} against {cold_positions}");
}

#[test]
fn typing_errors_are_learnt_from_pairs() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = folder.path().join("pairs.tsv");
    let build = |lines: &str| {
        std::fs::write(&pairs, lines).unwrap();
        let mut options = BuildOptions::new(repository("models/demo"), folder.path().join("bundle"));
        options.typing_pairs = Some(pairs.clone());
        engine_build::build(&options, &()).map_err(|error| error.to_string())
    };
    build(&"haet pu\theat pump\nheat pu\theat pump\n".repeat(2000)).unwrap();
    let json = std::fs::read_to_string(folder.path().join("bundle/typing.json")).unwrap();
    let learnt: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(learnt["swapped"].as_f64().unwrap() > 0.05 && learnt["omitted"].as_f64().unwrap() < 0.001, "{learnt}");
    let error = build("heat pu heat pump\n").unwrap_err();
    assert!(error.contains("line 1: expected what was typed, a tab") && error.contains("heat pu heat"), "{error}");
    let error = build("solar\theat pump\n").unwrap_err();
    assert!(error.contains("at most two typing errors"), "{error}");
}

#[test]
fn a_blocklist_prunes_and_popular_queries_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let (blocklist, popular) = (folder.path().join("blocklist"), folder.path().join("popular"));
    std::fs::write(&blocklist, "# not here\nbattery\nelectr*\n").unwrap();
    std::fs::write(&popular, "lithium ion zebra\t90\nlithium ion battery zoo\t90\nlithium ion cell\t10\n").unwrap();
    let mut options = BuildOptions::new(repository("models/demo"), folder.path().join("bundle"));
    (options.blocklist, options.popular) = (Some(blocklist), Some(popular));
    let manifest = engine_build::build(&options, &()).unwrap();
    assert!(["blocklist.txt", "popular.fst", "popular.counts"].iter().all(|name| manifest.file(name).is_some()));
    let server = TestServer::with(Engine::load(&options.out, &manifest, &engine_options(), &Metrics::new()).unwrap());
    let texts = |typed: &str| -> (Vec<String>, String) {
        let json = server.post(&serde_json::json!({ "input": typed }).to_string()).json();
        let list =
            json["suggestions"].as_array().unwrap().iter().map(|s| s["text"].as_str().unwrap().to_owned()).collect();
        (list, json["finish"].as_str().unwrap().to_owned())
    };
    let (list, _) = texts("lithium ion");
    println!("demo: blocked battery and electr*: {list:?}");
    assert!(list.len() >= 5 && list.iter().all(|text| !text.contains("battery") && !text.contains("electr")));
    assert!(list.contains(&"lithium ion zebra".to_owned()), "{list:?}");
    assert_eq!(texts("battery "), (Vec::new(), "blocked".to_owned()));
    assert!(texts("battery").0.iter().all(|text| !text.starts_with("battery ")));
}

/// What `transformers` would say, computed by hand from the backend's logits: the highest after the repetition penalty.
fn greedy_by_hand(backend: &mut dyn Backend, prompt: &[u32], end: u32, penalty: f32, count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let mut logits = all_logits(backend, 0, &tokens).pop().unwrap();
        for &seen in tokens.iter().collect::<HashSet<_>>() {
            let logit = &mut logits[seen as usize];
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
        let best = (0..logits.len() as u32).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize])).unwrap();
        if best == end {
            break;
        }
        tokens.push(best);
    }
    tokens.split_off(prompt.len())
}

#[test]
fn greedy_generation_is_the_models_own_with_and_without_a_penalty() {
    let (_folder, bundle, manifest) = build(&repository("models/demo"), None);
    let text = foretype::engine::read_text(&bundle, &manifest).unwrap();
    let end = text.prompt()[0].0;
    let mut backend = load(&bundle, &manifest);
    let engine = demo_engine();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut texts = HashSet::new();
    for prompt in ["wireless", "TTL:(heat exch", "lithium ion", "a method of", "battery OR"] {
        for penalty in [1.0, 3.0] {
            let tokens: Vec<u32> = text.encode(prompt).iter().map(|token| token.0).collect();
            let expected = greedy_by_hand(backend.as_mut(), &tokens, end, penalty, 12);
            let generation = Generation {
                prompt: prompt.into(),
                max_new_tokens: Some(12),
                choice: TokenChoice { repetition_penalty: penalty, ..TokenChoice::default() },
                ..Generation::default()
            };
            let generated = runtime.block_on(engine.generate(&generation)).unwrap().result;
            let found: Vec<u32> = generated.sequences[0].tokens.iter().map(|token| token.id).collect();
            assert_eq!(found, expected, "{prompt:?} {penalty}");
            texts.insert(generated.sequences[0].text.clone());
        }
    }
    assert!(texts.len() >= 5, "{texts:?}");
}
