//! Where a model thread leaves its loop while it waits, so that the thread that brings a request can answer it.
//!
//! A search whose nodes are all cached takes microseconds. Waking the model thread for it, and being woken again, takes
//! several times as long. No engine computes here: a request that lacks a node stays with the loop, and the model
//! thread is woken.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A loop that can be parked.
pub(super) trait Parked {
    /// Whether it may be visited.
    fn has_room(&self) -> bool;
    /// A visit panicked: its state is of no more use.
    fn has_panicked(&mut self);
}

/// One place. Empty while the owner works.
pub(super) struct Parking<T>(Mutex<Option<Box<T>>>);

impl<T> Default for Parking<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Parked> Parking<T> {
    /// The owner leaves it here.
    pub(super) fn park(&self, parked: Box<T>) {
        *self.lock() = Some(parked);
    }

    /// The owner takes it back.
    ///
    /// # Panics
    /// If it isn't here.
    pub(super) fn resume(&self) -> Box<T> {
        self.lock().take().expect("only the thread that parked it takes it back")
    }

    /// Uses it, if it is here and has room. Returns whether it was used.
    pub(super) fn visit(&self, what: impl FnOnce(&mut T)) -> bool {
        // Nobody holds the lock for longer than one search that the prefix cache has all of.
        let mut place = self.lock();
        let Some(parked) = place.as_mut().filter(|parked| parked.has_room()) else { return false };
        if catch_unwind(AssertUnwindSafe(|| what(parked))).is_err() {
            parked.has_panicked();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<T>>> {
        // Nobody panics with the lock held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
