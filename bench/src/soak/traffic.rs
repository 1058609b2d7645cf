//! What the clients of a soak send, and what a right answer to each is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::Connection;

/// Lines of a batch.
const LINES: usize = 20;
/// Prompts of a list.
const PROMPTS: usize = 8;
/// Longest wait for an answer: beyond any deadline of a request.
const ANSWER: Duration = Duration::from_secs(90);

/// Path that completes with the only model of a server.
pub const INVOCATIONS: &str = "/invocations";

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole answer came, in all of its parts, or the error that a wrong request should get.
    Right,
    /// The server said that it can't answer now: status 429 or 503 with the reason.
    Refused(u16),
    /// The client cut the connection.
    Cut,
    /// No answer came, or half of one.
    Lost(String),
    /// An answer came that should not have come.
    Wrong(String),
}

/// What a request wants.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Suggestions for what somebody has typed.
    Key,
    /// A batch as JSON Lines.
    Batch,
    /// A list of prompts.
    List,
    /// Generated text, as it comes.
    Stream,
    /// A completion as OpenAI's clients ask for it.
    OpenAi,
    /// A request that is wrong in one of several ways.
    Mistake,
    /// A stream whose client leaves in the middle of it.
    LeftStream,
    /// Half a body, whose client then leaves.
    HalfBody,
    /// The server's own pages.
    Look,
}

/// Kinds by how often they come.
const MIX: [(Kind, u32); 9] = [
    (Kind::Key, 60),
    (Kind::Batch, 3),
    (Kind::List, 5),
    (Kind::Stream, 6),
    (Kind::OpenAi, 6),
    (Kind::Mistake, 8),
    (Kind::LeftStream, 5),
    (Kind::HalfBody, 3),
    (Kind::Look, 4),
];

