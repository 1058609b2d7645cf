//! No bundle, however wrong, ends the process, takes memory beyond the budget or disturbs another model: each is
//! refused in a sentence.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bundle::manifest::{self, FILE, GRAPH_FILE, TOKENIZER_FILE, WEIGHTS_FILE};
use foretype::models::folder::{self, IntakeOptions, ModelFolder};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::http_client::{error, post, send};
use crate::onnx_edit::{integers, with_integers};
use crate::support::{Answer, build, build_with, repository};

/// Wrong bundles, of which `make test` tries a tenth.
const CASES: usize = 200;
/// Memory of all models of a server here, in MiB.
const BUDGET_MIB: u64 = 160;

/// A server of models by name, in a process of its own.
pub struct Server {
    process: Child,
    pub address: std::net::SocketAddr,
    _cache: tempfile::TempDir,
}

impl Server {
    pub fn start(models_mib: u64) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_foretype"))
            .args(["serve", "--multi-model", "--port", "0", "--threads", "1", "--lanes", "4"])
            .env("FORETYPE_LOG", "error")
            .args(["--kv-pool-mib", "16", "--prefix-cache-mib", "8", "--models-mib", &models_mib.to_string()])
            .arg("--cache")
            .arg(cache.path())
            .env_remove("FORETYPE_MODEL")
            // The symbols of a backtrace take more memory than the models here.
            .env_remove("RUST_BACKTRACE")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        Self { address: address.parse().unwrap(), process, _cache: cache }
    }

    pub fn load(&self, name: &str, folder: &Path) -> Answer {
        post(self.address, "/models", &json!({"model_name": name, "url": folder}).to_string())
    }

    pub fn complete(&self, name: &str) -> Answer {
        post(self.address, &format!("/models/{name}/invoke"), r#"{"input": "heat ex", "suggestions": 2}"#)
    }

    /// The most memory that the process ever had, in MiB.
    fn peak_mib(&self) -> u64 {
        self.status_mib("VmHWM:")
    }

    /// The memory that the process has now, in MiB.
    pub fn resident_mib(&self) -> u64 {
        self.status_mib("VmRSS:")
    }

    /// What the GNU C library has reserved for each arena that threads have beside the main one.
    pub fn arenas(&self) -> usize {
        const RESERVED: u64 = 64 << 20;
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.process.id())).unwrap();
        let is_reserved = |line: &&str| {
            let mut fields = line.split_whitespace();
            let range = fields.next().and_then(|range| range.split_once('-')).unwrap();
            let [start, end] = [range.0, range.1].map(|address| u64::from_str_radix(address, 16).unwrap());
            // What isn't used yet of a reservation: it ends where that does.
            fields.next() == Some("---p") && end.is_multiple_of(RESERVED) && end - start > RESERVED / 4
        };
        maps.lines().filter(is_reserved).count()
    }

    fn status_mib(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() >> 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// What is done to a bundle.
#[derive(Clone, Debug)]
enum Wrong {
    /// A number of the manifest, by its JSON pointer.
    Number(String, u64),
    /// An integer attribute of the graph: its name, its place among all of them, its value.
    Attribute(String, usize, i64),
    /// A file ends early, at this share of it.
    Cut(&'static str, f64),
    /// A bit of a file is flipped, at this share of it.
    Flip(&'static str, f64),
}

impl Wrong {
    fn apply(&self, bundle: &Path) {
        let change = |name: &str, change: &mut dyn FnMut(Vec<u8>) -> Vec<u8>| {
            let path = bundle.join(name);
            fs::write(&path, change(fs::read(&path).unwrap())).unwrap();
        };
        let at = |share: f64, bytes: &[u8]| ((bytes.len() as f64 * share) as usize).min(bytes.len() - 1);
        match self {
            Wrong::Number(pointer, value) => change(FILE, &mut |bytes| {
                let mut manifest: Value = serde_json::from_slice(&bytes).unwrap();
                *manifest.pointer_mut(pointer).unwrap() = json!(value);
                serde_json::to_vec(&manifest).unwrap()
            }),
            Wrong::Attribute(changed, place, value) => change(GRAPH_FILE, &mut |bytes| {
                let mut next = 0;
                with_integers(&bytes, &mut |name, old| {
                    next += 1;
                    if (next - 1, name) == (*place, changed.as_str()) { *value } else { old }
                })
            }),
            Wrong::Cut(name, share) => change(name, &mut |bytes| bytes[..at(*share, &bytes)].to_vec()),
            Wrong::Flip(name, share) => change(name, &mut |mut bytes| {
                let at = at(*share, &bytes);
                bytes[at] ^= 1 << (at % 8);
                bytes
            }),
        }
    }
}

/// Puts sizes and checksums right: those of the files first, then the manifest's own.
fn repair(bundle: &Path) {
    let path = bundle.join(FILE);
    let Ok(mut manifest) = serde_json::from_slice::<Value>(&fs::read(&path).unwrap()) else { return };
    for entry in manifest["files"].as_array_mut().into_iter().flatten() {
        let Some(content) = entry["path"].as_str().and_then(|name| fs::read(bundle.join(name)).ok()) else { continue };
        entry["sha256"] = manifest::hexadecimal(&Sha256::digest(&content)).into();
        // A size that is the number that is wrong stays so.
        if entry["bytes"].as_u64().is_some_and(|bytes| ![0, 1, HUGE].contains(&bytes)) {
            entry["bytes"] = content.len().into();
        }
    }
    if let Some(sealed) = manifest::seal(&serde_json::to_vec(&manifest).unwrap()) {
        fs::write(&path, sealed).unwrap();
    }
}

const HUGE: u64 = 4_000_000_000;

/// The pointers to all numbers in a JSON value.
fn numbers(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(pointer.to_owned()),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| numbers(value, &format!("{pointer}/{i}"), found));
        }
        Value::Object(map) => map.iter().for_each(|(key, value)| numbers(value, &format!("{pointer}/{key}"), found)),
        _ => {}
    }
}

