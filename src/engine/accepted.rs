//! A client's request that was accepted: a keystroke, or the lines of a batch with their prompts. All of its parts are
//! worked on, also while the server is being stopped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::completion::{Completions, Generated};
use scheduler::{Admission, Answer, Class, Client, Flow};
use tokio::sync::Semaphore;

use super::options::{DEFAULT_BEAMS, DEFAULT_MAX_NEW_TOKENS, DEFAULT_SUGGESTIONS, MAX_SUGGESTIONS};
use super::{Caller, Completion, Engine, Generation, Part, Running};
use crate::error::{Error, Kind};

/// Parts of one request that the engine gets at once.
const PARTS_AT_ONCE: usize = 16;
/// Sequences, beams or suggestions that need as many rows as the beams of an ordinary search: nobody types who asks for
/// more.
const BULK_ROWS: usize = DEFAULT_BEAMS;
/// Between two tries of a part that the engine has no room for.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a part that waits for its key's positions looks whether the server is being stopped.
const LOOK: Duration = Duration::from_millis(200);
/// How long a part is tried that names no deadline.
const TRY_FOR: Duration = Duration::from_secs(60);

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Tokens of all answers at most.
    tokens: u64,
    /// Whether it has several parts, each of which can wait for room.
    parts: bool,
    class: Class,
}

impl Work {
    /// Of a typed text, for a model with room for `context` tokens.
    pub fn completion(suggestions: Option<usize>, max_new_tokens: Option<usize>, context: usize) -> Self {
        Self::of(suggestions.unwrap_or(DEFAULT_SUGGESTIONS), max_new_tokens, context)
    }

    /// Of prompts, each continued by `rows` sequences or beams.
    pub fn generations(prompts: usize, rows: usize, max_new_tokens: Option<usize>, context: usize) -> Self {
        let each = Self::of(rows, max_new_tokens, context);
        if prompts > 1 { Self { tokens: each.tokens * prompts as u64, ..Self::batch() } } else { each }
    }

    /// Of a batch without lines yet.
    pub fn batch() -> Self {
        Self { tokens: 0, parts: true, class: Class::Bulk }
    }

    /// With another line.
    #[must_use]
    pub fn and(self, line: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(line.tokens), ..self }
    }

    /// What is over a limit of its own counts as that limit, and is refused for it.
    fn of(rows: usize, max_new_tokens: Option<usize>, context: usize) -> Self {
        let rows = rows.min(MAX_SUGGESTIONS);
        let new = max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS).min(context);
        let class = if rows > BULK_ROWS { Class::Bulk } else { Class::Interactive };
        Self { tokens: (rows * new) as u64, parts: false, class }
    }
}

/// A request that was accepted. See the module's documentation.
pub struct Accepted {
    admission: Admission,
    flow: Flow,
    /// Of a request with several parts: how many more the engine may get.
    parts: Option<Semaphore>,
    engine: Arc<Engine>,
}

impl Accepted {
    /// Accepts a client's request.
    ///
    /// # Errors
    /// It asks for too much, or the server is being stopped.
    pub fn new(engine: Arc<Engine>, client: Client, work: Work) -> Result<Self, Error> {
        let limit = engine.own.options.max_request_tokens;
        if work.tokens > limit {
            let message = format!(
                "the request asks for {} tokens (lines x prompts x n, beams or suggestions x max_new_tokens); at most \
                 {limit} are allowed: send fewer lines or ask for less, or raise --max-request-tokens",
                work.tokens
            );
            return Err(Error::new(Kind::InvalidValue, message));
        }
        let admission = engine.pool.admit()?;
        let parts = work.parts.then(|| Semaphore::new(PARTS_AT_ONCE));
        Ok(Self { admission, flow: Flow { client, class: work.class }, parts, engine })
    }

    /// The model that works on it.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Completes what was typed. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the part, or why there is no answer.
    pub async fn complete(&self, completion: &Completion) -> Result<Answer<Completions>, Error> {
        let run = async || self.engine.run_completion(self.part(false), completion)?.finish().await;
        self.run(completion.deadline_ms, &completion.caller, run).await
    }

    /// Generates text. If the future is dropped, work on it stops.
    ///
    /// # Errors
    /// What is wrong with the part, or why there is no answer.
    pub async fn generate(&self, generation: &Generation) -> Result<Answer<Generated>, Error> {
        let run = async || self.engine.run_generation(self.part(false), generation)?.finish().await;
        self.run(generation.deadline_ms, &generation.caller, run).await
    }

    /// Starts completing what was typed; the suggestions come as soon as they are final.
    ///
    /// # Errors
    /// What is wrong with the part.
    pub fn start_completion(&self, completion: &Completion) -> Result<Running<Completions>, Error> {
        self.engine.run_completion(self.part(true), completion)
    }

    /// Starts generating text; the tokens come as soon as they are final.
    ///
    /// # Errors
    /// What is wrong with the part.
    pub fn start_generation(&self, generation: &Generation) -> Result<Running<Generated>, Error> {
        self.engine.run_generation(self.part(true), generation)
    }

    fn part(&self, stream: bool) -> Part<'_> {
        Part { admission: &self.admission, flow: self.flow, stream }
    }

    /// Runs a part. The engine being full is the server's trouble and not that of one part among many: it waits as long
    /// as it may. A part whose key has used up its positions waits until there are some.
    async fn run<T>(
        &self,
        deadline_ms: Option<u64>,
        caller: &Caller,
        run: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(parts) = &self.parts else { return run().await };
        // Nobody closes it.
        let _turn = parts.acquire().await;
        while let Some(debt) = caller.key.as_ref().and_then(|key| key.debt(Instant::now()))
            && !self.engine.pool.is_draining()
        {
            tokio::time::sleep(debt.min(LOOK)).await;
        }
        let give_up = Instant::now() + deadline_ms.map_or(TRY_FOR, Duration::from_millis).min(TRY_FOR);
        loop {
            match run().await {
                Err(error) if error.kind == Kind::Overloaded && Instant::now() + PAUSE < give_up => {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }
}
