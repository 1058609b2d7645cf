//! Versions of a model stand side by side: each has a name, and the requests are divided among them.

use std::collections::BTreeMap;
use std::sync::Arc;

use foretype::metrics::Metrics;
use foretype::models::RegistryLimits;
use serde_json::{Value, json};

use crate::http_client::{JSON, RegistryServer, error, send};
use crate::support::{Answer, fake_engine};
use crate::swap::{Typing, opener, versions};

fn put(server: &RegistryServer, name: &str, body: &Value) -> Answer {
    send(server.address, "PUT", &format!("/models/{name}"), &[JSON], &body.to_string())
}

fn fakes() -> RegistryServer {
    let limits = RegistryLimits { bytes: 1 << 20, models: 2 };
    let server = RegistryServer::start(Box::new(|_| Ok(fake_engine())), limits);
    assert_eq!(server.post("/models", r#"{"model_name": "fake", "url": "/one"}"#).status, 200);
    server
}

/// The version that answers somebody.
fn answered(server: &RegistryServer, name: &str, session: &str) -> u64 {
    let body = json!({ "input": "heat", "session": session }).to_string();
    let answer = server.post(&format!("/models/{name}/invoke"), &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.headers["x-foretype-version"].to_str().unwrap().parse().unwrap()
}

/// How many of a thousand people each version answers.
fn people(server: &RegistryServer) -> BTreeMap<u64, usize> {
    let mut people = BTreeMap::new();
    (0..1000).for_each(|i| *people.entry(answered(server, "fake", &format!("person-{i}"))).or_default() += 1);
    people
}

#[test]
fn a_version_beside_another_gets_its_share_of_the_people_and_each_stays_in_one() {
    let server = fakes();
    let added = put(&server, "fake@2", &json!({ "url": "/two" })).json();
    assert_eq!((&added["version"], &added["modelUrl"], &added["share"]), (&json!(2), &json!("/two"), &json!(0.0)));
    assert_eq!(people(&server), [(1, 1000)].into(), "it gets those who name it");
    assert_eq!((answered(&server, "fake@2", "a"), answered(&server, "fake@1", "a")), (2, 1));

    let shared = put(&server, "fake", &json!({ "shares": {"1": 9, "2": 1} })).json();
    assert_eq!((&shared["version"], &shared["versions"][1]["share"]), (&json!(1), &json!(0.1)));
    let tenth = people(&server);
    assert!((60..140).contains(&tenth[&2]), "{tenth:?}");
    let who = |server: &RegistryServer| -> Vec<bool> {
        (0..200).map(|i| answered(server, "fake", &format!("person-{i}")) == 2).collect()
    };
    let before = who(&server);
    assert_eq!(who(&server), before, "a person stays in a version");
    put(&server, "fake", &json!({ "shares": {"1": 1, "2": 1} }));
    let after = who(&server);
    assert!(before.iter().zip(&after).all(|(before, after)| after >= before), "whoever had the new one keeps it");
    assert!(after > before);

    let moved = put(&server, "fake", &json!({ "shares": {"2": 1} })).json();
    assert_eq!((&moved["version"], &moved["versions"][0]["share"]), (&json!(2), &json!(0.0)));
    assert_eq!(people(&server), [(2, 1000)].into());
    assert_eq!(server.call("DELETE", "/models/fake@1").status, 200);
    assert_eq!(error(&server.post("/models/fake@1/invoke", r#"{"input": "heat"}"#)).1, "model_not_found");
    assert_eq!(server.call("GET", "/models/fake@2").json(), server.call("GET", "/models/fake").json());
}

#[test]
fn the_routes_of_openai_know_versions() {
    let server = fakes();
    put(&server, "fake@2", &json!({ "url": "/two" }));
    let names = |answer: &Answer| -> Vec<String> {
        answer.json()["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&server.call("GET", "/v1/models")), ["fake", "fake@1", "fake@2"]);
    let answer = server.post("/v1/completions", r#"{"model": "fake@2", "prompt": "heat", "max_tokens": 1}"#);
    assert_eq!((answer.status, answer.headers["x-foretype-version"].to_str().unwrap()), (200, "2"), "{answer:?}");
    let lines = send(
        server.address,
        "POST",
        "/models/fake@2/invoke",
        &[("Content-Type", "application/jsonlines")],
        "{\"input\": \"heat\"}\n",
    );
    assert_eq!(lines.headers["x-foretype-version"].to_str().unwrap(), "2");
}

#[test]
fn what_is_wrong_with_versions_is_said() {
    let server = fakes();
    put(&server, "fake@3", &json!({ "url": "/three" }));
    let wrong = |name: &str, body: Value, status: u16, words: &str| {
        let (found, _, message) = error(&put(&server, name, &body));
        assert!(found == status && message.contains(words), "{name} {body}: {found} {message}");
    };
    wrong("fake@3", json!({ "url": "/three" }), 409, "\"fake@3\" is loaded already");
    wrong("other@2", json!({ "url": "/two" }), 404, "\"other\" is not loaded");
    wrong("fake", json!({}), 400, "send either url, the folder of a version to load, or shares");
    wrong("fake", json!({ "url": "/two", "shares": {"1": 1} }), 400, "send either url");
    wrong("fake", json!({ "shares": {"2": 1} }), 404, "\"fake@2\" is not loaded");
    wrong("fake", json!({ "shares": {"1": 0} }), 400, "one of them above 0");
    wrong("fake", json!({ "shares": {} }), 400, "one of them above 0");
    wrong("fake", json!({ "shares": {"1": 1_000_001} }), 400, "from 0 to 1000000");
    wrong("fake", json!({ "shares": {"one": 1} }), 400, "number in quotes");
    wrong("fake@3", json!({ "shares": {"3": 1} }), 400, "shares");
    let (status, _, message) = error(&server.call("DELETE", "/models/fake@1"));
    assert!(status == 409 && message.contains("give it to other versions first"), "{message}");
    assert_eq!(server.call("DELETE", "/models/fake@9").status, 404);
    let (status, _, message) = error(&server.post("/models", r#"{"model_name": "new@2", "url": "/a"}"#));
    assert!(status == 400 && message.contains("new@2"), "{message}");
    (4..=9).for_each(|number| drop(put(&server, &format!("fake@{number}"), &json!({ "url": "/more" }))));
    wrong("fake@10", json!({ "url": "/more" }), 507, "has 8 versions, and no more may be");
    assert_eq!(people(&server), [(1, 1000)].into(), "nothing of it has changed who answers");
}

#[test]
fn a_swap_moves_the_requests_and_leaves_versions_without_a_share() {
    let server = fakes();
    put(&server, "fake@2", &json!({ "url": "/two" }));
    let swapped = put(&server, "fake", &json!({ "url": "/three" })).json();
    let numbers: Vec<_> = swapped["versions"].as_array().unwrap().iter().map(|one| one["version"].clone()).collect();
    assert_eq!((&swapped["version"], numbers), (&json!(3), vec![json!(2), json!(3)]));
    assert_eq!(people(&server), [(3, 1000)].into());
    assert_eq!(server.call("DELETE", "/models/fake").status, 200);
    assert_eq!(server.call("GET", "/models/fake@2").status, 404);
}

#[test]
fn shares_move_under_load_without_a_failed_key_and_each_version_is_counted() {
    let versions = versions();
    let metrics = Metrics::new();
    let limits = RegistryLimits { bytes: 1 << 30, models: 1 };
    let server = RegistryServer::with_opener(opener(Arc::clone(&metrics)), limits);
    let body = json!({ "model_name": "demo", "url": versions.bundles[0] }).to_string();
    assert_eq!(server.post("/models", &body).status, 200);
    assert_eq!(put(&server, "demo@2", &json!({ "url": versions.bundles[1] })).status, 200);
    Typing::during(&server, || {
        // The first version answered everybody before, and at the end the second one does.
        for round in 0..=200 {
            let shares = [json!({"1": 1}), json!({"1": 1, "2": 1}), json!({"2": 1})][round % 3].clone();
            assert_eq!(put(&server, "demo", &json!({ "shares": shares })).status, 200);
        }
    });
    let counted = metrics.render();
    for model in ["demo", "demo@2"] {
        let series = format!("foretype_request_seconds_count{{model=\"{model}\"}} ");
        assert!(counted.lines().any(|line| line.starts_with(&series) && !line.ends_with(" 0")), "{series}");
    }
    let blocklist = json!({ "blocklist": "charger" }).to_string();
    assert_eq!(send(server.address, "PUT", "/models/demo/extras", &[JSON], &blocklist).status, 200);
    let both = server.call("GET", "/models/demo").json();
    assert!(both["versions"].as_array().unwrap().iter().all(|one| one["extrasSince"].is_string()), "{both}");
    for name in ["demo@1", "demo@2"] {
        let body = r#"{"input": "charger coil"}"#;
        let answer = server.post(&format!("/models/{name}/invoke"), body).json();
        assert_eq!(answer["finish"], "blocked", "{name}: {answer}");
    }
}
