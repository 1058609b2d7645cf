//! Lookahead of a replica for which nobody waits at a keyboard: the search for the typed text plus the next character
//! of its first suggestion. A person who types that character gets the finished search. Bulk work shares its steps.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use completion::{Search, Task};

use crate::job::JobId;
use crate::scheduler::Scheduler;

/// About what an answer takes to reach its client. A step that begins at once has every core, and the threads that
/// write the answer would wait for one.
const REST: Duration = Duration::from_millis(2);

/// Finished searches that are kept: one for each of as many people who type at once.
const MAX_PREPARED: usize = 32;

/// The lookahead of one replica.
pub(super) struct Lookahead {
    enabled: bool,
    /// The last search that was answered, until its lookahead begins.
    answered: Option<Box<Search>>,
    answered_at: Instant,
    /// The search under way.
    job: Option<JobId>,
    /// Finished searches, oldest first.
    prepared: VecDeque<Box<Search>>,
}

/// The lookahead of a replica without requests.
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
        Self { enabled, answered: None, answered_at: Instant::now(), job: None, prepared: VecDeque::new() }
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

    /// Keeps the search under way, which is done.
    pub(super) fn finish(&mut self, scheduler: &mut Scheduler) {
        let done = self.job.take().and_then(|job| scheduler.take(job));
        let Some((Task::Search(mut search), _)) = done else { return };
        // Only its answer is wanted.
        search.paths_mut().release();
        if self.prepared.len() == MAX_PREPARED {
            self.prepared.pop_front();
        }
        self.prepared.push_back(search);
    }

    /// The finished search in the place of one that asks the same; else the task itself.
    pub(super) fn prepared(&mut self, task: Task) -> Task {
        let Task::Search(search) = &task else { return task };
        let place = self.prepared.iter().rposition(|prepared| prepared.asks_the_same(search));
        place.and_then(|place| self.prepared.remove(place)).map_or(task, Task::Search)
    }

    /// Stops without the scheduler, and forgets what was prepared; returns the job that the scheduler still has.
    pub(super) fn abandon(&mut self) -> Option<JobId> {
        self.prepared.clear();
        self.job.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use completion::text::Text;
    use completion::text::testing::tiny;
    use completion::{SearchOptions, TaskOutput};

    use super::*;
    use crate::backend::Limits;
    use crate::fake::FakeBackend;
    use crate::job::Usage;

    fn scheduler(text: &Text) -> Scheduler {
        let (lanes, context, chunk, selected) = (4, 16, 16, 16);
        let vocab = text.vocab();
        let limits =
            Limits { lanes, context, chunk, selected, vocab, top_k: 6, pages: 64, page_bytes: 64, source: None };
        Scheduler::new(Box::new(FakeBackend::hashed(limits, 3, 4.0)), 1 << 20)
    }

    fn search(text: &Arc<Text>, typed: &str, suggestions: usize) -> Search {
        let options =
            SearchOptions { suggestions, beams: 8, max_new_tokens: 4, context: 16, ..SearchOptions::default() };
        Search::new(Arc::clone(text), typed.to_owned(), options)
    }

    fn run(scheduler: &mut Scheduler, job: JobId) {
        while !scheduler.step().unwrap().done.contains(&job) {}
    }

    fn answer(scheduler: &mut Scheduler, task: impl Into<Task>) -> (Task, Usage) {
        let job = scheduler.add(task);
        run(scheduler, job);
        scheduler.take(job).unwrap()
    }

    #[test]
    fn a_person_who_agrees_gets_the_finished_search_and_nobody_else_does() {
        let text = Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")]));
        let mut scheduler = scheduler(&text);
        let mut lookahead = Lookahead::new(true);
        let (Task::Search(first), _) = answer(&mut scheduler, search(&text, "a", 5)) else { panic!() };
        let next = first.completions().suggestions[0].next_character().unwrap();
        let typed = format!("a{next}");
        lookahead.answered(first);
        lookahead.begin(&mut scheduler);
        let job = lookahead.job.unwrap();
        run(&mut scheduler, job);
        lookahead.finish(&mut scheduler);

        let others = [search(&text, &typed, 4), search(&text, &format!("{typed}a"), 5), search(&text, "a", 5)];
        assert!(others.into_iter().all(|other| !lookahead.prepared(other.into()).is_done()));
        let prepared = lookahead.prepared(search(&text, &typed, 5).into());
        assert!(prepared.is_done());
        let computed = scheduler.positions_computed();
        let (task, usage) = answer(&mut scheduler, prepared);
        assert_eq!((scheduler.positions_computed(), usage.positions_computed), (computed, 0));
        assert!(usage.positions_saved > 0);
        let mut cold = self::scheduler(&text);
        assert_eq!(task.output(), answer(&mut cold, search(&text, &typed, 5)).0.output());
        assert!(matches!(task.output(), TaskOutput::Suggestions(found) if found.suggestions.len() == 5));
        assert!(!lookahead.prepared(search(&text, &typed, 5).into()).is_done(), "it was handed out");
    }

    #[test]
    fn nothing_is_prepared_once_the_engine_has_failed() {
        let text = Arc::new(tiny("ab ", &[("a", "b"), (" ", "a")]));
        let mut scheduler = scheduler(&text);
        let mut lookahead = Lookahead::new(true);
        let job = scheduler.add_ahead(search(&text, "a", 3));
        lookahead.job = Some(job);
        run(&mut scheduler, job);
        lookahead.finish(&mut scheduler);
        assert_eq!(lookahead.prepared.len(), 1);
        lookahead.abandon();
        assert!(!lookahead.prepared(search(&text, "a", 3).into()).is_done());
    }
}
