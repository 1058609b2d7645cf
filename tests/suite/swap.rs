//! Another version takes a model's place: no request fails, the memory is what it was, and a version that can't be
//! loaded changes nothing.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use foretype::engine::{Engine, EngineParts, memory};
use foretype::metrics::Metrics;
use foretype::models::folder::{self, IntakeOptions};
use foretype::models::{FolderLoader, LoadError, Opened, RegistryLimits, Start};
use serde_json::{Value, json};

use crate::connections::Process;
use crate::http_client::{JSON, RegistryServer, error, post, send};
use crate::support::{Answer, build, engine_options, fake_engine, repository};
use crate::wrong_bundles::Server;

/// Two bundles of the demo model that differ.
pub struct Versions {
    _folders: [tempfile::TempDir; 2],
    pub bundles: [PathBuf; 2],
}

pub fn versions() -> Versions {
    let (one, first, _) = build(&repository("models/demo"), Some(64));
    let (two, second, _) = build(&repository("models/demo"), Some(48));
    Versions { _folders: [one, two], bundles: [first, second] }
}

/// Opens bundles as the program does, with a model as small as those of other tests.
pub fn opener(metrics: Arc<Metrics>) -> FolderLoader {
    Box::new(move |name, path| {
        let (path, mut manifest) = folder::open(&folder::identify(path)?, &IntakeOptions::new("none".into()), &())?;
        manifest.name = name.to_owned();
        let (mut options, metrics) = (engine_options(), Arc::clone(&metrics));
        options.requests.pool.in_background = true;
        let memory = memory(&path, &manifest, &options);
        let read = move || {
            let parts = EngineParts::read(&path, &manifest, &options)?;
            Ok(Box::new(move || Ok(Engine::start(parts, options.requests.clone(), &metrics)?)) as Start)
        };
        Ok(Opened { memory, read: Box::new(read) })
    })
}

/// A server of the first version.
fn server(versions: &Versions, bytes: u64) -> RegistryServer {
    let server = RegistryServer::with_opener(opener(Metrics::new()), RegistryLimits { bytes, models: 4 });
    let body = json!({ "model_name": "demo", "url": versions.bundles[0] });
    assert_eq!(server.post("/models", &body.to_string()).status, 200);
    server
}

fn swap(address: SocketAddr, url: &Path) -> Answer {
    send(address, "PUT", "/models/demo", &[JSON], &json!({ "url": url }).to_string())
}

/// Keys of people who type, until they are told to stop: each is answered.
#[derive(Default)]
pub struct Typing {
    stop: AtomicBool,
    answered: AtomicUsize,
}