/// All that is tried, in a seeded order: each number at 0, 1 and huge, each file cut and flipped.
fn all_wrong(bundle: &Path, rng: &mut StdRng) -> Vec<Wrong> {
    let manifest: Value = serde_json::from_slice(&fs::read(bundle.join(FILE)).unwrap()).unwrap();
    let mut pointers = Vec::new();
    numbers(&manifest, "", &mut pointers);
    let values = pointers.iter().flat_map(|pointer| [0, 1, HUGE].map(|value| (pointer, value)));
    let other = values.filter(|(pointer, value)| manifest.pointer(pointer) != Some(&json!(value)));
    let mut all: Vec<Wrong> = other.map(|(pointer, value)| Wrong::Number(pointer.clone(), value)).collect();
    for name in [FILE, GRAPH_FILE, WEIGHTS_FILE, TOKENIZER_FILE] {
        for _ in 0..8 {
            all.extend([Wrong::Cut(name, rng.random()), Wrong::Flip(name, rng.random())]);
        }
    }
    let attributes = integers(&fs::read(bundle.join(GRAPH_FILE)).unwrap());
    let mut changed: Vec<Wrong> = Vec::new();
    for (place, (name, old)) in attributes.into_iter().enumerate() {
        let values = [0, 1, 2 * old + 1, 4_000_000_000, i64::MAX, -1];
        let other = values.iter().filter(|&&value| value != old);
        changed.extend(other.map(|&value| Wrong::Attribute(name.clone(), place, value)));
    }
    changed.shuffle(rng);
    changed.truncate(CASES.saturating_sub(all.len()).max(CASES / 4));
    all.extend(changed);
    all.shuffle(rng);
    all.truncate(CASES);
    all
}

