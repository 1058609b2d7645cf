//! A team of threads that shares the parts of one piece of work after another.
//!
//! A decoder step has about sixty short pieces, so distributing one must cost about a microsecond. Threads that wait
//! therefore spin before they sleep. A piece never waits for a thread that has not woken up yet.
//!
//! Each thread begins with a share of neighbouring parts, so that it reads memory in order, and then takes what is left
//! of the others' shares.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Idle, JoinHandle, Ordering::SeqCst, Pause, Thread, UnsafeCell, park,
    read_ordered, spawn, spin_loop, yield_now,
};

/// The team. Dropping it ends its threads.
#[derive(Debug)]
pub struct Threads {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// Makes the team `!Sync`: only one thread at a time may hand out work.
    _not_sync: PhantomData<Cell<()>>,
}

type Part<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// The state that the threads share.
struct Team {
    /// The current work, valid while `open` or while a thread that saw it open is counted in `active`.
    work: UnsafeCell<Option<(*const Part<'static>, usize)>>,
    /// How many parts of each thread's share are taken; more than all of them where threads found none left.
    taken: Vec<AtomicUsize>,
    /// Counts pieces of work: a change wakes those that wait.
    epoch: AtomicU64,
    /// Whether threads may join in.
    open: AtomicBool,
    /// Threads that have joined in, or are looking whether they may.
    active: AtomicUsize,
    /// Threads that sleep, or are about to.
    asleep: AtomicUsize,
    ended: AtomicBool,
    /// Whether a part of the current piece of work panicked.
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
            taken: (0..count.max(1)).map(|_| AtomicUsize::new(0)).collect(),
            epoch: AtomicU64::new(0),
            open: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            spin,
        });
        let worker = |number: usize| {
            let team = Arc::clone(&team);
            spawn(format!("kernels-{number}"), move || team.serve(number))
        };
        // Where the system refuses a thread, the others do its part.
        let workers = (1..count.max(1)).map_while(worker).collect();
        Self { team, workers, _not_sync: PhantomData }
    }

    /// Threads of the team, the calling one included.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `part(index, thread)` once for each index below `parts`, on any thread. `thread` is below
    /// [`Threads::count`], and no two concurrent calls have the same. Returns when all calls have returned.
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
        team.work.with_mut(|work| unsafe { *work = Some((part, parts)) });
        team.taken.iter().for_each(|taken| taken.store(0, SeqCst));
        team.open.store(true, SeqCst);
        team.epoch.fetch_add(1, SeqCst);
        // As in `Close`: a thread that is counted after this write sees the new epoch.
        if read_ordered(&team.asleep) > 0 {
            self.workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        }
        let close = Close(team);
        // SAFETY: set above, and this thread has not closed it.
        unsafe { team.take_parts(0) };
        drop(close);
        assert!(!team.failed.swap(false, SeqCst), "a part of a kernel's work panicked");
    }
}

/// Ends a piece of work, also when a part panics on the calling thread: nobody may call the function after that.
struct Close<'a>(&'a Team);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.open.store(false, SeqCst);
        // A thread that is counted after this sees `open` as false.
        let mut active = read_ordered(&self.0.active);
        let mut spins = 0_u32;
        while active > 0 {
            spins += 1;
            // A thread that was preempted in the middle of its part needs this core.
            if spins.is_multiple_of(4096) {
                yield_now()
            } else {
                spin_loop()
            }
            active = self.0.active.load(SeqCst);
        }
        // SAFETY: closed, and no one is active.
        self.0.work.with_mut(|work| unsafe { *work = None });
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.team.ended.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its parts, so this is never an error.
            let _ = worker.join();
        }
    }
}

impl Team {
    /// The loop of worker `number`: waits for pieces of work, and takes parts of them.
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

    /// Waits until the epoch is not `seen`: then true, or false when the team ends.
    fn wait(&self, seen: u64) -> bool {
        let mut idle = Idle::new(self.spin);
        loop {
            if self.ended.load(SeqCst) {
                return false;
            }
            if self.epoch.load(SeqCst) != seen {
                return true;
            }
            match idle.pause() {
                Pause::Spin => spin_loop(),
                Pause::Yield => yield_now(),
                Pause::Sleep => {
                    self.asleep.fetch_add(1, SeqCst);
                    // Checked once more after counting: either this sees the new epoch, or `run` sees a sleeper.
                    while self.epoch.load(SeqCst) == seen && !self.ended.load(SeqCst) {
                        park();
                    }
                    self.asleep.fetch_sub(1, SeqCst);
                }
            }
        }
    }

    /// Takes parts until none is left, those of its own share first.
    ///
    /// # Safety
    /// The work is set, and stays so until this returns.
    unsafe fn take_parts(&self, thread: usize) {
        self.work.with(|work| {
            // SAFETY: the caller's promise; nobody writes it meanwhile.
            let Some((part, parts)) = (unsafe { *work }) else { return };
            // SAFETY: the caller's promise: `run` has not returned, so what it borrowed is there.
            let part = unsafe { &*part };
            let shares = self.taken.len();
            for share in (thread..shares).chain(0..thread) {
                let (first, end) = (share * parts / shares, (share + 1) * parts / shares);
                loop {
                    let index = first + self.taken[share].fetch_add(1, SeqCst);
                    if index >= end {
                        break;
                    }
                    part(index, thread);
                }
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

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
    fn each_thread_begins_with_a_share_of_its_own() {
        const SHARE: usize = 4;
        for count in [2, 3, 5] {
            let threads = Threads::new(count, false);
            let first: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(usize::MAX)).collect();
            let begun = AtomicUsize::new(0);
            threads.run(count * SHARE, &|index, thread| {
                if first[thread].load(SeqCst) == usize::MAX {
                    first[thread].store(index, SeqCst);
                    begun.fetch_add(1, SeqCst);
                }
                // Until then, what a thread takes first could have been taken by another one.
                while begun.load(SeqCst) < count {
                    yield_now();
                }
            });
            assert!(first.iter().enumerate().all(|(thread, first)| first.load(SeqCst) == thread * SHARE), "{first:?}");
        }
    }

    #[test]
    fn a_team_wakes_up_again() {
        let threads = Threads::new(3, false);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(4));
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

/// Every order of the threads' steps, up to a number of preemptions: see `tools/loom.sh`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Runs pieces of work, each of as many parts as `works` says. Fails if a part is missed or done twice, if a thread
    /// is still in a piece that has ended, or if all threads wait without end.
    fn model(threads: usize, spin: bool, works: &'static [usize]) {
        loom::model(move || {
            let threads = Threads::new(threads, spin);
            for &parts in works {
                let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                threads.run(parts, &|index, _| {
                    done[index].fetch_add(1, SeqCst);
                });
                assert!(done.iter().all(|times| times.load(SeqCst) == 1));
            }
        });
    }

    #[test]
    fn sleeping_threads_do_every_part_once_and_leave() {
        model(2, false, &[2, 2]);
        model(3, false, &[2]);
    }

    /// Each part waits for the other to begin, so that the model does not end if a sleeping thread is not woken.
    #[test]
    fn a_sleeping_thread_is_woken() {
        loom::model(|| {
            let threads = Threads::new(2, false);
            let begun = [AtomicBool::new(false), AtomicBool::new(false)];
            threads.run(2, &|index, _| {
                begun[index].store(true, SeqCst);
                while !begun[1 - index].load(SeqCst) {
                    yield_now();
                }
            });
        });
    }

    #[test]
    fn spinning_threads_do_every_part_once_and_leave() {
        model(2, true, &[2, 2]);
    }
}
