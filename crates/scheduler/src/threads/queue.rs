//! The bounded queue between the HTTP threads and the model threads: [`crate::line`] in a mutex.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::line::{Line, LineLimits};
use crate::observer::Observer;
use crate::request::{Finish, Refusal, Request};

struct State {
    line: Line<Request>,
    /// By replica: whether it has nothing to do.
    idle: Vec<bool>,
    /// By replica: whether it has got something to do elsewhere.
    called: Vec<bool>,
    /// Why nothing more is accepted.
    closed: Option<Refusal>,
    /// When running requests must end, if the server is being stopped.
    stop_by: Option<Instant>,
}

/// The result of asking the queue for a request.
pub(super) enum Taken {
    /// The request to work on.
    Request(Box<Request>),
    /// No request for now.
    Nothing,
    /// No request any more: the queue is closed and empty.
    Closed,
}

/// The queue. See the module's documentation.
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    length: usize,
    observer: Arc<dyn Observer>,
}

impl Queue {
    pub(super) fn new(limits: LineLimits, replicas: usize, observer: Arc<dyn Observer>) -> Self {
        let state = State {
            line: Line::new(limits),
            idle: vec![true; replicas],
            called: vec![false; replicas],
            closed: None,
            stop_by: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), length: limits.length, observer }
    }

    /// Lets a request wait, or refuses one there is no room for: this one, or an older one.
    pub(super) fn submit(&self, request: Request) -> Result<(), Refusal> {
        let now = Instant::now();
        let mut state = self.lock();
        if let Some(refusal) = &state.closed {
            return Err(refusal.clone());
        }
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
        Ok(())
    }

    /// The next request for a replica, if there is one for it now.
    pub(super) fn take(&self, replica: usize) -> Taken {
        let now = Instant::now();
        let mut state = self.lock();
        let over = state.line.withdraw(now);
        let State { line, idle, .. } = &mut *state;
        let taken = match line.take(replica, idle, now) {
            Some(request) => Taken::Request(Box::new(request)),
            None if state.closed.is_some() && state.line.is_empty() => Taken::Closed,
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
            let is_closed = state.closed.is_some() && state.line.is_empty();
            let called = std::mem::take(&mut state.called[replica]);
            if called || is_over || is_closed || state.line.has(replica, &state.idle, now) {
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

    /// Ends a replica's [`Queue::wait`], or its next one.
    pub(super) fn call(&self, replica: usize) {
        let mut state = self.lock();
        (state.called[replica], state.idle[replica]) = (true, false);
        drop(state);
        self.changed.notify_all();
    }

    /// Ends waiting requests that were cancelled, superseded or are past their deadline, while replicas are busy.
    pub(super) fn withdraw(&self) {
        let over = self.lock().line.withdraw(Instant::now());
        end(over);
    }

    /// Refuses everything that waits.
    pub(super) fn refuse_waiting(&self, refusal: &Refusal) {
        let waiting = self.lock().line.clear();
        waiting.into_iter().for_each(|request| request.refuse(refusal.clone()));
    }

    /// Accepts nothing more. What waits and runs is answered, by `stop_by` at the latest if that is given.
    pub(super) fn close(&self, stop_by: Option<Instant>) {
        let mut state = self.lock();
        state.closed = Some(Refusal::Stopping);
        state.stop_by = stop_by.or(state.stop_by);
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

/// Answers requests that leave the queue without a model step: they were superseded, or their deadline has passed.
fn end(over: Vec<Request>) {
    for request in over {
        let finish = if request.superseded.get() { Finish::Superseded } else { Finish::Deadline };
        request.end_unworked(finish);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observer::Unobserved;

    #[test]
    fn waiting_ends_in_time_and_only_then() {
        let limits = LineLimits { length: 1, patience: Duration::from_secs(1) };
        let queue = Queue::new(limits, 1, Arc::new(Unobserved));
        assert!(matches!(queue.take(0), Taken::Nothing));
        let until = Instant::now() + Duration::from_millis(20);
        queue.wait(0, Some(until));
        assert!(Instant::now() >= until);
        queue.call(0);
        queue.wait(0, None);
        assert!(matches!(queue.take(0), Taken::Nothing));
        queue.close(None);
        queue.wait(0, None);
        assert!(matches!(queue.take(0), Taken::Closed));
    }
}
