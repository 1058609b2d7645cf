//! Where a model thread leaves its loop while it waits, so that the threads that bring requests can use it.
//!
//! A search that the tree has all of is done in microseconds. To wake the model thread for it and be woken again takes several
//! times as long, so the thread that brings the request does it. No engine computes there: a search that misses something stays
//! with the loop, and the model thread is called.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::request::Request;
use super::worker::Loop;
use completion::Task;

/// A loop's place. Empty while the model thread has it.
#[derive(Default)]
pub(super) struct Parked(Mutex<Option<Box<Loop>>>);

impl Parked {
    /// Leaves the loop here.
    pub(super) fn park(&self, parked: Box<Loop>) {
        *self.lock() = Some(parked);
    }

    /// Takes it back.
    ///
    /// # Panics
    /// If it isn't here.
    pub(super) fn resume(&self) -> Box<Loop> {
        self.lock().take().expect("only the thread that parked a loop takes it back")
    }

    /// Brings a request to the loop. Returns it if it has to be queued: the model thread is at work, or it isn't a search.
    pub(super) fn bring(&self, request: Request) -> Option<Request> {
        let mut waiting = Some(request);
        if waiting.as_ref().is_some_and(|request| matches!(request.task, Task::Search(_))) {
            self.visit(|parked| waiting.take().into_iter().for_each(|request| parked.bring(request)));
        }
        waiting
    }

    /// Uses the loop, if it is here and has room.
    pub(super) fn visit(&self, what: impl FnOnce(&mut Loop)) {
        // Nobody has the lock for longer than one search that the tree has all of.
        let mut place = self.lock();
        let Some(parked) = place.as_mut().filter(|parked| parked.has_room()) else { return };
        // The loop may be in any state after a panic: it says so, and the model thread ends it as after one of its own.
        if catch_unwind(AssertUnwindSafe(|| what(parked))).is_err() {
            parked.has_panicked();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Loop>>> {
        // Nobody panics with the lock held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
