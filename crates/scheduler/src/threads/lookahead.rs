//! Lookahead of an idle replica: the search for the typed text plus the next character of its first suggestion.

use std::time::{Duration, Instant};

use completion::Search;

use crate::job::JobId;
use crate::scheduler::Scheduler;

/// About what an answer takes to reach its client. A step that begins at once has every core, and the threads that
/// write the answer would wait for one.
const REST: Duration = Duration::from_millis(2);

/// The lookahead of one replica.
pub(super) struct Lookahead {
    enabled: bool,
    /// The last search that was answered, until its lookahead begins.
    answered: Option<Box<Search>>,
    answered_at: Instant,
    /// The search under way.
    job: Option<JobId>,
}

/// The lookahead of an idle replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// No lookahead is possible or wanted.
    Nothing,
    /// A lookahead may start at this instant.
    From(Instant),
    /// A lookahead is running.
    Running,
}

impl Lookahead {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, answered: None, answered_at: Instant::now(), job: None }
    }

    /// The state of the lookahead, for a replica without requests.
    pub(super) fn pending(&self) -> Pending {
        match (&self.answered, self.job) {
            (Some(_), _) => Pending::From(self.answered_at + REST),
            (None, Some(_)) => Pending::Running,
            (None, None) => Pending::Nothing,
        }
    }

    /// A search was answered: the key after it may be prepared.
    pub(super) fn answered(&mut self, search: Box<Search>) {
        if self.enabled {
            (self.answered, self.answered_at) = (Some(search), Instant::now());
        }
    }

    /// Begins what is pending.
    pub(super) fn begin(&mut self, scheduler: &mut Scheduler) {
        let next = self.answered.take().and_then(|search| search.lookahead());
        self.job = next.map(|next| scheduler.add_ahead(next)).or(self.job);
    }

    /// Whether a job is the search under way.
    pub(super) fn is(&self, job: JobId) -> bool {
        self.job == Some(job)
    }

    /// Stops. What was computed stays in the prefix cache.
    pub(super) fn stop(&mut self, scheduler: &mut Scheduler) {
        self.answered = None;
        if let Some(job) = self.job.take() {
            scheduler.take(job);
        }
    }

    /// Stops without the scheduler; returns the job that it still has.
    pub(super) fn abandon(&mut self) -> Option<JobId> {
        self.job.take()
    }
}
