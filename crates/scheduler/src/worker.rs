//! The loop of one model thread: take requests on, drop those that nobody waits for, step, answer.

mod failure;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::active::{Active, Stream, finish_of};
use super::health::Board;
use super::parked::Parked;
use super::queue::{Queue, Taken};
use super::request::{Answer, Finish, Request};
use super::scheduler::{JobId, Scheduler, Stepped, Usage};
use crate::observer::{ReplicaObserver, StepReport};
use completion::text::TokenId;
use completion::{Search, Task};

/// What an answer needs to reach its client, about. A forward that begins at once has every core, and the threads that write the
/// answer would wait for one.
const REST: Duration = Duration::from_millis(2);

/// Rounds that a search may take on the thread that brings it, each for one distribution and a few microseconds: more than the ten
/// beams and sixteen tokens of a request that asks for nothing else. Other clients of that thread wait meanwhile.
const ROUNDS: usize = 256;

/// Why a worker stopped.
pub(super) enum End {
    /// There is nothing to do any more.
    Closed,
    /// The engine can't go on. Everyone it was working for has been told.
    Failed(String),
}

/// One replica's loop and what it works with.
pub(super) struct Worker {
    pub(super) replica: usize,
    pub(super) scheduler: Scheduler,
    pub(super) queue: Arc<Queue>,
    pub(super) parked: Arc<Parked>,
    pub(super) board: Arc<Board>,
    pub(super) observer: Box<dyn ReplicaObserver>,
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
        Box::new(Loop {
            worker: self,
            active: Vec::new(),
            ahead: None,
            agreeing: None,
            answered: Instant::now(),
            waits: Idle::Forever,
            called: false,
            broken: None,
            evicted: 0,
            step: Duration::ZERO,
        })
        .run()
    }
}

/// How long there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idle {
    Until(Instant),
    Forever,
}

/// The loop's state. The model thread has it while there is something to do; while it waits, it is parked.
pub(super) struct Loop {
    worker: Worker,
    active: Vec<Active>,
    /// Work for a keystroke that may come, done while nothing else is to do.
    ahead: Option<JobId>,
    /// The last search that was answered, if the keystroke after it is to be prepared.
    agreeing: Option<Box<Search>>,
    /// When it was answered.
    answered: Instant,
    /// How long the model thread waits while the loop is parked.
    waits: Idle,
    /// Whether the model thread was called since.
    called: bool,
    /// Why the model thread must not go on: bringing a request ended in a panic.
    broken: Option<String>,
    /// The tree's count of evictions when it was last looked at.
    evicted: u64,
    /// What a step takes, about.
    step: Duration,
}

impl Loop {
    fn run(mut self: Box<Self>) -> End {
        loop {
            self = match self.take_on() {
                Ok(this) => this,
                Err(end) => return end,
            };
            self.drop_unwanted();
            self.prepare();
            if let Err(reason) = self.step() {
                return End::Failed(reason);
            }
        }
    }

    /// Takes waiting requests on; waits for one if there is nothing to do. An end when there is nothing to do any more.
    fn take_on(mut self: Box<Self>) -> Result<Box<Self>, End> {
        self.observe_tree();
        while self.active.len() < self.worker.max_batch {
            match (self.worker.queue.take(self.worker.replica), self.idle()) {
                (Taken::Request(request), _) => drop(self.start(*request)),
                (Taken::Closed, _) if self.active.is_empty() => return Err(End::Closed),
                (Taken::Nothing, Some(idle)) => self = self.wait(idle)?,
                (Taken::Closed | Taken::Nothing, _) => break,
            }
        }
        if self.active.len() >= self.worker.max_batch {
            self.worker.queue.withdraw();
        }
        Ok(self)
    }

    /// How long there is nothing to do, if so: preparing begins when the answer before it has had time to leave.
    fn idle(&self) -> Option<Idle> {
        let rested = self.answered + REST;
        match (&self.agreeing, self.ahead) {
            _ if !self.active.is_empty() => None,
            (Some(_), _) => (rested > Instant::now()).then_some(Idle::Until(rested)),
            (None, Some(_)) => None,
            (None, None) => Some(Idle::Forever),
        }
    }

