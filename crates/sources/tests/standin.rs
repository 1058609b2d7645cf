//! Downloads from servers of our own that speak the Hub's, a web server's and S3's protocol, and that fail as
//! such servers do.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest, Sha256};
use sources::{Options, Progress, Source, SourceError, fetch};

/// What a server does wrong with one request of a path.
#[derive(Clone, Copy)]
enum Fault {
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
struct Asked {
    path: String,
    range: Option<String>,
    token: Option<String>,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    faults: HashMap<String, VecDeque<Fault>>,
    asked: Vec<Asked>,
    sent: u64,
}

/// A server on a free port; its threads end with the test.
struct Standin {
    url: String,
    state: Arc<Mutex<State>>,
}

impl Standin {
    fn start() -> Self {
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

    fn put(&self, path: &str, bytes: impl AsRef<[u8]>) {
        self.state.lock().unwrap().files.insert(path.to_owned(), bytes.as_ref().to_vec());
    }

    fn fail(&self, path: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert(path.to_owned(), faults.iter().copied().collect());
    }

    fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }

    fn sent(&self) -> u64 {
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

/// Bytes that differ everywhere.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(next).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

const WEIGHTS: &str = "/org/tiny/resolve/abc123/model.safetensors";
const REVISION: &str = "/api/models/org/tiny/revision/main?blobs=true";

/// A Hub with one model, whose weights have so many bytes and this checksum.
fn hub(weights: &[u8], checksum: &str, size: u64) -> Standin {
    let standin = Standin::start();
    let file = |name: &str, size: usize| json!({"rfilename": name, "size": size, "blobId": format!("blob-{name}")});
    let large = json!({"rfilename": "model.safetensors", "size": size, "lfs": {"sha256": checksum, "size": size}});
    let siblings = [file("config.json", 2), file("tokenizer.json", 3), file("README.md", 5), large];
    standin.put(REVISION, json!({"sha": "abc123", "siblings": siblings}).to_string());
    standin.put("/org/tiny/resolve/abc123/config.json", "{}");
    standin.put("/org/tiny/resolve/abc123/tokenizer.json", "[1]");
    standin.put(WEIGHTS, weights);
    standin
}

/// Parts of 4 KiB, and little patience.
fn options(folder: &Path, variables: &[(&str, &str)]) -> Options {
    let home = folder.join("hf");
    let home = [("HF_HOME", home.to_str().unwrap())];
    let variables = variables.iter().chain(&home);
    Options {
        variables: variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        part_bytes: 4096,
        parallel: 3,
        attempts: 4,
        patience: Duration::from_millis(1500),
        longest_pause: Duration::from_secs(2),
        ..Options::new(folder.join("cache"))
    }
}

fn source(text: &str) -> Source {
    Source::parse(text).unwrap().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_model_of_the_hub_comes_into_the_hubs_own_cache_once() {
    let weights = content(50_000);
    let standin = hub(&weights, &sha256(&weights), 50_000);
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), &[("HF_ENDPOINT", &standin.url), ("HF_TOKEN", "hf_secret")]);
    let found = fetch(&source("org/tiny"), &options, &()).unwrap();
    let root = folder.path().join("hf/hub/models--org--tiny");
    assert_eq!(found, root.join("snapshots/abc123"));
    assert_eq!(names(&found), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
    assert_eq!(std::fs::read_to_string(root.join("refs/main")).unwrap(), "abc123");
    assert!(names(&root.join("blobs")).contains(&sha256(&weights)), "as the Hub's own tools name it");
    assert!(standin.asked().iter().all(|asked| asked.token.as_deref() == Some("Bearer hf_secret")));
    assert_eq!(standin.asked().iter().filter(|asked| asked.path == WEIGHTS && asked.range.is_some()).count(), 13);

    standin.sent();
    let before = standin.asked().len();
    assert_eq!(fetch(&source("org/tiny"), &options, &()).unwrap(), found);
    assert_eq!(standin.asked().len(), before + 1, "only the revision is asked for");

    let offline = |text| {
        let mut options = options.clone();
        options.variables.insert("HF_HUB_OFFLINE".into(), "1".into());
        fetch(&source(text), &options, &())
    };
    assert_eq!(offline("org/tiny").unwrap(), found);
    assert_eq!(offline("org/tiny@abc123").unwrap(), found);
    let said = offline("org/other").unwrap_err().to_string();
    assert!(said.contains("HF_HUB_OFFLINE") && said.contains("org/other@main"), "{said}");
    assert_eq!(standin.asked().len(), before + 1);

    // A Hub that doesn't answer.
    let mut gone = options.clone();
    gone.variables.insert("HF_ENDPOINT".into(), "http://127.0.0.1:9".into());
    gone.attempts = 1;
    assert_eq!(fetch(&source("org/tiny"), &gone, &()).unwrap(), found);
}

#[test]
fn cuts_pauses_and_overload_cost_time_and_nothing_else() {
    let weights = content(30_000);
    let standin = hub(&weights, &sha256(&weights), 30_000);
    let slow = Fault::Slow(Duration::from_secs(3));
    standin.fail(
        WEIGHTS,
        &[Fault::Cut(1000), Fault::Status(503), slow, Fault::Cut(0), Fault::TooMany(1), Fault::Cut(4095)],
    );
    standin.fail(REVISION, &[Fault::TooMany(1), Fault::Status(500)]);
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let found = fetch(&source("org/tiny"), &options(folder.path(), &[("HF_ENDPOINT", &standin.url)]), &()).unwrap();
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
    assert!(started.elapsed() >= Duration::from_secs(1), "a pause of a second was asked for");

    // One that never recovers is told.
    let standin = hub(&weights, &sha256(&weights), 30_000);
    standin.fail(WEIGHTS, &[Fault::Status(500); 40]);
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), &[("HF_ENDPOINT", &standin.url)]);
    let said = fetch(&source("org/tiny"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("model.safetensors can't be downloaded") && said.contains("500"), "{said}");
}

/// Stops a download after some bytes.
struct Until {
    left: u64,
    seen: AtomicU64,
}

impl Progress for Until {
    fn file(&self, _: &str, _: u64) {}

