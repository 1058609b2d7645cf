//! A team of threads that share the parts of one piece of work after another.
//!
//! A decoder step is some sixty short pieces, so handing one out must cost about a microsecond: threads that wait spin
//! for a while before they sleep, and a piece never waits for a thread that has not woken up yet.

use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle thread waits awake: longer than the pauses inside a step, shorter than those between keystrokes.
const AWAKE: Duration = Duration::from_micros(200);
/// How long it keeps its core from others: the pauses between kernels. After that, those who write answers may need it.
const EAGER: Duration = Duration::from_micros(10);

/// The team. Dropping it ends its threads.
#[derive(Debug)]
pub struct Threads {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// One thread at a time hands out work.
    _not_sync: PhantomData<Cell<()>>,
}

type Part<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// What the threads share.
struct Team {
    /// The work at hand, valid while `open` or while a thread that saw it so is counted in `active`.
    work: UnsafeCell<Option<(*const Part<'static>, usize)>>,
    /// The next part to take.
    next: AtomicUsize,
    /// Counts pieces of work: a change wakes those that wait.
    epoch: AtomicU64,
    /// Whether threads may join in.
    open: AtomicBool,
    /// Threads that have joined in, or are looking whether they may.
    active: AtomicUsize,
    /// Threads that sleep, or are about to.
    asleep: AtomicUsize,
    ended: AtomicBool,
    /// A part panicked.
    failed: AtomicBool,
    spin: bool,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

// SAFETY: `work` is written by the one thread that has the `Threads`, which is not `Sync`, and only while `open` is
// false and `active` is zero; others read it only between seeing `open` and leaving `active`. The function in it is
// `Sync`, and `run` does not return before everyone who saw it has left.
unsafe impl Sync for Team {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Team {}

impl Threads {
    /// A team of `count` threads, of which the calling one is the first. With `spin`, idle ones never sleep.
    pub fn new(count: usize, spin: bool) -> Self {
        let team = Arc::new(Team {
            work: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            open: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            spin,
        });
        let spawn = |number: usize| {
            let team = Arc::clone(&team);
            std::thread::Builder::new().name(format!("kernels-{number}")).spawn(move || team.serve(number)).ok()
        };
        // Where the system refuses a thread, the others do its part.
        let workers = (1..count.max(1)).map_while(spawn).collect();
        Self { team, workers, _not_sync: PhantomData }
    }

    /// Threads of the team, the calling one included.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `part(index, thread)` for every index below `parts`, each once, on whichever thread comes to it; `thread`
    /// is below [`Threads::count`], and no two calls run at once with the same. Returns when all are done.
    ///
    /// # Panics
    /// If a part panicked.
    pub fn run(&self, parts: usize, part: &(dyn Fn(usize, usize) + Sync)) {
        if parts <= 1 || self.workers.is_empty() {
            (0..parts).for_each(|index| part(index, 0));
            return;
        }
        let team = &*self.team;
        // SAFETY: only the lifetime is cast away; `run` returns after everyone who can call it has left (below).
        let part: *const Part<'static> = unsafe { std::mem::transmute(std::ptr::from_ref::<Part<'_>>(part)) };
        // SAFETY: no one is active: the last `run` waited for that, and `open` has been false since.
        unsafe { *team.work.get() = Some((part, parts)) };
        team.next.store(0, SeqCst);
        team.open.store(true, SeqCst);
        team.epoch.fetch_add(1, SeqCst);
        if team.asleep.load(SeqCst) > 0 {
            self.workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        }
        let close = Close(team);
        // SAFETY: set above, and this thread has not closed it.
        unsafe { team.take_parts(0) };
        drop(close);
        assert!(!team.failed.swap(false, SeqCst), "a part of a kernel's work panicked");
    }
}

/// Ends a piece of work, also when a part panics on the calling thread: nobody may call a function that is gone.
struct Close<'a>(&'a Team);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.open.store(false, SeqCst);
        let mut spins = 0_u32;
        while self.0.active.load(SeqCst) > 0 {
            spins += 1;
            // A thread that was put aside in the middle of its part needs this core.
            if spins.is_multiple_of(4096) { std::thread::yield_now() } else { spin_loop() }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.team.ended.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its parts' panics; there is nothing to hear from it.
            let _ = worker.join();
        }
    }
}

