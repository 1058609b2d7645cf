//! A new server computes what people type at another one before it says that it is ready, and prepares first keys.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::http_client::{JSON, error, post, send};
use crate::support::{repository, wait_for_rest};
use crate::swap::WithOperators;

const TYPED: [&str; 6] = ["w", "wi", "wireless char", "heat ex", "s", "solar pan"];

/// Who types: enough people that each replica has some of them.
const PEOPLE: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Nothing is prepared while idle.
fn server(cache: &Path, arguments: &str) -> WithOperators {
    let arguments = format!("--replicas 3 --no-lookahead --cache {} {arguments}", cache.display());
    WithOperators::start(&repository("models/demo"), &arguments)
}

/// Positions that were computed for each text, and those that were known.
fn usage(server: &WithOperators, texts: &[String], person: &str) -> Vec<(u64, u64)> {
    let usage = |text: &String| {
        let usage = &type_text(server, text, Some(person), None)["usage"];
        (usage["positions_computed"].as_u64().unwrap(), usage["positions_saved"].as_u64().unwrap())
    };
    texts.iter().map(usage).collect()
}

/// Each text with the first character that its first suggestion adds.
fn next_keys(server: &WithOperators) -> Vec<String> {
    let next = |text: &&str| {
        let answer = type_text(server, text, None, None);
        let added = answer["suggestions"][0]["completion"].as_str().unwrap().chars().next();
        format!("{text}{}", added.unwrap())
    };
    TYPED.iter().map(next).collect()
}

fn type_text(server: &WithOperators, text: &str, person: Option<&str>, salt: Option<&str>) -> serde_json::Value {
    let body = json!({ "input": text, "session": person, "salt": salt, "deadline_ms": 60_000 }).to_string();
    post(server.process.address, "/invocations", &body).json()
}

#[test]
fn the_first_keys_of_a_warm_server_compute_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let old = server(folder.path(), "");
    let typed = TYPED.map(str::to_owned);
    let cold = usage(&old, &typed, PEOPLE[0]);
    assert!(cold.iter().any(|&(computed, _)| computed > 0), "{cold:?}");
    let next = next_keys(&old);
    for _ in 0..2 {
        type_text(&old, "my secret", None, Some("tenant"));
    }
    type_text(&old, "only once", None, None);
    let export = send(old.operators, "GET", "/models/demo/prefixes", &[], "");
    let mut exported: Vec<_> = export.json()["prefixes"].as_array().unwrap().clone();
    assert!(exported.iter().all(|hot| hot["typed"] == 2), "{exported:?}");
    exported.sort_by_key(|hot| TYPED.iter().position(|typed| hot["text"] == *typed));
    assert_eq!(exported.iter().map(|hot| hot["text"].as_str().unwrap()).collect::<Vec<_>>(), TYPED);
    assert_eq!(send(old.process.address, "GET", "/models/demo/prefixes", &[], "").status, 404);

    let file = folder.path().join("prefixes.json");
    std::fs::write(&file, &export.text).unwrap();
    for from in [file.to_str().unwrap().to_owned(), format!("http://{}", old.operators)] {
        let warm = server(folder.path(), &format!("--warm-from {from}"));
        let before = send(warm.operators, "GET", "/metrics", &[], "").text;
        assert!(!before.contains("foretype_requests_total{"), "nobody has asked yet: {before}");
        for person in PEOPLE {
            let found = [usage(&warm, &typed, person), usage(&warm, &next, person)];
            let is_known = |&(computed, saved): &(u64, u64)| computed == 0 && saved > 0;
            assert!(found.concat().iter().all(is_known), "from {from}: {person} {found:?}");
        }
    }
}

#[test]
fn a_new_server_prepares_the_keys_that_begin_queries() {
    let folder = tempfile::tempdir().unwrap();
    // Fields of expressions such as `TTL:` begin with a capital.
    let keys: Vec<String> = ('A'..='Z').chain(['"']).map(String::from).collect();
    let known = |arguments: &str| {
        let arguments = format!("--replicas 1 --cache {} {arguments}", folder.path().display());
        let server = WithOperators::start(&repository("models/demo"), &arguments);
        let metrics = || send(server.operators, "GET", "/metrics", &[], "").text;
        wait_for_rest(metrics, Duration::from_millis(500));
        assert!(!metrics().contains("foretype_requests_total{"), "nobody has asked yet: {}", metrics());
        usage(&server, &keys, PEOPLE[0]).iter().filter(|&&(computed, saved)| computed == 0 && saved > 0).count()
    };
    assert_eq!(known("--no-lookahead"), 0);
    let prepared = known("");
    assert!((4..20).contains(&prepared), "{prepared} keys are prepared, and not those that begin no query");
}

#[test]
fn a_server_that_cannot_be_asked_is_no_reason_not_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let cold = server(folder.path(), "--warm-from http://127.0.0.1:9");
    cold.wait_for_log("starting cold");
    assert_eq!(send(cold.process.address, "GET", "/ping", &[], "").status, 200);
    let clients = crate::http_client::RegistryServer::start(
        Box::new(|_| Ok(crate::support::fake_engine())),
        foretype::models::RegistryLimits { bytes: 1 << 20, models: 1 },
    );
    assert_eq!(clients.post("/models", r#"{"model_name": "a", "url": "/a"}"#).status, 200);
    let refused = error(&send(clients.address, "GET", "/models/a/prefixes", &[JSON], ""));
    assert!(refused.0 == 404 && refused.2.contains("to operators only"), "{refused:?}");
}
