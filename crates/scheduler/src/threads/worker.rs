//! The loop of one model thread: take requests, drop those that nobody waits for, step, answer.

mod answers;
mod recovery;
mod visit;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use completion::Task;
use completion::text::TokenId;

use super::active::{Active, AtWork, Stream};
use super::background::give_way;
use super::health::Board;
use super::lookahead::{Lookahead, Pending};
use super::parking::Parking;
use super::prepared::Prepared;
use super::queue::{Queue, Taken};
use crate::client::{Class, Flow};
use crate::job::JobId;
use crate::observer::{ReplicaObserver, StepReport};
use crate::places::{Places, Room};
use crate::prefix_cache::PrefixCacheStats;
use crate::request::{Failure, Finish, Request};
use crate::scheduler::{Scheduler, Stepped};

/// Why a worker stopped.
pub(super) enum End {
    /// The queue is closed and empty, or the replica isn't wanted any longer.
    Closed,
    /// The engine can't go on. Its requests have been answered with the failure.
    Failed(Failure),
    /// Another thread is to go on, of normal priority.
    Released(Box<Loop>),
}

/// One replica's loop and what it works with.
pub(super) struct Worker {
    pub(super) replica: usize,
    pub(super) scheduler: Scheduler,
    pub(super) queue: Arc<Queue>,
    pub(super) parking: Arc<Parking<Loop>>,
    pub(super) board: Arc<Board>,
    pub(super) observer: Box<dyn ReplicaObserver>,
    /// Requests that may share steps.
    pub(super) places: Places,
    pub(super) prepared: Arc<Prepared>,
    /// The token of a step that proves the engine works.
    pub(super) probe: TokenId,
}

impl Worker {
    /// The loop that works until the queue is closed and empty, or until the engine fails; with `in_background` also
    /// until it is released.
    pub(super) fn into_loop(self, in_background: bool) -> Box<Loop> {
        Box::new(Loop {
            in_background,
            lookahead: Lookahead::new(Arc::clone(&self.prepared)),
            worker: self,
            active: Vec::new(),
            waits_forever: false,
            called: false,
            broken: None,
            evicted: 0,
            step: Duration::ZERO,
        })
    }
}

/// The loop's state. The model thread owns it while it works; while the model thread waits, the state is parked.
pub(super) struct Loop {
    worker: Worker,
    /// Whether this thread has given its priority up.
    in_background: bool,
    active: Vec<Active>,
    lookahead: Lookahead,
    /// Whether the model thread waits without a limit while the loop is parked.
    waits_forever: bool,
    /// Whether the model thread was called since.
    called: bool,
    /// Why the model thread must not go on: a visit panicked.
    broken: Option<Failure>,
    /// The prefix cache's count of evictions when it was last reported.
    evicted: u64,
    /// The moving average of a step's time.
    step: Duration,
}

impl Loop {
    /// Works as [`Worker::into_loop`] says.
    pub(super) fn run(mut self: Box<Self>) -> End {
        loop {
            if self.in_background && self.worker.queue.is_released() {
                self.in_background = false;
                return End::Released(self);
            }
            self = match self.take_requests() {
                Ok(this) => this,
                Err(end) => return end,
            };
            self.drop_unwanted();
            if self.active.iter().all(Active::is_bulk) {
                // Making the next search takes time: only now, when nobody waits at a keyboard.
                self.lookahead.begin(&mut self.worker.scheduler, !AtWork::is_anyone());
            }
            if let Err(failure) = self.step() {
                return End::Failed(failure);
            }
        }
    }

    /// Takes requests from the queue; waits for one if there is nothing to do.
    fn take_requests(mut self: Box<Self>) -> Result<Box<Self>, End> {
        self.report_prefix_cache();
        loop {
            match (self.worker.queue.take(self.worker.replica, self.room()), self.idle_until()) {
                (Taken::Request(request), _) => drop(self.start(*request, true)),
                (Taken::Closed, _) if self.active.is_empty() => {
                    // What was remembered goes with the engine. Nobody waits for that.
                    give_way();
                    self.lookahead.abandon();
                    self.worker.observer.prefix_cache(&PrefixCacheStats::default(), 0);
                    return Err(End::Closed);
                }
                (Taken::Nothing, Some(_)) if self.in_background && self.worker.queue.is_released() => break,
                (Taken::Nothing, Some(until)) => self = self.wait(until)?,
                (Taken::Closed | Taken::Nothing, _) => break,
            }
        }
        Ok(self)
    }

    /// The requests that there is room for.
    fn room(&self) -> Room {
        let bulk = self.active.iter().filter(|active| active.is_bulk()).count();
        self.worker.places.room(self.active.len() - bulk, bulk)
    }

