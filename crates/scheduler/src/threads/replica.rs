//! The life of one model thread: it loads its engine, tests it, works, and loads it again after a failure, unless the
//! failures follow each other closely.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use completion::text::TokenId;

use super::background;
use super::calibrate::calibrate;
use super::health::Board;
use super::heap;
use super::options::PoolOptions;
use super::parking::Parking;
use super::prepared::Prepared;
use super::queue::Queue;
use super::scaler::Told;
use super::worker::{End, Loop, Worker};
use crate::backend::{LoadError, Loader};
use crate::observer::Observer;
use crate::places::Places;
use crate::request::{Failure, Refusal};
use crate::scheduler::Scheduler;

/// Starts replicas on threads of their own. All of them share what is in it.
pub(super) struct Launcher {
    pub(super) load: Loader,
    pub(super) probe: TokenId,
    pub(super) options: PoolOptions,
    pub(super) queue: Arc<Queue>,
    /// The parking place of each replica's loop, by replica.
    pub(super) parking: Vec<Arc<Parking<Loop>>>,
    /// The finished searches of each replica's lookahead, by replica.
    pub(super) prepared: Vec<Arc<Prepared>>,
    pub(super) board: Arc<Board>,
    pub(super) observer: Arc<dyn Observer>,
    /// The threads that were started, by replica.
    pub(super) threads: Mutex<Vec<Option<JoinHandle<()>>>>,
    /// Who is told when a thread ends.
    pub(super) tell: Option<SyncSender<Told>>,
}

impl Launcher {
    /// Starts a replica. `loaded` is called once it can work, or can't.
    pub(super) fn launch(
        self: &Arc<Self>,
        replica: usize,
        in_background: bool,
        loaded: impl FnOnce(Result<(), LoadError>) + Send + 'static,
    ) -> std::io::Result<()> {
        let (life, tell) = (Replica { replica, in_background, of: Arc::clone(self) }, self.tell.clone());
        let body = move || {
            life.run(loaded);
            heap::give_back();
            tell.map(|tell| tell.send(Told::Ended(replica)));
        };
        let thread = std::thread::Builder::new().name(format!("model-{replica}")).spawn(body)?;
        // The thread that had the number before has ended.
        self.threads()[replica] = Some(thread);
        Ok(())
    }

    /// Waits until the threads have ended.
    pub(super) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for (replica, thread) in threads.into_iter().enumerate() {
            // One that never comes back would keep the process from ending. A panic was reported when it happened.
            if let Some(thread) = thread.filter(|_| !self.board.hangs(replica)) {
                let _ = thread.join();
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Option<JoinHandle<()>>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a loop ended. It deals with panics of the engine; this is for those nobody thought of.
fn working(run: impl FnOnce() -> End) -> End {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(End::Failed(Failure::ThreadPanicked))
}

/// The life of one replica, on its thread.
struct Replica {
    replica: usize,
    /// Whether it begins at a low priority.
    in_background: bool,
    of: Arc<Launcher>,
}

impl Replica {
    fn run(&self, loaded: impl FnOnce(Result<(), LoadError>) + Send) {
        let mut ended = self.begin(loaded);
        let mut loaded_again: Option<Instant> = None;
        while let Some(end) = ended {
            let failure = match end {
                End::Closed => return,
                End::Released(going) => {
                    ended = Some(working(|| going.run()));
                    continue;
                }
                End::Failed(failure) => failure,
            };
            self.of.board.set_failed(self.replica, Some(failure.clone()));
            self.of.queue.refuse_waiting(&Refusal::Unhealthy(failure));
            if loaded_again.is_some_and(|at| at.elapsed() < self.of.options.restart_every) {
                tracing::error!(replica = self.replica, "the engine failed again; it stays unhealthy");
                return;
            }
            tracing::warn!(replica = self.replica, "loading the engine again");
            let worker = match self.worker() {
                Ok(worker) => worker,
                Err(reason) => {
                    tracing::error!(replica = self.replica, %reason, "the engine can't be loaded again");
                    return;
                }
            };
            loaded_again = Some(Instant::now());
            self.of.observer.restarted();
            self.of.board.set_failed(self.replica, None);
            ended = Some(working(|| worker.into_loop(false).run()));
        }
    }

    /// Loads the engine and works, in the background until it is released if the options say so. `None` if it can't be
    /// loaded.
    fn begin(&self, loaded: impl FnOnce(Result<(), LoadError>) + Send) -> Option<End> {
        let begin = || match self.worker() {
            Ok(worker) => {
                loaded(Ok(()));
                if self.in_background {
                    // What it computes until it is released is of use, but nobody waits for it.
                    background::give_way_to_all();
                }
                Some(working(|| worker.into_loop(self.in_background).run()))
            }
            Err(reason) => {
                loaded(Err(reason));
                None
            }
        };
        if self.in_background { background::in_background(begin) } else { begin() }
    }

    /// Loads and proves an engine.
    fn worker(&self) -> Result<Worker, LoadError> {
        let made = catch_unwind(AssertUnwindSafe(|| -> Result<Scheduler, LoadError> {
            let mut scheduler = Scheduler::new((self.of.load)(self.replica)?, self.of.options.prefix_cache_bytes);
            scheduler.set_step_tokens(self.of.options.step_tokens);
            calibrate(&mut scheduler, self.of.probe)?;
            Ok(scheduler)
        }));
        let scheduler = made.unwrap_or(Err(LoadError::Panicked))?;
        heap::give_back();
        let prepared = Arc::clone(&self.of.prepared[self.replica]);
        prepared.begin(self.of.observer.replica(self.replica));
        Ok(Worker {
            replica: self.replica,
            scheduler,
            queue: Arc::clone(&self.of.queue),
            parking: Arc::clone(&self.of.parking[self.replica]),
            board: Arc::clone(&self.of.board),
            observer: self.of.observer.replica(self.replica),
            places: Places::new(self.of.options.max_batch),
            prepared,
            probe: self.of.probe,
        })
    }
}
