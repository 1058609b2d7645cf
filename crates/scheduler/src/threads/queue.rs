//! The bounded queue between the HTTP threads and the model threads: [`crate::line`] in a mutex.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::client::Flow;
use crate::line::{Line, LineLimits, Seeker};
use crate::observer::Observer;
use crate::places::Room;
use crate::request::{Finish, Refusal, Request};
use crate::scaling::Replicas;

struct State {
    line: Line<Request>,
    /// Replicas that are to work: those with a lower number.
    wanted: usize,
    /// Whether replicas work at the priority of other threads.
    released: bool,
    /// The time of all steps for requests.
    busy: Duration,
    /// Requests that were accepted, ever.
    accepted: u64,
    /// By replica: whether it has nothing to do.
    idle: Vec<bool>,
    /// By replica: whether it has got something to do elsewhere.
    called: Vec<bool>,
    /// Requests that were accepted and may have further parts.
    admissions: usize,
    /// Whether no further request is accepted.
    closed: bool,
    /// Whether the pool is being dropped: nobody can submit anything any more.
    abandoned: bool,
    /// When running requests must end, if the server is being stopped.
    stop_by: Option<Instant>,
}

/// The result of asking the queue for a request.
pub(super) enum Taken {
    /// The request to work on.
    Request(Box<Request>),
    /// No request for now.
    Nothing,
    /// No request any more: the queue is closed and empty, and nothing that was accepted has further parts. Or the
    /// replica isn't wanted any longer.
    Closed,
}

/// What there is to do, and what was done.
pub(super) struct Waiting {
    /// How long the oldest request has waited.
    pub(super) oldest: Option<Duration>,
    /// The time of all steps for requests.
    pub(super) busy: Duration,
    /// Requests that were accepted, ever.
    pub(super) accepted: u64,
    /// Requests that were accepted and may have further parts.
    pub(super) admissions: usize,
}

/// The queue. See the module's documentation.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    length: usize,
    observer: Arc<dyn Observer>,
}

