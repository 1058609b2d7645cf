//! What a loop sends to the clients of its requests.

use completion::Task;

use super::super::active::{Active, finish_of};
use super::Loop;
use crate::job::{JobId, Usage};
use crate::request::{Answer, Finish};

impl Loop {
    /// Sends what has become final, and notes when the first of it has.
    pub(super) fn send_events(&mut self) {
        for active in &mut self.active {
            if active.has_first && active.stream.is_none() {
                continue;
            }
            let Some(task) = self.worker.scheduler.task(active.job) else { continue };
            let has_first = match task {
                Task::Search(search) => search.has_settled(),
                // None of the beams is final before the end.
                Task::Beams(_) => false,
                Task::Sampling(sampling) => (0..sampling.sequences()).any(|s| !sampling.tokens(s, 0).is_empty()),
            };
            if has_first && !active.has_first {
                active.has_first = true;
                self.worker.observer.first_result(active.received.elapsed());
            }
            if let Some(stream) = active.stream.as_mut().filter(|_| has_first) {
                stream.send(task);
            }
        }
    }

    /// Answers a request whose task is done, or ends the lookahead. Only somebody at a keyboard has a next key.
    pub(super) fn finish(&mut self, job: JobId) {
        if self.lookahead.is(job) {
            return self.lookahead.finish(&mut self.worker.scheduler);
        }
        let is_bulk = self.active.iter().any(|active| active.job == job && active.is_bulk());
        if let (Some(Task::Search(search)), false) = (self.answer(job, None), is_bulk) {
            self.worker.prepared.answered(search);
        }
    }

    /// Sends what a request's task came to, and returns the task.
    pub(super) fn answer(&mut self, job: JobId, finish: Option<Finish>) -> Option<Task> {
        let active = self.remove(job)?;
        let (task, usage) = self.worker.scheduler.take(job)?;
        let result = task.output();
        let answer = Answer {
            finish: finish.unwrap_or_else(|| finish_of(&result)),
            result,
            usage,
            queued: active.started - active.received,
            searched: active.started.elapsed(),
        };
        self.count(usage, answer.finish == Finish::Superseded);
        // The client may have gone; then there is nobody to tell.
        let _ = active.reply.send(Ok(answer));
        Some(task)
    }

    /// Gives a request up whose client has gone.
    pub(super) fn forget(&mut self, job: JobId) {
        self.remove(job);
        if let Some((_, usage)) = self.worker.scheduler.take(job) {
            self.count(usage, true);
        }
    }

    pub(super) fn remove(&mut self, job: JobId) -> Option<Active> {
        let index = self.active.iter().position(|active| active.job == job)?;
        let active = self.active.remove(index);
        self.settle_account(&active);
        self.worker.observer.active(self.active.len());
        Some(active)
    }

    /// Tells a request's flow that it has ended.
    pub(super) fn settle_account(&self, active: &Active) {
        if active.is_accounted {
            self.worker.queue.ends(active.flow);
        }
    }

    fn count(&self, usage: Usage, wasted: bool) {
        self.worker.observer.ended(usage.positions_saved, if wasted { usage.positions_computed } else { 0 });
    }
}