impl Team {
    /// A worker's life.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        while self.wait(seen) {
            seen = self.epoch.load(SeqCst);
            self.active.fetch_add(1, SeqCst);
            if self.open.load(SeqCst) {
                // SAFETY: it was open after this thread was counted as active, so `run` waits for it.
                let work = std::panic::AssertUnwindSafe(|| unsafe { self.take_parts(number) });
                if std::panic::catch_unwind(work).is_err() {
                    self.failed.store(true, SeqCst);
                }
            }
            self.active.fetch_sub(1, SeqCst);
        }
    }

    /// Waits for work that is newer than `seen`: true when there is some, false at the end.
    fn wait(&self, seen: u64) -> bool {
        let since = Instant::now();
        let mut spins = 0_u32;
        loop {
            if self.ended.load(SeqCst) {
                return false;
            }
            if self.epoch.load(SeqCst) != seen {
                return true;
            }
            spins += 1;
            if self.spin || !spins.is_multiple_of(64) {
                spin_loop();
                continue;
            }
            let idle = since.elapsed();
            if idle > AWAKE {
                self.asleep.fetch_add(1, SeqCst);
                // Looked at once more after saying so: either this sees the new epoch, or `run` sees a sleeper.
                while self.epoch.load(SeqCst) == seen && !self.ended.load(SeqCst) {
                    std::thread::park();
                }
                self.asleep.fetch_sub(1, SeqCst);
            } else if idle > EAGER {
                std::thread::yield_now();
            }
        }
    }

    /// Takes parts until none is left.
    ///
    /// # Safety
    /// The work is set, and stays so until this returns.
    unsafe fn take_parts(&self, thread: usize) {
        // SAFETY: the caller's promise; it is written by nobody meanwhile.
        let Some((part, parts)) = (unsafe { *self.work.get() }) else { return };
        // SAFETY: the caller's promise: `run` has not returned, so what it borrowed is there.
        let part = unsafe { &*part };
        loop {
            let index = self.next.fetch_add(1, SeqCst);
            if index >= parts {
                return;
            }
            part(index, thread);
        }
    }
}

/// A slice that several threads write at once, each its own elements.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T> {
    start: *mut T,
    len: usize,
    _owned: PhantomData<T>,
}

// SAFETY: it is only an address; who writes where is promised by the callers of its unsafe functions.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _owned: PhantomData }
    }

    /// The address of an element.
    ///
    /// # Panics
    /// If there is none at `index`, in builds with checks.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len, "{index} of {}", self.len);
        self.start.wrapping_add(index)
    }

    /// A stretch of the slice, to write.
    ///
    /// # Safety
    /// The slice lives, and nobody else touches the stretch meanwhile.
    ///
    /// # Panics
    /// If it goes beyond the end.
    #[expect(clippy::mut_from_ref, reason = "this is what the type is for")]
    pub(crate) unsafe fn slice_mut(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len), "{start} + {len} of {}", self.len);
        // SAFETY: within the slice; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_part_is_done_once() {
        for count in [1, 2, 5] {
            let threads = Threads::new(count, false);
            for parts in [0, 1, 2, 3, 100] {
                for round in 0..200 {
                    let done: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
                    threads.run(parts, &|index, thread| {
                        assert!(thread < count);
                        done[index].fetch_add(1, SeqCst);
                    });
                    assert!(
                        done.iter().all(|times| times.load(SeqCst) == 1),
                        "{count} threads, {parts} parts, {round}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_team_wakes_up_again() {
        let threads = Threads::new(3, false);
        for _ in 0..5 {
            std::thread::sleep(AWAKE * 20);
            let sum = AtomicUsize::new(0);
            threads.run(50, &|index, _| {
                sum.fetch_add(index, SeqCst);
            });
            assert_eq!(sum.into_inner(), 49 * 25);
        }
    }

    #[test]
    fn a_panic_in_a_part_is_told_and_survived() {
        let threads = Threads::new(2, false);
        for bad in 0..8 {
            let run = || threads.run(8, &|index, _| assert_ne!(index, bad));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("told");
        }
        threads.run(8, &|_, _| ());
    }
}
