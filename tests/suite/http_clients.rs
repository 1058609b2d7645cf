//! What clients of other systems send, word for word, and the answers that they read.

use serde_json::{Value, json};

use crate::http_client::{JSON, events, json_lines, send};
use crate::support::{TestServer, fake_engine};
use foretype::http::ServerOptions;
use foretype::http::conventions::{Conventions, UnknownFields};
use foretype::models::ModelState;

/// A server as people start it.
fn server() -> TestServer {
    let model = ModelState::Ready(std::sync::Arc::new(fake_engine()).into());
    TestServer::start_with_options(model, ServerOptions::default())
}

/// The only answer in a list.
fn only(answer: &Value) -> &str {
    let list = answer.as_array().unwrap_or_else(|| panic!("no list: {answer}"));
    assert_eq!(list.len(), 1, "{answer}");
    list[0]["generated_text"].as_str().unwrap()
}

#[test]
fn examples_of_aws_and_djl_are_answered_and_what_they_say_beyond_is_named() {
    let server = server();
    for (body, answers, ignored) in [
        (r#"{"batch_size": 1, "inputs": " is an awesome site", "parameters": {}}"#, 1, Some("batch_size")),
        (
            r#"{"inputs": ["Translate", "heat"],
                "parameters": {"max_seq_len": 200, "temperature": 0.7}, "padding": true}"#,
            2,
            Some("padding"),
        ),
        (r#"{"inputs": "heat", "parameters": {"min_tokens": 4, "max_new_tokens": 8}}"#, 1, None),
        (r#"{"inputs": "heat", "parameters": {"max_length": 20, "min_new_tokens": 2, "do_sample": true}}"#, 1, None),
        (
            r#"{"inputs": "heat", "parameters": {"best_of": null, "decoder_input_details": true, "details": true,
                "do_sample": true, "max_new_tokens": 20, "repetition_penalty": 1.03, "return_full_text": false,
                "seed": null, "stop": [], "temperature": 0.5, "top_k": -1, "top_n_tokens": 2, "top_p": 0.95,
                "truncate": 2, "typical_p": 0.95, "watermark": false, "frequency_penalty": 0.1,
                "presence_penalty": 0.1, "no_repeat_ngram_size": 3}, "stream": false}"#,
            1,
            None,
        ),
    ] {
        let answer = server.post(body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        assert_eq!(answer.json().as_array().map(Vec::len), Some(answers), "{body}: {}", answer.text);
        let named = answer.headers.get("x-foretype-ignored-fields").map(|value| value.to_str().unwrap());
        assert_eq!(named, ignored, "{body}");
    }
}

#[test]
fn unknown_fields_are_refused_where_the_operator_wants_that_and_in_our_own_schema() {
    let model = ModelState::Ready(std::sync::Arc::new(fake_engine()).into());
    let conventions = Conventions { unknown: UnknownFields::Refuse, ..Conventions::default() };
    let strict = TestServer::start_with_options(model, ServerOptions { conventions, ..ServerOptions::default() });
    let body = r#"{"inputs": "heat", "parameters": {"topk": 1}}"#;
    let answer = strict.post(body);
    assert!(answer.status == 400 && answer.text.contains("in field parameters.topk: unknown field"), "{}", answer.text);
    let loose = server();
    assert_eq!(loose.post(body).headers["x-foretype-ignored-fields"], "parameters.topk");
    assert_eq!(loose.post(r#"{"input": "heat", "topk": 1}"#).status, 400);
    let openai = loose.send("POST", "/v1/completions", Some("application/json"), br#"{"prompt": "heat", "min_p": 0}"#);
    assert_eq!((openai.status, &openai.headers["x-foretype-ignored-fields"]), (200, &"min_p".parse().unwrap()));
}

#[test]
fn prompts_come_as_text_csv_and_octets_too() {
    let server = server();
    let post = |content_type: &str, body: &str| {
        let answer = server.send("POST", "/invocations", Some(content_type), body.as_bytes());
        assert_eq!(answer.status, 200, "{content_type} {body}: {}", answer.text);
        answer.json()
    };
    let expected = only(&server.post(r#"{"inputs": "heat"}"#).json()).to_owned();
    assert_eq!(only(&post("text/plain; charset=utf-8", "heat")), expected);
    assert_eq!(only(&post("application/octet-stream", r#"{"inputs": "heat"}"#)), expected);
    for (csv, count) in [("heat", 1), ("heat,pump\n", 2), ("inputs\nheat\npump\nsolar\n", 3)] {
        let answers = post("text/csv", csv);
        assert_eq!(answers.as_array().unwrap().len(), count, "{csv:?}");
        assert_eq!(answers[0]["generated_text"], expected);
    }
    for content_type in ["application/x-jsonlines", "application/jsonlines"] {
        let answer = server.send("POST", "/invocations", Some(content_type), b"{\"inputs\": \"heat\"}\n");
        assert_eq!(only(&json_lines(&answer)[0]), expected);
    }
    let foreign = [("Content-Type", "text/plain"), ("Origin", "http://elsewhere.example")];
    assert_eq!(send(server.address, "POST", "/invocations", &foreign, "heat").status, 415, "a page of any site");
}

#[test]
fn text_generation_inferences_routes_answer_its_clients() {
    let server = server();
    let body = json!({"inputs": "heat", "parameters": {"max_new_tokens": 5, "details": true}}).to_string();
    let post = |path: &str| send(server.address, "POST", path, &[JSON], &body);
    let whole = post("/generate").json();
    assert_eq!(server.post(&body).json(), json!([whole]), "a list on /invocations");
    assert_eq!(post("/").json(), json!([whole]), "and on the root");
    for token in whole["details"]["tokens"].as_array().unwrap() {
        assert!(token["logprob"] == token["log_prob"] && token["special"].is_boolean(), "{token}");
    }
    assert_eq!(whole["details"]["prefill"], json!([]));
    let streamed = post("/generate_stream");
    assert_eq!(streamed.headers["content-type"], "text/event-stream");
    let streaming = body.replacen('{', r#"{"stream": true,"#, 1);
    assert_eq!(events(&server.post(&streaming)), events(&streamed), "a stream is server-sent events by default");
    let tokens: Vec<Value> = events(&streamed).iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text: String = tokens.iter().map(|line| line["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, whole["generated_text"].as_str().unwrap());
    let last = tokens.last().unwrap();
    assert_eq!(
        (&last["generated_text"], last["details"]["generated_tokens"].is_u64()),
        (&whole["generated_text"], true)
    );
    // The first and only token of this answer is the one that ends it.
    let nothing = json!({"inputs": "heat", "parameters": {"stop": ["zz"], "max_new_tokens": 1}, "stream": true});
    let only = events(&server.post(&nothing.to_string()));
    assert!(only.len() == 1 && only[0].contains(r#""token":{"id":"#), "{only:?}");
    let info = server.send("GET", "/info", None, b"").json();
    assert_eq!((&info["model_id"], &info["max_total_tokens"]), (&"fake".into(), &48.into()));
}

#[test]
fn invocations_take_openais_prompts() {
    let server = server();
    let body = r#"{"model": "any", "prompt": "heat", "temperature": 0, "max_tokens": 5}"#;
    let answer = server.post(body).json();
    let choice = &answer["choices"][0];
    assert_eq!((&answer["object"], &answer["model"]), (&"text_completion".into(), &"any".into()));
    let chunks = events(&server.post(&body.replacen('{', r#"{"stream": true,"#, 1)));
    let (done, chunks) = chunks.split_last().unwrap();
    let text: String = chunks
        .iter()
        .map(|chunk| serde_json::from_str::<Value>(chunk).unwrap()["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((done.as_str(), text.as_str()), ("[DONE]", choice["text"].as_str().unwrap()));
}