impl Queue {
    /// An empty queue in front of replicas of which some work already.
    pub(super) fn new(limits: LineLimits, replicas: Replicas, observer: Arc<dyn Observer>) -> Self {
        let state = State {
            line: Line::new(limits),
            wanted: replicas.at_start(),
            released: false,
            busy: Duration::ZERO,
            accepted: 0,
            idle: (0..replicas.most).map(|replica| replica < replicas.at_start()).collect(),
            called: vec![false; replicas.most],
            admissions: 0,
            closed: false,
            abandoned: false,
            stop_by: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), length: limits.length, observer }
    }

    /// Accepts a request, whose parts come until [`Queue::leave`].
    pub(super) fn enter(&self) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refusal::Stopping);
        }
        state.admissions += 1;
        state.accepted += 1;
        Ok(())
    }

    /// An accepted request has no further parts.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.admissions -= 1;
        let is_last = state.closed && state.admissions == 0;
        drop(state);
        if is_last {
            self.changed.notify_all();
        }
    }

    /// Lets a part of an accepted request wait, or refuses one there is no room for: this one, or another.
    pub(super) fn submit(&self, request: Request) {
        let now = Instant::now();
        let mut state = self.lock();
        let over = state.line.withdraw(now);
        let displaced = state.line.push(request, now);
        self.observer.queue_length(state.line.len());
        drop(state);
        self.changed.notify_all();
        end(over);
        // Whoever it is: its answer says why.
        if let Some(displaced) = displaced {
            displaced.refuse(Refusal::Busy(self.length));
        }
    }

    /// The next request for a replica, if there is one for it now.
    pub(super) fn take(&self, replica: usize, room: Room) -> Taken {
        let now = Instant::now();
        let mut state = self.lock();
        let over = state.line.withdraw(now);
        let State { line, idle, wanted, .. } = &mut *state;
        let taken = match (replica < *wanted).then(|| line.take(Seeker { replica, idle, room }, now)).flatten() {
            Some(request) => Taken::Request(Box::new(request)),
            None if state.is_over(replica) => Taken::Closed,
            None => Taken::Nothing,
        };
        self.observer.queue_length(state.line.len());
        drop(state);
        end(over);
        taken
    }

    /// Waits until there may be something for a replica, until it is called, or until `until`.
    pub(super) fn wait(&self, replica: usize, until: Option<Instant>) {
        let mut state = self.lock();
        state.idle[replica] = true;
        let over = loop {
            let now = Instant::now();
            let over = state.line.withdraw(now);
            let is_over = !over.is_empty() || until.is_some_and(|until| until <= now);
            let called = std::mem::take(&mut state.called[replica]);
            let seeker = Seeker { replica, idle: &state.idle, room: Room::ALL };
            if called || is_over || state.is_over(replica) || state.line.has(seeker, now) {
                break over;
            }
            // Nobody calls when a request has waited long enough for its preferred replica.
            let until = until.into_iter().chain(state.line.may_change_replica(&state.idle)).min();
            state = match until.map(|until| until.saturating_duration_since(now)) {
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        };
        state.idle[replica] = false;
        self.observer.queue_length(state.line.len());
        drop(state);
        end(over);
    }

    /// Whether replicas work at the priority of other threads.
    pub(super) fn is_released(&self) -> bool {
        self.lock().released
    }

    /// Lets replicas work at the priority of other threads. Those that wait find out at once.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        state.released = true;
        state.called.fill(true);
        drop(state);
        self.changed.notify_all();
    }

    /// Ends a replica's [`Queue::wait`], or its next one.
    pub(super) fn call(&self, replica: usize) {
        let mut state = self.lock();
        (state.called[replica], state.idle[replica]) = (true, false);
        drop(state);
        self.changed.notify_all();
    }

    /// A request runs that never waited.
    pub(super) fn begins(&self, flow: Flow) {
        self.lock().line.fair.begins(flow);
    }

    /// Positions were computed for running requests, in a step that took so long.
    pub(super) fn charge(&self, computed: &[(Flow, usize)], took: Duration) {
        let mut state = self.lock();
        state.busy += took;
        computed.iter().for_each(|&(flow, positions)| state.line.fair.charge(flow, positions));
    }

    /// A running request has ended.
    pub(super) fn ends(&self, flow: Flow) {
        self.lock().line.fair.ends(flow);
    }

    /// Sets how many replicas are to work. Those with a higher number finish what they have, and end.
    pub(super) fn want(&self, replicas: usize) {
        self.lock().wanted = replicas;
        self.changed.notify_all();
    }

    /// What there is to do for the model's replicas. Requests that need none any more are answered.
    pub(super) fn look(&self) -> Waiting {
        let now = Instant::now();
        let mut state = self.lock();
        let over = state.line.withdraw(now);
        self.observer.queue_length(state.line.len());
        let waiting = Waiting {
            oldest: state.line.oldest().map(|received| now.saturating_duration_since(received)),
            busy: state.busy,
            accepted: state.accepted,
            admissions: state.admissions,
        };
        drop(state);
        end(over);
        waiting
    }

    /// Refuses everything that waits.
    pub(super) fn refuse_waiting(&self, refusal: &Refusal) {
        let waiting = self.lock().line.clear();
        waiting.into_iter().for_each(|request| request.refuse(refusal.clone()));
    }

    /// Accepts no further request. What was accepted is answered in all its parts, with what there is at `stop_by`.
    pub(super) fn close(&self, stop_by: Instant) {
        let mut state = self.lock();
        (state.closed, state.stop_by) = (true, Some(stop_by));
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing more comes. What waits and runs is answered.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        (state.closed, state.abandoned) = (true, true);
        drop(state);
        self.changed.notify_all();
    }

    /// When running requests must end, if the server is being stopped.
    pub(super) fn stop_by(&self) -> Option<Instant> {
        self.lock().stop_by
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics with the lock held; and if, the line is still a line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether nothing waits for a replica, and nothing can come.
    fn is_over(&self, replica: usize) -> bool {
        replica >= self.wanted || self.closed && self.line.is_empty() && (self.abandoned || self.admissions == 0)
    }
}

/// Answers requests that leave the queue without a model step: they were superseded, or their deadline has passed.
fn end(over: Vec<Request>) {
    for request in over {
        let finish = if request.superseded.get() { Finish::Superseded } else { Finish::Deadline };
        request.end_unworked(finish);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Unobserved;

    fn queue() -> Queue {
        Queue::new(LineLimits { length: 1, patience: Duration::from_secs(1) }, Replicas::fixed(1), Arc::new(Unobserved))
    }

    #[test]
    fn waiting_ends_in_time_and_only_then() {
        let queue = queue();
        assert!(matches!(queue.take(0, Room::ALL), Taken::Nothing));
        let until = Instant::now() + Duration::from_millis(20);
        queue.wait(0, Some(until));
        assert!(Instant::now() >= until);
        queue.call(0);
        queue.wait(0, None);
        assert!(matches!(queue.take(0, Room::ALL), Taken::Nothing));
        queue.close(until);
        queue.wait(0, None);
        assert!(matches!(queue.take(0, Room::ALL), Taken::Closed));
    }

    #[test]
    fn a_closed_queue_is_open_for_what_it_accepted() {
        let queue = queue();
        queue.enter().unwrap();
        queue.close(Instant::now());
        assert_eq!(queue.enter(), Err(Refusal::Stopping));
        assert!(matches!(queue.take(0, Room::ALL), Taken::Nothing), "further parts may come");
        queue.leave();
        queue.wait(0, None);
        assert!(matches!(queue.take(0, Room::ALL), Taken::Closed));
    }

    #[test]
    fn a_queue_that_nobody_can_reach_waits_for_no_parts() {
        let queue = queue();
        queue.enter().unwrap();
        queue.abandon();
        assert!(matches!(queue.take(0, Room::ALL), Taken::Closed));
    }
}
