//! The atomics and locks of `threads`: the standard library's, or loom's with `--cfg loom`.

#[cfg(not(loom))]
mod real {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use std::thread::{Builder, JoinHandle, Thread, park, yield_now};
    use std::time::{Duration, Instant};

    use super::Pause;

    /// How long an idle thread stays awake: longer than the pauses inside a step, shorter than those between
    /// keystrokes.
    const AWAKE: Duration = Duration::from_micros(200);
    /// How long it keeps its core: the pauses between kernels. After that, threads that write answers may need the
    /// core.
    const EAGER: Duration = Duration::from_micros(10);

    /// [`std::cell::UnsafeCell`] with loom's interface.
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }

    /// Reads a counter after this thread's own last write: sequentially consistent loads have a total order with it.
    pub(crate) fn read_ordered(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    /// Counts how long a thread has waited, and decides when it sleeps.
    pub(crate) struct Idle {
        since: Instant,
        spins: u32,
        spin: bool,
    }

    impl Idle {
        /// With `spin`, the thread never sleeps.
        pub(crate) fn new(spin: bool) -> Self {
            Self { since: Instant::now(), spins: 0, spin }
        }

        pub(crate) fn pause(&mut self) -> Pause {
            self.spins = self.spins.wrapping_add(1);
            if self.spin || !self.spins.is_multiple_of(64) {
                return Pause::Spin;
            }
            match self.since.elapsed() {
                idle if idle > AWAKE => Pause::Sleep,
                idle if idle > EAGER => Pause::Yield,
                _ => Pause::Spin,
            }
        }
    }
}

#[cfg(loom)]
mod real {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(crate) use loom::thread::{Builder, JoinHandle, Thread, park, yield_now};

    use super::Pause;

    /// loom orders writes like that, but not loads: here it is a write that changes nothing.
    pub(crate) fn read_ordered(counter: &AtomicUsize) -> usize {
        counter.fetch_add(0, Ordering::SeqCst)
    }

    /// Time does not pass in a model: a thread spins without end, or sleeps at once.
    pub(crate) struct Idle {
        spin: bool,
    }

    impl Idle {
        pub(crate) fn new(spin: bool) -> Self {
            Self { spin }
        }

        pub(crate) fn pause(&mut self) -> Pause {
            if self.spin { Pause::Spin } else { Pause::Sleep }
        }
    }
}

pub(crate) use real::*;

/// The next action of an idle thread.
#[cfg_attr(loom, expect(dead_code, reason = "a model never yields"))]
pub(crate) enum Pause {
    Spin,
    /// Offers its core to others.
    Yield,
    /// Waits to be woken.
    Sleep,
}

/// Starts a thread, unless the system refuses.
pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    Builder::new().name(name).spawn(run).ok()
}
