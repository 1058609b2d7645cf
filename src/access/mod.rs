//! Who may ask: keys with their limits. The secrets are kept as hashes, compared in constant time, and never logged.
//!
//! [`bucket`] counts against limits, and [`mod@file`] follows the file of keys. No HTTP here.

pub mod bucket;
pub mod file;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use scheduler::Payer;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use self::bucket::Bucket;

/// Most keys of a file.
pub const MAX_KEYS: usize = 1000;
/// Fewest characters of a key's secret.
pub const MIN_SECRET_CHARACTERS: usize = 16;
/// Most characters of a key's name.
const MAX_NAME_CHARACTERS: usize = 64;

/// What is wrong with a file of keys. It never quotes the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The file can't be read.
    #[error("the file of keys can't be read: {0}")]
    Unreadable(std::io::ErrorKind),
    /// The file isn't JSON of the right shape.
    #[error("the file of keys is wrong at line {line} column {column}; docs/operations.md shows its form")]
    Shape {
        /// Where, from 1.
        line: usize,
        /// Where in the line, from 1.
        column: usize,
    },
    /// There are too few or too many.
    #[error("the file has {0} keys; it must have 1 to {MAX_KEYS}")]
    Count(usize),
    /// A key is wrong.
    #[error("key number {number} is wrong: {rule}")]
    Key {
        /// Which, from 1.
        number: usize,
        /// What would be right.
        rule: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileOfKeys {
    keys: Vec<KeyInFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyInFile {
    name: String,
    key: String,
    requests_per_second: Option<f64>,
    positions_per_second: Option<f64>,
    salt: Option<String>,
}

/// A key: who may ask, and how much.
pub struct Key {
    name: String,
    hash: [u8; 32],
    salt: Option<String>,
    limits: Mutex<Limits>,
}

#[derive(Clone)]
struct Limits {
    requests: Option<Bucket>,
    positions: Option<Bucket>,
}

/// The keys of a server.
#[derive(Debug, Default)]
pub struct Keys(Vec<Arc<Key>>);

impl Keys {
    /// Reads a file of keys. Keys that `before` had, with the same limits, go on where they were.
    ///
    /// # Errors
    /// See [`KeysError`].
    pub fn parse(json: &[u8], before: &Self) -> Result<Self, KeysError> {
        let file: FileOfKeys = serde_json::from_slice(json)
            .map_err(|error| KeysError::Shape { line: error.line(), column: error.column() })?;
        if !(1..=MAX_KEYS).contains(&file.keys.len()) {
            return Err(KeysError::Count(file.keys.len()));
        }
        let now = Instant::now();
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (index, read) in file.keys.into_iter().enumerate() {
            let key = Key::new(read, now).map_err(|rule| KeysError::Key { number: index + 1, rule })?;
            if keys.iter().any(|other| other.name == key.name || other.hash == key.hash) {
                let rule = "its name and its key must be no other key's";
                return Err(KeysError::Key { number: index + 1, rule });
            }
            if let Some(old) = before.0.iter().find(|old| old.name == key.name) {
                key.go_on(old);
            }
            keys.push(Arc::new(key));
        }
        Ok(Self(keys))
    }

    /// The key of a secret. How long this takes depends on the number of keys, and on nothing of theirs.
    pub fn find(&self, secret: &[u8]) -> Option<Arc<Key>> {
        let hash = hash(secret);
        let (mut found, mut index) = (Choice::from(0), 0u32);
        for (at, key) in self.0.iter().enumerate() {
            let is_this = key.hash.ct_eq(&hash);
            index.conditional_assign(&(at as u32), is_this);
            found |= is_this;
        }
        bool::from(found).then(|| Arc::clone(&self.0[index as usize]))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Key {
    fn new(read: KeyInFile, now: Instant) -> Result<Self, &'static str> {
        let KeyInFile { name, key, requests_per_second, positions_per_second, salt } = read;
        let is_named = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !(1..=MAX_NAME_CHARACTERS).contains(&name.len()) || !name.chars().all(is_named) {
            return Err("its name must be 1 to 64 letters, digits, dots, hyphens and underscores");
        }
        if key.len() < MIN_SECRET_CHARACTERS || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("its key must be at least 16 printable ASCII characters without spaces");
        }
        let is_rate = |rate: &f64| (0.001..=1e12).contains(rate);
        if ![requests_per_second, positions_per_second].iter().flatten().all(is_rate) {
            return Err("its limits must be from 0.001 to 1e12 a second");
        }
        if salt.as_ref().is_some_and(String::is_empty) {
            return Err("its salt must not be empty");
        }
        let bucket = |rate: Option<f64>| rate.map(|rate| Bucket::new(rate, now));
        let limits = Limits { requests: bucket(requests_per_second), positions: bucket(positions_per_second) };
        Ok(Self { name, hash: hash(key.as_bytes()), salt, limits: Mutex::new(limits) })
    }

    /// Takes over what was counted against the same limits.
    fn go_on(&self, old: &Self) {
        let (mut limits, old) = (self.limits(), old.limits().clone());
        let goes_on = |new: &mut Option<Bucket>, old: Option<Bucket>| {
            let rate = |bucket: &Option<Bucket>| bucket.as_ref().map(Bucket::per_second);
            if rate(new) == rate(&old) {
                *new = old;
            }
        };
        goes_on(&mut limits.requests, old.requests);
        goes_on(&mut limits.positions, old.positions);
    }

    /// The name, for logs and bills.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What separates this key's prefixes in the cache from those of other salts.
    pub fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    /// How long until this key may have positions computed again; `None` if it may now.
    pub fn debt(&self, now: Instant) -> Option<Duration> {
        self.limits().positions.as_mut().and_then(|positions| positions.wait(now))
    }

    /// Counts a request.
    ///
    /// # Errors
    /// How long to wait, and for what.
    pub fn begin(&self, now: Instant) -> Result<(), (Duration, &'static str)> {
        if let Some(wait) = self.debt(now) {
            return Err((wait, "positions"));
        }
        let mut limits = self.limits();
        let Some(requests) = &mut limits.requests else { return Ok(()) };
        if let Some(wait) = requests.wait(now) {
            return Err((wait, "requests"));
        }
        requests.take(1.0, now);
        Ok(())
    }

    /// Nothing that runs under the lock can leave the limits half changed.
    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Payer for Key {
    fn charge(&self, positions: usize) {
        if let Some(bucket) = &mut self.limits().positions {
            bucket.take(positions as f64, Instant::now());
        }
    }
}

/// Keys with the same secret and name are the same.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.hash == other.hash
    }
}

impl Eq for Key {}

/// The name only.
impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Key").field(&self.name).finish()
    }
}

