//! OpenAI's routes: what their clients send, and errors in their shape.

use serde_json::Value;

use crate::http_client::{events, post, send};
use crate::support::{TestServer, fake_engine};

fn complete(server: &TestServer, body: &str) -> Value {
    let answer = post(server.address, "/v1/completions", body);
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    answer.json()
}

#[test]
fn completions_have_choices_and_usage() {
    let server = TestServer::with(fake_engine());
    let one =
        complete(&server, r#"{"model": "fake", "prompt": "heat", "temperature": 0, "max_tokens": 5, "logprobs": 1}"#);
    assert_eq!((&one["object"], &one["model"]), (&"text_completion".into(), &"fake".into()));
    assert!(one["id"].as_str().unwrap().starts_with("cmpl-") && one["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &one["choices"][0];
    assert!(["stop", "length"].contains(&choice["finish_reason"].as_str().unwrap()));
    let logprobs = &choice["logprobs"];
    let tokens: String = logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(tokens, choice["text"].as_str().unwrap());
    let count = logprobs["token_logprobs"].as_array().unwrap().len();
    assert_eq!(
        (count, &one["usage"]["completion_tokens"]),
        (logprobs["text_offset"].as_array().unwrap().len(), &count.into())
    );

    let echoed = complete(&server, r#"{"prompt": "heat", "temperature": 0, "max_tokens": 5, "echo": true}"#);
    assert_eq!(echoed["choices"][0]["text"], format!("heat{tokens}"));
    assert!(echoed["choices"][0]["logprobs"].is_null());

    let several = complete(&server, r#"{"prompt": ["heat", "pump"], "n": 2, "best_of": 2, "seed": -3, "stop": null}"#);
    let indices: Vec<u64> =
        several["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
}

#[test]
fn a_stream_adds_up_to_the_whole_and_says_done() {
    let server = TestServer::with(fake_engine());
    let body = r#"{"prompt": ["heat", "pump"], "n": 2, "seed": 5, "max_tokens": 6, "echo": true, "stream": false}"#;
    let whole = complete(&server, body);
    let body = body.replace(r#""stream": false"#, r#""stream": true, "stream_options": {"include_usage": true}"#);
    let answer = post(server.address, "/v1/completions", &body);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let events = events(&answer);
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!((&usage["usage"], usage["choices"].as_array().unwrap().len()), (&whole["usage"], 0));
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let parts = || chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|part| part["index"] == index);
        let text: String = parts().map(|part| part["text"].as_str().unwrap()).collect();
        assert_eq!(text, choice["text"].as_str().unwrap());
        let reasons: Vec<&Value> =
            parts().map(|part| &part["finish_reason"]).filter(|reason| !reason.is_null()).collect();
        assert_eq!(reasons, [&choice["finish_reason"]]);
    }
}

#[test]
fn prompts_of_tokens_and_the_best_in_each_place() {
    let server = TestServer::with(fake_engine());
    let text = complete(&server, r#"{"prompt": "heat", "temperature": 0, "max_tokens": 5, "logprobs": 3}"#);
    // The goldens' tokenizer has a token for each of these letters.
    let ids: Vec<u32> = server
        .post(r#"{"inputs": "heat", "parameters": {"details": true, "decoder_input_details": true}}"#)
        .json()["details"]["prefill"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["id"].as_u64().unwrap() as u32)
        .collect();
    let tokens = |prompt: Value| {
        let body = serde_json::json!({"prompt": prompt, "temperature": 0, "max_tokens": 5, "echo": true});
        complete(&server, &body.to_string())
    };
    let choice = &text["choices"][0];
    let expected = format!("heat{}", choice["text"].as_str().unwrap());
    assert_eq!(tokens(ids.clone().into())["choices"][0]["text"], expected);
    assert_eq!(tokens(vec![ids.clone(), ids].into())["choices"][1]["text"], expected);
    let best = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    assert_eq!(best.len(), choice["logprobs"]["tokens"].as_array().unwrap().len());
    for (best, logprob) in best.iter().zip(choice["logprobs"]["token_logprobs"].as_array().unwrap()) {
        let best: Vec<f64> = best.as_object().unwrap().values().map(|value| value.as_f64().unwrap()).collect();
        let highest = best.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(Some(highest), logprob.as_f64(), "the best token was taken: {best:?}");
    }
}

#[test]
fn an_error_within_a_stream_is_an_event() {
    let server = TestServer::with(fake_engine());
    let answer = post(server.address, "/v1/completions", r#"{"prompt": "a50 %", "stream": true, "max_tokens": 4}"#);
    let events = events(&answer);
    assert_eq!((answer.status, events.last().unwrap().as_str()), (200, "[DONE]"));
    let error: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!((&error["error"]["type"], &error["error"]["kind"]), (&"server_error".into(), &"internal".into()));
}

#[test]
fn errors_have_openais_shape_and_our_kind() {
    let server = TestServer::with(fake_engine());
    // Body, status, kind, param.
    let bodies = [
        (r#"{"model": "gpt", "prompt": "a"}"#, 404, "model_not_found", Some("model")),
        (r#"{"prompt": "a", "max_tokens": 0}"#, 400, "invalid_value", Some("max_tokens")),
        (r#"{"prompt": "a", "max_tokens": 49}"#, 400, "invalid_value", Some("max_tokens")),
        (r#"{"prompt": "a", "n": 0}"#, 400, "invalid_value", Some("n")),
        (r#"{"prompt": "a", "n": 2, "best_of": 3}"#, 400, "invalid_value", Some("best_of")),
        (r#"{"prompt": "a", "temperature": -1}"#, 400, "invalid_value", Some("temperature")),
        (r#"{"prompt": "a", "top_p": 0}"#, 400, "invalid_value", Some("top_p")),
        (r#"{"prompt": "a", "presence_penalty": 3}"#, 400, "invalid_value", Some("presence_penalty")),
        (r#"{"prompt": "a", "frequency_penalty": -3}"#, 400, "invalid_value", Some("frequency_penalty")),
        (r#"{"prompt": "a", "logit_bias": {"1": 1}}"#, 400, "invalid_value", Some("logit_bias")),
        (r#"{"prompt": "a", "suffix": "b"}"#, 400, "invalid_value", Some("suffix")),
        (r#"{"prompt": "a", "logprobs": 21}"#, 400, "invalid_value", Some("logprobs")),
        (r#"{"prompt": [1, 100000]}"#, 400, "invalid_value", Some("prompt")),
        (r#"{"prompt": [1, "a"]}"#, 400, "invalid_field", Some("prompt")),
        (r#"{"prompt": []}"#, 400, "invalid_value", Some("prompt")),
        (r#"{"prompt": "a", "tools": []}"#, 400, "invalid_field", Some("tools")),
        ("{}", 400, "invalid_field", Some("prompt")),
        ("{", 400, "invalid_json", None),
    ];
    for (body, status, kind, param) in bodies {
        let answer = post(server.address, "/v1/completions", body);
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["kind"], error["param"].as_str()),
            (status, &kind.into(), param),
            "{body}: {error}"
        );
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"].as_str(), (status == 404).then_some("model_not_found"));
    }
    let form = send(server.address, "POST", "/v1/completions", &[("Content-Type", "text/plain")], "a");
    assert_eq!((form.status, &form.json()["error"]["type"]), (415, &"invalid_request_error".into()));
}

#[test]
fn the_model_is_listed() {
    let server = TestServer::with(fake_engine());
    let get = |path: &str| server.send("GET", path, None, b"");
    let list = get("/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&"list".into(), &"fake".into()));
    assert_eq!(get("/v1/models/fake").json(), list["data"][0]);
    assert_eq!(get("/v1/models/other").json()["error"]["code"], "model_not_found");
}
