//! The loop of one model thread: take requests on, drop those that nobody waits for, step, answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::health::Board;
use super::queue::{Queue, Taken, Wait};
use super::request::{Answer, Event, Finish, Refusal, Request, Superseded};
use super::scheduler::{JobId, Scheduler, Stepped, Usage};
use crate::complete::{Product, Task};
use crate::metrics::ReplicaMetrics;
use crate::text::TokenId;

/// What an answer needs to reach its client, about. A forward that begins at once has every core, and the threads that write the
/// answer would wait for one.
const REST: Duration = Duration::from_millis(2);

/// Why a worker stopped.
pub(super) enum End {
    /// There is nothing to do any more.
    Closed,
    /// The engine can't go on. Everyone it was working for has been told.
    Failed(String),
}

/// A request that was taken on.
struct Active {
    job: JobId,
    deadline: Instant,
    received: Instant,
    started: Instant,
    superseded: Superseded,
    stream: Option<Stream>,
    /// Whether something final is known.
    has_first: bool,
    reply: oneshot::Sender<Result<Answer<Product>, Refusal>>,
}

/// Parts of an answer on their way to a client.
struct Stream {
    events: mpsc::Sender<Event>,
    /// By sequence, or for suggestions in the first: how many were sent.
    sent: Vec<usize>,
}

/// One replica's loop and what it works with.
pub(super) struct Worker {
    pub(super) replica: usize,
    pub(super) scheduler: Scheduler,
    pub(super) queue: Arc<Queue>,
    pub(super) board: Arc<Board>,
    pub(super) metrics: ReplicaMetrics,
    /// Requests that may share forwards.
    pub(super) max_batch: usize,
    /// Whether to prepare, while idle, for the next keystroke.
    pub(super) lookahead: bool,
    /// The token of a forward that proves the engine works.
    pub(super) probe: TokenId,
}

impl Worker {
    /// Works until there is nothing to do any more, or until the engine fails.
    pub(super) fn run(self) -> End {
        Loop { worker: self, active: Vec::new(), ahead: None, rests: false, evicted: 0, step: Duration::ZERO }.run()
    }
}

struct Loop {
    worker: Worker,
    active: Vec<Active>,
    /// Work for a keystroke that may come, done while nothing else is to do.
    ahead: Option<JobId>,
    /// Whether an answer has just gone.
    rests: bool,
    /// The tree's count of evictions when it was last looked at.
    evicted: u64,
    /// What a step takes, about.
    step: Duration,
}

impl Loop {
    fn run(mut self) -> End {
        while self.take_on() {
            self.drop_unwanted();
            if let Err(reason) = self.step() {
                return End::Failed(reason);
            }
        }
        End::Closed
    }

    /// Takes waiting requests on; waits for one if there is nothing to do. False when there is nothing to do any more.
    fn take_on(&mut self) -> bool {
        self.observe_tree();
        while self.active.len() < self.worker.max_batch {
            let wait = self.wait();
            match self.worker.queue.take(self.worker.replica, wait) {
                Taken::Request(request) => self.start(*request),
                Taken::Nothing if wait == Wait::Forever => {}
                Taken::Nothing => break,
                Taken::Closed if self.active.is_empty() => return false,
                Taken::Closed => break,
            }
        }
        if self.active.len() >= self.worker.max_batch {
            self.worker.queue.withdraw();
        }
        true
    }

    /// How long there is time for waiting: preparing begins when the answer before it has had time to leave.
    fn wait(&mut self) -> Wait {
        match (self.active.is_empty(), self.ahead) {
            (true, None) => Wait::Forever,
            (true, Some(_)) if std::mem::take(&mut self.rests) => Wait::UpTo(REST),
            _ => Wait::No,
        }
    }

    fn start(&mut self, request: Request) {
        self.stop_lookahead();
        let Request { task, deadline, received, superseded, events, reply, .. } = request;
        let sequences = if let Task::Sampling(sampling) = &task { sampling.sequences() } else { 1 };
        let stream = events.map(|events| Stream { events, sent: vec![0; sequences] });
        let job = self.worker.scheduler.add(task);
        let started = Instant::now();
        self.worker.metrics.model.queue_seconds.observe((started - received).as_secs_f64());
        self.active.push(Active { job, deadline, received, started, superseded, stream, has_first: false, reply });
        self.worker.metrics.active.set(self.active.len() as i64);
    }

