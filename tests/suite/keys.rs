//! Keys: who has one may ask within its limits; they change while the server runs, and no log has them.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foretype::access::file::KeyFile;
use foretype::engine::{Caller, Completion};
use foretype::http::{Routes, ServerOptions};
use foretype::metrics::Metrics;
use foretype::models::ModelState;
use scheduler::fake::FaultFn;

use crate::connections::Process;
use crate::http_client::{JSON, error, json_lines, send};
use crate::support::{Answer, TestServer, fake_engine, faulty_engine, repository, request_options};

const PAGE: &str = "page-0123456789abcdef";
const JOBS: &str = "jobs-0123456789abcdef";
const BODY: &str = r#"{"input": "heat"}"#;

/// Writes a file of keys, whole at once as operators should.
fn write(file: &Path, keys: &[(&str, &str, serde_json::Value)]) {
    let key = |(name, key, limits): &(&str, &str, serde_json::Value)| {
        let mut entry = serde_json::json!({"name": name, "key": key});
        limits.as_object().unwrap().iter().for_each(|(name, value)| entry[name] = value.clone());
        entry
    };
    let keys: Vec<_> = keys.iter().map(key).collect();
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, serde_json::json!({"keys": keys}).to_string()).unwrap();
    std::fs::rename(fresh, file).unwrap();
}

/// A server that asks for keys, and their file.
fn server(keys: &[(&str, &str, serde_json::Value)]) -> (TestServer, tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    write(&file, keys);
    let options = ServerOptions { keys: Some(KeyFile::open(&file).unwrap()), ..ServerOptions::default() };
    (TestServer::start_with_options(ModelState::Ready(Arc::new(fake_engine()).into()), options), folder, file)
}

fn ask(address: SocketAddr, key: &str) -> Answer {
    send(address, "POST", "/invocations", &[JSON, ("Authorization", &format!("Bearer {key}"))], BODY)
}

