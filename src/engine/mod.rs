//! One loaded model: tokenizer, blocklist, popular queries, model threads, limits. HTTP and the command line call it.
//!
//! `estimate` says how much memory it takes, and [`machine`] how much there is. `load` reads its parts, and `model` is
//! what requests are checked against. `completion` and `generation` make tasks of requests, `accepted` is a client's
//! request with all of its parts, and `running` a part until it is answered. `template` puts text around what is asked.
//! `extras` changes blocklist, popular queries, typing parameters and template. `hot` counts what is typed, `warm`
//! computes that for a new engine, and `version` says which one it is.

mod accepted;
mod caller;
mod completion;
mod estimate;
mod extras;
mod generation;
mod hot;
mod load;
pub mod machine;
mod model;
mod options;
mod running;
mod template;
mod tokenizer;
mod version;
mod warm;

use std::any::Any;
use std::hash::{BuildHasher, Hash};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ::completion::text::Method;
use ::completion::{Completions, Generated, Partition, Task, TaskOutput};
use backends::onnxruntime::CpuLevel;
use bundle::manifest::Manifest;
use rustc_hash::FxBuildHasher;
use scheduler::observer::Observer;
use scheduler::sessions::Sessions;
use scheduler::{
    Admission, Answer, Class, Finish, Flow, Health, Occupied, Payer, Pool, Request, Room, Superseded, Usage,
};
use tokio::sync::{mpsc, oneshot};

pub use self::accepted::{Accepted, Work};
pub use self::caller::Caller;
pub use self::completion::Completion;
pub use self::estimate::{Memory, memory};
pub use self::extras::{Extras, ExtrasChange};
pub use self::generation::{Generation, MAX_STOP, check_choice, check_length_penalty, check_told};
use self::hot::Hot;
pub use self::hot::{HotText, MAX_HOT_TEXTS};
pub use self::load::{EngineError, EngineParts, with_channel};
use self::model::{Model, Own, check_session};
pub use self::options::{
    DEFAULT_BEAMS, DEFAULT_MAX_NEW_TOKENS, DEFAULT_MAX_REQUEST_TOKENS, DEFAULT_SUGGESTIONS, EngineOptions,
    MAX_SUGGESTIONS, RequestOptions,
};
use self::running::{AnswerSource, Ending, Finisher};
pub use self::running::{Piece, Running, TaskResult};
pub use self::tokenizer::{TokenizerError, read_text};
pub use self::version::Version;
use crate::error::Error;
use crate::metrics::{self, Metrics, ModelMetrics};

