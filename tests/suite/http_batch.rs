//! JSON Lines: a line for each line, in order, whatever is wrong with some.

use std::sync::Arc;
use std::time::Duration;

use foretype::metrics::Metrics;

use crate::http_client::{error, json_lines};
use crate::support::{TestServer, fake_engine, faulty_engine, request_options};

#[test]
fn each_line_is_answered_in_its_place() {
    let server = TestServer::with(fake_engine());
    let lines = [
        r#"{"input": "heat a", "suggestions": 2}"#,
        "{",
        r#"{"inputs": "heat", "parameters": {"max_new_tokens": 3}}"#,
        "",
        r#"{"input": "heat b", "stream": true}"#,
        r#"{"requestType": "NEW_SESSION"}"#,
        r#"{"input": "heat c", "suggestions": 0}"#,
        r#"{"inputs": ["a", "b"]}"#,
        r#"{"input": "50 %"}"#,
        r#"{"input": "heat d", "suggestions": 1}"#,
    ];
    for (content_type, end) in [
        ("application/jsonlines", "\n"),
        ("application/x-ndjson", "\r\n"),
        ("application/jsonl; charset=utf-8", "\n\n \n"),
    ] {
        let body = lines.join("\n") + end;
        let answer = server.send("POST", "/invocations", Some(content_type), body.as_bytes());
        assert_eq!((answer.status, &answer.headers["content-type"]), (200, &"application/jsonlines".parse().unwrap()));
        let answers = json_lines(&answer);
        assert_eq!(answers.len(), lines.len(), "{answer:?}");
        let kind = |index: usize| answers[index]["error"]["kind"].as_str().unwrap_or_default();
        assert_eq!(answers[0]["suggestions"].as_array().unwrap().len(), 2);
        assert!(answers[2]["generated_text"].is_string());
        assert_eq!(answers[7].as_array().unwrap().len(), 2);
        assert!(answers[9]["suggestions"][0]["text"].as_str().unwrap().starts_with("heat d"));
        assert_eq!(
            [1, 3, 4, 5, 6, 8].map(kind),
            ["invalid_json", "invalid_json", "invalid_value", "invalid_field", "invalid_value", "internal"]
        );
    }
    let empty = error(&server.send("POST", "/invocations", Some("application/jsonlines"), b"\n"));
    assert!(empty.0 == 400 && empty.2.contains("the body is empty"), "{empty:?}");
    let large = server.send("POST", "/invocations", Some("application/jsonlines"), &[b' '; 10_001]);
    assert_eq!(error(&large).0, 413);
}

#[test]
fn a_line_that_the_engine_has_no_room_for_waits() {
    let mut options = request_options();
    (options.pool.max_queued, options.pool.max_batch) = (1, 1);
    let faults = || -> scheduler::fake::FaultFn {
        Box::new(|_| {
            std::thread::sleep(Duration::from_millis(2));
            None
        })
    };
    let metrics = Metrics::new();
    let server = TestServer::with(faulty_engine(faults, options, &Arc::clone(&metrics)));
    let lines: Vec<String> = (0..24).map(|i| format!(r#"{{"input": "heat {i}", "suggestions": 1}}"#)).collect();
    let answer = server.send("POST", "/invocations", Some("application/jsonlines"), lines.join("\n").as_bytes());
    let answers = json_lines(&answer);
    assert_eq!(answers.len(), lines.len());
    for (index, answer) in answers.iter().enumerate() {
        let text = answer["suggestions"][0]["text"].as_str().unwrap_or_else(|| panic!("{index}: {answer}"));
        assert!(text.starts_with(&format!("heat {index}")), "{text}");
    }
    assert!(metrics.render().contains(r#"outcome="refused""#), "the queue was never full");
}

#[test]
fn the_work_of_a_request_is_bounded() {
    let options = foretype::engine::RequestOptions { max_request_tokens: 100, ..request_options() };
    let server = TestServer::with(faulty_engine(|| Box::new(|_| None), options, &Metrics::new()));
    // 2 prompts, 10 tokens each.
    let line = r#"{"inputs": ["a", "b"], "parameters": {"max_new_tokens": 10}}"#;
    let lines = |count| vec![line; count].join("\n");
    let batch = |count| server.send("POST", "/invocations", Some("application/jsonlines"), lines(count).as_bytes());
    assert_eq!(json_lines(&batch(5)).len(), 5);
    let json = |path, body: &str| server.send("POST", path, Some("application/json"), body.as_bytes());
    let sampled = r#""do_sample": true, "n": 11, "max_new_tokens": 10"#;
    for (asked, answer) in [
        (120, batch(6)),
        (110, json("/invocations", r#"{"input": "heat", "suggestions": 11, "max_new_tokens": 10}"#)),
        (110, json("/invocations", &format!(r#"{{"inputs": "heat", "parameters": {{{sampled}}}}}"#))),
        (200, json("/v1/completions", r#"{"prompt": ["a", "b"], "n": 10, "max_tokens": 10}"#)),
    ] {
        let (status, kind, message) = error(&answer);
        let said =
            format!("the request asks for {asked} tokens (lines x prompts x n, beams or suggestions x max_new_tokens)");
        assert!(status == 400 && message.starts_with(&said), "{answer:?}");
        assert!(message.contains("at most 100 are allowed: send fewer lines"), "{message}");
        assert!(kind == "invalid_value" || answer.text.contains("invalid_value"), "{answer:?}");
    }
    // What is over a limit of its own is refused for that.
    let (_, _, message) =
        error(&json("/invocations", r#"{"input": "a", "suggestions": 1000000, "max_new_tokens": 1}"#));
    assert!(message.contains("suggestions is 1000000"), "{message}");
}
