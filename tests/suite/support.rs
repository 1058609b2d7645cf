//! What the tests share: engines from bundles, a server on a free port, a small HTTP client.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::onnxruntime::{self, CpuLevel, Options};
use bundle::Manifest;
use completion::text::{Text, TokenId};
use engine_build::BuildOptions;
use foretype::engine::{Engine, EngineOptions, EngineParts, RequestOptions};
use foretype::http::conventions::{Conventions, InputsAnswer, UnknownFields};
use foretype::http::{self, ServerOptions};
use foretype::metrics::Metrics;
use foretype::models::ModelState;
use scheduler::backend::{Backend, Batch, KvCopy, Lane, Limits, Outputs, Page, Selected, SourceSlot};
use scheduler::fake::{FakeBackend, FaultFn};
use scheduler::{Loader, PoolOptions, RESTART_EVERY, Replicas};
use serde_json::Value;
use tokio::sync::watch;

use crate::goldens::max_difference;

/// A path in the repository, or where FORETYPE_REPOSITORY says that its files are: the kit has some of them.
pub fn repository(path: &str) -> PathBuf {
    let elsewhere = std::env::var_os("FORETYPE_REPOSITORY").map(PathBuf::from);
    elsewhere.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).join(path)
}

/// Small: tests run side by side.
pub fn backend_options() -> Options {
    Options {
        library: None,
        threads: 1,
        spin: false,
        cpu_level: CpuLevel::detect(),
        lanes: 16,
        chunk: 64,
        pool_bytes: 16 << 20,
        huge_pages: true,
    }
}

/// The server's defaults, near enough.
pub fn engine_options() -> EngineOptions {
    EngineOptions { backend: backend_options().into(), requests: request_options() }
}

pub fn request_options() -> RequestOptions {
    RequestOptions {
        tolerance: completion::typing::Tolerance::Off,
        max_characters: 200,
        max_request_tokens: foretype::engine::DEFAULT_MAX_REQUEST_TOKENS,
        beams: None,
        default_deadline: Duration::from_secs(10),
        max_deadline: Duration::from_secs(60),
        min_probability: 0.0,
        popular_weight: 0.3,
        pool: PoolOptions {
            max_queued: 64,
            patience: Duration::from_millis(100),
            max_batch: 64,
            step_tokens: 128,
            replicas: Replicas::fixed(1),
            in_background: false,
            lookahead: true,
            prefix_cache_bytes: 32 << 20,
            hang_after: Duration::from_secs(5),
            restart_every: RESTART_EVERY,
        },
    }
}

/// Builds a checkpoint into a temporary bundle, which lives as long as the returned folder.
pub fn build(checkpoint: &Path, context: Option<u32>) -> (tempfile::TempDir, PathBuf, Manifest) {
    build_with(checkpoint, |options| options.context = context)
}

/// As [`build`], with other options.
pub fn build_with(checkpoint: &Path, change: impl FnOnce(&mut BuildOptions)) -> (tempfile::TempDir, PathBuf, Manifest) {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("bundle");
    let mut options = BuildOptions::new(checkpoint, &bundle);
    change(&mut options);
    let manifest = engine_build::build(&options, &()).unwrap_or_else(|e| panic!("{}: {e}", checkpoint.display()));
    (folder, bundle, manifest)
}

pub fn load(bundle: &Path, manifest: &Manifest) -> Box<dyn Backend> {
    onnxruntime::load(bundle, manifest, &backend_options()).unwrap()
}

/// The demo model, built and loaded.
pub fn demo_engine() -> Engine {
    let (_folder, bundle, manifest) = build(&repository("models/demo"), None);
    Engine::load(&bundle, &manifest, &engine_options(), &Metrics::new()).unwrap()
}

