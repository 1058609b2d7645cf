//! `/invocations` in all its schemas: prompts, streams, sessions; and the routes about the server itself.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foretype::metrics::Metrics;
use scheduler::fake::{Fault, FaultFn};

use crate::http_client::{JSON, error, events, json_lines, send};
use crate::support::{TestServer, fake_engine, faulty_engine, request_options};

#[test]
fn prompts_are_continued_as_hugging_faces_servers_do() {
    let server = TestServer::with(fake_engine());
    let plain = server.post(r#"{"inputs": "heat", "parameters": {"max_new_tokens": 4}}"#).json();
    assert!(plain["generated_text"].is_string() && plain.get("details").is_none(), "{plain}");
    let text = plain["generated_text"].as_str().unwrap();

    let full = r#"{"inputs": "heat", "parameters": {"max_new_tokens": 4, "return_full_text": true, "details": true}}"#;
    let full = server.post(full).json();
    assert_eq!(full["generated_text"], format!("heat{text}"));
    let details = &full["details"];
    let tokens = details["tokens"].as_array().unwrap();
    assert_eq!(details["generated_tokens"], tokens.len());
    let pieces: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(pieces, text);
    assert!(["length", "eos_token"].contains(&details["finish_reason"].as_str().unwrap()), "{details}");
    assert!(tokens.iter().all(|token| token["log_prob"].as_f64().unwrap() <= 0.0 && token["id"].is_u64()));
    assert!(details["seed"].is_null());

    let list = server.post(r#"{"inputs": ["heat", "heat"], "parameters": {"max_new_tokens": 4}}"#).json();
    assert_eq!(list, serde_json::json!([plain, plain]));

    let drawn = r#"{"inputs": "heat", "parameters": {"do_sample": true, "n": 3, "seed": 5, "stop": ["zz"]}}"#;
    let (first, second) = (server.post(drawn).json(), server.post(drawn).json());
    assert_eq!(first, second);
    assert_eq!(first["details"]["seed"], 5);
    assert_eq!(first["details"]["best_of_sequences"].as_array().unwrap().len(), 2);
    let unseeded = r#"{"inputs": "heat", "parameters": {"do_sample": true, "details": true}}"#;
    assert!(server.post(unseeded).json()["details"]["seed"].is_u64());
}

#[test]
fn beams_are_searched_in_each_servers_schema() {
    let server = TestServer::with(fake_engine());
    let body = r#"{"inputs": "heat", "parameters": {"max_new_tokens": 6, "num_beams": 4, "n": 3, "details": true}}"#;
    let searched = server.post(body).json();
    assert_eq!(searched, server.post(body).json());
    let others = searched["details"]["best_of_sequences"].as_array().unwrap();
    let texts: Vec<_> = others.iter().chain([&searched]).map(|one| one["generated_text"].as_str().unwrap()).collect();
    assert!(texts.len() == 3 && texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert!(searched["details"]["seed"].is_null());
    let of_openai = r#"{"prompt": "heat", "max_tokens": 6, "n": 3, "best_of": 4, "use_beam_search": true}"#;
    let choices = send(server.address, "POST", "/v1/completions", &[JSON], of_openai).json();
    let choices: Vec<_> =
        choices["choices"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(choices, [texts[2], texts[0], texts[1]]);
}

#[test]
fn what_prompts_cannot_ask_is_refused_by_name() {
    let server = TestServer::with(fake_engine());
    let bodies = [
        (
            r#"{"inputs": "a", "parameters": {"num_beams": 3, "do_sample": true}}"#,
            "invalid_value",
            "do_sample is true; with num_beams",
        ),
        (
            r#"{"inputs": "a", "parameters": {"num_beams": 3, "n": 4}}"#,
            "invalid_value",
            "num_return_sequences is 4; it must be at most num_beams, 3",
        ),
        (r#"{"inputs": "a", "parameters": {"num_beams": 101}}"#, "invalid_value", "num_beams is 101"),
        (r#"{"inputs": "a", "parameters": {"length_penalty": 12}}"#, "invalid_value", "length_penalty is 12"),
        (r#"{"inputs": "a", "parameters": {"top_p": 2}}"#, "invalid_value", "top_p is 2"),
        (r#"{"inputs": "a", "parameters": {"n": 2}}"#, "invalid_value", "set do_sample to true"),
        (r#"{"inputs": "a", "parameters": {"max_new_tokens": 49}}"#, "invalid_value", "max_new_tokens is 49"),
        (r#"{"inputs": "a", "parameters": {"watermark": true}}"#, "invalid_value", "watermark is true"),
        (r#"{"inputs": "a", "parameters": {"topk": 1}}"#, "invalid_field", "in field parameters.topk: unknown field"),
        (r#"{"inputs": "a", "parameters": {"stop": 5}}"#, "invalid_field", "in field parameters.stop"),
        (r#"{"inputs": ["a"], "stream": true}"#, "invalid_value", "stream is true"),
        (r#"{"inputs": ["a"], "session": "s"}"#, "invalid_value", "inputs is a list"),
        (r#"{"input": "a", "session": "s t"}"#, "invalid_value", "session is no session's name"),
    ];
    for (body, kind, words) in bodies {
        let (status, found, message) = error(&server.post(body));
        assert!(status == 400 && found == kind && message.contains(words), "{body}: {status} {found} {message}");
    }
}

#[test]
fn streams_say_what_the_whole_answer_says() {
    let server = TestServer::with(fake_engine());
    let body = r#"{"input": "heat ex", "suggestions": 5, "max_new_tokens": 6, "stream": false}"#;
    let whole = server.post(body).json();
    let lines = server.post(&body.replace("false", "true"));
    assert_eq!(lines.headers["content-type"], "application/jsonlines");
    let values = json_lines(&lines);
    let (end, suggestions) = values.split_last().unwrap();
    let suggestions: Vec<_> = suggestions.iter().map(|line| line["suggestion"].clone()).collect();
    assert_eq!(suggestions, *whole["suggestions"].as_array().unwrap());
    assert_eq!((&end["finish"], &end["proven"], &end["model"]), (&whole["finish"], &whole["proven"], &whole["model"]));
    assert!(end["usage"].is_object() && end["timing"].is_object());

    let accept = [JSON, ("Accept", "text/event-stream")];
    let sent = send(server.address, "POST", "/invocations", &accept, &body.replace("false", "true"));
    assert_eq!(sent.headers["content-type"], "text/event-stream");
    assert_eq!(events(&sent).len(), values.len());

    let body = r#"{"inputs": "heat", "parameters": {"max_new_tokens": 5}, "stream": false}"#;
    let (whole, lines) = (server.post(body).json(), server.post(&body.replace("false", "true")));
    let values = json_lines(&lines);
    let text: String = values.iter().filter_map(|line| line["token"]["text"].as_str()).collect();
    assert_eq!(text, whole["generated_text"].as_str().unwrap());
    let (last, others) = values.split_last().unwrap();
    assert_eq!(last["generated_text"], text);
    assert_eq!(last["details"]["generated_tokens"], values.iter().filter(|line| line["token"].is_object()).count());
    assert!(others.iter().all(|line| line.as_object().unwrap().len() == 1));
}

#[test]
fn a_stream_that_cannot_start_is_an_ordinary_error() {
    let server = TestServer::with(fake_engine());
    let (status, kind, _) = error(&server.post(r#"{"input": "heat", "suggestions": 0, "stream": true}"#));
    assert_eq!((status, kind.as_str()), (400, "invalid_value"));
}

/// A server whose engine fails while the switch is on, and is so slow that the longest stream lasts two seconds: a
/// client has that long to do something while it comes.
fn slow_server() -> (TestServer, Arc<AtomicBool>, Arc<Metrics>) {
    let (broken, metrics) = (Arc::new(AtomicBool::new(false)), Metrics::new());
    let switch = Arc::clone(&broken);
    let faults = move || -> FaultFn {
        let switch = Arc::clone(&switch);
        Box::new(move |_| {
            std::thread::sleep(Duration::from_millis(50));
            switch.load(Ordering::Relaxed).then_some(Fault::Error)
        })
    };
    (TestServer::with(faulty_engine(faults, request_options(), &metrics)), broken, metrics)
}

/// Asks for a long stream of tokens and reads its first.
fn begin_stream(server: &TestServer) -> std::net::TcpStream {
    let body = r#"{"inputs": "heat", "stream": true,
        "parameters": {"max_new_tokens": 40, "do_sample": true, "temperature": 100, "seed": 3}}"#;
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let head = "POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut seen = Vec::new();
    while !seen.windows(8).any(|bytes| bytes == b"\"token\":") {
        let mut bytes = [0; 256];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&bytes[..count]);
    }
    stream
}

#[test]
fn an_error_within_a_stream_is_its_last_line() {
    let (server, broken, _) = slow_server();
    let mut stream = begin_stream(&server);
    broken.store(true, Ordering::Relaxed);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let last = rest.lines().rfind(|line| line.starts_with('{')).unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {rest}"));
    assert!(["internal", "not_ready"].contains(&last["error"]["kind"].as_str().unwrap()), "{rest}");
}

#[test]
fn a_client_that_leaves_a_stream_takes_its_work_with_it() {
    let (server, _, metrics) = slow_server();
    drop(begin_stream(&server));
    let started = Instant::now();
    while metrics.cancelled() == 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "{}", metrics.render());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sessions_open_carry_and_close_and_what_is_passed_along_comes_back() {
    let server = TestServer::with(fake_engine());
    let ask = |headers: &[(&str, &str)], body: &str| {
        send(server.address, "POST", "/invocations", &[&[JSON], headers].concat(), body)
    };
    let opened = ask(&[], r#"{"requestType": "NEW_SESSION"}"#);
    let header = opened.headers["x-amzn-sagemaker-new-session-id"].to_str().unwrap();
    let (id, expires) = header.split_once("; Expires=").unwrap();
    assert_eq!(opened.json()["session"], id);
    assert!(expires.len() == "2026-01-01T00:00:00Z".len() && expires.ends_with('Z'), "{header}");
    let session = "X-Amzn-SageMaker-Session-Id";
    assert_eq!(ask(&[(session, id)], r#"{"input": "heat"}"#).status, 200);
    for close in ["CLOSE_SESSION", "CLOSE"] {
        let closed = ask(&[(session, id)], &format!(r#"{{"requestType": "{close}"}}"#));
        assert_eq!((closed.status, &closed.headers["x-amzn-sagemaker-closed-session-id"]), (200, &id.parse().unwrap()));
    }
    let (status, kind, message) = error(&ask(&[], r#"{"requestType": "CLOSE_SESSION"}"#));
    assert!(status == 400 && kind == "invalid_value" && message.contains(session), "{message}");
    assert_eq!(ask(&[(session, "no name")], r#"{"input": "heat"}"#).status, 400);
    // A new session may be asked for together with a request.
    let first = ask(&[(session, "NEW_SESSION")], r#"{"input": "heat"}"#);
    assert!(first.headers.contains_key("x-amzn-sagemaker-new-session-id") && first.json()["suggestions"].is_array());
    for body in [r#"{"input": "heat"}"#, "{"] {
        let passed = [("X-Amzn-SageMaker-Custom-Attributes", "a=1"), ("X-Amzn-SageMaker-Inference-Id", "i-1")];
        let answer = ask(&passed, body);
        assert_eq!(answer.headers["x-amzn-sagemaker-custom-attributes"], "a=1");
        assert_eq!(answer.headers["x-amzn-sagemaker-inference-id"], "i-1");
    }
}

#[test]
fn the_server_describes_itself() {
    let server = TestServer::with(fake_engine());
    let get = |path: &str| server.send("GET", path, None, b"");
    let parameters = get("/execution-parameters").json();
    // The limit of 10,000 bytes is less than what this can say.
    let expected = r#"{"BatchStrategy":"MULTI_RECORD","MaxConcurrentTransforms":8,"MaxPayloadInMB":1}"#;
    assert_eq!(parameters, serde_json::from_str::<serde_json::Value>(expected).unwrap());
    let document = get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["components"]["schemas"]["Invocation"]["properties"]["max_new_tokens"]["maximum"], 48);
    get("/v1/models/made-up-name");
    get("/made/up");
    let metrics = get("/metrics");
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    for label in
        [r#"route="/openapi.json",status="200""#, r#"route="/v1/models/{id}",status="404""#, r#"route="unmatched""#]
    {
        assert!(metrics.text.contains(label), "{label} is missing: {}", metrics.text);
    }
    assert!(!metrics.text.contains("made"), "a client must not make up labels");
    for (path, allowed) in
        [("/metrics", "GET"), ("/openapi.json", "GET"), ("/models", "GET, POST"), ("/models/a", "DELETE, GET, PUT")]
    {
        let answer = server.send("PATCH", path, None, b"");
        assert_eq!((answer.status, &answer.headers["allow"]), (405, &allowed.parse().unwrap()), "{path}");
    }
}
