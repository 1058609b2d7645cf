//! The model thread: the only owner of the engine, behind a bounded queue.
//!
//! It loads the engine, proves it with a forward, then loops: take requests on, drop those that nobody waits for, step, answer.
//! This is the one place in scheduling that reads a clock.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::calibrate::calibrate;
use super::scheduler::{JobId, Scheduler, Usage};
use crate::complete::{Outcome, Search};
use crate::model::Backend;
use crate::text::TokenId;

/// A search to run and where to send the answer.
pub struct Request {
    /// What to search.
    pub search: Search,
    /// When the best of what was found until then is the answer.
    pub deadline: Instant,
    /// When the request came in.
    pub received: Instant,
    /// Where the answer goes. If its receiver is dropped, work on the request stops.
    pub reply: oneshot::Sender<Result<Answer, Refusal>>,
}

/// Why an answer is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The search ended by itself, and every suggestion is a complete query.
    Complete,
    /// Suggestions were cut at the length limit.
    Length,
    /// What was typed has a blocked term; nothing is suggested.
    Blocked,
    /// The deadline passed; these are the best complete queries found until then.
    Deadline,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The suggestions.
    pub outcome: Outcome,
    /// Why it ended.
    pub finish: Finish,
    /// What it cost.
    pub usage: Usage,
    /// From receiving the request to taking it on.
    pub queued: Duration,
    /// From taking it on to the answer.
    pub searched: Duration,
}

impl Answer {
    /// The answer to a text that has a blocked term.
    pub fn blocked() -> Self {
        Self {
            outcome: Outcome { suggestions: Vec::new(), proven: true },
            finish: Finish::Blocked,
            usage: Usage::default(),
            queued: Duration::ZERO,
            searched: Duration::ZERO,
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full.
    #[error("the server is busy: {0} requests are waiting already; try again in a moment")]
    Busy(usize),
    /// The engine is being loaded, or is gone.
    #[error("the model is not ready: {0}")]
    NotReady(String),
    /// The engine reported an error while working on the request.
    #[error("the model failed on this request")]
    Failed,
}

/// The engine's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// A real forward has succeeded.
    Ready,
    /// It failed, and a forward after that failed too.
    Failed(String),
}

/// Bounds on what waits and runs.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Requests that wait to be taken on; one more is refused.
    pub queued: usize,
    /// Requests that share forwards.
    pub active: usize,
    /// Whether an idle engine prepares for the character that the first suggestion has next.
    pub lookahead: bool,
}

/// The model thread. Dropping it waits until the requests that were accepted are answered and the engine is gone: an engine that
/// computes while the process ends would use libraries that are being torn down.
pub struct ModelThread {
    /// `None` only while dropping.
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
    health: watch::Receiver<Health>,
    limits: QueueLimits,
}

impl ModelThread {
    /// Starts the thread and waits until the engine has computed something. `load` runs on the new thread and makes the engine
    /// and the tree's bound in bytes; `probe` is the token of the first forward.
    ///
    /// # Errors
    /// Why the engine can't be loaded, or that there is no thread.
    pub fn start<F>(load: F, probe: TokenId, limits: QueueLimits) -> Result<Self, String>
    where
        F: FnOnce() -> Result<(Box<dyn Backend>, usize), String> + Send + 'static,
    {
        let (requests, receiver) = sync_channel(limits.queued);
        let (health_sender, health) = watch::channel(Health::Ready);
        let (loaded_sender, loaded) = sync_channel(1);
        let body = move || {
            let ready = load().and_then(|(backend, tree_bytes)| {
                let mut scheduler = Scheduler::new(backend, tree_bytes);
                calibrate(&mut scheduler, probe).map_err(|error| error.to_string())?;
                Ok(scheduler)
            });
            let (scheduler, result) = match ready {
                Ok(scheduler) => (Some(scheduler), Ok(())),
                Err(reason) => (None, Err(reason)),
            };
            // `start` waits for this; if it is gone there is nothing to do either.
            if let (Ok(()), Some(scheduler)) = (loaded_sender.send(result), scheduler) {
                let active = Vec::new();
                Worker { scheduler, receiver, active, lookahead: None, limits, health: health_sender }.run();
            }
        };
        let thread = std::thread::Builder::new().name("model".into()).spawn(body);
        let thread = Some(thread.map_err(|e| format!("no thread for the model: {e}"))?);
        loaded.recv().unwrap_or_else(|_| Err("loading the model ended in a panic".into()))?;
        Ok(Self { requests: Some(requests), thread, health, limits })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if the queue is full, [`Refusal::NotReady`] if no engine is running.
    pub fn submit(&self, request: Request) -> Result<(), Refusal> {
        if let Health::Failed(reason) = self.health() {
            return Err(Refusal::NotReady(reason));
        }
        let Some(requests) = &self.requests else { return Err(Refusal::NotReady("it is being stopped".into())) };
        requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::Busy(self.limits.queued),
            TrySendError::Disconnected(_) => Refusal::NotReady("its thread has ended".into()),
        })
    }

    /// The engine's state. A thread that died is a failure, whatever it said last.
    pub fn health(&self) -> Health {
        match self.health.has_changed() {
            Ok(_) => self.health.borrow().clone(),
            Err(_) => match self.health.borrow().clone() {
                Health::Failed(reason) => Health::Failed(reason),
                _ => Health::Failed("its thread has ended".into()),
            },
        }
    }
}

