//! What each fuzz target does with its bytes. `tests/suite/fuzz.rs` runs the same functions on the checked-in corpus
//! and on mutations of it, so they use nothing of the fuzzer.
//!
//! Whatever the bytes, nothing may panic, hang or ask for memory without bound; and where more is known than that, it
//! is asserted.

use std::path::{Component, Path};
use std::sync::{Arc, LazyLock};

use bundle::Manifest;
use bundle::extras::{POPULAR_FILE, PopularFiles, read_blocklist, read_popular};
use bundle::limits::{MAX_LAYERS, MAX_VOCAB};
use bundle::manifest::{WEIGHTS_FILE, seal};
use completion::popular::{Lookup, PopularQueries};
use completion::text::blocklist::Blocklist;
use completion::text::query::Query;
use completion::text::{Method, Opening, Text, TokenId};
use completion::typing::channel::{Channel, Costs};
use completion::typing::{Tolerance, Typed};
use engine_build::{BuildOptions, build, check_weights};
use foretype::access::Keys;
use foretype::engine::Completion;
use foretype::error::{Error, MAX_MESSAGE_CHARACTERS};
use foretype::http::conventions::UnknownFields;
use foretype::http::openai::CompletionRequest;
use foretype::http::suggest::Invocation;
use foretype::http::{body, json, lines, plain};

#[path = "operators.rs"]
mod operators;

pub use self::operators::operators;

/// A target: its name, which is its corpus' folder, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("request_body", request_body),
    ("tokenizer_input", tokenizer_input),
    ("safetensors", safetensors),
    ("torch", torch),
    ("manifest", manifest),
    ("tokenizer_json", tokenizer_json),
    ("operators", operators),
    ("typing", typing),
    ("extras", extras),
    ("keys", keys),
    ("config", config),
];

const METHODS: [Method; 3] = [Method::Exact, Method::Healed, Method::Naive];

/// Characters of a text that openings are made of; requests have a limit, too.
const CHARACTERS: usize = 200;

/// Something that reads a request's body.
type Parser = fn(&[u8]) -> Result<(), Error>;

/// All parsers.
const PARSERS: [Parser; 4] = [invocation, any_schema, json_lines, completion];

/// The room of a model, as far as a body's reader needs to know.
const CONTEXT: usize = 128;

/// The body of `POST /invocations`, whichever schema it is of.
fn any_schema(data: &[u8]) -> Result<(), Error> {
    for unknown in [UnknownFields::Ignore, UnknownFields::Refuse] {
        match body::read(data, unknown)? {
            body::Body::Generate(request) => drop(request.plan(CONTEXT, || 0)?),
            body::Body::Complete(request) => drop(request.plan()?),
            body::Body::Suggest(_) | body::Body::Session(_) => {}
        }
    }
    drop(plain::csv(data));
    plain::text(data).map(drop)
}

/// Parses each line of a body of JSON Lines.
fn json_lines(data: &[u8]) -> Result<(), Error> {
    lines::split(data).into_iter().try_for_each(|line| any_schema(&data[line]))
}

/// The body of `POST /v1/completions`.
fn completion(data: &[u8]) -> Result<(), Error> {
    json::parse::<CompletionRequest>(data)?.plan().map(drop)
}

/// The body of `POST /invocations`.
fn invocation(body: &[u8]) -> Result<(), Error> {
    let completion = Completion::from(json::parse::<Invocation>(body)?);
    drop(Query::new(&completion.input, CHARACTERS));
    Ok(())
}

/// A request's body. A refusal says why, in words that fit into one JSON string.
pub fn request_body(data: &[u8]) {
    for parser in PARSERS {
        if let Err(error) = parser(data) {
            let characters = error.message.chars().count();
            assert!((1..=MAX_MESSAGE_CHARACTERS).contains(&characters), "{error:?}");
            serde_json::to_string(&error.message).expect("any string is JSON");
        }
    }
}

static DEMO: LazyLock<Text> = LazyLock::new(|| {
    let json = include_str!("../../models/demo/tokenizer.json");
    Text::from_json(json, TokenId(0), &[TokenId(0)], "").expect("the demo's tokenizer")
});

/// Any text, typed into the demo's tokenizer.
pub fn tokenizer_input(data: &[u8]) {
    assert_eq!(DEMO.inexact_because(), None, "the demo's tokenizer is of GPT-2's kind");
    complete(&DEMO, &String::from_utf8_lossy(data));
}

/// Encodes a text and makes its openings, and checks what must hold of them.
fn complete(text: &Text, typed: &str) {
    let typed: String = typed.chars().take(CHARACTERS).collect();
    drop(Query::new(&typed, CHARACTERS));
    let typed = text.normalized(&typed).into_owned();
    let exact = text.inexact_because().is_none() && text.is_encodable(&typed);
    if exact {
        let spelled = spell(text, &typed, &text.encode(&typed));
        assert_eq!(spelled, typed.as_bytes(), "the tokens of {typed:?} spell something else");
    }
    for method in METHODS {
        for opening in text.openings(&typed, method) {
            if exact {
                check_opening(text, &typed, method, &opening);
            }
        }
    }
}

