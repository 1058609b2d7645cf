//! Which instance answers: those without a session take turns, and a session stays on the instance that opened it, as
//! behind an endpoint with sticky sessions.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most sessions that are remembered; one more, and the oldest is forgotten.
const MAX_SESSIONS: usize = 10_000;

/// The instances and who is on which.
#[derive(Debug)]
pub struct Routing {
    targets: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    turn: usize,
    /// The index of a session's instance.
    sessions: HashMap<String, usize>,
    /// The oldest first.
    opened: VecDeque<String>,
}

impl Routing {
    /// Instances by their URLs; there is at least one.
    pub fn new(targets: Vec<String>) -> Self {
        Self { targets, state: Mutex::default() }
    }

    /// The index and URL of the instance for a request; its session, if it names one.
    pub fn choose(&self, session: Option<&str>) -> (usize, &str) {
        let mut state = self.state();
        let index = session.and_then(|session| state.sessions.get(session).copied()).unwrap_or_else(|| {
            state.turn = (state.turn + 1) % self.targets.len();
            state.turn
        });
        (index, &self.targets[index])
    }

    /// Keeps a session on the instance that opened it.
    pub fn opened(&self, session: &str, index: usize) {
        let mut state = self.state();
        if state.sessions.insert(session.to_owned(), index).is_some() {
            return;
        }
        state.opened.push_back(session.to_owned());
        if state.opened.len() > MAX_SESSIONS
            && let Some(oldest) = state.opened.pop_front()
        {
            state.sessions.remove(&oldest);
        }
    }

    /// Forgets a session.
    pub fn closed(&self, session: &str) {
        let mut state = self.state();
        if state.sessions.remove(session).is_some() {
            state.opened.retain(|opened| opened != session);
        }
    }

    /// No code that could panic runs while it is locked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_take_turns_and_sessions_stay() {
        let routing = Routing::new(["a", "b", "c"].map(str::to_owned).to_vec());
        let (index, opener) = routing.choose(Some("NEW_SESSION"));
        routing.opened("person", index);
        for _ in 0..7 {
            assert_eq!(routing.choose(Some("person")), (index, opener));
        }
        let others: Vec<_> = (0..6).map(|_| routing.choose(None).1).collect();
        assert_eq!(others, ["c", "a", "b", "c", "a", "b"]);
        routing.closed("person");
        let after: Vec<_> = (0..3).map(|_| routing.choose(Some("person")).1).collect();
        assert_eq!(after, ["c", "a", "b"], "a session that nobody opened stays nowhere");
    }

    #[test]
    fn the_oldest_sessions_are_forgotten() {
        let routing = Routing::new(vec!["a".into(), "b".into()]);
        for number in 0..=MAX_SESSIONS {
            routing.opened(&number.to_string(), 0);
            routing.opened(&number.to_string(), 0);
        }
        let state = routing.state();
        assert_eq!((state.sessions.len(), state.opened.len()), (MAX_SESSIONS, MAX_SESSIONS));
        assert!(!state.sessions.contains_key("0") && state.sessions.contains_key("1"));
    }
}
