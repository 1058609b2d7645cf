//! Models by name: every code of the multi-model contract, and loads that run beside each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use foretype::models::{LoadError, RegistryLimits};

use crate::http_client::{RegistryServer, error};
use crate::support::{TestServer, fake_engine};

const LIMITS: RegistryLimits = RegistryLimits { bytes: 1 << 20, models: 150 };

/// A server whose folders are all fine, but for "/broken".
fn registry() -> RegistryServer {
    let load = |folder: &std::path::Path| {
        if folder.ends_with("broken") {
            return Err(LoadError::Backend("it is broken".to_owned()));
        }
        Ok(fake_engine())
    };
    RegistryServer::start(Box::new(load), LIMITS)
}

fn load(server: &RegistryServer, name: &str, url: &str) -> u16 {
    server.post("/models", &serde_json::json!({"model_name": name, "url": url}).to_string()).status
}

#[test]
fn models_come_and_go() {
    let server = registry();
    assert_eq!(server.call("GET", "/ping").status, 200, "healthy without models");
    assert_eq!(server.call("GET", "/models").text, r#"{"models":[]}"#);
    assert_eq!(server.post("/models/a/invoke", r#"{"input": "heat"}"#).status, 404);
    assert_eq!(load(&server, "a", "/a"), 200);
    assert_eq!(load(&server, "a", "/other"), 409);
    assert_eq!(load(&server, "\u{fc} b", "/b"), 200);
    assert_eq!(
        server.call("GET", "/models").text,
        "{\"models\":[{\"modelName\":\"a\",\"modelUrl\":\"/a\"},{\"modelName\":\"\u{fc} b\",\"modelUrl\":\"/b\"}]}"
    );
    assert_eq!(server.call("GET", "/models/%C3%BC%20b").json()["modelUrl"], "/b");
    let answer = server.post("/models/a/invoke", r#"{"input": "heat", "suggestions": 2}"#);
    assert_eq!(answer.json()["suggestions"].as_array().unwrap().len(), 2);
    assert_eq!(server.post("/models/a/invoke", "{").status, 400);
    assert_eq!(server.post("/invocations", r#"{"input": "heat"}"#).status, 404);
    assert_eq!(server.post("/v1/completions", r#"{"prompt": "a"}"#).status, 404, "which of the two?");
    assert_eq!(server.post("/v1/completions", r#"{"prompt": "a", "model": "a"}"#).json()["model"], "a");
    assert_eq!(server.call("DELETE", "/models/a").status, 200);
    assert_eq!(server.call("DELETE", "/models/a").status, 404);
    assert_eq!(server.call("GET", "/models/a").status, 404);
    assert_eq!(server.post("/v1/completions", r#"{"prompt": "a"}"#).status, 200, "there is one left");
    assert_eq!(load(&server, "a", "/a"), 200);
}

#[test]
fn what_cannot_be_loaded_is_said_and_leaves_the_name_free() {
    let server = registry();
    for (body, status, kind, words) in [
        (r#"{"model_name": "a", "url": "/broken"}"#, 400, "invalid_value", "it is broken"),
        (r#"{"model_name": "", "url": "/a"}"#, 400, "invalid_value", "model_name is \"\""),
        (r#"{"model_name": "a/b", "url": "/a"}"#, 400, "invalid_value", "without slashes"),
        (r#"{"model_name": "a"}"#, 400, "invalid_field", "missing field `url`"),
        (r#"{"model_name": "a", "url": "/a", "x": 1}"#, 400, "invalid_field", "unknown field `x`"),
        ("[]", 400, "invalid_field", "no object"),
    ] {
        let found = error(&server.post("/models", body));
        assert!(found.0 == status && found.1 == kind && found.2.contains(words), "{body}: {found:?}");
    }
    assert_eq!(load(&server, "a", "/a"), 200);
}

#[test]
fn the_budget_is_kept() {
    let server = RegistryServer::start(Box::new(|_| Ok(fake_engine())), RegistryLimits { bytes: 1 << 20, models: 2 });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("weights"), vec![0; (1 << 20) + 1]).unwrap();
    let large = serde_json::json!({"model_name": "large", "url": folder.path().to_str().unwrap()}).to_string();
    let found = error(&server.post("/models", &large));
    assert!(found.0 == 507 && found.1 == "out_of_memory" && found.2.contains("needs 2 MiB"), "{found:?}");
    assert_eq!([load(&server, "a", "/a"), load(&server, "b", "/b"), load(&server, "c", "/c")], [200, 200, 507]);
    assert_eq!(server.call("DELETE", "/models/a").status, 200);
    assert_eq!(load(&server, "c", "/c"), 200);
}

#[test]
fn two_loads_of_one_name_give_one_conflict_and_pings_go_on() {
    let (inside, loads) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let (barrier, count) = (Arc::clone(&inside), Arc::clone(&loads));
    let load_slowly = move |_: &std::path::Path| {
        count.fetch_add(1, Ordering::Relaxed);
        // Once to say that loading has begun, once to be allowed to go on.
        barrier.wait();
        barrier.wait();
        Ok(fake_engine())
    };
    let server = RegistryServer::start(Box::new(load_slowly), LIMITS);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| load(&server, "a", "/a"));
        inside.wait();
        assert_eq!(load(&server, "a", "/a"), 409);
        assert_eq!(server.call("GET", "/ping").status, 200);
        assert_eq!(server.call("GET", "/models/a").status, 404);
        assert_eq!(server.call("DELETE", "/models/a").status, 409);
        inside.wait();
        assert_eq!(first.join().unwrap(), 200);
    });
    assert_eq!(loads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_loader_that_panics_is_an_error_and_leaves_the_name_free() {
    let first = AtomicUsize::new(0);
    let load_badly = move |_: &std::path::Path| {
        assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "injected");
        Ok(fake_engine())
    };
    let server = RegistryServer::start(Box::new(load_badly), LIMITS);
    let found = error(&server.post("/models", r#"{"model_name": "a", "url": "/a"}"#));
    assert!(found.0 == 500 && !found.2.contains("injected"), "{found:?}");
    assert_eq!(load(&server, "a", "/a"), 200);
}

#[test]
fn the_list_has_pages() {
    let server = registry();
    for index in 0..101 {
        assert_eq!(load(&server, &format!("m{index:03}"), "/m"), 200);
    }
    let first = server.call("GET", "/models").json();
    assert_eq!(first["models"].as_array().unwrap().len(), 100);
    let token = first["nextPageToken"].as_str().unwrap();
    let second = server.call("GET", &format!("/models?next_page_token={token}"));
    assert_eq!(second.text, r#"{"models":[{"modelName":"m100","modelUrl":"/m"}]}"#);
}

#[test]
fn a_server_of_one_model_says_how_to_have_several() {
    let server = TestServer::with(fake_engine());
    for (method, path) in [
        ("GET", "/models"),
        ("POST", "/models"),
        ("GET", "/models/a"),
        ("PUT", "/models/a"),
        ("DELETE", "/models/a"),
        ("POST", "/models/a/invoke"),
    ] {
        let found = error(&server.send(method, path, Some("application/json"), b"{}"));
        assert!(found.0 == 404 && found.2.contains("--multi-model"), "{method} {path}: {found:?}");
    }
}
