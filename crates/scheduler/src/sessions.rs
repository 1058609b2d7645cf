//! The newest request of each session. A session is a person who types: only the newest keystroke's answer is seen.

use completion::Partition;
use rustc_hash::FxHashMap;

use super::request::Superseded;

/// Names that are kept before those of ended requests are cleared away.
const SWEEP_AT_LEAST: usize = 1024;

/// Sessions by name, of each partition. See the module's documentation.
#[derive(Debug, Default)]
pub struct Sessions {
    newest: FxHashMap<(Partition, String), Superseded>,
    /// Names after the last sweep.
    swept: usize,
}

impl Sessions {
    /// Begins a request: the one before it of the same session is superseded.
    pub fn begin(&mut self, partition: Partition, session: &str) -> Superseded {
        // Twice as many names as requests can run is enough to make sweeping cheap, and bounds the memory.
        if self.newest.len() >= (2 * self.swept).max(SWEEP_AT_LEAST) {
            self.newest.retain(|_, newest| !newest.is_unshared());
            self.swept = self.newest.len();
        }
        let mine = Superseded::default();
        if let Some(older) = self.newest.insert((partition, session.to_owned()), mine.clone()) {
            older.set();
        }
        mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_supersedes_the_older_of_its_session_only() {
        let mut sessions = Sessions::default();
        let ours = Partition::default();
        let (a1, b1) = (sessions.begin(ours, "a"), sessions.begin(ours, "b"));
        let theirs = sessions.begin(Partition(1), "b");
        let a2 = sessions.begin(ours, "a");
        assert!(!theirs.get(), "another partition's session of that name");
        assert_eq!([a1.get(), b1.get(), a2.get()], [true, false, false]);
    }

    #[test]
    fn ended_sessions_take_no_memory_for_long() {
        let mut sessions = Sessions::default();
        let running: Vec<Superseded> =
            (0..100).map(|i| sessions.begin(Partition::default(), &format!("running {i}"))).collect();
        for i in 0..100_000 {
            sessions.begin(Partition::default(), &format!("ended {i}"));
            assert!(sessions.newest.len() <= SWEEP_AT_LEAST);
        }
        sessions.begin(Partition::default(), "running 7");
        assert!(running.iter().enumerate().all(|(i, r)| r.get() == (i == 7)), "running ones are never swept");
    }
}