impl Typing {
    fn again_and_again(&self, server: &RegistryServer, person: usize) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("http://{}/models/demo/invoke", server.address);
        for count in 0.. {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let query = ["wireless charging", "heat exchanger", "solar panel"][(count / 17 + person) % 3];
            let typed: String = query.chars().take(1 + count % 17).collect();
            let body = json!({ "input": typed, "suggestions": 3, "session": format!("person-{person}") }).to_string();
            let mut answer = agent.post(&url).content_type("application/json").send(&body).unwrap();
            let text = answer.body_mut().read_to_string().unwrap();
            let found: Value = serde_json::from_str(&text).unwrap();
            assert!(answer.status() == 200 && found["suggestions"].is_array(), "{body}: {} {text}", answer.status());
            self.answered.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Does something while two people type, who are answered before it begins and after it ends.
    pub fn during(server: &RegistryServer, what: impl FnOnce()) -> usize {
        let typing = Self::default();
        std::thread::scope(|scope| {
            let people = [0, 1].map(|person| {
                let typing = &typing;
                scope.spawn(move || typing.again_and_again(server, person))
            });
            let wait = |more: usize| {
                let (before, started) = (typing.answered.load(Ordering::SeqCst), Instant::now());
                while typing.answered.load(Ordering::SeqCst) < before + more && !people.iter().any(|p| p.is_finished())
                {
                    assert!(started.elapsed() < Duration::from_secs(60), "nobody is answered");
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            wait(20);
            what();
            wait(20);
            typing.stop.store(true, Ordering::SeqCst);
            people.into_iter().for_each(|person| person.join().unwrap());
        });
        typing.answered.load(Ordering::SeqCst)
    }
}

#[test]
fn versions_swap_under_load_without_a_failed_key_and_leave_no_memory_behind() {
    let versions = versions();
    let server = server(&versions, 1 << 30);
    let swaps = if std::env::var_os("FORETYPE_LONG").is_some() { 1000 } else { 30 };
    let before = server.registry.reserved_bytes();
    let first = server.call("GET", "/models/demo").json();
    assert_eq!((&first["version"], first["checksum"].as_str().unwrap().len()), (&json!(1), 64));
    let keys = Typing::during(&server, || {
        for round in 1..=swaps {
            let bundle = &versions.bundles[round % 2];
            let answer = swap(server.address, bundle);
            assert_eq!(answer.status, 200, "{answer:?}");
            let now = server.call("GET", "/models/demo").json();
            assert_eq!((answer.json(), &now["version"]), (now.clone(), &json!(round + 1)));
            assert_eq!(now["modelUrl"], json!(bundle));
            assert_eq!(now["checksum"] == first["checksum"], round % 2 == 0, "each bundle has its own");
        }
    });
    println!("{keys} keys during {swaps} swaps");
    // The two contexts differ a little in what they take: back to the first version.
    assert_eq!(swap(server.address, &versions.bundles[0]).status, 200);
    assert_eq!(server.registry.reserved_bytes(), before);
}

#[test]
fn the_process_has_the_memory_that_it_had_after_many_swaps() {
    let versions = versions();
    let server = Server::start(400);
    assert_eq!(server.load("demo", &versions.bundles[0]).status, 200);
    let mut sizes = Vec::new();
    for round in 0..40 {
        let answer = swap(server.address, &versions.bundles[round % 2]);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(server.complete("demo").status, 200);
        sizes.push(server.resident_mib());
    }
    println!("{sizes:?} MiB");
    let (early, late) = (sizes[..5].iter().min().unwrap(), sizes[35..].iter().max().unwrap());
    assert!(late * 10 <= early * 11, "{sizes:?} MiB");
    #[cfg(target_env = "gnu")]
    {
        let (arenas, cores) = (server.arenas(), std::thread::available_parallelism().unwrap().get());
        assert!(arenas < cores.div_ceil(4), "{arenas} arenas beside the main one, {cores} cores");
    }
}

#[test]
fn a_new_version_has_computed_what_people_type() {
    let versions = versions();
    let server = server(&versions, 1 << 30);
    let computed = |text: &str, salt: Option<&str>| {
        let answer = server.post("/models/demo/invoke", &json!({ "input": text, "salt": salt }).to_string());
        answer.json()["usage"]["positions_computed"].as_u64().unwrap()
    };
    for _ in 0..2 {
        computed("wireless char", None);
        computed("solar pan", Some("tenant"));
    }
    computed("typed once", None);
    assert_eq!(swap(server.address, &versions.bundles[0]).status, 200);
    assert_eq!((computed("wireless char", None), computed("typed once", None)), (0, 0));
    assert!(computed("solar pan", None) > 0, "what a client with a salt typed is no part of it");
}

#[test]
fn a_broken_version_changes_nothing_a_hundred_times() {
    let versions = versions();
    let server = server(&versions, 1 << 30);
    let folder = tempfile::tempdir().unwrap();
    let broken: Vec<PathBuf> = ["none", "empty", "manifest", "weights"].map(|name| folder.path().join(name)).into();
    broken[1..].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    std::fs::write(broken[2].join("manifest.json"), "{}").unwrap();
    for file in std::fs::read_dir(&versions.bundles[1]).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), broken[3].join(file.file_name())).unwrap();
    }
    let weights = largest_file(&broken[3]);
    let mut bytes = std::fs::read(&weights).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let (before, version) = (server.registry.reserved_bytes(), server.call("GET", "/models/demo").text);
    Typing::during(&server, || {
        for round in 0..100 {
            let (status, _, message) = error(&swap(server.address, &broken[round % 4]));
            let (expected, words) = [
                (404, "there is no such folder"),
                (400, "no bundle (manifest.json) or checkpoint"),
                (400, "is not a manifest that this version reads"),
                (400, "its SHA-256 differs"),
            ][round % 4];
            assert!(status == expected && message.contains(words), "{status} {message}");
        }
    });
    assert_eq!(server.call("GET", "/models/demo").text, version);
    assert_eq!(server.registry.reserved_bytes(), before);
}

fn largest_file(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.max_by_key(|file| std::fs::metadata(file).unwrap().len()).unwrap()
}

