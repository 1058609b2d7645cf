//! A condition variable whose waiters stay awake for a moment before they sleep.
//!
//! To wake a thread up takes longer than to answer a request from memory, above all when its core has gone to sleep with it. A
//! waiter that is awake sees a notification at once, and whoever notifies needs no system call for it. For how long is the
//! caller's business: it should be about what waking up costs, because an awake waiter keeps its core. It doesn't yield it: beside
//! a program that computes, a thread that yields gives away a whole time slice, and one that sleeps gets its core back at once.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Looks at the count of notifications between two at the clock.
const LOOKS: u32 = 16;

/// The condition variable. See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct AwakeCondvar {
    /// Counts notifications: what waiters that are awake look at.
    notifications: AtomicU64,
    /// Waiters that are awake.
    awake: AtomicUsize,
    /// Waiters that sleep. Changed only with the mutex held.
    asleep: AtomicUsize,
    sleep: Condvar,
}

impl AwakeCondvar {
    /// Ends all waiting. To be called after what is waited for was changed with the mutex held. Returns whether a waiter is, or
    /// was just now, awake to see it.
    pub(super) fn notify_all(&self) -> bool {
        // Only the waiter that has seen this takes itself off the count, so it is read first.
        let is_seen = self.awake.load(Relaxed) > 0;
        // The mutex orders the rest: who looked before the change had read the old count, or was counted as asleep, when it let the
        // mutex go; who looked after it has seen the change.
        self.notifications.fetch_add(1, Relaxed);
        if self.asleep.load(Relaxed) > 0 {
            self.sleep.notify_all();
        }
        is_seen
    }

    /// Lets the mutex go and waits: awake until `awake_until`, asleep if that has passed, and no longer than `timeout`. As with
    /// any condition variable it may return without a reason, and does so when the time awake is over.
    pub(super) fn wait<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        awake_until: Instant,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        let now = Instant::now();
        if now < awake_until {
            let seen = self.notifications.load(Relaxed);
            self.awake.fetch_add(1, Relaxed);
            drop(guard);
            self.watch(seen, timeout.map_or(awake_until, |timeout| awake_until.min(now + timeout)));
            self.awake.fetch_sub(1, Relaxed);
            return mutex.lock().unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_add(1, Relaxed);
        let guard = match timeout {
            Some(timeout) => self.sleep.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
            None => self.sleep.wait(guard).unwrap_or_else(PoisonError::into_inner),
        };
        self.asleep.fetch_sub(1, Relaxed);
        guard
    }

    /// Spins until there is a notification after `seen`, or until the time has come.
    fn watch(&self, seen: u64, until: Instant) {
        while Instant::now() < until {
            for _ in 0..LOOKS {
                if self.notifications.load(Relaxed) != seen {
                    return;
                }
                spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    const LONG: Duration = Duration::from_secs(600);

    #[derive(Default)]
    struct Shared {
        value: Mutex<u64>,
        changed: AwakeCondvar,
    }

    impl Shared {
        fn set(&self, value: u64) -> bool {
            *self.value.lock().unwrap() = value;
            self.changed.notify_all()
        }

        /// Waits for a value, each time awake for so long.
        fn wait_for(&self, value: u64, awake: Duration) {
            let awake_until = Instant::now() + awake;
            let mut found = self.value.lock().unwrap();
            while *found != value {
                found = self.changed.wait(&self.value, found, awake_until, None);
            }
        }
    }

    #[test]
    fn waiters_are_notified_awake_and_asleep() {
        let shared = &Shared::default();
        std::thread::scope(|scope| {
            for awake in [Duration::ZERO, Duration::ZERO, LONG, LONG] {
                scope.spawn(move || shared.wait_for(1, awake));
            }
            while (shared.changed.awake.load(Relaxed), shared.changed.asleep.load(Relaxed)) != (2, 2) {
                std::thread::yield_now();
            }
            assert!(shared.set(1), "two are awake to see it");
        });
        assert!(!shared.set(2), "nobody waits");
    }

    #[test]
    fn being_awake_has_an_end() {
        let shared = Shared::default();
        std::thread::scope(|scope| {
            scope.spawn(|| shared.wait_for(1, Duration::from_millis(1)));
            while shared.changed.asleep.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert!(!shared.set(1), "nobody is awake to see it");
        });
    }

    #[test]
    fn waiting_ends_in_time_awake_and_asleep() {
        let (shared, timeout) = (Shared::default(), Duration::from_millis(20));
        for awake in [Duration::ZERO, LONG] {
            let began = Instant::now();
            let guard = shared.value.lock().unwrap();
            drop(shared.changed.wait(&shared.value, guard, began + awake, Some(timeout)));
            // Asleep it may return without a reason, awake it has none.
            assert!(awake == Duration::ZERO || began.elapsed() >= timeout);
        }
    }

    #[test]
    fn no_notification_is_lost_between_awake_and_asleep() {
        let shared = Shared::default();
        let take_turns = |first: u64, seed: u64| {
            let mut rng = StdRng::seed_from_u64(seed);
            for round in 0..10_000 {
                shared.wait_for(2 * round + first, Duration::from_micros(rng.random_range(0..20)));
                shared.set(2 * round + first + 1);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| take_turns(0, 1));
            scope.spawn(|| take_turns(1, 2));
        });
        assert_eq!(*shared.value.lock().unwrap(), 20_000);
    }
}