    /// Ends requests whose client has gone, that are superseded, or whose deadline has passed, or would pass before the next step
    /// is over. A request that has had no step gets one, so that a short deadline on a slow machine still brings something.
    fn drop_unwanted(&mut self) {
        let now = Instant::now();
        let stop_by = self.worker.queue.stop_by();
        let is_late = |active: &Active| {
            let begun = self.worker.scheduler.usage(active.job).is_some_and(|usage| usage.forwards > 0);
            active.deadline <= if begun { now + self.step } else { now }
        };
        let ends: Vec<(JobId, Option<Finish>)> = self
            .active
            .iter()
            .filter_map(|active| match () {
                () if active.reply.is_closed() => Some((active.job, None)),
                () if active.superseded.get() => Some((active.job, Some(Finish::Superseded))),
                () if is_late(active) || stop_by.is_some_and(|by| by <= now) => {
                    Some((active.job, Some(Finish::Deadline)))
                }
                () => None,
            })
            .collect();
        for (job, finish) in ends {
            match finish {
                Some(finish) => drop(self.answer(job, Some(finish))),
                None => self.forget(job),
            }
        }
    }

    /// One step of the scheduler, and what follows from it. An error is one that the engine doesn't recover from by itself.
    fn step(&mut self) -> Result<(), String> {
        let (computed_before, began) = (self.positions(), Instant::now());
        self.worker.board.begin(self.worker.replica);
        // The scheduler may be in any state after a panic; it is dropped then and never used again.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.worker.scheduler.step()));
        let was_given_up = self.worker.board.end(self.worker.replica);
        if was_given_up {
            tracing::warn!(elapsed_ms = began.elapsed().as_millis() as u64, "the model step came back");
        }
        let stepped = match stepped {
            Ok(Ok(stepped)) => stepped,
            Ok(Err(error)) => return self.recover(&error.to_string()),
            Err(_) => {
                let reason = "the engine panicked; the server's log says where".to_owned();
                // Before anyone is told: who asks for the health then gets the truth.
                self.worker.board.set_failed(self.worker.replica, Some(reason.clone()));
                self.refuse_all(&reason);
                return Err(reason);
            }
        };
        self.observe(&stepped, computed_before, began);
        self.send_events();
        stepped.done.iter().for_each(|&job| self.finish(job));
        if !stepped.failed.is_empty() {
            return self.fail(&stepped.failed);
        }
        Ok(())
    }

    /// Positions computed for active requests until now.
    fn positions(&self) -> u64 {
        self.worker.scheduler.positions_computed()
    }

    fn observe(&mut self, stepped: &Stepped, computed_before: u64, began: Instant) {
        let metrics = &self.worker.metrics;
        if stepped.rows > 0 {
            let took = began.elapsed();
            // Three quarters old, one quarter new: it follows the load within a few steps.
            self.step = (3 * self.step + took) / 4;
            metrics.step_seconds.observe(took.as_secs_f64());
            metrics.step_rows.observe(stepped.rows as f64);
            let positions = self.positions() - computed_before;
            let counter = if self.active.is_empty() { &metrics.lookahead } else { &metrics.computed };
            counter.inc_by(positions);
        }
    }

    /// Shows what the tree holds.
    fn observe_tree(&mut self) {
        let metrics = &self.worker.metrics;
        let tree = self.worker.scheduler.tree_stats();
        metrics.tree_bytes.set(tree.bytes as i64);
        metrics.tree_nodes.set(tree.nodes as i64);
        metrics.tree_pages.set(tree.pages as i64);
        metrics.tree_holds.set(tree.holds as i64);
        metrics.tree_evicted.inc_by(tree.evicted.saturating_sub(self.evicted));
        self.evicted = tree.evicted;
    }

    /// Sends what has become final, and notes when the first of it has.
    fn send_events(&mut self) {
        for active in &mut self.active {
            if active.has_first && active.stream.is_none() {
                continue;
            }
            let Some(task) = self.worker.scheduler.task(active.job) else { continue };
            let has_first = match task {
                Task::Search(search) => search.has_settled(),
                Task::Sampling(sampling) => (0..sampling.sequences()).any(|s| !sampling.tokens(s, 0).is_empty()),
            };
            if has_first && !active.has_first {
                active.has_first = true;
                self.worker.metrics.model.first_seconds.observe(active.received.elapsed().as_secs_f64());
            }
            if let Some(stream) = active.stream.as_mut().filter(|_| has_first) {
                stream.send(task);
            }
        }
    }

    fn finish(&mut self, job: JobId) {
        if self.ahead == Some(job) {
            self.stop_lookahead();
            return;
        }
        // After the answer has gone: making the next search takes time that nobody should wait for.
        let task = self.answer(job, None);
        if let Some(Task::Search(search)) = task.filter(|_| self.worker.lookahead && self.active.is_empty()) {
            self.ahead = search.next_agreeing().map(|next| self.worker.scheduler.add_ahead(next));
            self.rests = self.ahead.is_some();
        }
    }

