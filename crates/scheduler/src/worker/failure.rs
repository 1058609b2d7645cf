//! What a loop does when its engine computes nonsense, fails or panics: nobody is left without an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Loop;
use crate::request::Refusal;
use crate::scheduler::JobId;

const PANICKED: &str = "the engine panicked; the server's log says where";

impl Loop {
    /// Says that bringing a request ended in a panic.
    pub(crate) fn has_panicked(&mut self) {
        self.broken = Some(self.panicked());
        self.worker.queue.call(self.worker.replica);
    }

    /// Tells everyone that the engine, or what belongs to it, panicked.
    pub(super) fn panicked(&mut self) -> String {
        self.give_up(PANICKED.to_owned())
    }

    /// Answers everyone and says that the engine is of no more use, and why.
    fn give_up(&mut self, reason: String) -> String {
        // Before anyone is told: who asks for the health then gets the truth.
        self.worker.board.set_failed(self.worker.replica, Some(reason.clone()));
        self.refuse_all(&reason);
        reason
    }

    /// Tells those for whom the engine computed nonsense, and finds out whether that was because of them.
    pub(super) fn fail(&mut self, jobs: &[JobId]) -> Result<(), String> {
        tracing::error!(requests = jobs.len(), "the engine computed NaN or infinity");
        for &job in jobs {
            if let Some(active) = self.remove(job) {
                let _ = active.reply.send(Err(Refusal::Failed));
            }
            self.worker.scheduler.take(job);
        }
        self.ahead = self.ahead.filter(|job| !jobs.contains(job));
        self.proves_itself().map_err(|reason| self.give_up(reason))
    }

    /// After an engine error nothing that was computed can be trusted: every request is answered, everything is forgotten, and
    /// one forward decides whether the engine still works.
    pub(super) fn recover(&mut self, reason: &str) -> Result<(), String> {
        for job in self.refuse_all(reason) {
            self.worker.scheduler.take(job);
        }
        self.worker.scheduler.reset();
        self.evicted = 0;
        self.proves_itself()
    }

    fn proves_itself(&mut self) -> Result<(), String> {
        self.worker.board.begin(self.worker.replica);
        let proof = catch_unwind(AssertUnwindSafe(|| self.worker.scheduler.warm_up(self.worker.probe, 1)));
        self.worker.board.end(self.worker.replica);
        match proof {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(PANICKED.to_owned()),
        }
    }

    /// Answers every active request that the engine failed. The scheduler isn't touched: it may be in any state. Returns the jobs
    /// that it still has.
    fn refuse_all(&mut self, reason: &str) -> Vec<JobId> {
        tracing::error!(reason, requests = self.active.len(), "the engine failed");
        let mut jobs: Vec<JobId> = self.ahead.take().into_iter().collect();
        for active in std::mem::take(&mut self.active) {
            jobs.push(active.job);
            let refusal = Refusal::NotReady("its engine failed while working on this request; try again".to_owned());
            let _ = active.reply.send(Err(refusal));
        }
        self.worker.observer.active(0);
        jobs
    }
}