fn copy(bundle: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(bundle).unwrap().flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Loads a wrong bundle. It must be refused in a sentence, or, where `may_work`, answer like any model.
fn try_bundle(server: &Server, folder: &Path, what: &str, may_work: bool) -> bool {
    let answer = server.load("wrong", folder);
    let refused = answer.status != 200;
    if refused {
        let (status, _, message) = error(&answer);
        assert!([400, 507].contains(&status) && message.split(' ').count() > 5, "{what}: {answer:?}");
        assert!(!message.contains("panic"), "{what}: {answer:?}");
    } else {
        assert!(may_work, "{what} was loaded");
        let answered = server.complete("wrong").status;
        assert!([200, 400, 500, 503].contains(&answered), "{what}: {answered}");
        assert_eq!(send(server.address, "DELETE", "/models/wrong", &[], "").status, 200, "{what}");
    }
    assert_eq!(server.complete("other").status, 200, "after {what}");
    refused
}

#[test]
fn wrong_bundles_are_refused_in_a_sentence_and_others_are_not_disturbed() {
    let (folder, bundle, _) = build(&repository("tests/goldens/plain"), None);
    let server = Server::start(BUDGET_MIB);
    assert_eq!(server.load("other", &bundle).status, 200);
    let mut rng = StdRng::seed_from_u64(7);
    let cases = all_wrong(&bundle, &mut rng);
    assert_eq!(cases.len(), CASES);
    let (mut refused, mut tried) = (0, 0);
    for (number, wrong) in cases.iter().take(require::cases(CASES)).enumerate() {
        for repaired in [false, true] {
            let copied = folder.path().join(format!("{number}-{repaired}"));
            copy(&bundle, &copied);
            wrong.apply(&copied);
            if repaired {
                repair(&copied);
            }
            // With checksums put right only what makes no sense can be told.
            refused += usize::from(try_bundle(&server, &copied, &format!("{wrong:?}, {repaired}"), repaired));
            tried += 1;
            fs::remove_dir_all(&copied).unwrap();
        }
    }
    let peak = server.peak_mib();
    assert!(10 * peak <= 12 * BUDGET_MIB, "{peak} MiB of {BUDGET_MIB}");
    println!("{refused} of {tried} wrong bundles are refused, at most {peak} MiB of memory");
}

#[test]
fn numbers_that_ask_for_too_much_are_named() {
    let (folder, bundle, _) = build(&repository("tests/goldens/plain"), None);
    let server = Server::start(BUDGET_MIB);
    assert_eq!(server.load("other", &bundle).status, 200);
    let number = |pointer: &str, value| Wrong::Number(pointer.to_owned(), value);
    let attributes = integers(&fs::read(bundle.join(GRAPH_FILE)).unwrap());
    let outputs = |(_, (name, _)): &(usize, (String, i64))| name.ends_with(".outputs");
    let (place, (name, outputs)) = attributes.into_iter().enumerate().find(outputs).unwrap();
    let doubled = Wrong::Attribute(name, place, 2 * outputs);
    for (wrong, words) in [
        (number("/model/vocab", 400_000_000), "`vocab` is 400000000"),
        (number("/model/head_dim", 1_000_000_000), "`head_dim` is 1000000000"),
        (number("/model/layers", 100_000_000), "`layers` is 100000000"),
        (number("/model/layers", 1000), "the manifest's sizes need at least"),
        (number("/model/context", 8), "model.onnx doesn't fit its manifest"),
        (doubled, "`outputs`"),
    ] {
        let copied = folder.path().join("wrong");
        copy(&bundle, &copied);
        wrong.apply(&copied);
        repair(&copied);
        let (status, _, message) = error(&server.load("wrong", &copied));
        assert!(status == 400 && message.contains(words), "{wrong:?}: {status} {message}");
        assert_eq!(server.complete("other").status, 200, "{wrong:?}");
    }
    assert!(10 * server.peak_mib() <= 12 * BUDGET_MIB);
}

#[test]
fn a_template_that_leaves_no_room_is_refused() {
    let (_folder, bundle, _) = build_with(&repository("tests/goldens/plain"), |options| options.context = Some(8));
    std::fs::write(bundle.join("template.txt"), "a template of many tokens: {input}").unwrap();
    let (status, _, message) = error(&Server::start(BUDGET_MIB).load("wrong", &bundle));
    assert!(status == 400 && message.contains("template.txt") && message.contains("shorten it"), "{status} {message}");
}

#[test]
fn loads_beside_each_other_keep_the_budget() {
    let (_folder, bundle, _) = build(&repository("models/demo"), None);
    let needed = |message: &str| message.split("needs ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    let needed_mib = needed(&error(&Server::start(20).load("a", &bundle)).2).unwrap();
    let budget_mib = 2 * needed_mib + needed_mib / 2;
    let server = Server::start(budget_mib);
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let (server, bundle) = (&server, &bundle);
        let loads: Vec<_> =
            (0..30).map(|number| scope.spawn(move || server.load(&format!("m{number}"), bundle))).collect();
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    let (loaded, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((loaded.len(), refused.len()), (2, 28));
    for answer in refused {
        let (status, kind, message) = error(answer);
        assert!(status == 507 && kind == "out_of_memory" && needed(&message) == Some(needed_mib), "{message}");
    }
    let peak = server.peak_mib();
    assert!(10 * peak <= 12 * budget_mib, "{peak} MiB of {budget_mib}");
}

#[test]
fn a_damaged_bundle_in_the_cache_is_built_again() {
    let cache = tempfile::tempdir().unwrap();
    let options = IntakeOptions::new(cache.path().to_owned());
    let source = ModelFolder::Checkpoint(repository("tests/goldens/plain"));
    let (built, manifest) = folder::open(&source, &options, &()).unwrap();
    let whole = fs::read(built.join(WEIGHTS_FILE)).unwrap();
    let damages = [FILE, GRAPH_FILE, WEIGHTS_FILE, TOKENIZER_FILE].map(|name| Wrong::Flip(name, 0.5));
    let start = Wrong::Number("/tokens/start".to_owned(), 1);
    for damage in damages.into_iter().chain([start, Wrong::Cut(WEIGHTS_FILE, 0.9), Wrong::Cut(FILE, 0.0)]) {
        damage.apply(&built);
        let (again, read) = folder::open(&source, &options, &()).unwrap_or_else(|e| panic!("{damage:?}: {e}"));
        assert_eq!((&again, &read.files), (&built, &manifest.files), "{damage:?}");
        assert_eq!(fs::read(built.join(WEIGHTS_FILE)).unwrap(), whole, "{damage:?}");
        read.verify_checksums(&again).unwrap();
    }
    fs::remove_file(built.join(FILE)).unwrap();
    folder::open(&source, &options, &()).unwrap();
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn weights_that_are_a_link_are_refused_at_load_and_pack_alike() {
    let (folder, bundle, manifest) = build(&repository("tests/goldens/plain"), None);
    let elsewhere: PathBuf = folder.path().join("blob");
    fs::rename(bundle.join(WEIGHTS_FILE), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, bundle.join(WEIGHTS_FILE)).unwrap();
    let refused = manifest.verify(&bundle).unwrap_err().to_string();
    assert!(refused.contains("model.weights is a link"), "{refused}");
    let options = IntakeOptions::new(folder.path().join("cache"));
    let error = folder::open(&ModelFolder::Bundle(bundle.clone()), &options, &()).unwrap_err().to_string();
    assert_eq!(error, refused);
    let packed = Command::new(env!("CARGO_BIN_EXE_foretype"))
        .arg("pack")
        .arg(&bundle)
        .arg("--out")
        .arg(folder.path().join("model.tar.gz"))
        .output()
        .unwrap();
    assert!(!packed.status.success() && String::from_utf8_lossy(&packed.stderr).contains(&refused), "{packed:?}");
}

#[test]
fn a_build_that_met_a_full_disk_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (small, socket) = (folder.path().join("small"), folder.path().join("socket"));
    fs::create_dir(&small).unwrap();
    // A file system of its own, with room for a part of the bundle, until a file in it is removed.
    let script = format!(
        "mount -t tmpfs -o size=2m none {small} && head -c 1900k /dev/zero > {small}/ballast && echo mounted && \
         (sleep 4; rm {small}/ballast) & sleep 1; \
         exec {binary} serve --model {model} --cache {small} --socket {socket}",
        small = small.display(),
        binary = env!("CARGO_BIN_EXE_foretype"),
        model = repository("tests/goldens/plain").display(),
        socket = socket.display(),
    );
    let alone = Command::new("unshare").args(["-rm", "true"]).output();
    if !alone.is_ok_and(|output| output.status.success()) {
        return require::skip("a full disk", "`unshare -rm` isn't allowed here, so no small file system can be made");
    }
    let mut server = Command::new("unshare").args(["-rm", "sh", "-c", &script]).stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(server.stderr.take().unwrap());
    let mut lines = log.lines().map_while(Result::ok);
    let (mut seen, mut full) = (String::new(), false);
    let ready = lines.any(|line| {
        full |= line.contains("there is no room for the model");
        seen += &format!("{line}\n");
        line.contains(" ready")
    });
    drop(server.kill());
    drop(server.wait());
    assert!(full && ready, "{seen}");
}