    /// `None` if there is something to do now; else when there will be, if that is known.
    fn idle_until(&self) -> Option<Option<Instant>> {
        match self.lookahead.pending() {
            _ if !self.active.is_empty() => None,
            Pending::Running => None,
            Pending::From(instant) => (instant > Instant::now()).then_some(Some(instant)),
            Pending::Nothing => Some(None),
        }
    }

    /// Waits; meanwhile the loop is parked.
    fn wait(mut self: Box<Self>, until: Option<Instant>) -> Result<Box<Self>, End> {
        (self.waits_forever, self.called) = (until.is_none(), false);
        let (parking, queue) = (Arc::clone(&self.worker.parking), Arc::clone(&self.worker.queue));
        let replica = self.worker.replica;
        parking.park(self);
        queue.wait(replica, until);
        let mut this = parking.resume();
        match this.broken.take() {
            Some(failure) => Err(End::Failed(failure)),
            None => Ok(this),
        }
    }

    /// Takes a request on. `is_accounted`: whether it comes from the queue, which has accounts.
    fn start(&mut self, request: Request, is_accounted: bool) -> JobId {
        if request.flow.class == Class::Interactive {
            self.lookahead.stop(&mut self.worker.scheduler);
        }
        let Request { task, flow, payer, deadline, received, superseded, events, reply, .. } = request;
        let sequences = if let Task::Sampling(sampling) = &task { sampling.sequences() } else { 1 };
        let stream = events.map(|events| Stream::new(events, sequences));
        let job = self.worker.scheduler.add_of(flow, self.worker.prepared.instead_of(task));
        let started = Instant::now();
        self.worker.observer.dequeued(started - received);
        self.active.push(Active {
            job,
            flow,
            payer,
            is_accounted,
            charged: 0,
            deadline,
            received,
            started,
            superseded,
            stream,
            has_first: false,
            _at_work: AtWork::begin(),
            reply,
        });
        self.worker.observer.active(self.active.len());
        job
    }

    /// Ends requests whose client has gone, that are superseded, or whose deadline has passed, or would pass before the
    /// next step is over. A request that has had no step gets one, so that a short deadline on a slow machine still
    /// brings something.
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

    /// One step of the scheduler, and what follows from it. A failure is one that the engine doesn't recover from.
    fn step(&mut self) -> Result<(), Failure> {
        let (computed_before, began) = (self.worker.scheduler.positions_computed(), Instant::now());
        self.worker.board.begin(self.worker.replica);
        // The scheduler may be in any state after a panic; it is dropped then and never used again.
        let stepped = catch_unwind(AssertUnwindSafe(|| self.worker.scheduler.step()));
        let was_given_up = self.worker.board.end(self.worker.replica);
        if was_given_up {
            tracing::warn!(elapsed_ms = began.elapsed().as_millis() as u64, "the model step came back");
        }
        let stepped = match stepped {
            Ok(Ok(stepped)) => stepped,
            Ok(Err(error)) => return self.recover(&error),
            Err(_) => return Err(self.panicked()),
        };
        self.report_step(&stepped, computed_before, began);
        self.charge(began.elapsed());
        self.send_events();
        stepped.done.iter().for_each(|&job| self.finish(job));
        if !stepped.failed.is_empty() {
            return self.fail(&stepped.failed);
        }
        Ok(())
    }

    /// Lets every flow, and whoever else pays, pay for what was computed for it.
    fn charge(&mut self, took: Duration) {
        let mut computed: Vec<(Flow, usize)> = Vec::new();
        for active in &mut self.active {
            let positions = self.worker.scheduler.usage(active.job).map_or(0, |usage| usage.positions_computed);
            if positions > active.charged {
                computed.push((active.flow, positions - active.charged));
                if let Some(payer) = &active.payer {
                    payer.charge(positions - active.charged);
                }
                active.charged = positions;
            }
        }
        if !computed.is_empty() {
            self.worker.queue.charge(&computed, took);
        }
    }

    fn report_step(&mut self, stepped: &Stepped, computed_before: u64, began: Instant) {
        if stepped.rows > 0 {
            let took = began.elapsed();
            // Three quarters old, one quarter new: it follows the load within a few steps.
            self.step = (3 * self.step + took) / 4;
            let positions = self.worker.scheduler.positions_computed() - computed_before;
            let lookahead = self.active.is_empty();
            self.worker.observer.stepped(StepReport { took, rows: stepped.rows, positions, lookahead });
        }
    }

    fn report_prefix_cache(&mut self) {
        let stats = self.worker.scheduler.prefix_cache_stats();
        self.worker.observer.prefix_cache(&stats, stats.evicted.saturating_sub(self.evicted));
        self.evicted = stats.evicted;
    }
}