    /// Waits; meanwhile the loop is parked.
    fn wait(mut self: Box<Self>, idle: Idle) -> Result<Box<Self>, End> {
        (self.waits, self.called) = (idle, false);
        let until = if let Idle::Until(until) = idle { Some(until) } else { None };
        let (parked, queue, replica) =
            (Arc::clone(&self.worker.parked), Arc::clone(&self.worker.queue), self.worker.replica);
        parked.park(self);
        queue.wait(replica, until);
        let mut this = parked.resume();
        match this.broken.take() {
            Some(reason) => Err(End::Failed(reason)),
            None => Ok(this),
        }
    }

    /// Whether another request may be brought to the parked loop.
    pub(super) fn has_room(&self) -> bool {
        self.broken.is_none() && self.active.len() < self.worker.max_batch
    }

    /// Takes a request on, on the thread that brings it, and answers it if the tree has all that it needs. Else it stays, and the
    /// model thread goes on with it.
    pub(super) fn bring(&mut self, request: Request) {
        let job = self.start(request);
        if self.worker.scheduler.replay(job, ROUNDS) {
            self.send_events();
            self.finish(job);
        }
        // Who waits for a while will see by itself what is to be prepared.
        let has_work = !self.active.is_empty() || (self.agreeing.is_some() && self.waits == Idle::Forever);
        if has_work && !std::mem::replace(&mut self.called, true) {
            self.worker.queue.call(self.worker.replica);
        }
    }

    fn start(&mut self, request: Request) -> JobId {
        self.stop_lookahead();
        let Request { task, deadline, received, superseded, events, reply, .. } = request;
        let sequences = if let Task::Sampling(sampling) = &task { sampling.sequences() } else { 1 };
        let stream = events.map(|events| Stream { events, sent: vec![0; sequences] });
        let job = self.worker.scheduler.add(task);
        let started = Instant::now();
        self.worker.observer.dequeued(started - received);
        self.active.push(Active { job, deadline, received, started, superseded, stream, has_first: false, reply });
        self.worker.observer.active(self.active.len());
        job
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
            Err(_) => return Err(self.panicked()),
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
        if stepped.rows > 0 {
            let took = began.elapsed();
            // Three quarters old, one quarter new: it follows the load within a few steps.
            self.step = (3 * self.step + took) / 4;
            let positions = self.positions() - computed_before;
            let lookahead = self.active.is_empty();
            self.worker.observer.stepped(StepReport { took, rows: stepped.rows, positions, lookahead });
        }
    }

    /// Shows what the tree holds.
    fn observe_tree(&mut self) {
        let tree = self.worker.scheduler.tree_stats();
        self.worker.observer.prefix_cache(&tree, tree.evicted.saturating_sub(self.evicted));
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
                self.worker.observer.first_result(active.received.elapsed());
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
        let task = self.answer(job, None);
        if let Some(Task::Search(search)) = task.filter(|_| self.worker.lookahead) {
            (self.agreeing, self.answered) = (Some(search), Instant::now());
        }
    }

    /// Begins preparing for the next keystroke, after the answer has gone: making the next search takes time that nobody should
    /// wait for.
    fn prepare(&mut self) {
        if self.active.is_empty() {
            let next = self.agreeing.take().and_then(|search| search.next_agreeing());
            self.ahead = next.map(|next| self.worker.scheduler.add_ahead(next)).or(self.ahead);
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
        self.worker.observer.active(self.active.len());
        Some(active)
    }

    fn count(&self, usage: Usage, wasted: bool) {
        self.worker.observer.ended(usage.positions_saved, if wasted { usage.positions_computed } else { 0 });
    }

    /// What it computed stays in the tree.
    fn stop_lookahead(&mut self) {
        self.agreeing = None;
        if let Some(job) = self.ahead.take() {
            self.worker.scheduler.take(job);
        }
    }
}
