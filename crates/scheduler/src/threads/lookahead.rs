//! Lookahead of a replica for which nobody waits at a keyboard: the searches for the typed text plus the character that
//! probably comes next, one after the other. A person who types one of those gets the finished search. The first is
//! prepared beside bulk work, too, the others only while the process has no request to work on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use completion::{Search, Task};

use super::prepared::Prepared;
use crate::job::JobId;
use crate::scheduler::Scheduler;

/// About what an answer takes to reach its client. A step that begins at once has every core, and the threads that
/// write the answer would wait for one.
const REST: Duration = Duration::from_millis(2);

/// The lookahead of one replica.
pub(super) struct Lookahead {
    /// The finished searches, and the last one that was answered, until its lookahead begins.
    prepared: Arc<Prepared>,
    ahead: Option<Ahead>,
    /// The search under way.
    job: Option<JobId>,
}

/// A typed text whose next keys are prepared.
struct Ahead {
    of: Box<Search>,
    /// The characters that are left, the most probable first.
    next: VecDeque<char>,
    /// Whether the first one has begun.
    has_begun: bool,
}

/// The lookahead of a replica without requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// No lookahead is possible or wanted.
    Nothing,
    /// A lookahead may start at this instant.
    From(Instant),
    /// A lookahead is running, or may start.
    Running,
}

impl Lookahead {
    pub(super) fn new(prepared: Arc<Prepared>) -> Self {
        Self { prepared, ahead: None, job: None }
    }

    /// The state of the lookahead, for a replica without requests.
    pub(super) fn pending(&self) -> Pending {
        match self.prepared.answered_at() {
            Some(at) => Pending::From(at + REST),
            None if self.job.is_some() || self.ahead.is_some() => Pending::Running,
            None => Pending::Nothing,
        }
    }

    /// Begins what is pending. Unless the process `is_idle`, that is the most probable key only.
    pub(super) fn begin(&mut self, scheduler: &mut Scheduler, is_idle: bool) {
        if let Some(of) = self.prepared.take_answered() {
            self.cancel(scheduler);
            self.ahead = Some(Ahead { next: of.next_characters().into(), of, has_begun: false });
        }
        if self.job.is_some() {
            return;
        }
        // Nobody says when the process becomes idle.
        let Some(mut ahead) = self.ahead.take().filter(|ahead| is_idle || !ahead.has_begun) else { return };
        let mut searches = std::iter::from_fn(|| ahead.next.pop_front()).filter_map(|next| ahead.of.lookahead(next));
        self.job = searches.next().map(|search| scheduler.add_ahead(search));
        ahead.has_begun = true;
        self.ahead = self.job.map(|_| ahead);
    }

    /// Whether a job is the search under way.
    pub(super) fn is(&self, job: JobId) -> bool {
        self.job == Some(job)
    }

    /// Stops. What was computed stays in the prefix cache.
    pub(super) fn stop(&mut self, scheduler: &mut Scheduler) {
        self.prepared.take_answered();
        self.cancel(scheduler);
    }

    fn cancel(&mut self, scheduler: &mut Scheduler) {
        self.ahead = None;
        if let Some(job) = self.job.take() {
            scheduler.take(job);
        }
    }

    /// Keeps the search under way, which is done.
    pub(super) fn finish(&mut self, scheduler: &mut Scheduler) {
        let done = self.job.take().and_then(|job| scheduler.take(job));
        if let Some((Task::Search(search), _)) = done {
            self.prepared.keep(search);
        }
    }

    /// Stops without the scheduler, and forgets what was prepared; returns the job that the scheduler still has.
    pub(super) fn abandon(&mut self) -> Option<JobId> {
        self.prepared.clear();
        self.ahead = None;
        self.job.take()
    }
}

#[cfg(test)]
mod tests {
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
        let mut lookahead = Lookahead::new(Arc::new(Prepared::new(true)));
        let (Task::Search(first), _) = answer(&mut scheduler, search(&text, "a", 5)) else { panic!() };
        let next = first.completions().suggestions[0].next_character().unwrap();
        let typed = format!("a{next}");
        lookahead.prepared.answered(first);
        lookahead.begin(&mut scheduler, true);
        let job = lookahead.job.unwrap();
        run(&mut scheduler, job);
        lookahead.finish(&mut scheduler);

        let others = [search(&text, &typed, 4), search(&text, &format!("{typed}a"), 5), search(&text, "a", 5)];
        assert!(others.into_iter().all(|other| !lookahead.prepared.instead_of(other.into()).is_done()));
        let prepared = lookahead.prepared.instead_of(search(&text, &typed, 5).into());
        assert!(prepared.is_done());
        let computed = scheduler.positions_computed();
        let (task, usage) = answer(&mut scheduler, prepared);
        assert_eq!((scheduler.positions_computed(), usage.positions_computed), (computed, 0));
        assert!(usage.positions_saved > 0);
        let mut cold = self::scheduler(&text);
        assert_eq!(task.output(), answer(&mut cold, search(&text, &typed, 5)).0.output());
        assert!(matches!(task.output(), TaskOutput::Suggestions(found) if found.suggestions.len() == 5));
        assert!(!lookahead.prepared.instead_of(search(&text, &typed, 5).into()).is_done(), "it was handed out");
    }

    #[test]
    fn other_probable_characters_follow_the_first_while_the_process_is_idle() {
        let text = Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")]));
        let of = |typed: &str| match answer(&mut scheduler(&text), search(&text, typed, 5)) {
            (Task::Search(search), _) => search,
            _ => panic!(),
        };
        let next = |typed: &str| of(typed).next_characters();
        let typed = ["a", "b", "ab", "ba", "aab"].into_iter().find(|typed| next(typed).len() > 2).unwrap();
        let characters = next(typed);
        for (is_idle, expected) in [(false, 1), (true, characters.len())] {
            let mut scheduler = scheduler(&text);
            let mut lookahead = Lookahead::new(Arc::new(Prepared::new(true)));
            lookahead.prepared.answered(of(typed));
            for _ in 0..=characters.len() {
                lookahead.begin(&mut scheduler, is_idle);
                lookahead.job.into_iter().for_each(|job| run(&mut scheduler, job));
                lookahead.finish(&mut scheduler);
            }
            assert_eq!(lookahead.pending(), Pending::Nothing);
            let longer = characters.iter().map(|next| search(&text, &format!("{typed}{next}"), 5));
            let prepared =
                longer.map(|longer| lookahead.prepared.instead_of(longer.into())).filter(Task::is_done).count();
            assert_eq!(prepared, expected);
        }
    }

    #[test]
    fn nothing_is_prepared_once_the_engine_has_failed() {
        let text = Arc::new(tiny("ab ", &[("a", "b"), (" ", "a")]));
        let mut scheduler = scheduler(&text);
        let mut lookahead = Lookahead::new(Arc::new(Prepared::new(true)));
        let job = scheduler.add_ahead(search(&text, "a", 3));
        lookahead.job = Some(job);
        run(&mut scheduler, job);
        lookahead.finish(&mut scheduler);
        assert!(lookahead.prepared.instead_of(search(&text, "a", 3).into()).is_done());
        let job = scheduler.add_ahead(search(&text, "a", 3));
        lookahead.job = Some(job);
        run(&mut scheduler, job);
        lookahead.finish(&mut scheduler);
        lookahead.abandon();
        assert!(!lookahead.prepared.instead_of(search(&text, "a", 3).into()).is_done());
    }
}
