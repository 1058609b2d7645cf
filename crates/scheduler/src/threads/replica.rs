//! The life of one model thread: it loads its engine, tests it, works, and loads it again after a failure, unless the
//! failures follow each other closely.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use completion::text::TokenId;

use super::calibrate::calibrate;
use super::health::Board;
use super::options::PoolOptions;
use super::parking::Parking;
use super::queue::Queue;
use super::worker::{End, Loop, Worker};
use crate::backend::{LoadError, Loader};
use crate::observer::Observer;
use crate::places::Places;
use crate::request::{Failure, Refusal};
use crate::scheduler::Scheduler;

/// The life of one replica, on its thread.
pub(super) struct Replica {
    pub(super) replica: usize,
    pub(super) load: Loader,
    pub(super) probe: TokenId,
    pub(super) options: PoolOptions,
    pub(super) queue: Arc<Queue>,
    pub(super) parking: Arc<Parking<Loop>>,
    pub(super) board: Arc<Board>,
    pub(super) observer: Arc<dyn Observer>,
}

impl Replica {
    pub(super) fn run(self, loaded: impl FnOnce(Result<(), LoadError>)) {
        let mut worker = match self.worker() {
            Ok(worker) => {
                loaded(Ok(()));
                worker
            }
            Err(reason) => return loaded(Err(reason)),
        };
        let mut loaded_again: Option<Instant> = None;
        loop {
            // The worker deals with panics of the engine; this is for those nobody thought of.
            let ended = catch_unwind(AssertUnwindSafe(|| worker.run()));
            let failure = match ended.unwrap_or(End::Failed(Failure::ThreadPanicked)) {
                End::Closed => return,
                End::Failed(failure) => failure,
            };
            self.board.set_failed(self.replica, Some(failure.clone()));
            self.queue.refuse_waiting(&Refusal::Unhealthy(failure));
            if loaded_again.is_some_and(|at| at.elapsed() < self.options.restart_every) {
                tracing::error!(replica = self.replica, "the engine failed again; it stays unhealthy");
                return;
            }
            tracing::warn!(replica = self.replica, "loading the engine again");
            worker = match self.worker() {
                Ok(worker) => worker,
                Err(reason) => {
                    tracing::error!(replica = self.replica, %reason, "the engine can't be loaded again");
                    return;
                }
            };
            loaded_again = Some(Instant::now());
            self.observer.restarted();
            self.board.set_failed(self.replica, None);
        }
    }

    /// Loads and proves an engine.
    fn worker(&self) -> Result<Worker, LoadError> {
        let made = catch_unwind(AssertUnwindSafe(|| -> Result<Scheduler, LoadError> {
            let mut scheduler = Scheduler::new((self.load)(self.replica)?, self.options.prefix_cache_bytes);
            scheduler.set_step_tokens(self.options.step_tokens);
            calibrate(&mut scheduler, self.probe)?;
            Ok(scheduler)
        }));
        let scheduler = made.unwrap_or(Err(LoadError::Panicked))?;
        Ok(Worker {
            replica: self.replica,
            scheduler,
            queue: Arc::clone(&self.queue),
            parking: Arc::clone(&self.parking),
            board: Arc::clone(&self.board),
            observer: self.observer.replica(self.replica),
            places: Places::new(self.options.max_batch),
            lookahead: self.options.lookahead,
            probe: self.probe,
        })
    }
}