    /// Sends what a request's task came to, and returns the task.
    fn answer(&mut self, job: JobId, finish: Option<Finish>) -> Option<Task> {
        let active = self.remove(job)?;
        let (task, usage) = self.worker.scheduler.take(job)?;
        let result = task.product();
        let answer = Answer {
            finish: finish.unwrap_or_else(|| finish_of(&result)),
            result,
            usage,
            queued: active.started - active.received,
            searched: active.started.elapsed(),
        };
        self.count(usage, answer.finish == Finish::Superseded);
        // The client may have gone; then there is nobody to tell.
        let _ = active.reply.send(Ok(answer));
        Some(task)
    }

    /// Gives a request up whose client has gone.
    fn forget(&mut self, job: JobId) {
        self.remove(job);
        if let Some((_, usage)) = self.worker.scheduler.take(job) {
            self.count(usage, true);
        }
    }

    fn remove(&mut self, job: JobId) -> Option<Active> {
        let index = self.active.iter().position(|active| active.job == job)?;
        let active = self.active.remove(index);
        self.worker.metrics.active.set(self.active.len() as i64);
        Some(active)
    }

    fn count(&self, usage: Usage, wasted: bool) {
        self.worker.metrics.saved.inc_by(usage.positions_saved as u64);
        if wasted {
            self.worker.metrics.wasted.inc_by(usage.positions_computed as u64);
        }
    }

    /// What it computed stays in the tree.
    fn stop_lookahead(&mut self) {
        if let Some(job) = self.ahead.take() {
            self.worker.scheduler.take(job);
        }
    }

    /// Tells those for whom the engine computed nonsense, and finds out whether that was because of them.
    fn fail(&mut self, jobs: &[JobId]) -> Result<(), String> {
        tracing::error!(requests = jobs.len(), "the engine computed NaN or infinity");
        for &job in jobs {
            if let Some(active) = self.remove(job) {
                let _ = active.reply.send(Err(Refusal::Failed));
            }
            self.worker.scheduler.take(job);
        }
        self.ahead = self.ahead.filter(|job| !jobs.contains(job));
        match self.proves_itself() {
            Ok(()) => Ok(()),
            Err(reason) => {
                self.worker.board.set_failed(self.worker.replica, Some(reason.clone()));
                self.refuse_all(&reason);
                Err(reason)
            }
        }
    }

    /// After an engine error nothing that was computed can be trusted: every request is answered, everything is forgotten, and
    /// one forward decides whether the engine still works.
    fn recover(&mut self, reason: &str) -> Result<(), String> {
        for job in self.refuse_all(reason) {
            self.worker.scheduler.take(job);
        }
        self.worker.scheduler.reset();
        self.evicted = 0;
        self.proves_itself()
    }

    fn proves_itself(&mut self) -> Result<(), String> {
        self.worker.board.begin(self.worker.replica);
        let proof = catch_unwind(AssertUnwindSafe(|| self.worker.scheduler.warm_up(self.worker.probe, 1)));
        self.worker.board.end(self.worker.replica);
        match proof {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("the engine panicked; the server's log says where".to_owned()),
        }
    }

    /// Answers every active request that the engine failed. The scheduler isn't touched: it may be in any state. Returns the jobs
    /// that it still has.
    fn refuse_all(&mut self, reason: &str) -> Vec<JobId> {
        tracing::error!(reason, requests = self.active.len(), "the engine failed");
        let mut jobs: Vec<JobId> = self.ahead.take().into_iter().collect();
        for active in std::mem::take(&mut self.active) {
            jobs.push(active.job);
            let refusal = Refusal::NotReady("its engine failed while working on this request; try again".to_owned());
            let _ = active.reply.send(Err(refusal));
        }
        self.worker.metrics.active.set(0);
        jobs
    }
}

impl Stream {
    /// Sends what is new. The channel has room for all of it; a closed one has nobody behind it.
    fn send(&mut self, task: &Task) {
        match task {
            Task::Search(search) => {
                for suggestion in search.settled().into_iter().skip(self.sent[0]) {
                    self.sent[0] += 1;
                    let _ = self.events.try_send(Event::Suggestion(suggestion));
                }
            }
            Task::Sampling(sampling) => {
                for sequence in 0..sampling.sequences() {
                    for token in sampling.tokens(sequence, self.sent[sequence]) {
                        self.sent[sequence] += 1;
                        let _ = self.events.try_send(Event::Token { sequence, token: token.clone() });
                    }
                }
            }
        }
    }
}

/// Why a task ended by itself.
fn finish_of(product: &Product) -> Finish {
    let is_complete = match product {
        Product::Suggestions(outcome) => outcome.suggestions.iter().all(|suggestion| suggestion.complete),
        Product::Texts(generated) => generated
            .sequences
            .iter()
            .all(|sequence| !matches!(sequence.finish, None | Some(crate::complete::SequenceFinish::Length))),
    };
    if is_complete { Finish::Complete } else { Finish::Length }
}