/// Requests that are wrong, with the status that each gets.
const MISTAKES: [(&str, &str, &str, u16); 6] = [
    (INVOCATIONS, "application/json", r#"{"input": "#, 400),
    (INVOCATIONS, "application/json", r#"{"input": ["#, 400),
    (INVOCATIONS, "application/json", r#"{"input": "a", "suggestions": "many"}"#, 400),
    (INVOCATIONS, "image/png", "solar", 415),
    ("/nowhere", "application/json", "{}", 404),
    (INVOCATIONS, "application/json", r#"{"input": ""}"#, 400),
];

/// Where a client sends its requests.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The server.
    pub address: SocketAddr,
    /// Path that completes.
    pub route: &'static str,
    /// Name of the model.
    pub model: &'static str,
    /// Whether the engine computes NaN now and then: the request that meets it gets status 500 with the reason.
    pub fails: bool,
}

/// A request on its way.
struct Sent<'a> {
    method: Method,
    path: &'a str,
    content_type: &'a str,
    body: String,
}

impl<'a> Sent<'a> {
    fn json(path: &'a str, body: &Value) -> Self {
        Self { method: Method::POST, path, content_type: "application/json", body: body.to_string() }
    }
}

/// One client: it asks, waits for the answer and asks again, over a connection that is kept while that works.
pub struct Client {
    target: Target,
    name: String,
    queries: Arc<Vec<String>>,
    connection: Option<Connection>,
    /// The query that this client types now, and how many of its characters.
    typing: (String, usize),
}

impl Client {
    /// A client of a server, with a session of its own.
    pub fn new(target: Target, name: String, queries: Arc<Vec<String>>) -> Self {
        Self { target, name, queries, connection: None, typing: (String::new(), 0) }
    }

    /// Draws a kind of request and sends one.
    pub async fn any(&mut self, rng: &mut StdRng) -> Verdict {
        let total = MIX.iter().map(|(_, weight)| weight).sum();
        let mut drawn = rng.random_range(0..total);
        let kind = MIX.iter().find(|(_, weight)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        self.send(kind.map_or(Kind::Key, |(kind, _)| *kind), rng).await
    }

    /// Sends one request and judges its answer.
    pub async fn send(&mut self, kind: Kind, rng: &mut StdRng) -> Verdict {
        let text = self.queries.choose(rng).cloned().unwrap_or_default();
        match kind {
            Kind::Key => {
                let body = json!({"input": self.key(rng), "session": self.name});
                self.ask(&body, |answer| answer["suggestions"].is_array()).await
            }
            Kind::Batch => self.batch(&text).await,
            Kind::List => {
                let inputs: Vec<String> = (0..PROMPTS).map(|n| format!("{n} {text}")).collect();
                let body = json!({"inputs": inputs, "parameters": {"max_new_tokens": 6}});
                self.ask(&body, |answer| answer.as_array().is_some_and(|list| list.len() == PROMPTS)).await
            }
            Kind::Stream => {
                let body = json!({"inputs": text, "stream": true, "parameters": {"max_new_tokens": 12}});
                let whole = |status, answer: &str| status == 200 && answer.contains("generated_text");
                self.request(Sent::json(self.target.route, &body), whole).await
            }
            Kind::OpenAi => {
                let body = json!({"model": self.target.model, "prompt": text, "max_tokens": 8});
                let whole = |status, answer: &str| status == 200 && answer.contains("choices");
                self.request(Sent::json("/v1/completions", &body), whole).await
            }
            Kind::Mistake => {
                let (path, content_type, body, wanted) = MISTAKES[rng.random_range(0..MISTAKES.len())];
                let path = if path == INVOCATIONS { self.target.route } else { path };
                let whole = |status, answer: &str| status == wanted && answer.contains("message");
                self.request(Sent { method: Method::POST, path, content_type, body: body.into() }, whole).await
            }
            Kind::LeftStream => {
                let body = json!({"inputs": text, "stream": true, "parameters": {"max_new_tokens": 40}}).to_string();
                self.leave(&body, body.len(), rng.random_bool(0.5)).await
            }
            Kind::HalfBody => {
                let body = json!({"input": text}).to_string();
                self.leave(&body, body.len() / 2, true).await
            }
            Kind::Look => self.look(if rng.random_bool(0.5) { "/ping" } else { "/metrics" }).await,
        }
    }

    /// The next key of the query that this client types; sometimes one character is taken back.
    fn key(&mut self, rng: &mut StdRng) -> String {
        let (query, typed) = &mut self.typing;
        if *typed >= query.chars().count() {
            (*query, *typed) = (self.queries.choose(rng).cloned().unwrap_or_else(|| "a".into()), 0);
        }
        *typed = if *typed > 2 && rng.random_bool(0.05) { *typed - 1 } else { *typed + 1 };
        query.chars().take(*typed).collect()
    }

    async fn ask(&mut self, body: &Value, is_whole: impl Fn(&Value) -> bool) -> Verdict {
        let whole =
            |status, answer: &str| status == 200 && serde_json::from_str(answer).is_ok_and(|answer| is_whole(&answer));
        self.request(Sent::json(self.target.route, body), whole).await
    }

    async fn batch(&mut self, text: &str) -> Verdict {
        let line = |n| json!({"input": format!("{n} {text}"), "suggestions": 2, "max_new_tokens": 4}).to_string();
        let body = (0..LINES).map(line).collect::<Vec<_>>().join("\n");
        let whole = |status, answer: &str| {
            let answered = answer.lines().filter(|line| line.contains("suggestions")).count();
            status == 200 && answered == LINES
        };
        let content_type = "application/jsonlines";
        self.request(Sent { method: Method::POST, path: self.target.route, content_type, body }, whole).await
    }

    async fn look(&mut self, path: &str) -> Verdict {
        let sent = Sent { method: Method::GET, path, content_type: "text/plain", body: String::new() };
        self.request(sent, |status, _| status == 200).await
    }

    async fn request(&mut self, sent: Sent<'_>, is_right: impl Fn(u16, &str) -> bool) -> Verdict {
        let request = Request::builder().method(sent.method).uri(sent.path).header("Content-Type", sent.content_type);
        let answered = async {
            let mut connection = match self.connection.take().filter(Connection::is_usable) {
                Some(connection) => connection,
                None => Connection::open(self.target.address).await?,
            };
            let answer = connection.send(request, Bytes::from(sent.body)).await?;
            self.connection = Some(connection);
            Ok::<_, anyhow::Error>(answer)
        };
        match tokio::time::timeout(ANSWER, answered).await {
            Err(_) => Verdict::Lost(format!("no answer within {} s", ANSWER.as_secs())),
            Ok(Err(error)) => Verdict::Lost(format!("{error:#}")),
            Ok(Ok((status, answer))) => self.judge(status, &answer, is_right),
        }
    }

    /// Sends `length` bytes of a body, waits for the first bytes of an answer if that is all of it, and leaves.
    async fn leave(&self, body: &str, length: usize, at_once: bool) -> Verdict {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.target.route,
            body.len()
        );
        let sent = async {
            let mut stream = TcpStream::connect(self.target.address).await?;
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&body.as_bytes()[..length]).await?;
            if !at_once {
                let mut some = [0; 64];
                stream.read_exact(&mut some).await?;
            }
            Ok::<_, std::io::Error>(())
        };
        match tokio::time::timeout(ANSWER, sent).await {
            Ok(Ok(())) => Verdict::Cut,
            Ok(Err(error)) => Verdict::Lost(error.to_string()),
            Err(_) => Verdict::Lost("no beginning of an answer".into()),
        }
    }

    fn judge(&self, status: u16, answer: &[u8], is_right: impl Fn(u16, &str) -> bool) -> Verdict {
        let answer = String::from_utf8_lossy(answer);
        match judge(status, &answer, is_right) {
            Verdict::Wrong(_) if self.target.fails && answer.contains("the model failed on this request") => {
                Verdict::Refused(status)
            }
            verdict => verdict,
        }
    }
}

/// A refusal must give its reason, and nothing may answer half.
fn judge(status: u16, answer: &str, is_right: impl Fn(u16, &str) -> bool) -> Verdict {
    if is_right(status, answer) {
        return Verdict::Right;
    }
    match status {
        429 | 503 if answer.contains("message") => Verdict::Refused(status),
        // A batch whose lines were refused one by one, or a stream that ends with an error.
        200 if answer.contains(r#""kind":"not_ready""#) => Verdict::Refused(503),
        200 if answer.contains(r#""kind":"overloaded""#) => Verdict::Refused(429),
        status => Verdict::Wrong(format!("status {status}: {answer:.200}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_needs_a_reason_and_half_an_answer_is_wrong() {
        let whole = |status, answer: &str| status == 200 && answer.ends_with('}');
        assert_eq!(judge(200, "{}", whole), Verdict::Right);
        assert_eq!(judge(503, r#"{"error": {"message": "loading"}}"#, whole), Verdict::Refused(503));
        assert!(matches!(judge(503, "", whole), Verdict::Wrong(_)));
        assert!(matches!(judge(200, "{", whole), Verdict::Wrong(_)));
        assert!(matches!(judge(500, r#"{"error": {"message": "oh"}}"#, whole), Verdict::Wrong(_)));
    }
}
