//! HTTP/1.1 over connections that are kept: one connection, and a pool that grows as an open loop needs it.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::http::request::Builder;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

/// A connection unused for this long is left alone: the server may be closing it just now (it keeps them for 5 s).
const STALE: Duration = Duration::from_secs(2);

/// The body of a request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Invocation {
    /// The typed text.
    pub input: String,
    /// Suggestions wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestions: Option<usize>,
    /// Tokens that may reach beyond the typed text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<usize>,
    /// The deadline, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whose text it is: a newer request of a session supersedes the older.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// What of an answer is measured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Only how many matters.
    pub suggestions: Vec<Suggestion>,
    /// Why the search ended.
    pub finish: String,
    /// The model work of the request.
    pub usage: Usage,
}

/// A suggestion of an answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Suggestion {
    /// The suggested query, typed text included.
    pub text: String,
}

/// What an answer cost.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Forwards with a row of this request.
    pub forwards: u64,
    /// Positions computed for it.
    pub positions_computed: u64,
    /// Positions that were known.
    pub positions_saved: u64,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Status 200, with its answer.
    Answered(Answer),
    /// Any other status.
    Status(u16),
    /// The connection failed.
    Lost(String),
}

/// A connection to a server, for one request at a time.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    used: Instant,
}

impl Connection {
    /// Opens a connection to a server.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the connection; its errors come back from the request that they break.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, host: address.to_string(), used: Instant::now() })
    }

    /// `GET`: status and body.
    pub async fn get(&mut self, path: &str) -> Result<(u16, Bytes)> {
        self.send(Request::get(path), Bytes::new()).await
    }

    /// `POST /invocations`.
    pub async fn complete(&mut self, invocation: &Invocation) -> Result<Outcome> {
        let (status, body) = self.post("/invocations", invocation).await?;
        Ok(match status {
            200 => Outcome::Answered(serde_json::from_slice(&body)?),
            status => Outcome::Status(status),
        })
    }

    /// `POST` of JSON: status and body.
    pub async fn post(&mut self, path: &str, body: &impl Serialize) -> Result<(u16, Bytes)> {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        self.send(request, Bytes::from(serde_json::to_vec(body)?)).await
    }

    /// Sends a request with this body: status and body of its answer.
    pub async fn send(&mut self, request: Builder, body: Bytes) -> Result<(u16, Bytes)> {
        self.sender.ready().await?;
        let response = self.sender.send_request(request.header(HOST, &self.host).body(Full::from(body))?).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        self.used = Instant::now();
        Ok((status, body))
    }

    /// Whether the server surely keeps the connection.
    pub fn is_usable(&self) -> bool {
        self.used.elapsed() < STALE && !self.sender.is_closed()
    }
}

/// Connections to one server: as many as there are requests at once.
pub struct Pool {
    address: SocketAddr,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// A pool without connections.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, idle: Mutex::default() }
    }

    /// Sends on an idle connection, or a new one.
    pub async fn complete(&self, invocation: &Invocation) -> Outcome {
        match self.try_complete(invocation).await {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Lost(format!("{error:#}")),
        }
    }

    async fn try_complete(&self, invocation: &Invocation) -> Result<Outcome> {
        let mut connection = match self.take() {
            Some(connection) => connection,
            None => Connection::open(self.address).await?,
        };
        let outcome = connection.complete(invocation).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(outcome)
    }

    /// The connection used last, if it is usable; if it isn't, none is.
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle.pop().filter(Connection::is_usable);
        if found.is_none() {
            idle.clear();
        }
        found
    }
}
