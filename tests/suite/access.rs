//! Who may do what: models below a folder, web pages of other sites, routes for operators.

use std::net::SocketAddr;
use std::process::Stdio;

use foretype::http::{Routes, ServerOptions};
use foretype::models::ModelState;

use crate::connections::Process;
use crate::http_client::{JSON, error, post, send};
use crate::support::{TestServer, fake_engine, repository};

fn server(options: ServerOptions) -> TestServer {
    TestServer::start_with_options(ModelState::Ready(std::sync::Arc::new(fake_engine()).into()), options)
}

#[test]
fn models_come_from_below_their_root_only_and_errors_list_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::create_dir_all(folder.path().join("models/empty")).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(folder.path().join("models/empty/secret-name"), "").unwrap();
    std::fs::write(outside.join("secret-name"), "").unwrap();
    std::os::unix::fs::symlink(&outside, folder.path().join("models/link")).unwrap();
    let root = folder.path().join("models");
    let arguments = format!("--multi-model --models-root {}", root.display());
    let server = Process::start_logging(1024, &arguments, Stdio::null());
    let load = |url: &str| {
        let body = serde_json::json!({"model_name": "a", "url": url}).to_string();
        error(&post(server.address, "/models", &body))
    };
    for url in ["/etc", "/no/such/folder", outside.to_str().unwrap(), &format!("{}/link", root.display())] {
        let (status, kind, message) = load(url);
        assert_eq!((status, kind.as_str()), (400, "invalid_value"), "{url}: {message}");
        assert!(message.contains("it must be a folder below") && !message.contains("secret-name"), "{message}");
    }
    let (status, _, message) = load(&format!("{}/empty", root.display()));
    assert!(status == 400 && message.contains("no bundle") && !message.contains("secret-name"), "{message}");
    assert_eq!(load(&format!("{}/missing", root.display())).0, 404);
}

#[test]
fn a_page_of_another_site_cannot_post_blindly() {
    let server = TestServer::with(fake_engine());
    let body = r#"{"input": "heat"}"#;
    let foreign = ("Origin", "https://evil.example");
    for (headers, status) in [
        (&[foreign][..], 415),
        (&[foreign, ("Content-Type", "text/plain")], 415),
        // A browser asks before it sends this, and gets no permission.
        (&[foreign, JSON], 200),
        (&[], 200),
    ] {
        for path in ["/invocations", "/v1/completions"] {
            let body = if path == "/invocations" { body } else { r#"{"prompt": "heat"}"# };
            let answer = send(server.address, "POST", path, headers, body);
            assert_eq!(answer.status, status, "{path} {headers:?}: {answer:?}");
            assert!(!answer.headers.contains_key("access-control-allow-origin"));
        }
    }
    let asked = preflight(server.address, "https://evil.example");
    assert!(asked.status == 405 && !asked.headers.contains_key("access-control-allow-origin"), "{asked:?}");
}

fn preflight(address: SocketAddr, origin: &str) -> crate::support::Answer {
    let headers = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type,authorization"),
    ];
    send(address, "OPTIONS", "/invocations", &headers, "")
}

#[test]
fn pages_of_origins_that_are_named_may_read_answers() {
    let ours = "https://search.example";
    let cors_origins = vec!["http://localhost:3000".to_owned(), ours.to_owned()];
    let server = server(ServerOptions { cors_origins, ..ServerOptions::default() });
    let asked = preflight(server.address, ours);
    assert_eq!((asked.status, &asked.headers["access-control-allow-origin"]), (200, &ours.parse().unwrap()));
    assert!(asked.headers["access-control-allow-headers"].to_str().unwrap().to_lowercase().contains("authorization"));
    let answer = send(server.address, "POST", "/invocations", &[JSON, ("Origin", ours)], r#"{"input": "heat"}"#);
    assert_eq!((answer.status, &answer.headers["access-control-allow-origin"]), (200, &ours.parse().unwrap()));
    let evil = preflight(server.address, "https://evil.example");
    assert!(!evil.headers.contains_key("access-control-allow-origin"), "{evil:?}");
    let evil = [JSON, ("Origin", "https://evil.example")];
    let answer = send(server.address, "POST", "/invocations", &evil, r#"{"input": "heat"}"#);
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{answer:?}");
}

#[test]
fn routes_for_operators_are_on_their_own_listener_only() {
    let public = server(ServerOptions { routes: Routes::Public, ..ServerOptions::default() });
    let admin = server(ServerOptions { routes: Routes::Admin, ..ServerOptions::default() });
    let status = |server: &TestServer, path: &str| send(server.address, "GET", path, &[], "").status;
    for (path, on_public, on_admin) in [
        ("/ping", 200, 200),
        ("/metrics", 404, 200),
        // This server holds one model, and says so.
        ("/models/a", 404, 404),
        ("/execution-parameters", 200, 404),
        ("/v1/models", 200, 404),
        ("/invocations", 405, 404),
        ("/models/a/invoke", 405, 404),
    ] {
        assert_eq!((status(&public, path), status(&admin, path)), (on_public, on_admin), "{path}");
    }
    let says = |server: &TestServer| error(&send(server.address, "GET", "/models", &[], "")).2;
    assert!(says(&public).contains("there is no /models") && says(&admin).contains("--multi-model"));
}

#[test]
fn operators_connect_to_their_socket_file() {
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin");
    let arguments =
        format!("--multi-model --admin-socket {} --models-root {}", socket.display(), repository("models").display());
    let server = Process::start_logging(1024, &arguments, Stdio::null());
    assert_eq!(send(server.address, "GET", "/metrics", &[], "").status, 404);
    let mut connection = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("foretype_build_info"), "{answer}");
}