impl Drop for ModelThread {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // A panic on it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// A request that was taken on.
struct Active {
    job: JobId,
    deadline: Instant,
    received: Instant,
    started: Instant,
    reply: oneshot::Sender<Result<Answer, Refusal>>,
}

struct Worker {
    scheduler: Scheduler,
    receiver: Receiver<Request>,
    active: Vec<Active>,
    /// Work for a keystroke that may come, done while nothing else is to do.
    lookahead: Option<JobId>,
    limits: QueueLimits,
    health: watch::Sender<Health>,
}

impl Worker {
    fn run(mut self) {
        while self.take_on() {
            self.drop_unwanted();
            match self.scheduler.step() {
                Ok(done) => done.into_iter().for_each(|job| self.finish(job)),
                Err(error) => self.fail_all(&error.to_string()),
            }
        }
    }

    fn finish(&mut self, job: JobId) {
        if self.lookahead == Some(job) {
            self.stop_lookahead();
            return;
        }
        // After the answer has gone: making the next search takes time that nobody should wait for.
        let search = self.answer(job, None);
        if self.limits.lookahead && self.active.is_empty() {
            self.lookahead = search.and_then(|search| search.next_agreeing()).map(|next| self.scheduler.add(next));
        }
    }

    /// What it computed stays in the tree.
    fn stop_lookahead(&mut self) {
        if let Some(job) = self.lookahead.take() {
            self.scheduler.remove(job);
        }
    }

    /// Takes waiting requests on; waits for one if there is nothing to do. False when there is nothing to do any more.
    fn take_on(&mut self) -> bool {
        if self.active.is_empty() && self.lookahead.is_none() {
            match self.receiver.recv() {
                Ok(request) => self.start(request),
                Err(_) => return false,
            }
        }
        while self.active.len() < self.limits.active {
            match self.receiver.try_recv() {
                Ok(request) => self.start(request),
                Err(TryRecvError::Disconnected) if self.active.is_empty() => return false,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        true
    }

    fn start(&mut self, request: Request) {
        self.stop_lookahead();
        let Request { search, deadline, received, reply } = request;
        let job = self.scheduler.add(search);
        self.active.push(Active { job, deadline, received, started: Instant::now(), reply });
    }

    /// Ends requests whose client has gone or whose deadline has passed.
    fn drop_unwanted(&mut self) {
        let now = Instant::now();
        let gone: Vec<JobId> = self.active.iter().filter(|a| a.reply.is_closed()).map(|a| a.job).collect();
        for job in gone {
            self.scheduler.remove(job);
            self.active.retain(|active| active.job != job);
        }
        let late: Vec<JobId> = self.active.iter().filter(|a| a.deadline <= now).map(|a| a.job).collect();
        for job in late {
            self.answer(job, Some(Finish::Deadline));
        }
    }

    /// Sends what a request's search has found, and returns the search.
    fn answer(&mut self, job: JobId, finish: Option<Finish>) -> Option<Search> {
        let index = self.active.iter().position(|active| active.job == job)?;
        let active = self.active.remove(index);
        let (search, usage) = self.scheduler.take(job)?;
        let outcome = search.outcome();
        let all_complete = outcome.suggestions.iter().all(|suggestion| suggestion.complete);
        let answer = Answer {
            finish: finish.unwrap_or(if all_complete { Finish::Complete } else { Finish::Length }),
            outcome,
            usage,
            queued: active.started - active.received,
            searched: active.started.elapsed(),
        };
        // The client may have gone; then there is nobody to tell.
        let _ = active.reply.send(Ok(answer));
        Some(search)
    }

    /// After an engine error nothing that was computed can be trusted: every request is answered, everything is forgotten, and
    /// one forward decides whether the engine still works.
    fn fail_all(&mut self, reason: &str) {
        tracing::error!(reason, requests = self.active.len(), "the engine failed");
        for active in self.active.drain(..) {
            self.scheduler.remove(active.job);
            let _ = active.reply.send(Err(Refusal::Failed));
        }
        self.stop_lookahead();
        self.scheduler.reset();
        let probe = self.scheduler.warm_up(TokenId(0), 1);
        let health = probe.map_or_else(|error| Health::Failed(error.to_string()), |()| Health::Ready);
        self.health.send_replace(health);
    }
}