/// Waits until an engine with these metrics has made no step for some time: most likely it has prepared what it will
/// prepare.
pub fn wait_for_rest(metrics: impl Fn() -> String, quiet: Duration) {
    let steps = || metrics().lines().find(|line| line.starts_with("foretype_step_seconds_count")).map(str::to_owned);
    let (mut before, until) = (None, Instant::now() + Duration::from_secs(60));
    loop {
        assert!(Instant::now() < until, "the engine never comes to rest: {before:?}");
        std::thread::sleep(quiet);
        let now = steps();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

/// Computes one row in lane 0 and returns the whole logits row of each of its positions.
pub fn all_logits(backend: &mut dyn Backend, past_len: usize, tokens: &[u32]) -> Vec<Vec<f32>> {
    logits_of(backend, None, past_len, tokens)
}

/// As [`all_logits`], for a row that reads a source.
pub fn logits_of(
    backend: &mut dyn Backend,
    source: Option<SourceSlot>,
    past_len: usize,
    tokens: &[u32],
) -> Vec<Vec<f32>> {
    let mut batch = Batch::default();
    batch.push_row_of(source, past_len, tokens.iter().copied().map(TokenId));
    batch.selected.extend((0..tokens.len()).map(|offset| Selected { row: 0, offset, full: true }));
    let mut out = Outputs::default();
    backend.forward(&batch, &mut out).unwrap();
    out.logits.chunks_exact(backend.limits().vocab).map(<[f32]>::to_vec).collect()
}

/// A row that is computed beside others.
pub struct RaggedRow<'a> {
    pub source: Option<SourceSlot>,
    pub tokens: &'a [u32],
    /// So many of the tokens come from pages.
    pub past: usize,
}

/// Computes each row alone, then all of them together in one batch, where they are at different positions and have what
/// came before from pages. Returns the largest difference of a logit, of each row at its last two positions.
pub fn ragged_difference(backend: &mut dyn Backend, rows: &[RaggedRow]) -> f32 {
    let (mut alone, mut loads, mut pages) = (Vec::new(), Vec::new(), 0);
    for (r, row) in rows.iter().enumerate() {
        alone.push(logits_of(backend, row.source, 0, row.tokens));
        for position in 0..row.past {
            let page = Page(pages);
            pages += 1;
            backend.copy_kv(&[KvCopy::Store { lane: Lane(0), position, page }]).unwrap();
            loads.push(KvCopy::Load { page, lane: Lane(r), position });
        }
    }
    backend.copy_kv(&loads).unwrap();
    let mut batch = Batch::default();
    for (r, row) in rows.iter().enumerate() {
        let computed = &row.tokens[row.past..];
        batch.push_row_of(row.source, row.past, computed.iter().copied().map(TokenId));
        let selected = computed.len().saturating_sub(2)..computed.len();
        batch.selected.extend(selected.map(|offset| Selected { row: r, offset, full: true }));
    }
    let mut out = Outputs::default();
    backend.forward(&batch, &mut out).unwrap();
    let mut together = out.logits.chunks_exact(backend.limits().vocab);
    let mut worst = 0f32;
    for (row, alone) in rows.iter().zip(&alone) {
        for expected in &alone[row.past.max(row.tokens.len().saturating_sub(2))..] {
            worst = worst.max(max_difference(together.next().unwrap(), expected));
        }
    }
    assert!(together.next().is_none());
    worst
}

/// A fake model over the goldens' tokenizer. It fails on texts that begin with "50 %".
pub fn fake_engine() -> Engine {
    faulty_engine(|| Box::new(|_| None), request_options(), &Metrics::new())
}

/// The fake model, with faults. `faults` is called for each engine that is loaded.
pub fn faulty_engine(
    faults: impl Fn() -> FaultFn + Send + Sync + 'static,
    options: RequestOptions,
    metrics: &Arc<Metrics>,
) -> Engine {
    let json = std::fs::read_to_string(repository("tests/goldens/plain/tokenizer.json")).unwrap();
    let vocabulary = serde_json::from_str::<Value>(&json).unwrap();
    let end = TokenId(vocabulary["model"]["vocab"]["<|endoftext|>"].as_u64().unwrap() as u32);
    let text = Text::from_json(&json, end, &[end], "").unwrap();
    let vocab = text.vocab();
    let poison: Vec<u32> = text.encode("50 %").iter().map(|token| token.0).collect();
    let limits = Limits {
        lanes: 16,
        context: 48,
        chunk: 48,
        selected: 48,
        vocab,
        top_k: 32,
        pages: 256,
        page_bytes: 64,
        source: None,
    };
    let load: Loader = Arc::new(move |_| {
        let poison = poison.clone();
        // End of text is likely, so that searches end.
        let logit = move |path: &[u32], next: u32| {
            if path[1..].starts_with(&poison) {
                return f32::NAN;
            }
            let mix = |h: u32, &x: &u32| (h ^ x).wrapping_mul(16_777_619);
            let spread = (path.iter().fold(next.wrapping_mul(2_654_435_761), mix) >> 20) as f32;
            if next == end.0 { 6.0 } else { spread / 512.0 }
        };
        Ok(Box::new(FakeBackend::with_logits(limits.clone(), Box::new(logit)).with_faults(faults())))
    });
    Engine::start(EngineParts::new("fake", text, load).unwrap(), options, metrics).unwrap()
}

/// A server in its own thread, on a free port, until dropped.
pub struct TestServer {
    pub address: SocketAddr,
    /// Keeps the server's model and says what it is.
    pub state: watch::Sender<ModelState>,
    handle: actix_web::dev::ServerHandle,
}

impl TestServer {
    pub fn start(state: ModelState) -> Self {
        Self::start_with(state, true)
    }

    /// With the page for people or without it.
    pub fn start_with(state: ModelState, page: bool) -> Self {
        // Answers as the schema of the Large Model Inference containers has them, and nothing that is passed over.
        let conventions = Conventions { inputs: InputsAnswer::Lmi, unknown: UnknownFields::Refuse };
        let options = ServerOptions { max_body_bytes: 10_000, page, conventions, ..ServerOptions::default() };
        Self::start_with_options(state, options)
    }

    /// With other options.
    pub fn start_with_options(state: ModelState, options: ServerOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = watch::Sender::new(state);
        let model = state.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let server = http::start(listener, model, &options).unwrap();
                sender.send(server.handle()).unwrap();
                server.await.unwrap();
            });
        });
        Self { address, state, handle: receiver.recv().unwrap() }
    }

    pub fn with(engine: Engine) -> Self {
        Self::start(ModelState::Ready(Arc::new(engine).into()))
    }

    /// Sends a request; any status is an answer.
    pub fn send(&self, method: &str, path: &str, content_type: Option<&str>, body: &[u8]) -> Answer {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if let Some(content_type) = content_type {
            request = request.header("Content-Type", content_type);
        }
        let mut response = agent.run(request.body(body).unwrap()).unwrap();
        let headers = response.headers().clone();
        let text = response.body_mut().read_to_string().unwrap();
        Answer { status: response.status().as_u16(), headers, text }
    }

    pub fn post(&self, body: &str) -> Answer {
        self.send("POST", "/invocations", Some("application/json"), body.as_bytes())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.handle.stop(false));
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {:?}", self.text))
    }
}