#[test]
fn everything_but_a_ping_needs_a_key() {
    let (server, _folder, _) = server(&[("page", PAGE, serde_json::json!({}))]);
    let address = server.address;
    assert_eq!(send(address, "GET", "/ping", &[], "").status, 200);
    for (method, path) in [
        ("POST", "/invocations"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/models"),
        ("POST", "/models/a/invoke"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("GET", "/"),
    ] {
        let answer = send(address, method, path, &[JSON], BODY);
        let (status, kind, message) = error(&answer);
        assert_eq!((status, kind.as_str()), (401, "unauthorized"), "{path}: {answer:?}");
        assert!(message.contains("has no key") && answer.headers["www-authenticate"] == "Bearer", "{answer:?}");
    }
    for wrong in ["page", JOBS, "page-0123456789abcdee"] {
        assert!(error(&ask(address, wrong)).2.contains("not one of this server's"), "{wrong}");
    }
    assert_eq!(send(address, "POST", "/v1/completions", &[JSON], "").json()["error"]["code"], "invalid_api_key");
    assert_eq!(ask(address, PAGE).status, 200);
    for headers in [[JSON, ("X-Api-Key", PAGE)], [JSON, ("authorization", &format!("bearer {PAGE}"))]] {
        assert_eq!(send(address, "POST", "/invocations", &headers, BODY).status, 200, "{headers:?}");
    }
    let signed = [JSON, ("X-Api-Key", PAGE), ("Authorization", "AWS4-HMAC-SHA256 Credential=x")];
    assert_eq!(send(address, "POST", "/invocations", &signed, BODY).status, 200);
}

#[test]
fn a_key_over_its_limits_is_told_when_to_come_again_and_others_are_not_touched() {
    let (server, _folder, _) = server(&[
        ("page", PAGE, serde_json::json!({"requests_per_second": 0.25})),
        ("jobs", JOBS, serde_json::json!({"positions_per_second": 2, "salt": "jobs"})),
    ]);
    assert_eq!(ask(server.address, PAGE).status, 200);
    let answer = ask(server.address, PAGE);
    let (status, kind, message) = error(&answer);
    assert_eq!((status, kind.as_str()), (429, "rate_limited"), "{answer:?}");
    assert!(message.contains("the key page has used up its requests a second"), "{message}");
    let wait: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((3..=4).contains(&wait), "{wait}");
    let first = ask(server.address, JOBS);
    let computed = first.json()["usage"]["positions_computed"].as_u64().unwrap();
    assert!(first.status == 200 && computed > 4, "{first:?}");
    let answer = ask(server.address, JOBS);
    assert!(answer.status == 429 && error(&answer).2.contains("positions a second"), "{answer:?}");
    let wait: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(wait <= computed / 2 + 1 && wait + 3 >= computed / 2, "{wait} s for {computed} positions");
}

#[test]
fn who_leaves_before_the_answer_pays_for_what_was_computed() {
    let (_server, _folder, file) = server(&[("jobs", JOBS, serde_json::json!({"positions_per_second": 1}))]);
    let key = KeyFile::open(&file).unwrap().find(JOBS.as_bytes()).unwrap();
    let slow = || -> FaultFn {
        Box::new(|_| {
            std::thread::sleep(Duration::from_millis(5));
            None
        })
    };
    let engine = Arc::new(faulty_engine(slow, request_options(), &Metrics::new()));
    let caller = Caller { key: Some(Arc::clone(&key)), ..Caller::default() };
    let running = engine.start_completion(&Completion { input: "heat".into(), caller, ..Completion::default() });
    assert_eq!(key.debt(Instant::now()), None);
    std::thread::sleep(Duration::from_millis(20));
    drop(running);
    wait_for("the charge", || key.debt(Instant::now()).is_some());
}

#[test]
fn a_batch_of_a_key_that_has_used_up_its_positions_waits_and_is_answered_whole() {
    let (server, _folder, _) = server(&[("jobs", JOBS, serde_json::json!({"positions_per_second": 20}))]);
    let line = |n| serde_json::json!({"input": format!("heat {n}"), "suggestions": 2}).to_string();
    let body = (0..16).map(line).collect::<Vec<_>>().join("\n");
    let (asked, lines) = (Instant::now(), ("Content-Type", "application/jsonlines"));
    let answer = send(server.address, "POST", "/invocations", &[lines, ("X-Api-Key", JOBS)], &body);
    let took = asked.elapsed().as_secs_f64();
    let answers = json_lines(&answer);
    assert!(answers.len() == 16 && answers.iter().all(|answer| answer["suggestions"].is_array()), "{answer:?}");
    let positions = answers.iter().map(|answer| answer["usage"]["positions_computed"].as_u64().unwrap());
    // The last lines that run at once may all go into debt.
    let (all, last): (u64, u64) = (positions.clone().sum(), positions.skip(8).sum());
    assert!(all > 60 && took >= (all - last) as f64 / 20.0 - 1.0, "{all} positions in {took} s");
}

#[test]
fn salts_of_keys_separate_them() {
    let (server, _folder, _) =
        server(&[("page", PAGE, serde_json::json!({"salt": "a"})), ("jobs", JOBS, serde_json::json!({"salt": "b"}))]);
    let computed = |key: &str| ask(server.address, key).json()["usage"]["positions_computed"].as_u64().unwrap();
    let cold = computed(PAGE);
    assert!(cold > 0 && computed(JOBS) == cold && computed(PAGE) == 0 && computed(JOBS) == 0);
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what} never happened");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn keys_are_rotated_under_load_without_a_failure_and_a_broken_file_changes_nothing() {
    let plain = serde_json::json!({});
    let (server, _folder, file) = server(&[("page", PAGE, plain.clone())]);
    let address = server.address;
    let (is_over, failures, asked) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    failures.fetch_add(usize::from(ask(address, PAGE).status != 200), Ordering::Relaxed);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..3 {
            let next = format!("next-{round}-0123456789abcdef");
            write(&file, &[("page", PAGE, plain.clone()), ("next", &next, plain.clone())]);
            wait_for("a new key", || ask(address, &next).status == 200);
            std::fs::write(&file, r#"{"keys": [{"name": "page", "key": "#).unwrap();
            std::thread::sleep(Duration::from_millis(700));
            assert_eq!(ask(address, &next).status, 200, "a broken file changes nothing");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    assert!(asked.load(Ordering::Relaxed) > 100);
    write(&file, &[("jobs", JOBS, plain)]);
    wait_for("the end of the old key", || ask(address, PAGE).status == 401);
    assert_eq!(ask(address, JOBS).status, 200);
}

#[test]
fn operators_need_no_key_on_their_own_listener() {
    let options = ServerOptions { routes: Routes::Admin, ..ServerOptions::default() };
    let server = TestServer::start_with_options(ModelState::Loading, options);
    assert_eq!(send(server.address, "GET", "/metrics", &[], "").status, 200);
}

#[test]
fn no_log_has_a_key_or_a_typed_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    write(&file, &[("page", PAGE, serde_json::json!({"salt": "salt-of-ours"}))]);
    let model = repository("models/demo");
    for format in ["text", "json"] {
        let arguments = format!("--model {} --api-key-file {} --log-format {format}", model.display(), file.display());
        let mut server = Process::start_logging(1024, &arguments, Stdio::piped());
        let address = server.address;
        wait_for("a model", || send(address, "GET", "/ping", &[], "").status == 200);
        let bearer = format!("Bearer {PAGE}");
        let with_key = [JSON, ("Authorization", bearer.as_str())];
        for (path, body, status) in [
            ("/invocations", r#"{"input": "solar zyzzyva", "session": "zyzzyva"}"#, 200),
            ("/invocations", r#"{"input": "solar zyzzyva", "salt": "zyzzyva"}"#, 200),
            ("/invocations", r#"{"input": 5, "zyzzyva": "zyzzyva"}"#, 400),
            ("/invocations", r#"{"input": "a", "zyzzyva\n2026 INFO forged\u001b[31m": 1}"#, 400),
            ("/invocations", r#"{"input": "a", "suggestions": "zyzzyva"}"#, 400),
            ("/invocations", "zyzzyva", 400),
            ("/v1/completions", r#"{"prompt": "zyzzyva", "stop": [5, "zyzzyva"]}"#, 400),
            ("/v1/completions", r#"{"prompt": "zyzzyva", "model": "zyzzyva"}"#, 404),
            ("/invocations?zyzzyva", r#"{"input": "solar zyzzyva"}"#, 200),
        ] {
            let answer = send(address, "POST", path, &with_key, body);
            assert_eq!(answer.status, status, "{body}: {answer:?}");
        }
        let lines = [("Content-Type", "application/jsonlines"), with_key[1]];
        let body = "{\"input\": \"zyzzyva\"}\n{\"zyzzyva\": 1}";
        assert_eq!(send(address, "POST", "/invocations", &lines, body).status, 200);
        assert_eq!(ask(address, "zyzzyva-key-that-is-wrong").status, 401);
        let mut log = server.child.stderr.take().unwrap();
        drop(server);
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        assert!(text.matches("/invocations").count() >= 9, "{text}");
        for secret in ["zyzzyva", "forged", "\u{1b}", PAGE, "0123456789abcdef", "salt-of-ours"] {
            assert!(!text.contains(secret), "{secret:?} is in the log:\n{text}");
        }
    }
}
