//! What a loop does when its engine fails, panics, or computes NaN: every request gets an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Loop;
use crate::backend::BackendError;
use crate::job::JobId;
use crate::request::{Failure, Refusal};

impl Loop {
    /// Refuses everyone, because the engine or the code around it panicked.
    pub(super) fn panicked(&mut self) -> Failure {
        self.give_up(Failure::Panicked)
    }

    fn give_up(&mut self, failure: Failure) -> Failure {
        // Before anyone is told: who asks for the health then gets the truth.
        self.worker.board.set_failed(self.worker.replica, Some(failure.clone()));
        self.refuse_all(&failure);
        failure
    }

    /// Refuses the requests for which the engine computed NaN or infinity, and tests whether it still works.
    pub(super) fn fail(&mut self, jobs: &[JobId]) -> Result<(), Failure> {
        tracing::error!(requests = jobs.len(), "the engine computed NaN or infinity");
        for &job in jobs {
            if let Some(active) = self.remove(job) {
                let _ = active.reply.send(Err(Refusal::Failed));
            }
            if self.lookahead.is(job) {
                self.lookahead.abandon();
            }
            self.worker.scheduler.take(job);
        }
        self.proves_itself().map_err(|failure| self.give_up(failure))
    }

    /// After an engine error nothing that was computed can be trusted: everyone is refused, everything is forgotten,
    /// and one step decides whether the engine still works.
    pub(super) fn recover(&mut self, error: &BackendError) -> Result<(), Failure> {
        for job in self.refuse_all(&Failure::Engine(error.clone())) {
            self.worker.scheduler.take(job);
        }
        self.worker.scheduler.reset();
        self.evicted = 0;
        self.proves_itself()
    }

    fn proves_itself(&mut self) -> Result<(), Failure> {
        self.worker.board.begin(self.worker.replica);
        let proof = catch_unwind(AssertUnwindSafe(|| self.worker.scheduler.warm_up(self.worker.probe, 1)));
        self.worker.board.end(self.worker.replica);
        proof.map_err(|_| Failure::Panicked)?.map_err(Failure::Engine)
    }

    /// Refuses every active request. The scheduler isn't touched: it may be in any state. Returns the jobs that it
    /// still has.
    fn refuse_all(&mut self, failure: &Failure) -> Vec<JobId> {
        tracing::error!(%failure, requests = self.active.len(), "the engine failed");
        let mut jobs: Vec<JobId> = self.lookahead.abandon().into_iter().collect();
        for active in std::mem::take(&mut self.active) {
            jobs.push(active.job);
            self.settle_account(&active);
            let _ = active.reply.send(Err(Refusal::Interrupted));
        }
        self.worker.observer.active(0);
        jobs
    }
}
