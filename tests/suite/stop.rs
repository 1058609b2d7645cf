//! SIGTERM at every moment of a server's life ends it with 0, and leaves nothing behind.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::support::repository;

/// A server on a socket file in `folder`. Several engines load beside each other, so that most of its first moments are
/// inside ONNX Runtime.
fn serve(folder: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_foretype"))
        .args(["serve", "--replicas", "6", "--threads", "2", "--kv-pool-mib", "8"])
        .args(arguments)
        .arg("--cache")
        .arg(folder.join("cache"))
        .arg("--socket")
        .arg(folder.join("socket"))
        .env_remove("FORETYPE_MODEL")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Connects as soon as the server in `folder` listens.
fn connect(folder: &Path) -> UnixStream {
    let started = Instant::now();
    loop {
        if let Ok(stream) = UnixStream::connect(folder.join("socket")) {
            return stream;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "it never listened");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What the server in `folder` says to a request without a body.
fn status(folder: &Path, request: &str) -> u16 {
    let mut connection = connect(folder);
    connection.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap()
}

/// Stops a server; how it ended, after how long, and what it logged.
fn stop(mut server: Child) -> (ExitStatus, Duration, String) {
    let asked = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap().success());
    let status = server.wait().unwrap();
    let took = asked.elapsed();
    let mut log = String::new();
    server.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    (status, took, log)
}

fn assert_clean(after: Duration, ended: (ExitStatus, Duration, String)) {
    let (status, took, log) = ended;
    assert!(status.success(), "stopped {after:?} after it listened: {status:?}: {log}");
    assert!(took < Duration::from_secs(20), "stopped {after:?} after it listened: it took {took:?}");
    // actix's word on a connection that came while it stopped is no failure of the model's.
    let failed = log.lines().any(|line| line.contains("ERROR") && !line.ends_with("No workers"));
    assert!(log.trim_end().ends_with("stopped cancelled=0") && !failed, "{after:?}: {log}");
}

#[test]
fn a_server_can_be_stopped_at_any_moment_while_it_loads() {
    let folder = tempfile::tempdir().unwrap();
    let demo = repository("models/demo");
    let arguments = ["--model", demo.to_str().unwrap()];
    for moment in 0..32 {
        // The first ones build the bundle too.
        let after = Duration::from_millis(moment * 8);
        let server = serve(folder.path(), &arguments);
        drop(connect(folder.path()));
        std::thread::sleep(after);
        assert_clean(after, stop(server));
        let left = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        assert!(left.into_iter().all(|path| path.ends_with("cache")), "the socket file is gone");
        let cached: Vec<_> = std::fs::read_dir(folder.path().join("cache"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert!(cached.iter().all(|name| !name.to_string_lossy().contains("partial")), "{after:?}: {cached:?}");
    }
}

#[test]
fn a_model_that_is_being_loaded_by_name_is_answered_before_the_server_ends() {
    let folder = tempfile::tempdir().unwrap();
    let demo = repository("models/demo");
    for moment in 0..8 {
        let after = Duration::from_millis(moment * 20);
        let server = serve(folder.path(), &["--multi-model"]);
        let mut connection = connect(folder.path());
        let body = serde_json::json!({ "model_name": "demo", "url": demo }).to_string();
        let request = format!(
            "POST /models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        // A request that the server hasn't read when it is stopped is none.
        while status(folder.path(), "DELETE /models/demo") == 404 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(after);
        let answer = std::thread::spawn(move || {
            let mut answer = String::new();
            connection.read_to_string(&mut answer).map(|_| answer)
        });
        assert_clean(after, stop(server));
        let answer = answer.join().unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{after:?}: {answer:?}");
    }
}