/// A path with one of its extensions covers what was typed, and the method's own rule lets it be.
fn check_opening(text: &Text, typed: &str, method: Method, opening: &Opening) {
    let path = spell(text, typed, &opening.path);
    let mut rule = Some(text.rule(method));
    for token in &opening.path {
        rule = rule.and_then(|rule| text.follow(&rule, *token));
    }
    let rule = rule.unwrap_or_else(|| panic!("{method:?} refuses its own path {opening:?} for {typed:?}"));
    match &opening.extensions {
        None => assert_eq!(path, typed.as_bytes(), "{method:?}: a whole path for {typed:?}"),
        Some(extensions) => {
            assert!(typed.as_bytes().starts_with(&path), "{method:?}: a path beside {typed:?}");
            let rest = &typed.as_bytes()[path.len()..];
            for &token in extensions {
                let bytes = bytes_at(text, typed, opening.path.len(), token);
                assert!(bytes.starts_with(rest), "{method:?}: token {token:?} doesn't cover {typed:?}");
                if method == Method::Exact {
                    assert!(text.follow(&rule, token).is_some(), "{token:?} after {opening:?} for {typed:?}");
                }
            }
        }
    }
}

/// What tokens spell at the beginning of a text that begins like `typed`.
fn spell(text: &Text, typed: &str, tokens: &[TokenId]) -> Vec<u8> {
    let bytes = |(index, &token)| bytes_at(text, typed, index, token);
    tokens.iter().enumerate().flat_map(bytes).copied().collect()
}

fn bytes_at<'a>(text: &'a Text, typed: &str, index: usize, token: TokenId) -> &'a [u8] {
    let bytes = if index == 0 { text.first_bytes(token, text.adds_space(typed)) } else { text.bytes(token) };
    bytes.unwrap_or_default()
}

/// A weights file: its header, and all values that it says it has.
pub fn safetensors(data: &[u8]) {
    let folder = scratch();
    std::fs::write(folder.path().join("model.safetensors"), data).expect("the file can be written");
    if let Ok(values) = check_weights(folder.path()) {
        assert!(values <= data.len() as u64 / 2, "{values} values of {} bytes", data.len());
    }
}

/// A weights file of PyTorch: its archive, its pickle, and all values that it says it has.
pub fn torch(data: &[u8]) {
    let folder = scratch();
    std::fs::write(folder.path().join("pytorch_model.bin"), data).expect("the file can be written");
    if let Err(refusal) = check_weights(folder.path()) {
        let words = refusal.to_string();
        assert!(!words.contains(char::is_control) && words.len() < 1000, "{words:?}");
    }
}

/// In memory where the machine has such a folder: a file is written for every input.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a temporary folder")
}

/// A bundle's manifest. What is accepted is written as it was read.
pub fn manifest(data: &[u8]) {
    let path = Path::new("manifest.json");
    // With its checksum put right, which no mutation would hit.
    let sealed = seal(data);
    let Ok(manifest) = Manifest::parse(path, sealed.as_deref().unwrap_or(data)) else { return };
    let mut written = manifest.clone();
    let json = written.to_json().expect("a manifest is JSON");
    written.checksum.clone_from(&manifest.checksum);
    assert_eq!(written, manifest);
    Manifest::parse(path, &json).expect("what was accepted once");
    // Its sizes are those of a model: none overflows what a server makes of them.
    let model = &manifest.model;
    assert!(model.vocab_padded >= model.vocab && model.vocab <= MAX_VOCAB && model.layers <= MAX_LAYERS);
    let page = 2 * u128::from(model.layers) * u128::from(model.kv_heads) * u128::from(model.head_dim);
    let weights = manifest.file(WEIGHTS_FILE).map_or(0, |file| u128::from(file.bytes));
    assert!(page <= weights, "a position of the cache has {page} elements, the weights {weights} bytes");
    let inside = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    assert!(manifest.files.iter().all(|file| inside(&file.path)), "a file outside the bundle");
}

/// A `tokenizer.json`, and some texts typed into what it describes.
pub fn tokenizer_json(data: &[u8]) {
    let Ok(json) = std::str::from_utf8(data) else { return };
    let Ok(text) = Text::from_json(json, TokenId(0), &[TokenId(1)], "") else { return };
    for typed in ["a", "ab c", " né", "\u{1f600} x", "wireless char", "a  b\t"] {
        complete(&text, typed);
    }
    for id in (0..300).chain([u32::MAX]) {
        text.role(TokenId(id));
        text.bytes(TokenId(id));
    }
}

