//! Blocklist, popular queries and typing parameters change while a model answers, on all of its replicas, and a wrong
//! line changes nothing.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http_client::{JSON, error, post, send};
use crate::support::{Answer, repository};
use crate::swap::WithOperators;

/// People enough for every replica to have some.
const PEOPLE: usize = 16;

fn suggestions(address: SocketAddr, person: usize, input: &str) -> Vec<String> {
    let body = json!({ "input": input, "session": format!("person-{person}"), "deadline_ms": 60_000 });
    let answer = post(address, "/invocations", &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    let all = answer.json()["suggestions"].as_array().unwrap().clone();
    all.iter().map(|suggestion| suggestion["text"].as_str().unwrap().to_owned()).collect()
}

/// How many of the people are suggested a text with a term.
fn see(address: SocketAddr, input: &str, term: &str) -> usize {
    let has = |text: &String| text.split(' ').any(|word| word == term);
    (0..PEOPLE).filter(|&person| suggestions(address, person, input).iter().any(has)).count()
}

/// Waits until nobody, or everybody, is suggested a term. A busy machine takes longer than the second that it should.
fn wait_until(address: SocketAddr, input: &str, term: &str, seen_by: usize) -> Duration {
    let started = Instant::now();
    while see(address, input, term) != seen_by {
        assert!(started.elapsed() < Duration::from_secs(60), "{term:?} is still seen by {}", see(address, input, term));
        std::thread::sleep(Duration::from_millis(20));
    }
    started.elapsed()
}

fn put(server: &WithOperators, change: &Value) -> Answer {
    send(server.operators, "PUT", "/models/demo/extras", &[JSON], &change.to_string())
}

/// Where the demo model is built once for all of these.
fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("extras")
}

fn server(arguments: &str) -> WithOperators {
    let arguments = format!("--replicas 3 --cache {} {arguments}", cache().display());
    WithOperators::start(&repository("models/demo"), &arguments)
}

#[test]
fn what_operators_put_holds_at_once_on_every_replica() {
    let server = server("");
    let clients = server.process.address;
    let first = suggestions(clients, 0, "wireless char")[0].clone();
    let term = first.split(' ').next_back().unwrap();
    assert_eq!(see(clients, "wireless char", term), PEOPLE);
    let before = send(server.operators, "GET", "/models/demo", &[], "").json();
    assert!(before.get("extrasSince").is_none(), "{before}");

    let answer = put(&server, &json!({ "blocklist": format!("# at once\n{term}\n") }));
    assert!(answer.status == 200 && answer.json()["extrasSince"].is_string(), "{answer:?}");
    // What an idle replica prepared before is among what is asked for.
    assert_eq!(["wireless char", "wireless charg"].map(|typed| see(clients, typed, term)), [0, 0]);

    for (wrong, words) in [
        (json!({ "blocklist": "fine\n*" }), "blocklist.txt, line 2: a term needs a letter or digit"),
        (json!({ "popular": "heat pump 12" }), "popular.tsv, line 1: expected a query"),
        (json!({ "blocklist": "", "typing": { "omitted": 2 } }), "omitted"),
    ] {
        let (status, kind, message) = error(&put(&server, &wrong));
        assert_eq!((status, kind.as_str()), (400, "invalid_value"), "{message}");
        assert!(message.contains(words) && message.contains("the extras are as they were"), "{message}");
    }
    assert_eq!(error(&put(&server, &json!({ "blocked": "x" }))).1, "invalid_field");
    assert_eq!(see(clients, "wireless char", term), 0, "the old list holds");

    let popular = json!({ "popular": "wireless charcoal\t99\n" });
    assert_eq!(put(&server, &popular).status, 200);
    assert_eq!(["charcoal", term].map(|term| see(clients, "wireless char", term)), [PEOPLE, 0]);
    assert_eq!(put(&server, &json!({ "blocklist": null, "popular": null })).status, 200);
    assert_eq!(["charcoal", term].map(|term| see(clients, "wireless char", term)), [0, PEOPLE]);
}

#[test]
fn what_was_put_holds_for_the_next_version_and_clients_cannot_put_it() {
    let server = server("");
    let clients = server.process.address;
    assert_eq!(put(&server, &json!({ "popular": "wireless charcoal\t99\n" })).status, 200);
    let body = json!({ "url": repository("models/demo") }).to_string();
    let swapped = send(server.operators, "PUT", "/models/demo", &[JSON], &body).json();
    assert!(swapped["version"] == 2 && swapped["extrasSince"].is_string(), "{swapped}");
    assert_eq!(see(clients, "wireless char", "charcoal"), PEOPLE);
    let by_client = send(clients, "PUT", "/models/demo/extras", &[JSON], r#"{"popular": null}"#);
    assert_eq!(by_client.status, 404);
    let other = send(server.operators, "PUT", "/models/other/extras", &[JSON], r#"{"popular": null}"#);
    assert_eq!(error(&other).1, "model_not_found");
}

#[test]
fn a_folder_of_extras_is_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    // By renaming, as the manual says.
    let write = |name: &str, content: &str| {
        std::fs::write(folder.path().join("new"), content).unwrap();
        std::fs::rename(folder.path().join("new"), folder.path().join(name)).unwrap();
    };
    write("popular.tsv", "wireless charcoal\t99\n");
    let server = server(&format!("--extras {}", folder.path().display()));
    let clients = server.process.address;
    assert_eq!(see(clients, "wireless char", "charcoal"), PEOPLE, "from the start");
    write("blocklist.txt", "charcoal\n");
    let took = wait_until(clients, "wireless char", "charcoal", 0);
    println!("a blocked term was gone from all replicas after {took:?}");
    write("blocklist.txt", "fine\nchar*coal\n");
    server.wait_for_log("blocklist.txt, line 2");
    assert_eq!(see(clients, "wireless char", "charcoal"), 0, "the old list holds");
    std::fs::remove_file(folder.path().join("blocklist.txt")).unwrap();
    wait_until(clients, "wireless char", "charcoal", PEOPLE);
}

#[test]
fn a_server_with_broken_extras_does_not_get_ready() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |extras: &Path| {
        let mut server = Command::new(env!("CARGO_BIN_EXE_foretype"))
            .args(["serve", "--port", "0", "--kv-pool-mib", "32", "--model"])
            .args([&repository("models/demo"), Path::new("--cache"), &cache(), Path::new("--extras"), extras])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(server.stderr.take().unwrap()).lines();
        let line = log.map(Result::unwrap).find(|line| line.contains("/ping stays unhealthy"));
        server.kill().and_then(|()| server.wait()).unwrap();
        line.unwrap()
    };
    std::fs::write(folder.path().join("blocklist.txt"), "*").unwrap();
    let broken = reason(folder.path());
    assert!(broken.contains("blocklist.txt, line 1"), "{broken}");
    let absent = reason(Path::new("/nowhere"));
    assert!(absent.contains("/nowhere can't be read"), "{absent}");
}
