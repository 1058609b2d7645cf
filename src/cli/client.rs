//! A client of another foretype server's routes for operators: plain HTTP, one request at a time.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use ureq::http::Request;

/// Most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// The key for a server that asks for one.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct KeyArgs {
    /// The key for a server that asks for one.
    #[arg(long, env = "FORETYPE_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<String>,
}

/// The server that operators talk to.
#[derive(Clone, Debug, Args)]
pub(super) struct ServerArgs {
    /// The server's address for operators: where its `--admin-port` is, or its only one with --multi-model.
    #[arg(long, env = "FORETYPE_SERVER", value_name = "URL", default_value = "http://127.0.0.1:8081")]
    server: String,
    #[command(flatten)]
    pub(super) key: KeyArgs,
}

impl ServerArgs {
    /// The address of a model's route; `rest` is what follows the name.
    pub(super) fn of_model(&self, name: &str, rest: &str) -> String {
        format!("{}/models/{}{rest}", self.server.trim_end_matches('/'), percent_encoded(name))
    }
}

impl KeyArgs {
    /// Sends a request, and returns the body of its answer. Without `within` it may take as long as it takes.
    ///
    /// # Errors
    /// There is no answer, or the server's reason why not.
    pub(super) fn send(
        &self,
        method: &str,
        url: &str,
        body: Option<&Value>,
        within: Option<Duration>,
    ) -> Result<String, String> {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(within).build();
        let mut request = Request::builder().method(method).uri(url).header("Content-Type", "application/json");
        if let Some(key) = &self.api_key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request =
            request.body(body).map_err(|error| format!("{url}: {error}; name an address such as http://HOST:PORT"))?;
        let failed = |error: ureq::Error| format!("{url}: {error}");
        let mut answer = ureq::Agent::new_with_config(agent).run(request).map_err(failed)?;
        let text = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string().map_err(failed)?;
        if answer.status().is_success() {
            return Ok(text);
        }
        let reason = serde_json::from_str::<Value>(&text).ok();
        let reason = reason.as_ref().and_then(|reason| reason["error"]["message"].as_str()).unwrap_or(&text);
        Err(format!("{url} answered {}: {reason}", answer.status()))
    }
}

/// A name as a part of a path.
pub(super) fn percent_encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_paths() {
        assert_eq!(percent_encoded("gpt2-int8_v1.0~"), "gpt2-int8_v1.0~");
        assert_eq!(percent_encoded("ü b?"), "%C3%BC%20b%3F");
    }
}
