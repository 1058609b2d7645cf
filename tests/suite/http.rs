//! The HTTP surface over a fake engine: every way to ask wrongly gets its own clear answer, and the server keeps
//! serving.

use foretype::metrics::Metrics;
use foretype::models::ModelState;

use crate::support::{TestServer, fake_engine, faulty_engine, request_options};

#[test]
fn a_good_request_gets_distinct_ranked_suggestions() {
    let server = TestServer::with(fake_engine());
    let answer = server.post(r#"{"input": "heat ex", "suggestions": 7, "max_new_tokens": 6, "deadline_ms": 30000}"#);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/json");
    let json = answer.json();
    let suggestions = json["suggestions"].as_array().unwrap();
    assert_eq!(suggestions.len(), 7);
    let mut texts: Vec<&str> = Vec::new();
    let mut last = 0.0;
    for suggestion in suggestions {
        let (text, completion) = (suggestion["text"].as_str().unwrap(), suggestion["completion"].as_str().unwrap());
        assert_eq!(text, format!("heat ex{completion}"));
        assert!(!texts.contains(&text));
        texts.push(text);
        let (logprob, probability) =
            (suggestion["logprob"].as_f64().unwrap(), suggestion["probability"].as_f64().unwrap());
        assert!((logprob.exp() - probability).abs() < 1e-9 && probability > 0.0 && probability <= 1.0);
        assert!(logprob <= last);
        last = logprob;
    }
    assert_eq!((&json["finish"], &json["model"]), (&"complete".into(), &"fake".into()));
    assert!(
        json["usage"]["positions_computed"].as_u64().unwrap() > 0
            && json["timing"]["search_ms"].as_f64().unwrap() > 0.0
    );
}

#[test]
fn content_types_and_ping_methods_that_are_fine() {
    let server = TestServer::with(fake_engine());
    let body = br#"{"input": "heat"}"#;
    for content_type in [None, Some("application/json"), Some("Application/JSON; charset=utf-8")] {
        assert_eq!(server.send("POST", "/invocations", content_type, body).status, 200, "{content_type:?}");
    }
    for method in ["GET", "POST"] {
        let answer = server.send(method, "/ping", None, b"");
        assert_eq!((answer.status, answer.text.as_str()), (200, ""));
    }
}

#[test]
fn every_bad_request_gets_its_own_answer_and_the_server_keeps_serving() {
    let server = TestServer::with(fake_engine());
    let long = format!(r#"{{"input": "{}"}}"#, "x".repeat(201));
    let many_tokens = format!(r#"{{"input": "{}"}}"#, "zq".repeat(60));
    let huge = format!(r#"{{"input": "{}"}}"#, "x".repeat(20_000));
    // Body, status, kind, words of the message.
    let bodies: &[(&[u8], u16, &str, &str)] = &[
        (b"", 400, "invalid_json", "the body is empty"),
        (b"   ", 400, "invalid_json", "the body is empty"),
        (b"heat", 400, "invalid_json", "expected value at line 1"),
        (b"{", 400, "invalid_json", "EOF"),
        (br#"{"input": "heat""#, 400, "invalid_json", "EOF"),
        (br#"{'input': 'heat'}"#, 400, "invalid_json", "key must be a string"),
        (br#"{"input": "heat",}"#, 400, "invalid_json", "trailing comma"),
        (br#"{"input": "heat"} {}"#, 400, "invalid_json", "more than one JSON value"),
        (b"{\"input\": \"he\nat\"}", 400, "invalid_json", "control character"),
        (br#"{"input": "\ud800"}"#, 400, "invalid_json", "half of a surrogate pair at line 1 column 18"),
        (b"{\"input\": \"\xff\xfe\"}", 400, "invalid_utf8", "from byte 11 on"),
        (b"\xef\xbb\xbf{\"input\": \"\"}", 400, "empty_input", "the input is empty"),
        (b"null", 400, "invalid_field", "no object"),
        (b"\"heat\"", 400, "invalid_field", "no object"),
        (br#"["heat", 5, 5, 100]"#, 400, "invalid_field", "no object"),
        (b"{}", 400, "invalid_field", "missing field `input`"),
        (br#"{"input": "heat", "inputs": "heat"}"#, 400, "invalid_field", "has both `input` and `inputs`"),
        (br#"{"input": "heat", "parameters": {}}"#, 400, "invalid_field", "unknown field `parameters`, expected"),
        (br#"{"input": "heat", "top_p": 1}"#, 400, "invalid_field", "unknown field `top_p`"),
        (br#"{"input": "a", "input": "b"}"#, 400, "invalid_field", "duplicate field `input`"),
        (br#"{"input": 5}"#, 400, "invalid_field", "in field input: invalid type: integer `5`"),
        (br#"{"input": null}"#, 400, "invalid_field", "in field input: invalid type: null"),
        (br#"{"input": ["heat"]}"#, 400, "invalid_field", "in field input: invalid type: sequence"),
        (
            br#"{"input": "heat", "suggestions": "5"}"#,
            400,
            "invalid_field",
            "in field suggestions: invalid type: string",
        ),
        (br#"{"input": "heat", "suggestions": -1}"#, 400, "invalid_field", "in field suggestions: invalid value"),
        (
            br#"{"input": "heat", "suggestions": 2.5}"#,
            400,
            "invalid_field",
            "in field suggestions: invalid type: floating",
        ),
        (br#"{"input": "heat", "suggestions": 0}"#, 400, "invalid_value", "suggestions is 0; it must be from 1 to 100"),
        (
            br#"{"input": "heat", "suggestions": 101}"#,
            400,
            "invalid_value",
            "suggestions is 101; it must be from 1 to 100",
        ),
        (
            br#"{"input": "heat", "max_new_tokens": 0}"#,
            400,
            "invalid_value",
            "max_new_tokens is 0; it must be from 1 to 48",
        ),
        (br#"{"input": "heat", "max_new_tokens": 49}"#, 400, "invalid_value", "max_new_tokens is 49"),
        (
            br#"{"input": "heat", "deadline_ms": 0}"#,
            400,
            "invalid_value",
            "deadline_ms is 0; it must be from 1 to 60000",
        ),
        (br#"{"input": "heat", "deadline_ms": 60001}"#, 400, "invalid_value", "deadline_ms is 60001"),
        (br#"{"input": ""}"#, 400, "empty_input", "the input is empty"),
        (br#"{"input": "  "}"#, 400, "empty_input", "the input is empty"),
        (long.as_bytes(), 400, "input_too_long", "201 characters; at most 200"),
        (many_tokens.as_bytes(), 400, "input_too_long", "tokens; this model has room for 46"),
        (br#"{"input": "he\u0000at"}"#, 400, "invalid_input", "control character U+0000 at character 2"),
        (br#"{"input": "he\u000aat"}"#, 400, "invalid_input", "control character U+000A at character 2"),
        (br#"{"input": "he\u2028at"}"#, 400, "invalid_input", "line separator U+2028 at character 2"),
        (br#"{"input": "he\u0085at"}"#, 400, "invalid_input", "control character U+0085 at character 2"),
        (br#"{"input": "he\u009fat"}"#, 400, "invalid_input", "control character U+009F"),
        (huge.as_bytes(), 413, "body_too_large", "over 10000 bytes"),
    ];
    let check = |what: &str, answer: crate::support::Answer, status: u16, kind: &str, words: &str| {
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert_eq!(answer.headers["content-type"], "application/json", "{what}");
        let json = answer.json();
        assert_eq!(json["error"]["kind"], kind, "{what}: {json}");
        assert!(json["error"]["message"].as_str().unwrap().contains(words), "{what}: {json} lacks {words:?}");
        assert_eq!(json.as_object().unwrap().len(), 1);
    };
    for &(body, status, kind, words) in bodies {
        let what = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        check(&what, server.send("POST", "/invocations", Some("application/json"), body), status, kind, words);
    }
    let good = br#"{"input": "heat"}"#;
    // Method, path, content type, status, kind, words of the message.
    type Request = (&'static str, &'static str, Option<&'static str>, u16, &'static str, &'static str);
    let requests: &[Request] = &[
        ("POST", "/invocations", Some("text/html"), 415, "unsupported_media_type", "text/html; send application/json"),
        (
            "POST",
            "/invocations",
            Some("application/x-www-form-urlencoded"),
            415,
            "unsupported_media_type",
            "application/json",
        ),
        (
            "PUT",
            "/invocations",
            Some("application/json"),
            405,
            "method_not_allowed",
            "PUT is not allowed on /invocations; use POST",
        ),
        ("DELETE", "/ping", None, 405, "method_not_allowed", "use GET, HEAD, POST"),
        (
            "POST",
            "/invocation",
            Some("application/json"),
            404,
            "not_found",
            "there is no /invocation; try POST /invocations",
        ),
        ("POST", "/nowhere", Some("application/json"), 404, "not_found", "there is no /nowhere"),
    ];
    for &(method, path, content_type, status, kind, words) in requests {
        check(&format!("{method} {path}"), server.send(method, path, content_type, good), status, kind, words);
    }
    assert_eq!(server.send("GET", "/invocations", None, b"").headers["allow"], "POST");
    assert!(bodies.len() + requests.len() >= 30);
    assert_eq!(server.post(r#"{"input": "heat"}"#).status, 200, "the server still serves");
}

#[test]
fn ping_tells_loading_failed_and_ready_apart() {
    let server = TestServer::start(ModelState::Loading);
    let check = |status: u16, words: &str| {
        let ping = server.send("GET", "/ping", None, b"");
        assert!(ping.status == status && ping.text.contains(words), "{ping:?}");
    };
    check(503, "is being loaded");
    let early = server.post(r#"{"input": "heat"}"#);
    assert_eq!((early.status, early.json()["error"]["kind"].as_str()), (503, Some("not_ready")));
    assert_eq!(early.headers["retry-after"], "1");
    server.state.send_replace(ModelState::Failed("no weights".into()));
    check(503, "can't be loaded: no weights");
    server.state.send_replace(ModelState::Ready(std::sync::Arc::new(fake_engine()).into()));
    check(200, "");
    assert_eq!(server.post(r#"{"input": "heat"}"#).status, 200);
}

#[test]
fn a_deadline_that_passes_is_an_answer() {
    let slow = || -> scheduler::fake::FaultFn {
        Box::new(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            None
        })
    };
    let server = TestServer::with(faulty_engine(slow, request_options(), &Metrics::new()));
    let answer = server.post(r#"{"input": "heat ex", "suggestions": 50, "max_new_tokens": 40, "deadline_ms": 1}"#);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["finish"], "deadline");
}

#[test]
fn an_engine_that_fails_on_one_request_answers_it_and_serves_the_next() {
    let server = TestServer::with(fake_engine());
    for _ in 0..3 {
        let failed = server.post(r#"{"input": "50 %"}"#);
        assert_eq!((failed.status, failed.json()["error"]["kind"].as_str()), (500, Some("internal")), "{failed:?}");
        assert!(!failed.text.contains("NaN"), "internals are logged, not sent: {failed:?}");
        assert_eq!(server.post(r#"{"input": "heat"}"#).status, 200);
        assert_eq!(server.send("GET", "/ping", None, b"").status, 200);
    }
}

#[test]
fn a_client_that_leaves_takes_its_work_with_it() {
    let engine = fake_engine();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let completion = |input: &str| foretype::engine::Completion { input: input.into(), ..Default::default() };
    runtime.block_on(async {
        for round in 0..200 {
            // Polled once, then dropped: queued, perhaps begun, or refused because the queue is full.
            let typed = completion(&format!("heat {round}"));
            let _ = tokio::time::timeout(std::time::Duration::ZERO, engine.complete(&typed)).await;
        }
        // What was dropped is skipped, so that the queue empties much sooner than 200 searches would take.
        for _ in 0..1000 {
            match engine.complete(&completion("heat ex")).await {
                Ok(answer) => return assert!(!answer.result.suggestions.is_empty()),
                Err(error) => assert_eq!(error.kind, foretype::error::Kind::Overloaded),
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        panic!("the queue never emptied");
    });
}
