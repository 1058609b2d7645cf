//! One loaded model, ready to complete: text side, model threads, limits. What HTTP and the command line both call.

mod generation;
mod running;
mod tokenizer;

use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bundle::extras::{BLOCKLIST_FILE, read_blocklist};
use bundle::manifest::{ENCODER_WEIGHTS_FILE, Manifest, WEIGHTS_FILE};
use rustc_hash::FxHasher;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::generation::{Generation, check_choice};
pub use self::running::{Parts, Running};
use self::running::{Polish, Source};
pub use self::tokenizer::{TokenizerError, read_text};
use crate::error::{Error, Kind};
use crate::metrics::{self, Metrics, ModelMetrics};
use crate::popular::Popular;
use backends::onnxruntime::CpuLevel;
use backends::options::{self, BackendOptions};
use completion::mix::mix;
use completion::text::blocklist::Blocklist;
use completion::text::query::{Query, QueryError};
use completion::text::{Method, Text};
use completion::{Generated, Outcome, Product, Search, SearchOptions, Task};
use scheduler::backend::Limits;
use scheduler::observer::Observer;
use scheduler::sessions::Sessions;
use scheduler::{Answer, Finish, Health, Loader, Pool, PoolOptions, Request, Superseded, Usage};

/// Suggestions of a request that doesn't say.
pub const DEFAULT_SUGGESTIONS: usize = 10;
/// New tokens of a request that doesn't say.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 16;
/// Beams of a search for no more suggestions than that.
pub const DEFAULT_BEAMS: usize = 16;
/// Most suggestions, or sequences, of a request.
pub const MAX_SUGGESTIONS: usize = 100;

/// Most bytes of a session's name.
const MAX_SESSION_BYTES: usize = 256;

/// Bounds on requests and how they are searched.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// Characters of an input.
    pub max_characters: usize,
    /// Beams of a search. If not named: [`DEFAULT_BEAMS`], or as many as the suggestions if these are more.
    pub beams: Option<usize>,
    /// Time for requests that don't say.
    pub default_deadline: Duration,
    /// Most time that a request may ask for.
    pub max_deadline: Duration,
    /// Weight of popular queries against the model, 0 to 1.
    pub popular_weight: f64,
    /// Waiting and running requests.
    pub pool: PoolOptions,
}

impl RequestOptions {
    /// Beams of a search for so many suggestions.
    pub fn beams(&self, suggestions: usize) -> usize {
        self.beams.unwrap_or(DEFAULT_BEAMS.max(suggestions))
    }
}

/// How to load a model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The backend's part.
    pub backend: BackendOptions,
    /// Bounds on requests.
    pub requests: RequestOptions,
}

/// What to complete, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// What was typed.
    pub input: String,
    /// Suggestions wanted; 10 if absent.
    pub suggestions: Option<usize>,
    /// Tokens that may reach beyond the typed text; 16 if absent.
    pub max_new_tokens: Option<usize>,
    /// Milliseconds after which the best found until then is the answer.
    pub deadline_ms: Option<u64>,
    /// How half-typed tokens are treated.
    pub method: Method,
    /// Whose request it is: a newer one of the same session supersedes it.
    pub session: Option<String>,
}

/// Why a bundle can't be served.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The tokenizer can't be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The blocklist or the popular queries can't be read.
    #[error("{0}")]
    Extras(String),
    /// The model can't be loaded.
    #[error("{0}")]
    Model(String),
}

/// A loaded model.
pub struct Engine {
    name: String,
    text: Arc<Text>,
    context: usize,
    /// Tokens of a source, in models that read one with an encoder.
    source: Option<usize>,
    /// How many of the best tokens a distribution lists.
    listed: usize,
    pool: Pool,
    sessions: Mutex<Sessions>,
    popular: Option<Arc<Popular>>,
    options: RequestOptions,
    metrics: Arc<ModelMetrics>,
    memory_bytes: u64,
    cpu_level: Option<CpuLevel>,
}

