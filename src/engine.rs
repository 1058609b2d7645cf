//! One loaded model, ready to complete: text side, model thread, limits. What HTTP and the command line both call.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_build::extras::{BLOCKLIST_FILE, read_blocklist};
use engine_build::manifest::{Manifest, TOKENIZER_FILE};
use tokio::sync::oneshot;

use crate::complete::mix::mix;
use crate::complete::{Search, SearchOptions};
use crate::error::{Error, Kind};
use crate::model::{Backend, onnxruntime};
use crate::popular::Popular;
use crate::schedule::thread::QueueLimits;
use crate::schedule::{Answer, Health, ModelThread, Request};
use crate::text::blocklist::Blocklist;
use crate::text::query::{Query, QueryError};
use crate::text::{Method, Text};

/// Suggestions of a request that doesn't say.
pub const DEFAULT_SUGGESTIONS: usize = 10;
/// New tokens of a request that doesn't say.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 16;
/// Most suggestions of a request.
pub const MAX_SUGGESTIONS: usize = 100;

/// Bounds on requests and how they are searched.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// Characters of an input.
    pub max_characters: usize,
    /// Beams of a search; more if more suggestions are asked for.
    pub beams: usize,
    /// Time for requests that don't say.
    pub default_deadline: Duration,
    /// Most time that a request may ask for.
    pub max_deadline: Duration,
    /// Weight of popular queries against the model, 0 to 1.
    pub popular_weight: f64,
    /// Waiting and running requests.
    pub queue: QueueLimits,
}

/// How to load a model.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The backend's part.
    pub backend: onnxruntime::Options,
    /// Memory of the tree's distributions, in bytes.
    pub tree_bytes: usize,
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
    /// Tokens that may be added; 16 if absent.
    pub max_new_tokens: Option<usize>,
    /// Milliseconds after which the best found until then is the answer.
    pub deadline_ms: Option<u64>,
    /// How half-typed tokens are treated.
    pub method: Method,
}

/// Why a bundle can't be served.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The tokenizer can't be read.
    #[error("{path}: {reason}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
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
    thread: ModelThread,
    popular: Option<Popular>,
    options: RequestOptions,
}

impl Engine {
    /// Loads a bundle. Returns when a first forward has succeeded.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn load(bundle: &Path, manifest: &Manifest, options: &EngineOptions) -> Result<Self, EngineError> {
        let path = bundle.join(TOKENIZER_FILE);
        let unreadable = |reason: String| EngineError::Tokenizer { path: path.display().to_string(), reason };
        let json = std::fs::read_to_string(&path).map_err(|e| unreadable(e.to_string()))?;
        let text = Text::of_bundle(&json, manifest).map_err(|e| unreadable(e.to_string()))?;
        let text = with_blocklist(text, bundle)?;
        let popular = Popular::open(bundle).map_err(|e| EngineError::Extras(e.to_string()))?;
        if let Some(reason) = text.inexact_because() {
            tracing::warn!(reason, "half-typed tokens are healed, not treated exactly");
        }
        let (bundle, manifest, backend, tree_bytes) =
            (bundle.to_owned(), manifest.clone(), options.backend.clone(), options.tree_bytes);
        let (name, context) = (manifest.name.clone(), manifest.model.context as usize);
        let load = move || {
            let backend = onnxruntime::load(&bundle, &manifest, &backend).map_err(|e| e.to_string())?;
            Ok((backend, tree_bytes))
        };
        let start = text.prompt()[0];
        let thread = ModelThread::start(load, start, options.requests.queue).map_err(EngineError::Model)?;
        Ok(Self { name, text: Arc::new(text), context, thread, popular, options: options.requests.clone() })
    }

    /// Puts a model together from its parts; for tests, and for measuring without a real engine.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn from_parts(
        name: &str,
        text: Text,
        backend: Box<dyn Backend>,
        options: RequestOptions,
    ) -> Result<Self, EngineError> {
        let (context, start) = (backend.limits().context, text.prompt()[0]);
        let load = move || Ok((backend, 16 << 20));
        let thread = ModelThread::start(load, start, options.queue).map_err(EngineError::Model)?;
        Ok(Self { name: name.to_owned(), text: Arc::new(text), context, thread, popular: None, options })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it can answer.
    pub fn health(&self) -> Health {
        self.thread.health()
    }

    /// Completes what was typed. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the request, or why there is no answer.
    pub async fn complete(&self, completion: &Completion) -> Result<Answer, Error> {
        let received = Instant::now();
        let deadline = received + self.deadline(completion)?;
        let search = self.search(completion)?;
        if self.text.blocks(completion.input.as_bytes(), false) {
            return Ok(Answer::blocked());
        }
        let (reply, answer) = oneshot::channel();
        self.thread.submit(Request { search, deadline, received, reply })?;
        let gone = || Error::new(Kind::Internal, "the model stopped while working on this request");
        let answer = answer.await.map_err(|_| gone())??;
        Ok(self.with_popular(answer, completion))
    }

    /// Merges the bundle's popular queries, if it has any.
    fn with_popular(&self, mut answer: Answer, completion: &Completion) -> Answer {
        if let Some(popular) = &self.popular {
            let (typed, count) = (completion.input.as_str(), completion.suggestions.unwrap_or(DEFAULT_SUGGESTIONS));
            let mut queries = popular.best(typed, count);
            queries.retain(|(query, _)| !self.text.blocks(query.as_bytes(), true));
            answer.outcome = mix(answer.outcome, typed, queries, self.options.popular_weight, count);
        }
        answer
    }

    /// The search for a request; everything that can be wrong with it is found here, before it is queued.
    fn search(&self, completion: &Completion) -> Result<Search, Error> {
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
            beams: self.options.beams.max(suggestions),
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

    fn deadline(&self, completion: &Completion) -> Result<Duration, Error> {
        let Some(deadline_ms) = completion.deadline_ms else { return Ok(self.options.default_deadline) };
        in_range("deadline_ms", deadline_ms, self.options.max_deadline.as_millis() as u64)?;
        Ok(Duration::from_millis(deadline_ms))
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
