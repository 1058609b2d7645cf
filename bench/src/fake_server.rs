//! foretype's own server and scheduler over the fake engine, in this process: everything but the model, for measuring
//! just that.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use completion::text::{Text, TokenId};
use foretype::engine::{Engine, EngineParts, RequestOptions};
use foretype::http::{self, ServerOptions};
use foretype::metrics::Metrics;
use foretype::models::ModelState;
use scheduler::backend::Limits;
use scheduler::fake::{FakeBackend, FaultFn};
use scheduler::{Loader, PoolOptions, RESTART_EVERY, Replicas};
use tokio::sync::watch;

/// How far the fake engine's logits differ.
const SCALE: f32 = 5.0;

/// A tokenizer file, with `<|endoftext|>` as its start and end.
pub fn text(tokenizer: &Path) -> Result<Text> {
    let json = std::fs::read_to_string(tokenizer).with_context(|| tokenizer.display().to_string())?;
    let parsed: serde_json::Value = serde_json::from_str(&json)?;
    let end = parsed["model"]["vocab"]["<|endoftext|>"].as_u64();
    let end = TokenId(end.context("a tokenizer with <|endoftext|> in its vocabulary")? as u32);
    Ok(Text::from_json(&json, end, &[end], "")?)
}

/// The fake engine for a vocabulary.
pub fn backend(vocab: usize) -> FakeBackend {
    let limits = Limits {
        lanes: 32,
        context: 64,
        chunk: 64,
        selected: 64,
        vocab,
        top_k: 24,
        pages: 4096,
        page_bytes: 64,
        source: None,
    };
    FakeBackend::hashed(limits, 1, SCALE)
}

/// A server that runs until it is dropped.
pub struct FakeServer {
    /// Address that the server listens on.
    pub address: SocketAddr,
    handle: actix_web::dev::ServerHandle,
}

impl FakeServer {
    /// Starts it with the flags' defaults, but without preparing while idle: what is measured must not compete with
    /// that.
    pub fn start(tokenizer: &Path) -> Result<Self> {
        Self::with(tokenizer, request_options(), |backend| backend)
    }

    /// Starts a server whose engine has faults and is loaded again after each; `faults` is called for each engine.
    pub fn with_faults(tokenizer: &Path, faults: impl Fn() -> FaultFn + Send + Sync + 'static) -> Result<Self> {
        let mut options = request_options();
        options.pool.restart_every = Duration::ZERO;
        Self::with(tokenizer, options, move |backend| backend.with_faults(faults()))
    }

    fn with(
        tokenizer: &Path,
        options: RequestOptions,
        change: impl Fn(FakeBackend) -> FakeBackend + Send + Sync + 'static,
    ) -> Result<Self> {
        let text = text(tokenizer)?;
        let vocab = text.vocab();
        let load: Loader = Arc::new(move |_| Ok(Box::new(change(backend(vocab)))));
        let metrics = Metrics::new();
        let engine = Engine::start(EngineParts::new("fake", text, load)?, options, &metrics)?;
        let state = watch::Sender::new(ModelState::Ready(Arc::new(engine).into()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new().name("server".into()).spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let options = ServerOptions { metrics, ..ServerOptions::default() };
                let server = http::start(listener, state, &options);
                drop(sender.send(server.as_ref().map(actix_web::dev::Server::handle).map_err(ToString::to_string)));
                if let Ok(server) = server {
                    drop(server.await);
                }
            });
        })?;
        let handle = receiver.recv()?.map_err(anyhow::Error::msg)?;
        Ok(Self { address, handle })
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        // Told, not waited for: the process ends or goes on without it.
        drop(self.handle.stop(false));
    }
}

fn request_options() -> RequestOptions {
    RequestOptions {
        tolerance: completion::typing::Tolerance::Off,
        max_characters: 1000,
        max_request_tokens: foretype::engine::DEFAULT_MAX_REQUEST_TOKENS,
        beams: None,
        default_deadline: Duration::from_secs(10),
        max_deadline: Duration::from_secs(60),
        min_probability: 0.0,
        popular_weight: 0.3,
        pool: PoolOptions {
            max_queued: 256,
            patience: Duration::from_millis(100),
            max_batch: 64,
            step_tokens: 128,
            replicas: Replicas::fixed(1),
            in_background: false,
            lookahead: false,
            prefix_cache_bytes: 128 << 20,
            hang_after: Duration::from_secs(5),
            restart_every: RESTART_EVERY,
        },
    }
}
