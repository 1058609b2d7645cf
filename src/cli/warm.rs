//! `--warm-from`: what people type at another server is computed before this one says that it is ready.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::client::{KeyArgs, percent_encoded};
use crate::engine::{Engine, HotText, MAX_HOT_TEXTS};

/// Time that the other server has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Time to compute in. What isn't computed then is left to those who type it.
const WARM_WITHIN: Duration = Duration::from_secs(30);

/// What `GET /models/{name}/prefixes` answers.
#[derive(Deserialize)]
struct Exported {
    prefixes: Vec<HotText>,
}

/// Computes what another server, or a file of its answer, names. A server that can't be had is no reason not to start.
pub(super) fn warm(engine: &Engine, from: &str) {
    let started = Instant::now();
    match read(engine.name(), from) {
        Ok(Exported { mut prefixes }) => {
            prefixes.truncate(MAX_HOT_TEXTS);
            let (prefixes, warmed) = (prefixes.len(), engine.warm(prefixes, WARM_WITHIN));
            let elapsed_ms = started.elapsed().as_millis() as u64;
            tracing::info!(from, prefixes, warmed, elapsed_ms, "computed what people type elsewhere");
        }
        Err(reason) => tracing::warn!(from, reason, "starting cold"),
    }
}

fn read(name: &str, from: &str) -> Result<Exported, String> {
    let json = if from.contains("://") {
        KeyArgs::default().send("GET", &address(name, from), None, Some(ANSWER_WITHIN))?
    } else {
        std::fs::read_to_string(Path::new(from)).map_err(|error| error.to_string())?
    };
    serde_json::from_str(&json).map_err(|error| {
        format!("{error}; name what GET /models/NAME/prefixes answered, or the address of a server's operators")
    })
}

/// The address of a model's prefixes: as it was given, or of the model with this server's name if only a server was.
fn address(name: &str, from: &str) -> String {
    let server = from.trim_end_matches('/');
    match server.split_once("://") {
        Some((_, host)) if !host.contains('/') => format!("{server}/models/{}/prefixes", percent_encoded(name)),
        _ => from.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_the_model_of_the_same_name() {
        assert_eq!(address("a b", "http://host:81/"), "http://host:81/models/a%20b/prefixes");
        assert_eq!(address("a", "http://host/models/b/prefixes?a=9"), "http://host/models/b/prefixes?a=9");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        assert!(read("a", "/nowhere").is_err_and(|reason| reason.contains("No such file")));
        assert!(read("a", "http://127.0.0.1:9").is_err_and(|reason| reason.contains("/models/a/prefixes")));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, r#"{"prefixes": [{"text": "h", "typed": 2}]}"#).unwrap();
        assert_eq!(read("a", file.to_str().unwrap()).unwrap().prefixes[0].text, "h");
        std::fs::write(&file, "[]").unwrap();
        assert!(read("a", file.to_str().unwrap()).is_err_and(|reason| reason.contains("GET /models/NAME/prefixes")));
    }
}