/// A loaded model that answers requests.
pub struct Engine {
    name: String,
    /// As the bundle has it.
    own: Arc<Model>,
    /// As it holds now, with the extras in place.
    model: RwLock<Arc<Model>>,
    extras: Mutex<Extras>,
    pool: Pool,
    sessions: Mutex<Sessions>,
    /// What is typed, by those who share the prefix cache with all. All versions of a model have it together.
    hot: Arc<Mutex<Hot>>,
    version: Version,
    metrics: Arc<ModelMetrics>,
    cpu_level: Option<CpuLevel>,
    /// Given back when the model's threads and memory are gone, so it comes last.
    kept: Option<Box<dyn Any + Send + Sync>>,
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
        Self::start(EngineParts::read(bundle, manifest, options)?, options.requests.clone(), metrics)
    }

    /// Starts the model threads of an engine that is put together from its parts.
    ///
    /// # Errors
    /// The model can't be loaded.
    pub fn start(parts: EngineParts, options: RequestOptions, metrics: &Arc<Metrics>) -> Result<Self, EngineError> {
        let EngineParts { name, text, popular, template, limits, checksum, load, cpu_level } = parts;
        if let Some(level) = cpu_level {
            metrics.cpu_level(level.name());
        }
        let metrics = Arc::new(metrics.model(&name));
        let observer: Arc<dyn Observer> = Arc::clone(&metrics) as _;
        let pool = Pool::start(&load, text.prompt()[0], options.pool, &observer)?;
        let own = Arc::new(Model::new(text, Own { popular, template }, &limits, options));
        let (model, extras) = (RwLock::new(Arc::clone(&own)), Mutex::default());
        let (sessions, hot, version) = (Mutex::default(), Arc::default(), Version::first(checksum));
        Ok(Self { name, own, model, extras, pool, sessions, hot, version, metrics, cpu_level, kept: None })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How half-typed tokens are treated where a method is asked for.
    pub fn method(&self, wanted: Method) -> Method {
        self.own.text.method(wanted)
    }

    /// Whether the model can answer.
    pub fn health(&self) -> Health {
        self.pool.health()
    }

    /// Positions that a request may use: prompt, typed text and what is added.
    pub fn context(&self) -> usize {
        self.own.context
    }

    /// Whether the model reads whole texts with an encoder and answers them; such a model completes no typed text.
    pub fn is_encoder_decoder(&self) -> bool {
        self.own.encoder_tokens.is_some()
    }

    /// Keeps something until the model is gone, such as a reservation of its memory.
    pub fn keep(&mut self, kept: impl Any + Send + Sync) {
        self.kept = Some(Box::new(kept));
    }

    /// Lets an engine that was loaded in the background work at the priority of other threads.
    pub fn release(&self) {
        self.pool.release();
    }

    /// Whether its number of replicas may change.
    pub fn follows_load(&self) -> bool {
        self.own.options.pool.replicas.can_change()
    }

    /// Where replicas that are added get their memory from now on, and what each of those that work has of it.
    pub fn set_room(&self, room: Arc<dyn Room>, occupied: Vec<Occupied>) {
        self.pool.set_room(room, occupied);
    }

    /// Which version of the model this is.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Says where it came from.
    pub fn set_url(&mut self, url: &str) {
        url.clone_into(&mut self.version.url);
    }

    /// The CPU level of its kernels, if foretype's kernels compute it.
    pub fn cpu_level(&self) -> Option<CpuLevel> {
        self.cpu_level
    }

    /// Accepts no more requests. What was accepted is answered in all its parts, with what is found until then when
    /// `within` has passed.
    pub fn drain(&self, within: Duration) {
        self.pool.drain(within);
    }

    /// Completes what was typed. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the request, or why there is no answer.
    pub async fn complete(&self, completion: &Completion) -> Result<Answer<Completions>, Error> {
        let admission = self.pool.admit()?;
        self.run_completion(Part::lone(&admission), completion)?.finish().await
    }

    /// Generates text. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the request, or why there is no answer.
    pub async fn generate(&self, generation: &Generation) -> Result<Answer<Generated>, Error> {
        let admission = self.pool.admit()?;
        self.run_generation(Part::lone(&admission), generation)?.finish().await
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// The model's tokenizer can't be used for that.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Error> {
        self.own.decode(tokens)
    }

    /// The tokens that are read of a prompt, with their texts.
    ///
    /// # Errors
    /// What is wrong with the prompt.
    pub fn prompt_tokens(&self, generation: &Generation) -> Result<Vec<(u32, String)>, Error> {
        self.own.read(generation)
    }

    /// Starts completing what was typed; the suggestions come as soon as they are final.
    ///
    /// # Errors
    /// What is wrong with the request, or why it isn't accepted.
    pub fn start_completion(&self, completion: &Completion) -> Result<Running<Completions>, Error> {
        let admission = self.pool.admit()?;
        self.run_completion(Part { stream: true, ..Part::lone(&admission) }, completion)
    }

    /// Starts generating text; the tokens come as soon as they are final.
    ///
    /// # Errors
    /// What is wrong with the request, or why it isn't accepted.
    pub fn start_generation(&self, generation: &Generation) -> Result<Running<Generated>, Error> {
        let admission = self.pool.admit()?;
        self.run_generation(Part { stream: true, ..Part::lone(&admission) }, generation)
    }

    fn run_completion(&self, part: Part, completion: &Completion) -> Result<Running<Completions>, Error> {
        let (received, model) = (Instant::now(), self.model());
        let deadline = received + model.deadline(completion.deadline_ms)?;
        let session = check_session(completion.session.as_deref())?;
        let search = model.search(completion)?;
        let finisher = model.merge(completion);
        if model.text.blocks(completion.input.as_bytes(), false) {
            let ending = Ending::new(Arc::clone(&self.metrics), received);
            return Ok(Running { source: AnswerSource::Known(blocked()), events: None, finisher, ending });
        }
        let common = completion.template.is_none() && completion.caller.partition() == Partition::default();
        if part.flow.class == Class::Interactive && common {
            self.hot().typed(&completion.input);
        }
        // Popular queries are merged into the whole answer, so no part of it is final before it is there.
        let events = (part.stream && model.popular.is_none()).then(|| search.suggestions_wanted());
        // Only the first character is hashed: with the growing word a person would change replica at each key.
        let first_character = completion.input.trim_start().chars().next();
        let preferred_replica = self.preferred_replica(session, first_character);
        let (task, caller) = (search.into(), &completion.caller);
        self.submit(Checked { part, task, deadline, received, session, caller, preferred_replica, events }, finisher)
    }

    fn run_generation(&self, part: Part, generation: &Generation) -> Result<Running<Generated>, Error> {
        let (received, model) = (Instant::now(), self.model());
        let deadline = received + model.deadline(generation.deadline_ms)?;
        let session = check_session(generation.session.as_deref())?;
        let task = model.generation_task(generation)?;
        let events = part.stream.then(|| generation.sequences * model.context);
        let preferred_replica = self.preferred_replica(session, generation.prompt.split_whitespace().next());
        let caller = &generation.caller;
        let checked = Checked { part, task, deadline, received, session, caller, preferred_replica, events };
        self.submit(checked, Box::new(std::convert::identity))
    }

    /// Queues a request, as the newest of its session.
    fn submit<T: TaskResult>(&self, checked: Checked<'_>, finisher: Finisher<T>) -> Result<Running<T>, Error> {
        let Checked { part, mut task, deadline, received, session, caller, preferred_replica, events } = checked;
        let partition = caller.partition();
        task.paths_mut().set_partition(partition);
        let superseded = session.map_or_else(Superseded::default, |session| {
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).begin(partition, session)
        });
        let (sender, events) = events.map(mpsc::channel).unzip();
        let (reply, answer) = oneshot::channel();
        let flow = part.flow;
        let payer = caller.key.clone().map(|key| key as Arc<dyn Payer>);
        let request =
            Request { task, flow, payer, deadline, received, superseded, preferred_replica, events: sender, reply };
        self.pool
            .submit(part.admission, request)
            .inspect_err(|_| self.metrics.ended(metrics::RequestOutcome::Refused))?;
        let source = AnswerSource::Model { reply: answer, health: self.pool.watch_health() };
        let ending = Ending::new(Arc::clone(&self.metrics), received);
        Ok(Running { source, events, finisher, ending })
    }

    /// The replica that a person's keystrokes, or texts that begin alike, go to if it isn't busy.
    fn preferred_replica(&self, session: Option<&str>, beginning: impl Hash) -> usize {
        let hash = session.map_or_else(|| FxBuildHasher.hash_one(beginning), |name| FxBuildHasher.hash_one(name));
        self.pool.preferred_replica(hash)
    }
}

/// What a part of a request has from the whole.
#[derive(Clone, Copy)]
struct Part<'a> {
    admission: &'a Admission,
    flow: Flow,
    /// Whether parts of the answer are wanted as soon as they are final.
    stream: bool,
}

impl<'a> Part<'a> {
    /// The only part of a request that nobody pays for.
    fn lone(admission: &'a Admission) -> Self {
        Self { admission, flow: Flow::default(), stream: false }
    }
}

/// A checked request.
struct Checked<'a> {
    part: Part<'a>,
    task: Task,
    deadline: Instant,
    received: Instant,
    session: Option<&'a str>,
    caller: &'a Caller,
    preferred_replica: usize,
    /// Most events that can come, if they are wanted.
    events: Option<usize>,
}

/// The answer to a text that has a blocked term.
fn blocked() -> Answer<TaskOutput> {
    let nothing = Completions { suggestions: Vec::new(), proven: true, typed_log_prob: None, readings: None };
    Answer {
        result: TaskOutput::Suggestions(nothing),
        finish: Finish::Blocked,
        usage: Usage::default(),
        queued: Duration::ZERO,
        searched: Duration::ZERO,
    }
}
