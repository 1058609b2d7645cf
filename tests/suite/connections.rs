//! Clients that hold connections, and models that come and go, seen from a server's process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::http_client::{post, send};
use crate::support::repository;

/// A server of models by name in a process of its own, until dropped.
pub struct Process {
    pub address: SocketAddr,
    pub child: Child,
}

impl Process {
    /// Starts it with at most so many open files.
    fn start(files: usize, arguments: &str) -> Self {
        Self::start_logging(files, &format!("--multi-model {arguments}"), Stdio::null())
    }

    /// The same for any kind of server, with its log.
    pub fn start_logging(files: usize, arguments: &str, log: Stdio) -> Self {
        let serve = format!("ulimit -n {files}; exec \"$0\" serve --port 0 {arguments}");
        let mut child = Command::new("sh")
            .args(["-c", &serve, env!("CARGO_BIN_EXE_foretype")])
            .env_remove("FORETYPE_MODEL")
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split([',', ' ']).next()).unwrap();
        let address = address.trim_end_matches('.').trim_end_matches(". Try:\n").parse().unwrap();
        Self { address, child }
    }

    /// Opens a connection, and sends a request whose body never comes.
    fn half_a_body(&self) -> TcpStream {
        let mut half = TcpStream::connect(self.address).unwrap();
        half.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{").unwrap();
        half.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        half
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn half_bodies_on_all_descriptors_leave_one_for_a_ping_and_end_by_themselves() {
    let server = Process::start(64, "--body-timeout-ms 10000");
    let mut halves: Vec<_> = (0..100).map(|_| server.half_a_body()).collect();
    let asked = Instant::now();
    assert_eq!(send(server.address, "GET", "/ping", &[], "").status, 200);
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(8), "a ping took {took:?}");
    let mut statuses = [0, 0, 0];
    for half in &mut halves {
        let mut answer = Vec::new();
        let _ = half.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        // What is refused before it is read may be cut off.
        statuses[if answer.contains(" 408 ") { 0 } else { usize::from(answer.contains(" 429 ")) + 1 }] += 1;
    }
    assert!(statuses[0] > 10 && statuses[2] > 20, "408, cut, 429: {statuses:?}");
    assert!(asked.elapsed() < Duration::from_secs(18), "{:?}", asked.elapsed());
    assert_eq!(send(server.address, "GET", "/models", &[], "").status, 200);
}

#[test]
fn half_bodies_do_not_delay_a_stop_for_longer_than_a_body_may_take() {
    let mut server = Process::start(1024, "--body-timeout-ms 1000");
    let halves: Vec<_> = (0..20).map(|_| server.half_a_body()).collect();
    assert_eq!(send(server.address, "GET", "/ping", &[], "").status, 200);
    let asked = Instant::now();
    assert!(Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap().success());
    assert!(server.child.wait().unwrap().success());
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    drop(halves);
}

#[test]
fn a_thousand_clients_that_connect_at_once_wait_for_no_retry() {
    let server = Process::start(1024, "");
    let asked = Instant::now();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let address = server.address;
            std::thread::spawn(move || (0..225).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>())
        })
        .collect();
    let connections: usize = threads.into_iter().map(|thread| thread.join().unwrap().len()).sum();
    // A SYN that finds the backlog full is sent again after a second.
    assert!(connections == 900 && asked.elapsed() < Duration::from_millis(900), "{:?}", asked.elapsed());
}

#[test]
fn models_have_series_by_the_name_that_they_are_served_by_until_they_are_unloaded() {
    let server = Process::start(1024, "--replicas 1 --threads 1");
    let url = repository("models/demo");
    for name in ["one", "two"] {
        let body = serde_json::json!({"model_name": name, "url": url.to_str().unwrap()}).to_string();
        assert_eq!(post(server.address, "/models", &body).status, 200);
        let answer = post(server.address, &format!("/models/{name}/invoke"), r#"{"input": "wireless char"}"#);
        assert_eq!(answer.json()["model"], name);
    }
    let series = |model: &str| {
        let metrics = send(server.address, "GET", "/metrics", &[], "").text;
        metrics.matches(&format!("model=\"{model}\"")).count()
    };
    assert!(series("one") > 20 && series("one") == series("two") && series("demo") == 0);
    assert_eq!(send(server.address, "DELETE", "/models/one", &[], "").status, 200);
    assert_eq!(series("one"), 0);
    assert!(series("two") > 20);
}

/// Every token is a packet of its own. A client that has nothing to say acknowledges one only 40 ms later.
#[test]
fn a_stream_on_a_kept_connection_is_as_quick_as_the_whole_answer() {
    let server = Process::start_logging(1024, "--model models/demo", Stdio::null());
    let mut kept = TcpStream::connect(server.address).unwrap();
    kept.set_nodelay(true).unwrap();
    let mut milliseconds = |stream: bool| {
        let body = format!(r#"{{"inputs":"heat","parameters":{{"max_new_tokens":6}},"stream":{stream}}}"#);
        let head = format!("POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        let asked = Instant::now();
        kept.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        let end: &[u8] = if stream { b"\r\n0\r\n\r\n" } else { b"}]" };
        while !answer.ends_with(end) {
            let read = kept.read(&mut part).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..read]);
        }
        asked.elapsed().as_secs_f64() * 1e3
    };
    let mut median = |stream: bool| {
        let mut all: Vec<f64> = (0..21).map(|_| milliseconds(stream)).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (whole, streamed) = (median(false), median(true));
    assert!(streamed < whole + 25.0, "{streamed:.1} ms streamed, {whole:.1} ms whole");
}