#[test]
fn without_room_for_both_the_old_version_goes_on() {
    let versions = versions();
    let one = server(&versions, 1 << 30).registry.reserved_bytes();
    let server = server(&versions, one + one / 2);
    let (status, kind, message) = error(&swap(server.address, &versions.bundles[1]));
    assert_eq!((status, kind.as_str()), (507, "out_of_memory"), "{message}");
    assert!(message.contains("MiB beside the old one, and") && message.contains("the old one goes on"), "{message}");
    assert_eq!(server.post("/models/demo/invoke", r#"{"input": "heat"}"#).status, 200);
    assert_eq!(server.registry.reserved_bytes(), one);
    let other = send(server.address, "PUT", "/models/other", &[JSON], r#"{"url": "/nowhere"}"#);
    assert_eq!(error(&other).1, "model_not_found");
}

#[test]
fn one_swap_at_a_time_and_a_panic_in_it_leaves_the_old_version() {
    let (inside, loads) = (Arc::new(Barrier::new(2)), AtomicUsize::new(0));
    let barrier = Arc::clone(&inside);
    let load = move |_: &Path| -> Result<Engine, LoadError> {
        match loads.fetch_add(1, Ordering::SeqCst) {
            1 => {
                // Once to say that loading has begun, once to be allowed to go on.
                barrier.wait();
                barrier.wait();
            }
            2 => panic!("injected"),
            _ => {}
        }
        Ok(fake_engine())
    };
    let server = RegistryServer::start(Box::new(load), RegistryLimits { bytes: 1 << 20, models: 2 });
    let put = || send(server.address, "PUT", "/models/fake", &[JSON], r#"{"url": "/v"}"#);
    assert_eq!(server.post("/models", r#"{"model_name": "fake", "url": "/v"}"#).status, 200);
    std::thread::scope(|scope| {
        let first = scope.spawn(put);
        inside.wait();
        assert_eq!(error(&put()).1, "model_exists");
        assert_eq!(server.call("DELETE", "/models/fake").status, 409);
        assert_eq!(server.post("/models", r#"{"model_name": "fake", "url": "/v"}"#).status, 409);
        assert_eq!(server.post("/models/fake/invoke", r#"{"input": "heat"}"#).status, 200);
        inside.wait();
        assert_eq!(first.join().unwrap().json()["version"], 2);
    });
    assert_eq!(put().status, 500);
    assert_eq!(server.call("GET", "/models/fake").json()["version"], 2);
    assert_eq!(put().json()["version"], 3);
}

/// A process that serves the first bundle, with a port for operators.
pub struct WithOperators {
    pub process: Process,
    pub operators: std::net::SocketAddr,
    log: Arc<Mutex<String>>,
}

impl WithOperators {
    pub fn start(model: &Path, arguments: &str) -> Self {
        let arguments = format!("--model {} --kv-pool-mib 32 --admin-port 0 {arguments}", model.display());
        let mut process = Process::start_logging(1024, &arguments, Stdio::piped());
        let mut log = BufReader::new(process.child.stderr.take().unwrap()).lines();
        let line = log.find_map(|line| line.ok().filter(|line| line.contains("operators connect here"))).unwrap();
        let address = line.split("http://").nth(1).unwrap().split(['"', ' ', '/']).next().unwrap();
        let operators = address.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        let (said, read) = (Arc::default(), log);
        let kept: Arc<Mutex<String>> = Arc::clone(&said);
        // A log that nobody reads would stop the server.
        std::thread::spawn(move || read.map_while(Result::ok).for_each(|line| *kept.lock().unwrap() += &line));
        Self { process, operators, log: said }
    }

    pub fn wait_for_log(&self, words: &str) {
        let started = Instant::now();
        while !self.log.lock().unwrap().contains(words) {
            assert!(started.elapsed() < Duration::from_secs(60), "{words:?} is never said");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn operators_swap_the_one_model_of_a_server_and_clients_cannot() {
    let versions = versions();
    let [first, second] = &versions.bundles;
    let server = WithOperators::start(first, "");
    let name = post(server.process.address, "/invocations", r#"{"input": "heat"}"#).json()["model"].clone();
    let path = format!("/models/{}", name.as_str().unwrap());
    let get = |address| send(address, "GET", &path, &[], "");
    assert_eq!(get(server.operators).json()["modelUrl"], json!(first));
    let body = json!({ "url": second }).to_string();
    assert_eq!(send(server.process.address, "PUT", &path, &[JSON], &body).status, 404);
    let swap = |folder: &Path| {
        let server = format!("http://{}", server.operators);
        Command::new(env!("CARGO_BIN_EXE_foretype"))
            .args(["swap", name.as_str().unwrap()])
            .arg(folder)
            .args(["--server", &server])
            .output()
            .unwrap()
    };
    let done = swap(second);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("has version 2 since"), "{done:?}");
    let version = get(server.operators).json();
    assert!(said.contains(version["checksum"].as_str().unwrap()) && version["modelUrl"] == json!(second), "{version}");
    assert_eq!(post(server.process.address, "/invocations", r#"{"input": "heat"}"#).status, 200);
    let failed = swap(Path::new("/nowhere"));
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("there is no such folder"), "{failed:?}");
    assert_eq!(get(server.operators).json()["version"], 2);
}