fn hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(json: &str) -> Result<Keys, KeysError> {
        Keys::parse(json.as_bytes(), &Keys::default())
    }

    const ONE: &str = r#"{"keys": [
        {"name": "page", "key": "page-0123456789abcdef", "requests_per_second": 2, "salt": "a"},
        {"name": "jobs", "key": "jobs-0123456789abcdef", "positions_per_second": 100}
    ]}"#;

    #[test]
    fn a_secret_finds_its_key_and_nothing_else_does() {
        let keys = keys(ONE).unwrap();
        let name = |secret: &str| keys.find(secret.as_bytes()).map(|key| key.name().to_owned());
        assert_eq!(name("page-0123456789abcdef").as_deref(), Some("page"));
        assert_eq!(name("jobs-0123456789abcdef").as_deref(), Some("jobs"));
        for wrong in ["", "page", "page-0123456789abcdeg", "page-0123456789abcdef "] {
            assert_eq!(name(wrong), None);
        }
        let key = keys.find(b"page-0123456789abcdef").unwrap();
        assert_eq!((key.salt(), format!("{key:?}").as_str()), (Some("a"), "Key(\"page\")"));
    }

    #[test]
    fn limits_hold_and_survive_a_file_that_is_read_again() {
        let before = keys(ONE).unwrap();
        let now = Instant::now();
        let page = before.find(b"page-0123456789abcdef").unwrap();
        assert!(page.begin(now).is_ok() && page.begin(now).is_ok());
        assert_eq!(page.begin(now).unwrap_err().1, "requests");
        let jobs = before.find(b"jobs-0123456789abcdef").unwrap();
        assert!(jobs.begin(now).is_ok());
        jobs.charge(350);
        let (wait, what) = jobs.begin(now).unwrap_err();
        assert!(what == "positions" && (2..4).contains(&wait.as_secs()), "{wait:?}");
        let rotated = ONE.replace("page-0", "rotated-0");
        let after = Keys::parse(rotated.as_bytes(), &before).unwrap();
        assert!(after.find(b"page-0123456789abcdef").is_none());
        assert!(
            after.find(b"rotated-0123456789abcdef").unwrap().begin(now).is_err(),
            "a new secret is no new allowance"
        );
        let raised = ONE.replace(": 100", ": 200");
        assert!(Keys::parse(raised.as_bytes(), &before).unwrap().0[1].begin(now).is_ok());
    }

    #[test]
    fn what_is_wrong_is_told_without_a_secret() {
        let secret = "secret-0123456789abcdef";
        for (json, words) in [
            (format!(r#"{{"keys": [{{"name": "a", "key": {secret}}}]}}"#), "line 1 column"),
            (format!(r#"{{"keys": [{{"name": "a", "key": "{secret}", "rate": 1}}]}}"#), "line 1 column"),
            (r#"{"keys": []}"#.to_owned(), "has 0 keys; it must have 1 to 1000"),
            (r#"{"keys": [{"name": "a", "key": "short"}]}"#.to_owned(), "key number 1 is wrong: its key must be"),
            (format!(r#"{{"keys": [{{"name": "a b", "key": "{secret}"}}]}}"#), "its name must be"),
            (
                format!(r#"{{"keys": [{{"name": "a", "key": "{secret}", "requests_per_second": 0}}]}}"#),
                "its limits must be",
            ),
            (
                format!(r#"{{"keys": [{{"name": "a", "key": "{secret}"}}, {{"name": "b", "key": "{secret}"}}]}}"#),
                "key number 2 is wrong: its name and its key must be no other",
            ),
        ] {
            let message = keys(&json).unwrap_err().to_string();
            assert!(message.contains(words) && !message.contains("secret"), "{json}: {message}");
        }
    }
}