impl Engine {
    /// Loads a bundle. Returns when first forwards have succeeded.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn load(
        bundle: &Path,
        manifest: &Manifest,
        options: &EngineOptions,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, EngineError> {
        let text = with_blocklist(read_text(bundle, manifest)?, bundle)?;
        let popular = Popular::open(bundle).map_err(|e| EngineError::Extras(e.to_string()))?;
        if let Some(reason) = text.inexact_because().filter(|_| manifest.model.source.is_none()) {
            tracing::warn!(reason, "half-typed tokens are healed, not treated exactly");
        }
        let (folder, owned, backend) = (bundle.to_owned(), manifest.clone(), options.backend.clone());
        let load: Loader = Arc::new(move || options::load(&folder, &owned, &backend));
        let limits = options::limits(manifest, &options.backend);
        let mut engine =
            Self::start(&manifest.name, text, Shape::of(&limits), &load, options.requests.clone(), metrics)?;
        engine.popular = popular.map(Arc::new);
        engine.cpu_level = options.backend.cpu_level(manifest);
        if let Some(level) = engine.cpu_level {
            metrics.cpu_level(level.name());
        }
        let kv = (limits.pages + limits.lanes * limits.context) * limits.page_bytes + options.requests.pool.tree_bytes;
        let sources = limits.source.map_or(0, |source| (source.slots + limits.lanes) * source.slot_bytes);
        let file = |name| std::fs::metadata(bundle.join(name)).map_or(0, |file| file.len());
        let weights = file(WEIGHTS_FILE) + if limits.source.is_some() { file(ENCODER_WEIGHTS_FILE) } else { 0 };
        engine.memory_bytes = (weights + (kv + sources) as u64) * options.requests.pool.replicas as u64;
        Ok(engine)
    }

    /// Puts a model together from its parts; for tests, and for measuring without a real engine.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn from_parts(
        name: &str,
        text: Text,
        load: &Loader,
        options: RequestOptions,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, EngineError> {
        let backend = load().map_err(EngineError::Model)?;
        Self::start(name, text, Shape::of(backend.limits()), load, options, metrics)
    }

