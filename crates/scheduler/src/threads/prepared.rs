//! What a replica's lookahead shares with the threads that bring requests: finished searches. A request for one of them
//! is answered by the thread that brings it, whatever the replica works on.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use completion::{Search, Task};

use super::active::{Stream, finish_of};
use crate::client::Class;
use crate::job::Usage;
use crate::observer::ReplicaObserver;
use crate::request::{Answer, Request};

/// Finished searches that are kept: some for each of a few people who type at once, or one for each of many.
const MAX_PREPARED: usize = 64;

#[derive(Default)]
struct State {
    /// Finished searches, oldest first.
    searches: VecDeque<Box<Search>>,
    /// The last search that was answered, until its lookahead begins.
    answered: Option<(Box<Search>, Instant)>,
    /// Who counts what is answered; nobody before the replica works.
    observer: Option<Box<dyn ReplicaObserver>>,
}

/// The finished searches of one replica. See the module's documentation.
pub(super) struct Prepared {
    /// Whether there is any lookahead.
    enabled: bool,
    state: Mutex<State>,
}

impl Prepared {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, state: Mutex::default() }
    }

    /// A replica begins to work, and has nothing prepared.
    pub(super) fn begin(&self, observer: Box<dyn ReplicaObserver>) {
        *self.lock() = State { observer: Some(observer), ..State::default() };
    }

    /// Keeps a search that is done. Only its answer and its next characters are wanted.
    pub(super) fn keep(&self, mut search: Box<Search>) {
        search.release();
        let mut state = self.lock();
        if state.searches.len() == MAX_PREPARED {
            state.searches.pop_front();
        }
        state.searches.push_back(search);
    }

    /// The finished search in the place of one that asks the same; else the task itself.
    pub(super) fn instead_of(&self, task: Task) -> Task {
        let Task::Search(search) = &task else { return task };
        self.lock().take(search).map_or(task, Task::Search)
    }

    /// Answers a request if its search is finished; else returns it.
    pub(super) fn answer(&self, request: Request) -> Option<Request> {
        let Task::Search(asked) = &request.task else { return Some(request) };
        if request.flow.class != Class::Interactive {
            return Some(request);
        }
        let Some(search) = self.lock().take(asked) else { return Some(request) };
        let queued = request.received.elapsed();
        let has_first = search.has_settled();
        let task = Task::Search(search);
        let usage = Usage::of(&task);
        self.count(queued, has_first, usage);
        if let Some(events) = request.events {
            Stream::new(events, 1).send(&task);
        }
        let result = task.output();
        let finish = finish_of(&result);
        // The client may have gone; then there is nobody to tell.
        let _ = request.reply.send(Ok(Answer { result, finish, usage, queued, searched: Duration::ZERO }));
        if let Task::Search(search) = task {
            self.answered(search);
        }
        None
    }

    /// A search was answered: the keys after it may be prepared.
    pub(super) fn answered(&self, search: Box<Search>) {
        if self.enabled {
            self.lock().answered = Some((search, Instant::now()));
        }
    }

    /// When the search was answered whose lookahead has not begun.
    pub(super) fn answered_at(&self) -> Option<Instant> {
        self.lock().answered.as_ref().map(|(_, at)| *at)
    }

    /// The search whose lookahead has not begun.
    pub(super) fn take_answered(&self) -> Option<Box<Search>> {
        self.lock().answered.take().map(|(search, _)| search)
    }

    /// Forgets what was prepared, and what was to be.
    pub(super) fn clear(&self) {
        let mut state = self.lock();
        state.searches.clear();
        state.answered = None;
    }

    /// Reports an answer.
    fn count(&self, queued: Duration, has_first: bool, usage: Usage) {
        if let Some(observer) = &self.lock().observer {
            observer.dequeued(queued);
            if has_first {
                observer.first_result(queued);
            }
            observer.ended(usage.positions_saved, 0);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the finished search that asks what another one asks.
    fn take(&mut self, asked: &Search) -> Option<Box<Search>> {
        let place = self.searches.iter().rposition(|prepared| prepared.asks_the_same(asked));
        place.and_then(|place| self.searches.remove(place))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use completion::text::Text;
    use completion::text::testing::tiny;
    use completion::{SearchOptions, TaskOutput};
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::backend::Limits;
    use crate::client::Flow;
    use crate::fake::FakeBackend;
    use crate::observer::Unobserved;
    use crate::request::{Event, Superseded};
    use crate::scheduler::Scheduler;

    fn search(text: &Arc<Text>, typed: &str) -> Search {
        let options =
            SearchOptions { suggestions: 5, beams: 8, max_new_tokens: 4, context: 16, ..SearchOptions::default() };
        Search::new(Arc::clone(text), typed.to_owned(), options)
    }

    /// The finished search.
    fn finished(text: &Arc<Text>, typed: &str) -> Box<Search> {
        let (lanes, context, chunk, selected) = (4, 16, 16, 16);
        let vocab = text.vocab();
        let limits =
            Limits { lanes, context, chunk, selected, vocab, top_k: 6, pages: 64, page_bytes: 64, source: None };
        let mut scheduler = Scheduler::new(Box::new(FakeBackend::hashed(limits, 3, 4.0)), 1 << 20);
        let job = scheduler.add(search(text, typed));
        while !scheduler.step().unwrap().done.contains(&job) {}
        let Some((Task::Search(search), _)) = scheduler.take(job) else { panic!() };
        search
    }

    #[test]
    fn a_finished_search_answers_one_interactive_request_for_it_and_its_next_keys_are_pending() {
        let text = Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")]));
        let prepared = Prepared::new(true);
        prepared.begin(Box::new(Unobserved));
        let ask = |typed: &str, class: Class| {
            let (reply, answer) = oneshot::channel();
            let (events, streamed) = mpsc::channel(10);
            let now = Instant::now();
            let request = Request {
                task: search(&text, typed).into(),
                flow: Flow { class, ..Flow::default() },
                payer: None,
                deadline: now + Duration::from_secs(60),
                received: now,
                superseded: Superseded::default(),
                preferred_replica: 0,
                events: Some(events),
                reply,
            };
            let is_answered = prepared.answer(request).is_none();
            is_answered.then(|| (answer.blocking_recv().unwrap().unwrap(), streamed))
        };
        prepared.keep(finished(&text, "ab"));
        assert!(ask("a", Class::Interactive).is_none() && ask("ab", Class::Bulk).is_none());
        assert_eq!(prepared.answered_at(), None);
        let (answer, mut streamed) = ask("ab", Class::Interactive).unwrap();
        let expected = finished(&text, "ab").completions();
        assert_eq!((answer.usage.forwards, answer.result), (0, TaskOutput::Suggestions(expected.clone())));
        let Some(Event::Suggestion(first)) = streamed.blocking_recv() else { panic!() };
        assert_eq!(first, expected.suggestions[0]);
        assert!(ask("ab", Class::Interactive).is_none(), "it was handed out");
        let next = prepared.take_answered().unwrap();
        assert_eq!(next.next_characters(), finished(&text, "ab").next_characters(), "they outlive the distributions");
    }
}
