//! Text around every input: of a bundle, put while it answers, and of a request; for typed texts, prompts and T5.

use engine_build::BuildOptions;
use foretype::engine::Engine;
use foretype::metrics::Metrics;
use serde_json::{Value, json};

use crate::encoder_decoder;
use crate::http_client::{JSON, error, send};
use crate::support::{TestServer, build_with, demo_engine, engine_options, repository};
use crate::swap::WithOperators;

/// Examples and the beginning of a line, as few-shot prompts have them.
const EXAMPLES: &str = "heat pump\nsolar panel\nbattery management system\nwireless charging coil\nlithium {input}";

fn templated(template: &str) -> TestServer {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("template");
    std::fs::write(&file, template).unwrap();
    let mut options = BuildOptions::new(repository("models/demo"), folder.path().join("bundle"));
    options.template = Some(file);
    let manifest = engine_build::build(&options, &()).unwrap();
    TestServer::with(Engine::load(&options.out, &manifest, &engine_options(), &Metrics::new()).unwrap())
}

fn ask(server: &TestServer, body: &Value) -> Value {
    let mut body = body.clone();
    if body.get("prompt").is_none() {
        // A busy machine takes its time.
        body["deadline_ms"] = 60_000.into();
    }
    let answer = server.post(&body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

/// Texts with a hidden text before them, and their log-probabilities.
fn list(answer: &Value, hidden: &str) -> Vec<(String, String)> {
    let shown = |s: &Value| {
        (format!("{hidden}{}", s["text"].as_str().unwrap()), format!("{:.3}", s["logprob"].as_f64().unwrap()))
    };
    answer["suggestions"].as_array().unwrap().iter().map(shown).collect()
}

fn message(server: &TestServer, body: &Value) -> String {
    let answer = server.post(&body.to_string());
    assert_eq!(answer.status, 400, "{}", answer.text);
    error(&answer).2
}

#[test]
fn a_template_is_continued_and_not_shown() {
    let plain = TestServer::with(demo_engine());
    let whole = ask(&plain, &json!({ "input": "lithium ion", "tolerance": "off" }));
    for (template, typed, hidden) in [("lithium{input}\n", " ion", "lithium"), ("lithium {input}\n", "ion", "lithium ")]
    {
        let own = ask(&templated(template), &json!({ "input": typed, "tolerance": "off" }));
        assert!(own["suggestions"].as_array().unwrap().len() == 10);
        assert_eq!(list(&own, hidden), list(&whole, ""), "{template:?}");
        let body = json!({ "input": typed, "tolerance": "off", "template": template.trim_end() });
        assert_eq!(list(&ask(&plain, &body), hidden), list(&whole, ""), "{template:?} of the request");
    }
    let none = json!({ "input": "lithium ion", "tolerance": "off", "template": "{input}" });
    assert_eq!(list(&ask(&templated("heat {input}"), &none), ""), list(&whole, ""), "the request's instead of its own");
}

#[test]
fn corrections_are_those_of_the_typed_text() {
    let server = templated("lithium {input}");
    let exact = ask(&server, &json!({ "input": "ion batt", "tolerance": "auto" }));
    let mistyped = ask(&server, &json!({ "input": "ion bttery", "tolerance": "auto" }));
    let (first, meant) = (&exact["suggestions"][0], &mistyped["suggestions"][0]);
    assert_eq!((&first["edits"], first["meant"].as_str()), (&json!(0), Some("ion batt")), "{exact}");
    assert_eq!((&meant["edits"], meant["meant"].as_str()), (&json!(1), Some("ion battery")), "{mistyped}");
    assert!(exact["typed_probability"].as_f64() > mistyped["typed_probability"].as_f64(), "{exact} {mistyped}");
    let capitals = ask(&server, &json!({ "input": "ION BATT", "tolerance": "auto" }));
    assert_eq!(list(&capitals, "").first().map(|(text, _)| text), list(&exact, "").first().map(|(text, _)| text));
}

#[test]
fn requests_with_a_template_share_what_was_computed_for_it() {
    let server = TestServer::with(demo_engine());
    let computed = |input: &str, template: &str| {
        let answer = ask(&server, &json!({ "input": input, "template": template, "tolerance": "off" }));
        answer["usage"]["typed_positions_computed"].as_u64().unwrap()
    };
    let examples = EXAMPLES.replace(" {input}", "");
    let prompt = ask(&server, &json!({ "prompt": examples, "max_tokens": 1, "salt": "elsewhere" }));
    let before = prompt["usage"]["prompt_tokens"].as_u64().unwrap();
    let (first, second) = (computed("ion", EXAMPLES), computed("pol", EXAMPLES));
    assert!(before > 12 && first >= before && 2 * second < before, "{before} tokens: {first}, then {second}");
}

#[test]
fn prompts_stand_in_the_template_too() {
    let (plain, server) = (TestServer::with(demo_engine()), templated("heat pump\n{input} for\n"));
    let text = |answer: &Value| answer[0]["generated_text"].as_str().unwrap().to_owned();
    let parameters = json!({ "max_new_tokens": 6 });
    let whole = text(&ask(&plain, &json!({ "inputs": ["heat pump\nsolar panel for"], "parameters": parameters })));
    assert!(!whole.is_empty());
    assert_eq!(text(&ask(&server, &json!({ "inputs": ["solar panel"], "parameters": parameters }))), whole);
    let body = json!({ "inputs": ["solar panel"], "parameters": parameters, "template": "heat pump\n{input} for" });
    assert_eq!(text(&ask(&plain, &body)), whole);
    let full = json!({ "inputs": ["solar panel"], "parameters": { "max_new_tokens": 6, "return_full_text": true } });
    assert_eq!(text(&ask(&server, &full)), format!("solar panel{whole}"), "the template isn't shown");
    let openai = ask(&server, &json!({ "prompt": "solar panel", "max_tokens": 6, "temperature": 0 }));
    assert_eq!(openai["choices"][0]["text"].as_str(), Some(&*whole));

    let t5 = |template: Option<&std::path::Path>| {
        let folder = encoder_decoder::folder("gated");
        let (_folder, bundle, manifest) = build_with(&folder, |options| options.template = template.map(Into::into));
        TestServer::with(Engine::load(&bundle, &manifest, &engine_options(), &Metrics::new()).unwrap())
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "how to {input} tomatoes\n").unwrap();
    let (plain, server) = (t5(None), t5(Some(file.path())));
    let parameters = json!({ "max_new_tokens": 12, "do_sample": true, "temperature": 0.7, "seed": 5 });
    let whole = text(&ask(&plain, &json!({ "inputs": ["how to grow tomatoes"], "parameters": parameters })));
    assert!(!whole.is_empty());
    assert_ne!(text(&ask(&plain, &json!({ "inputs": ["grow"], "parameters": parameters }))), whole);
    assert_eq!(text(&ask(&server, &json!({ "inputs": ["grow"], "parameters": parameters }))), whole);
}

#[test]
fn a_template_that_cannot_be_used_is_refused_in_words() {
    let plain = TestServer::with(demo_engine());
    let with = |template: &str| message(&plain, &json!({ "input": "ion", "template": template }));
    for (template, words) in [
        ("lithium", "{input} once"),
        ("{input} {input}", "2 times"),
        ("{input} battery", "end the line of {input} there"),
        (&*format!("{}{{input}}", "lithium ion battery ".repeat(200)), "shorten it"),
    ] {
        assert!(with(template).contains(words), "{template:.20}: {}", with(template));
    }
    let line = json!({ "input": "lithium ion", "tolerance": "off", "template": "{input}\nand more" });
    assert_eq!(
        list(&ask(&plain, &line), ""),
        list(&ask(&plain, &json!({ "input": "lithium ion", "tolerance": "off" })), "")
    );
    let tokens = message(&plain, &json!({ "prompt": [1, 2], "template": "{input}" }));
    assert!(tokens.contains("token ids"), "{tokens}");
    let server = templated("{input} battery");
    assert!(message(&server, &json!({ "input": "ion" })).contains("send {\"inputs\": TEXT}"));
}

#[test]
fn operators_change_it_while_the_model_answers() {
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("extras");
    let server = WithOperators::start(&repository("models/demo"), &format!("--cache {}", cache.display()));
    let put = |body: &Value| send(server.operators, "PUT", "/models/demo/extras", &[JSON], &body.to_string());
    let texts = |input: &str| {
        let body = json!({ "input": input, "tolerance": "off" }).to_string();
        list(&send(server.process.address, "POST", "/invocations", &[JSON], &body).json(), "")
    };
    let own = texts("ion");
    assert_eq!(put(&json!({ "template": "lithium {input}\n" })).status, 200);
    let templated = texts("ion");
    assert_ne!(own, templated);
    for wrong in ["no place", &*format!("{}{{input}}", "lithium ion ".repeat(200))] {
        let refused = put(&json!({ "template": wrong, "blocklist": "ion" }));
        assert!(refused.status == 400 && refused.text.contains("template.txt"), "{}", refused.text);
        assert_eq!(texts("ion"), templated, "nothing has changed");
    }
    let body = json!({ "url": repository("models/demo") }).to_string();
    assert_eq!(send(server.operators, "PUT", "/models/demo", &[JSON], &body).status, 200);
    assert_eq!(texts("ion"), templated, "it holds for the next version");
    assert_eq!(put(&json!({ "template": null })).status, 200);
    assert_eq!(texts("ion"), own);
}