    fn start(
        name: &str,
        text: Text,
        shape: Shape,
        load: &Loader,
        options: RequestOptions,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, EngineError> {
        let metrics = Arc::new(metrics.model(name));
        let observer: Arc<dyn Observer> = Arc::clone(&metrics) as _;
        let pool = Pool::start(load, text.prompt()[0], options.pool, &observer).map_err(EngineError::Model)?;
        Ok(Self {
            name: name.to_owned(),
            text: Arc::new(text),
            context: shape.context,
            source: shape.source,
            listed: shape.listed,
            pool,
            sessions: Mutex::default(),
            popular: None,
            options,
            metrics,
            memory_bytes: 0,
            cpu_level: None,
        })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it can answer.
    pub fn health(&self) -> Health {
        self.pool.health()
    }

    /// Positions that a request may use: prompt, typed text and what is added.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Whether it reads whole texts with an encoder and answers them. Then it generates, and completes nothing that is half typed.
    pub fn is_encoder_decoder(&self) -> bool {
        self.source.is_some()
    }

    /// Memory that it takes when all its caches are full, about.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The CPU level of its kernels, if foretype's kernels compute it.
    pub fn cpu_level(&self) -> Option<CpuLevel> {
        self.cpu_level
    }

    /// Takes no more requests; what was accepted is answered, with what is found until then when `within` has passed.
    pub fn drain(&self, within: Duration) {
        self.pool.drain(within);
    }

    /// Completes what was typed. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the request, or why there is no answer.
    pub async fn complete(&self, completion: &Completion) -> Result<Answer<Outcome>, Error> {
        self.run_completion(completion, false)?.finish().await
    }

    /// Generates text. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the request, or why there is no answer.
    pub async fn generate(&self, generation: &Generation) -> Result<Answer<Generated>, Error> {
        self.run_generation(generation, false)?.finish().await
    }

    /// Starts completing what was typed; the suggestions come as soon as they are final.
    ///
    /// # Errors
    /// What is wrong with the request, or why it isn't accepted.
    pub fn start_completion(&self, completion: &Completion) -> Result<Running<Outcome>, Error> {
        self.run_completion(completion, true)
    }

    /// Starts generating text; the tokens come as soon as they are final.
    ///
    /// # Errors
    /// What is wrong with the request, or why it isn't accepted.
    pub fn start_generation(&self, generation: &Generation) -> Result<Running<Generated>, Error> {
        self.run_generation(generation, true)
    }

    fn run_completion(&self, completion: &Completion, stream: bool) -> Result<Running<Outcome>, Error> {
        let received = Instant::now();
        let deadline = received + self.deadline(completion.deadline_ms)?;
        let session = check_session(completion.session.as_deref())?;
        let search = self.search(completion)?;
        let polish = self.with_popular(completion);
        if self.text.blocks(completion.input.as_bytes(), false) {
            return Ok(self.running(Source::Known(blocked()), None, polish, received));
        }
        // Popular queries are mixed into the whole answer, so no part of it is final before it is there.
        let events = (stream && self.popular.is_none()).then(|| search.suggestions_wanted());
        // A word that is being typed would have another home with every key.
        let first_character = completion.input.trim_start().chars().next();
        let home = self.home(session, first_character);
        self.submit(Pending { task: search.into(), deadline, received, session, home, events }, polish)
    }

    fn run_generation(&self, generation: &Generation, stream: bool) -> Result<Running<Generated>, Error> {
        let received = Instant::now();
        let deadline = received + self.deadline(generation.deadline_ms)?;
        let session = check_session(generation.session.as_deref())?;
        let sampling = self.sampling(generation)?;
        let events = stream.then(|| generation.sequences * self.context);
        let polish: Polish<Generated> = Box::new(|answer| {
            let nothing = || Generated { prompt_tokens: 0, sequences: Vec::new() };
            answer.map(|product| if let Product::Texts(generated) = product { generated } else { nothing() })
        });
        let home = self.home(session, generation.prompt.split_whitespace().next());
        self.submit(Pending { task: sampling.into(), deadline, received, session, home, events }, polish)
    }

    fn submit<T: Parts>(&self, pending: Pending<'_>, polish: Polish<T>) -> Result<Running<T>, Error> {
        let Pending { task, deadline, received, session, home, events } = pending;
        let superseded = session.map_or_else(Superseded::default, |session| {
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).begin(session)
        });
        let (events, parts) = events.map(mpsc::channel).unzip();
        let (reply, answer) = oneshot::channel();
        let request = Request { task, deadline, received, superseded, home, events, reply };
        self.pool.submit(request).inspect_err(|_| self.metrics.ended(metrics::Outcome::Refused))?;
        Ok(self.running(Source::Model(answer), parts, polish, received))
    }

    fn running<T: Parts>(
        &self,
        source: Source,
        events: Option<mpsc::Receiver<scheduler::Event>>,
        polish: Polish<T>,
        received: Instant,
    ) -> Running<T> {
        let health: watch::Receiver<Health> = self.pool.watch_health();
        Running::new(source, events, polish, health, Arc::clone(&self.metrics), received)
    }

    /// The replica that a person's keystrokes, or texts that begin alike, go to if it isn't busy.
    fn home(&self, session: Option<&str>, beginning: impl Hash) -> usize {
        let hasher = BuildHasherDefault::<FxHasher>::default();
        let hash = session.map_or_else(|| hasher.hash_one(beginning), |session| hasher.hash_one(session));
        // The high bits are the better ones.
        (hash >> 32) as usize % self.options.pool.replicas.max(1)
    }

    /// Takes the suggestions out of the model's answer, and merges the bundle's popular queries if it has any.
    fn with_popular(&self, completion: &Completion) -> Polish<Outcome> {
        let (popular, text) = (self.popular.clone(), Arc::clone(&self.text));
        let weight = self.options.popular_weight;
        let (typed, count) = (completion.input.clone(), completion.suggestions.unwrap_or(DEFAULT_SUGGESTIONS));
        Box::new(move |answer| {
            let is_blocked = answer.finish == Finish::Blocked;
            answer.map(|product| {
                let nothing = || Outcome { suggestions: Vec::new(), proven: false };
                let outcome = if let Product::Suggestions(outcome) = product { outcome } else { nothing() };
                let Some(popular) = popular.filter(|_| !is_blocked) else { return outcome };
                let mut queries = popular.best(&typed, count);
                queries.retain(|(query, _)| !text.blocks(query.as_bytes(), true));
                mix(outcome, &typed, queries, weight, count)
            })
        })
    }

    /// The search for a request; everything that can be wrong with it is found here, before it is queued.
    fn search(&self, completion: &Completion) -> Result<Search, Error> {
        if self.source.is_some() {
            let message = "this model reads whole texts and answers them; it can't complete what is being typed: send \
                           {\"inputs\": TEXT}, or use /v1/completions";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let query = Query::new(&completion.input, self.options.max_characters)?;
        let suggestions = completion.suggestions.unwrap_or(DEFAULT_SUGGESTIONS);
        let max_new_tokens = completion.max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS.min(self.context));
        in_range("suggestions", suggestions as u64, MAX_SUGGESTIONS as u64)?;
        in_range("max_new_tokens", max_new_tokens as u64, self.context as u64)?;
        if !self.text.is_encodable(query.as_str()) {
            return Err(QueryError::NotInVocabulary.into());
        }
        let options = SearchOptions {
            suggestions,
            beams: self.options.beams(suggestions),
            max_new_tokens,
            context: self.context,
            method: completion.method,
        };
        let search = Search::new(Arc::clone(&self.text), query.as_str().to_owned(), options);
        // One position must be left for a token that is not typed yet.
        let limit = self.context - self.text.prompt().len() - 1;
        match search.typed_tokens() {
            found if found > limit => Err(QueryError::TooManyTokens { found, limit }.into()),
            _ => Ok(search),
        }
    }

    fn deadline(&self, deadline_ms: Option<u64>) -> Result<Duration, Error> {
        let Some(deadline_ms) = deadline_ms else { return Ok(self.options.default_deadline) };
        in_range("deadline_ms", deadline_ms, self.options.max_deadline.as_millis() as u64)?;
        Ok(Duration::from_millis(deadline_ms))
    }
}

/// What the model can hold and tell.
struct Shape {
    context: usize,
    source: Option<usize>,
    listed: usize,
}

impl Shape {
    fn of(limits: &Limits) -> Self {
        let source = limits.source.map(|source| source.tokens);
        Self { context: limits.context, source, listed: limits.top_k }
    }
}

/// A checked request.
struct Pending<'a> {
    task: Task,
    deadline: Instant,
    received: Instant,
    session: Option<&'a str>,
    home: usize,
    /// Most events that can come, if they are wanted.
    events: Option<usize>,
}

