//! `foretype serve --model ORG/NAME`, with a Hub of our own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::hub_standin::{Fault, REVISION, Standin, WEIGHTS, sha256};
use crate::support::repository;

/// A server on a socket file in `folder`, which is stopped in the end.
struct Server<'a> {
    process: Child,
    folder: &'a Path,
}

impl<'a> Server<'a> {
    fn start(folder: &'a Path, hub: &Standin) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretype"));
        for variable in ["FORETYPE_MODEL", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"] {
            command.env_remove(variable);
        }
        let process = command
            .args(["serve", "--model", "org/tiny", "--threads", "1", "--kv-pool-mib", "8", "--cache"])
            .arg(folder.join("cache"))
            .arg("--socket")
            .arg(folder.join("socket"))
            .env("HF_ENDPOINT", &hub.url)
            .env("HF_HOME", folder.join("hf"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, folder }
    }

    /// The status and the whole answer to a request; `None` while nothing listens.
    fn ask(&self, request: &str, body: &str) -> Option<(u16, String)> {
        let mut connection = UnixStream::connect(self.folder.join("socket")).ok()?;
        let length = body.len();
        let head = "Host: x\r\nConnection: close\r\nContent-Type: application/json";
        let text = format!("{request} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
        connection.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        Some((answer.split(' ').nth(1)?.parse().ok()?, answer))
    }

    /// Waits until `/ping` has this status, and says this.
    fn wait(&self, status: u16, says: &str) {
        let (started, mut last) = (Instant::now(), None);
        while started.elapsed() < Duration::from_secs(60) {
            last = self.ask("GET /ping", "");
            if last.as_ref().is_some_and(|(found, answer)| *found == status && answer.contains(says)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("/ping was never {status} with {says:?}: {last:?}");
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A Hub with a golden checkpoint, whose weights are said to have this checksum.
fn hub(checksum: impl Fn(&[u8]) -> String) -> Standin {
    let read = |name: &str| std::fs::read(repository("tests/goldens/plain").join(name)).unwrap();
    let names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
    let files = names.map(read);
    let small: Vec<(&str, &[u8])> = names.into_iter().zip(files.iter().map(Vec::as_slice)).collect();
    let weights = read("model.safetensors");
    Standin::hub(&small, &weights, (&checksum(&weights), weights.len() as u64))
}

#[test]
fn a_model_of_the_hub_is_downloaded_and_served_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(sha256);
    hub.fail(REVISION, &[Fault::Slow(Duration::from_secs(2))]);
    let server = Server::start(folder.path(), &hub);
    server.wait(503, "the model is being downloaded from org/tiny@main");
    server.wait(200, "");
    let (status, answer) = server.ask("POST /invocations", r#"{"input": "wireless char"}"#).unwrap();
    assert!(
        status == 200 && answer.contains(r#""model":"tiny""#) && answer.contains(r#""suggestions":[{"#),
        "{answer}"
    );
    drop(server);

    // Once it is there, nothing but its revision is asked for.
    let before = hub.asked().len();
    std::fs::remove_file(folder.path().join("socket")).unwrap();
    let server = Server::start(folder.path(), &hub);
    server.wait(200, "");
    assert_eq!(hub.asked().len(), before + 1);
}

#[test]
fn a_download_with_a_wrong_checksum_is_told_and_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(|_| sha256(b"other weights"));
    let server = Server::start(folder.path(), &hub);
    server.wait(503, "model.safetensors has the checksum");
    assert!(hub.asked().iter().any(|asked| asked.path == WEIGHTS));
    let (status, _) = server.ask("POST /invocations", r#"{"input": "wireless char"}"#).unwrap();
    assert_eq!(status, 503);
}