    fn advance(&self, bytes: u64) {
        self.seen.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.seen.load(Ordering::Relaxed) > self.left
    }
}

#[test]
fn a_download_that_was_stopped_goes_on_where_it_was() {
    let weights = content(400_000);
    let standin = hub(&weights, &sha256(&weights), 400_000);
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), &[("HF_ENDPOINT", &standin.url)]);
    let until = Until { left: 200_000, seen: AtomicU64::new(0) };
    let stopped = fetch(&source("org/tiny"), &options, &until).unwrap_err();
    assert!(matches!(stopped, SourceError::Cancelled), "{stopped}");
    standin.sent();
    let found = fetch(&source("org/tiny"), &options, &()).unwrap();
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
    // At most the parts that weren't finished come again.
    let sent = standin.sent();
    assert!(sent <= 200_000 + 4 * 4096, "{sent} bytes were sent again");
    assert_eq!(names(&folder.path().join("hf/hub/models--org--tiny/blobs")).len(), 3, "nothing unfinished is left");
}

#[test]
fn a_damaged_file_is_refused_and_comes_again() {
    let weights = content(20_000);
    let standin = hub(&content(20_001)[1..], &sha256(&weights), 20_000);
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), &[("HF_ENDPOINT", &standin.url)]);
    let said = fetch(&source("org/tiny"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("checksum") && said.contains(&sha256(&weights)), "{said}");
    standin.put(WEIGHTS, &weights);
    let found = fetch(&source("org/tiny"), &options, &()).unwrap();
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
}

