//! Downloads from servers of our own that speak the Hub's, a web server's and S3's protocol, and that fail as
//! such servers do.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sources::{Options, Progress, Source, SourceError, fetch};

use server::{Fault, REVISION, Standin, WEIGHTS, sha256};

/// Bytes that differ everywhere.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(next).collect()
}

/// A Hub with `org/tiny`, whose weights have so many bytes and this checksum.
fn hub(weights: &[u8], checksum: &str, size: u64) -> Standin {
    let small: [(&str, &[u8]); 3] = [("config.json", b"{}"), ("tokenizer.json", b"[1]"), ("README.md", b"# Hi\n")];
    Standin::hub(&small, weights, (checksum, size))
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

/// S3 with a folder of one checkpoint, whose weights are said to have so many bytes.
fn s3(weights: &[u8], size: u64) -> Standin {
    let standin = Standin::start();
    let object = |name: &str, bytes: u64| {
        format!(
            "<Contents><Key>a/b/{name}</Key><LastModified>2026-11-25T00:00:00Z</LastModified><ETag>\"{name}\"</ETag>\
             <Size>{bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    };
    let list = format!(
        "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><Prefix>a/b/</Prefix><KeyCount>3</KeyCount>\
         <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{}{}{}</ListBucketResult>",
        object("config.json", 2),
        object("model.safetensors", size),
        object("notes.txt", 7)
    );
    for path in S3_LISTS {
        standin.put(path, &list);
    }
    standin.put("/bucket/a/b/config.json", "{}");
    standin.put(S3_WEIGHTS, weights);
    standin
}

/// The parameters of a listing come in any order.
const S3_LISTS: [&str; 2] =
    ["/bucket?list-type=2&prefix=a%2Fb%2F&delimiter=%2F", "/bucket?delimiter=%2F&list-type=2&prefix=a%2Fb%2F"];
const S3_WEIGHTS: &str = "/bucket/a/b/model.safetensors";

fn s3_options(folder: &Path, standin: &Standin) -> Options {
    let variables = [
        ("AWS_ENDPOINT_URL", &*standin.url),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("TOKEN", "none of the store's"),
    ];
    options(folder, &variables)
}

#[test]
fn a_folder_of_s3_is_listed_and_read_in_parts_whatever_goes_wrong_between() {
    let weights = content(40_000);
    let standin = s3(&weights, 40_000);
    let slow = Fault::Slow(Duration::from_secs(3));
    let faults = [Fault::Cut(100), Fault::Status(503), slow, Fault::TooMany(1), Fault::Status(500), Fault::Cut(0)];
    standin.fail(S3_WEIGHTS, &faults);
    for path in S3_LISTS {
        standin.fail(path, &[Fault::TooMany(1), Fault::Cut(200)]);
    }
    let folder = tempfile::tempdir().unwrap();
    let found: PathBuf = fetch(&source("s3://bucket/a/b"), &s3_options(folder.path(), &standin), &())
        .unwrap_or_else(|error| panic!("{error}: {:?}", standin.asked()));
    assert_eq!(names(&found), ["config.json", "model.safetensors"]);
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
    assert!(
        standin.asked().iter().all(|asked| asked.token.as_deref().is_some_and(|t| t.starts_with("AWS4-HMAC-SHA256")))
    );
}

#[test]
fn what_s3_cannot_give_is_told() {
    let weights = content(40_000);
    // 50 GB are promised, and the disk has no room, or far fewer come.
    let standin = s3(&weights, 1 << 50);
    let folder = tempfile::tempdir().unwrap();
    let said = fetch(&source("s3://bucket/a/b"), &s3_options(folder.path(), &standin), &()).unwrap_err().to_string();
    assert!(said.contains("needs 1073741825 MiB more") && said.contains("make room"), "{said}");
    assert!(standin.asked().iter().all(|asked| !asked.path.contains("safetensors")), "nothing is downloaded");

    let standin = s3(&weights, 50_000);
    standin.fail(S3_WEIGHTS, &[Fault::Cut(0); 60]);
    let folder = tempfile::tempdir().unwrap();
    let said = fetch(&source("s3://bucket/a/b"), &s3_options(folder.path(), &standin), &()).unwrap_err().to_string();
    assert!(said.contains("model.safetensors can't be downloaded"), "{said}");

    // Another content under the same name: no part of it is put beside those of the first.
    let standin = s3(&weights, 40_000);
    standin.fail(S3_WEIGHTS, &[Fault::Status(412); 60]);
    let folder = tempfile::tempdir().unwrap();
    let said = fetch(&source("s3://bucket/a/b"), &s3_options(folder.path(), &standin), &()).unwrap_err().to_string();
    assert!(said.contains("model.safetensors can't be downloaded"), "{said}");

    let standin = s3(&weights, 40_000);
    standin.fail(S3_WEIGHTS, &[Fault::Status(403); 60]);
    let folder = tempfile::tempdir().unwrap();
    let said = fetch(&source("s3://bucket/a/b"), &s3_options(folder.path(), &standin), &()).unwrap_err().to_string();
    assert!(said.contains("403") && said.contains("AWS_ACCESS_KEY_ID"), "{said}");
}

#[test]
fn a_download_from_s3_that_was_stopped_goes_on_where_it_was() {
    let weights = content(400_000);
    let standin = s3(&weights, 400_000);
    let folder = tempfile::tempdir().unwrap();
    let options = s3_options(folder.path(), &standin);
    let until = Until { left: 200_000, seen: AtomicU64::new(0) };
    let stopped = fetch(&source("s3://bucket/a/b"), &options, &until).unwrap_err();
    assert!(matches!(stopped, SourceError::Cancelled), "{stopped}");
    standin.sent();
    let found = fetch(&source("s3://bucket/a/b"), &options, &()).unwrap();
    assert_eq!(std::fs::read(found.join("model.safetensors")).unwrap(), weights);
    let sent = standin.sent();
    assert!(sent <= 200_000 + 4 * 4096, "{sent} bytes were sent again");
}