/// The probabilities of typing errors. What is accepted is written as it was read.
pub fn typing(data: &[u8]) {
    let Ok(json) = std::str::from_utf8(data) else { return };
    let Ok(channel) = Channel::from_json(json) else { return };
    let written = serde_json::to_string(&channel).expect("a channel is JSON");
    let again = Channel::from_json(&written).expect("what was accepted once");
    assert_eq!(serde_json::to_string(&again).expect("a channel is JSON"), written);
}

/// A blocklist, popular queries as lines, and their map and counts as a bundle has them.
pub fn extras(data: &[u8]) {
    let folder = scratch();
    let path = folder.path().join(POPULAR_FILE);
    std::fs::write(&path, data).expect("the file can be written");
    if let Ok(terms) = read_blocklist(&path) {
        drop(Blocklist::new(terms.iter().map(String::as_str)));
    }
    if let Ok(counts) = read_popular(&path) {
        let files = PopularFiles::new(&counts).expect("sorted keys make a map");
        let popular = PopularQueries::new(files.map, &files.counts).expect("the files belong together");
        for query in counts.keys().take(8) {
            let typed = query.chars().next().map(String::from).unwrap_or_default();
            let found = popular.find(Lookup::new(&typed, None, 3));
            assert!(found.hits.iter().all(|hit| hit.text.starts_with(&typed) && (0.0..=1.0).contains(&hit.joint)));
        }
        look_up(&popular);
    }
    // The first byte says how many counts stand at the end.
    let counts = data.first().map_or(0, |&count| 8 * usize::from(count));
    let (map, counts) = data.split_at(data.len().saturating_sub(counts));
    if let Ok(popular) = PopularQueries::new(map.to_vec(), counts) {
        look_up(&popular);
    }
}

fn look_up(popular: &PopularQueries) {
    static COSTS: LazyLock<Arc<Costs>> = LazyLock::new(|| Arc::new(Channel::default().costs()));
    let typed = "heta pump";
    drop(popular.find(Lookup::new(typed, None, 3)));
    drop(popular.find(Lookup::new(typed, Typed::tolerant(typed, Tolerance::Auto, &COSTS).as_ref(), 3)));
}

/// A file of keys. Every key that is accepted is found by its secret alone.
pub fn keys(data: &[u8]) {
    let Ok(keys) = Keys::parse(data, &Keys::default()) else { return };
    let read: serde_json::Value = serde_json::from_slice(data).expect("what was accepted is JSON");
    let read = read["keys"].as_array().expect("a list of keys");
    assert_eq!(keys.len(), read.len());
    for key in read {
        let secret = key["key"].as_str().expect("a secret");
        let found = keys.find(secret.as_bytes()).expect("the secret of a key");
        assert_eq!(Some(found.name()), key["name"].as_str());
        assert!(keys.find(&secret.as_bytes()[1..]).is_none_or(|other| other.name() != found.name()));
    }
    // The same file again: each key goes on.
    assert_eq!(Keys::parse(data, &keys).expect("what was accepted once").len(), keys.len());
}

/// The small checkpoints, by the `model_type` of their configuration; another one is taken for GPT-2's.
const CHECKPOINTS: [(&str, &str); 8] = [
    ("bloom", "bloom"),
    ("gpt_neo", "neo"),
    ("gpt_neox", "neox"),
    ("gptj", "gptj"),
    ("llama", "llama"),
    ("mistral", "mistral"),
    ("qwen2", "qwen2"),
    ("opt", "opt"),
];

/// A `config.json`, beside the weights and the tokenizer of a small checkpoint of its family. A refusal has words; the
/// manifest of a bundle that is built can be read.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let named = CHECKPOINTS.iter().find(|(family, _)| text.contains(&format!("\"{family}\"")));
    // Of the root package, whose suite runs this, or of the fuzzer's in the folder below.
    let mut roots = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("tests/goldens"));
    let goldens = roots.find(|folder| folder.is_dir()).expect("the repository's goldens");
    let golden = goldens.join(named.map_or("bare", |(_, folder)| folder));
    let folder = scratch();
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::os::unix::fs::symlink(golden.join(file), folder.path().join(file)).expect("a link can be made");
    }
    std::fs::write(folder.path().join("config.json"), data).expect("the file can be written");
    let out = folder.path().join("out");
    match build(&BuildOptions::new(folder.path(), &out), &()) {
        Err(refusal) => assert!(!refusal.to_string().is_empty() && !out.exists()),
        Ok(manifest) => {
            let path = out.join("manifest.json");
            let written = std::fs::read(&path).expect("the manifest of a bundle");
            let read = Manifest::parse(&path, &written).expect("what a build writes can be read");
            assert_eq!((read.model, read.tokens), (manifest.model, manifest.tokens));
        }
    }
}