#[test]
fn what_cannot_be_had_is_refused_before_it_is_begun() {
    let standin = hub(b"x", &sha256(b"x"), 1 << 50);
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), &[("HF_ENDPOINT", &standin.url)]);
    let said = fetch(&source("org/tiny"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("needs 1073741825 MiB more") && said.contains("make room"), "{said}");
    assert!(standin.asked().iter().all(|asked| asked.path == REVISION), "nothing is downloaded");

    let said = fetch(&source("org/none"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("there is no org/none@main on the Hub"), "{said}");
    standin.fail(REVISION, &[Fault::Status(403)]);
    let said = fetch(&source("org/tiny"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("403") && said.contains("HF_TOKEN"), "{said}");
    standin.put(REVISION, r#"{"sha": "abc123", "siblings": [{"rfilename": "README.md", "size": 1}]}"#);
    let said = fetch(&source("org/tiny"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("neither a foretype bundle"), "{said}");
    standin.put(REVISION, r#"{"sha": "../..", "siblings": []}"#);
    let said = fetch(&source("org/tiny"), &options, &()).unwrap_err().to_string();
    assert!(said.contains("names no commit"), "{said}");
}

#[test]
fn shards_come_from_a_web_server_and_a_changed_file_comes_again() {
    let standin = Standin::start();
    standin.put("/models/a/config.json", "{}");
    standin
        .put("/models/a/pytorch_model.bin.index.json", r#"{"weight_map": {"x": "pytorch_model-1.bin", "y": "z.bin"}}"#);
    standin.put("/models/a/pytorch_model-1.bin", content(9000));
    standin.put("/models/a/z.bin", "z");
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path(), &[]);
    let address = source(&format!("{}/models/a", standin.url));
    let found = fetch(&address, &options, &()).unwrap();
    assert_eq!(names(&found), ["config.json", "pytorch_model-1.bin", "pytorch_model.bin.index.json", "z.bin"]);
    assert_eq!(std::fs::read(found.join("pytorch_model-1.bin")).unwrap(), content(9000));
    standin.put("/models/a/z.bin", "y");
    let changed = fetch(&address, &options, &()).unwrap();
    assert_ne!(found, changed);
    assert_eq!(std::fs::read(changed.join("z.bin")).unwrap(), b"y");

    standin.put("/models/a/pytorch_model.bin.index.json", r#"{"weight_map": {"x": "../../secret"}}"#);
    let said = fetch(&address, &options, &()).unwrap_err().to_string();
    assert!(said.contains("outside its folder"), "{said}");
    let said = fetch(&source(&format!("{}/nothing", standin.url)), &options, &()).unwrap_err().to_string();
    assert!(said.contains("neither a foretype bundle"), "{said}");
}

#[test]
fn a_folder_of_s3_is_listed_and_read_in_parts() {
    let standin = Standin::start();
    let weights = content(40_000);
    let object = |name: &str, bytes: usize| {
        format!(
            "<Contents><Key>a/b/{name}</Key><LastModified>2026-11-25T00:00:00Z</LastModified><ETag>\"{name}\"</ETag>\
             <Size>{bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    };
    let list = format!(
        "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><Prefix>a/b/</Prefix><KeyCount>3</KeyCount>\
         <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{}{}{}</ListBucketResult>",
        object("config.json", 2),
        object("model.safetensors", weights.len()),
        object("notes.txt", 7)
    );
    standin.put("/bucket?list-type=2&prefix=a%2Fb%2F&delimiter=%2F", &list);
    standin.put("/bucket?delimiter=%2F&list-type=2&prefix=a%2Fb%2F", &list);
    standin.put("/bucket/a/b/config.json", "{}");
    standin.put("/bucket/a/b/model.safetensors", &weights);
    standin.fail("/bucket/a/b/model.safetensors", &[Fault::Cut(100), Fault::Status(503)]);
    let folder = tempfile::tempdir().unwrap();
    let options = options(
        folder.path(),
        &[
            ("AWS_ENDPOINT_URL", &standin.url),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
            ("TOKEN", "none of the store's"),
        ],
    );
    let found: PathBuf = fetch(&source("s3://bucket/a/b"), &options, &())
        .unwrap_or_else(|error| panic!("{error}: {:?}", standin.asked()));
    assert_eq!(names(&found), ["config.json", "model.safetensors"]);
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
    assert!(
        standin.asked().iter().all(|asked| asked.token.as_deref().is_some_and(|t| t.starts_with("AWS4-HMAC-SHA256")))
    );
}
