//! A request to the model threads, and its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::backend::BackendError;
use super::client::Flow;
use super::job::Usage;
use super::line::Waits;
use completion::{SampledToken, Suggestion, Task, TaskOutput};

/// Who is told what a request costs, step by step, also if its client leaves.
pub trait Payer: Send + Sync {
    /// So many positions were computed for the request.
    fn charge(&self, positions: usize);
}

/// A task to do and where to send what becomes of it.
pub struct Request {
    /// The search or sampling to run.
    pub task: Task,
    /// Who pays for it, and of which class it is.
    pub flow: Flow,
    /// Who is told what it costs, if anyone wants to know.
    pub payer: Option<Arc<dyn Payer>>,
    /// When what was found until then is the answer.
    pub deadline: Instant,
    /// When the request came in.
    pub received: Instant,
    /// Set when a newer request of its session has come.
    pub superseded: Superseded,
    /// Index of the replica that probably has most of the request's prefixes cached. While it is busy, another one may
    /// take the request.
    pub preferred_replica: usize,
    /// Where parts of the answer go as soon as they are final, if anyone wants them. The channel holds all that can
    /// come.
    pub events: Option<mpsc::Sender<Event>>,
    /// Where the answer goes. If its receiver is dropped, work on the request stops.
    pub reply: oneshot::Sender<Result<Answer<TaskOutput>, Refusal>>,
}

/// A part of an answer that is final.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The next best suggestion.
    Suggestion(Suggestion),
    /// A sequence has grown by a token.
    Token {
        /// Index of the sequence, from 0.
        sequence: usize,
        /// The token that was appended to it.
        token: SampledToken,
    },
}

/// Why an answer is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The search ended by itself, and every suggestion is a complete query; or every sequence has ended.
    Complete,
    /// Suggestions or sequences were cut at the length limit.
    Length,
    /// The typed text has a blocked term; nothing is suggested.
    Blocked,
    /// The deadline passed; these are the best complete queries found until then.
    Deadline,
    /// A newer request of the same session came; these are the best complete queries found until then.
    Superseded,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The suggestions, or the texts.
    pub result: T,
    /// Why the work on the request ended.
    pub finish: Finish,
    /// The model work of the request.
    pub usage: Usage,
    /// From receiving the request to taking it on.
    pub queued: Duration,
    /// From taking it on to the answer.
    pub searched: Duration,
}

impl<T> Answer<T> {
    /// The same answer with another result.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Answer<U> {
        let Self { result, finish, usage, queued, searched } = self;
        Answer { result: f(result), finish, usage, queued, searched }
    }
}

/// Why a replica's engine can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The engine's own reason.
    #[error(transparent)]
    Engine(#[from] BackendError),
    /// The engine panicked in a step.
    #[error("the engine panicked; the server's log says where")]
    Panicked,
    /// The thread around the engine panicked.
    #[error("its thread panicked")]
    ThreadPanicked,
    /// It can't be loaded.
    #[error("it can't be loaded: {0}")]
    Load(String),
    /// A step takes longer than the limit.
    #[error("a model step doesn't come back")]
    Hangs,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full.
    #[error("the server is busy: {0} requests are waiting already; try again in a moment")]
    Busy(usize),
    /// The model sleeps, and there is no room for it.
    #[error("the model sleeps and can't wake: {0}")]
    Asleep(String),
    /// The engine has failed.
    #[error("the model is not ready: {0}")]
    Unhealthy(Failure),
    /// The engine failed while it worked on this request.
    #[error("the model is not ready: its engine failed while working on this request; try again")]
    Interrupted,
    /// The server is being stopped.
    #[error("the model is not ready: it is being stopped")]
    Stopping,
    /// The engine computed nonsense for this request.
    #[error("the model failed on this request")]
    Failed,
}

/// Whether a newer request of the same session has come.
#[derive(Clone, Debug, Default)]
pub struct Superseded(Arc<AtomicBool>);

impl Superseded {
    /// Marks the request as superseded.
    pub fn set(&self) {
        // Nothing else is published with it.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was said.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether nobody else could say so any more.
    pub(crate) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Request {
    /// Answers with what its task came to without ever being worked on.
    pub(crate) fn end_unworked(self, finish: Finish) {
        let answer = Answer {
            result: self.task.output(),
            finish,
            usage: Usage::of(&self.task),
            queued: self.received.elapsed(),
            searched: Duration::ZERO,
        };
        // The client may have gone; then there is nobody to tell.
        let _ = self.reply.send(Ok(answer));
    }

    /// Answers the request with a refusal.
    pub(crate) fn refuse(self, refusal: Refusal) {
        let _ = self.reply.send(Err(refusal));
    }
}

impl Waits for Request {
    fn received(&self) -> Instant {
        self.received
    }

    fn flow(&self) -> Flow {
        self.flow
    }

    fn preferred_replica(&self) -> usize {
        self.preferred_replica
    }

    fn is_over(&self, now: Instant) -> bool {
        self.reply.is_closed() || self.superseded.get() || self.deadline <= now
    }
}