/// The answer to a text that has a blocked term.
fn blocked() -> Answer<Product> {
    Answer {
        result: Product::Suggestions(Outcome { suggestions: Vec::new(), proven: true }),
        finish: Finish::Blocked,
        usage: Usage::default(),
        queued: Duration::ZERO,
        searched: Duration::ZERO,
    }
}

fn check_session(session: Option<&str>) -> Result<Option<&str>, Error> {
    match session {
        Some(name) if name.is_empty() || name.len() > MAX_SESSION_BYTES => {
            let message = format!("session has {} bytes; it must have 1 to {MAX_SESSION_BYTES}", name.len());
            Err(Error::new(Kind::InvalidValue, message))
        }
        session => Ok(session),
    }
}

/// The bundle's blocklist, if it has one.
fn with_blocklist(text: Text, bundle: &Path) -> Result<Text, EngineError> {
    let path = bundle.join(BLOCKLIST_FILE);
    if !path.exists() {
        return Ok(text);
    }
    let wrong = |reason: String| EngineError::Extras(reason);
    let terms = read_blocklist(&path).map_err(|e| wrong(e.to_string()))?;
    let list =
        Blocklist::new(terms.iter().map(String::as_str)).map_err(|e| wrong(format!("{}: {e}", path.display())))?;
    Ok(text.with_blocklist(list))
}

fn in_range(field: &str, value: u64, limit: u64) -> Result<(), Error> {
    if (1..=limit).contains(&value) {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidValue, format!("{field} is {value}; it must be from 1 to {limit}")))
}
