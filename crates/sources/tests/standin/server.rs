//! A server that speaks the Hub's, a web server's and S3's protocol, and that fails as such servers do.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};

/// What a server does wrong with one request of a path.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Ends after so many bytes of a body.
    Cut(usize),
    /// Sends nothing for so long.
    Slow(Duration),
    /// Answers 429, and asks for a pause of so many seconds.
    TooMany(u64),
    /// Answers with another status.
    Status(u16),
}

/// What was asked: the path, and the headers `range` and `authorization`.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub range: Option<String>,
    pub token: Option<String>,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    faults: HashMap<String, VecDeque<Fault>>,
    asked: Vec<Asked>,
    sent: u64,
}

/// A server on a free port; its threads end with the test.
pub struct Standin {
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Standin {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { url, state }
    }

    /// A Hub with one model, `org/tiny`, of small files, and of weights that are said to have a checksum and a size.
    pub fn hub(small: &[(&str, &[u8])], weights: &[u8], (checksum, size): (&str, u64)) -> Self {
        let standin = Self::start();
        let mut siblings =
            vec![json!({"rfilename": "model.safetensors", "size": size, "lfs": {"sha256": checksum, "size": size}})];
        for (name, bytes) in small {
            siblings.push(json!({"rfilename": name, "size": bytes.len(), "blobId": format!("blob-{name}")}));
            standin.put(&format!("/org/tiny/resolve/abc123/{name}"), bytes);
        }
        standin.put(REVISION, json!({"sha": "abc123", "siblings": siblings}).to_string());
        standin.put(WEIGHTS, weights);
        standin
    }

    pub fn put(&self, path: &str, bytes: impl AsRef<[u8]>) {
        self.state.lock().unwrap().files.insert(path.to_owned(), bytes.as_ref().to_vec());
    }

    pub fn fail(&self, path: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert(path.to_owned(), faults.iter().copied().collect());
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }

    pub fn sent(&self) -> u64 {
        std::mem::take(&mut self.state.lock().unwrap().sent)
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let headers: HashMap<String, String> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let (range, token) = (headers.get("range").cloned(), headers.get("authorization").cloned());
    let (fault, file) = {
        let mut state = state.lock().unwrap();
        state.asked.push(Asked { path: path.clone(), range: range.clone(), token });
        let fault = if method == "GET" { state.faults.get_mut(&path).and_then(VecDeque::pop_front) } else { None };
        (fault, state.files.get(&path).cloned())
    };
    let head = |status: &str, more: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}\r\n\r\n");
    match fault {
        Some(Fault::TooMany(seconds)) => {
            let more = format!("Retry-After: {seconds}\r\nContent-Length: 0");
            let _ = stream.write_all(head("429 Too Many Requests", &more).as_bytes());
            return;
        }
        Some(Fault::Status(status)) => {
            let _ = stream.write_all(head(&format!("{status} Failure"), "Content-Length: 0").as_bytes());
            return;
        }
        Some(Fault::Slow(time)) => std::thread::sleep(time),
        _ => {}
    }
    let Some(file) = file else {
        let _ = stream.write_all(head("404 Not Found", "Content-Length: 0").as_bytes());
        return;
    };
    let ends = range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let ends = ends.map(|(from, to)| (from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap() + 1));
    let (from, to) = ends.unwrap_or((0, file.len()));
    let etag: String = Sha256::digest(&file).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut more =
        format!("Content-Length: {}\r\nETag: \"{etag}\"\r\nLast-Modified: Wed, 25 Nov 2026 00:00:00 GMT", to - from);
    if ends.is_some() {
        more.push_str(&format!("\r\nContent-Range: bytes {from}-{}/{}", to - 1, file.len()));
    }
    let status = if ends.is_some() { "206 Partial Content" } else { "200 OK" };
    let _ = stream.write_all(head(status, &more).as_bytes());
    if method == "HEAD" {
        return;
    }
    let end = if let Some(Fault::Cut(bytes)) = fault { to.min(from + bytes) } else { to };
    if stream.write_all(&file[from..end]).is_ok() {
        state.lock().unwrap().sent += (end - from) as u64;
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub const WEIGHTS: &str = "/org/tiny/resolve/abc123/model.safetensors";
pub const REVISION: &str = "/api/models/org/tiny/revision/main?blobs=true";
