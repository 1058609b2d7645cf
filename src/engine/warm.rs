//! What a new engine computes before it is asked: the texts that people type most.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use completion::TaskOutput;
use scheduler::{Answer, Flow, Refusal, Request, Superseded};
use tokio::sync::oneshot;

use super::hot::{Hot, HotText};
use super::{Completion, Engine, EngineError};

/// Texts that are computed at once: they share steps.
const AT_ONCE: usize = 16;
/// Between two looks at whether a text is done.
const LOOK: Duration = Duration::from_millis(1);

type Reply = oneshot::Receiver<Result<Answer<TaskOutput>, Refusal>>;

impl Engine {
    /// The texts that were typed most of late, hottest first. Those of clients with a salt aren't among them.
    pub fn hottest(&self, most: usize) -> Vec<HotText> {
        self.hot().hottest(most)
    }

    /// Computes what the answers to these texts need, one part after the other, until `within` has passed. Returns how
    /// many were computed. Texts that the model can't complete are left out. Blocks.
    pub fn warm<'a>(&self, texts: impl IntoIterator<Item = &'a str>, within: Duration) -> usize {
        let (until, mut computed) = (Instant::now() + within, 0);
        let mut texts = texts.into_iter().peekable();
        while texts.peek().is_some() && Instant::now() < until {
            let asked: Vec<Reply> = texts.by_ref().take(AT_ONCE).filter_map(|text| self.ask(text, until)).collect();
            computed += asked.into_iter().filter_map(|reply| wait(reply, until)).count();
        }
        computed
    }

    /// Makes this the version of that number beside `old`, with whose counts of typed texts and changed extras it goes
    /// on.
    ///
    /// # Errors
    /// This version has no room for the template that was put.
    pub fn follow(&mut self, old: &Self, number: u64) -> Result<(), EngineError> {
        self.version.begins(number);
        self.hot = std::sync::Arc::clone(&old.hot);
        self.inherit_extras(old)
    }

    pub(super) fn hot(&self) -> MutexGuard<'_, Hot> {
        // Nobody panics with the lock held.
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a text as a client's would be, but counts no request.
    fn ask(&self, text: &str, deadline: Instant) -> Option<Reply> {
        let admission = self.pool.admit().ok()?;
        let completion = Completion { input: text.to_owned(), ..Completion::default() };
        let search = self.model().search(&completion).ok()?;
        let (reply, answer) = oneshot::channel();
        let request = Request {
            task: search.into(),
            flow: Flow::default(),
            payer: None,
            deadline,
            // Nobody waits, so it doesn't go to another replica than the one where it will be typed.
            received: deadline,
            superseded: Superseded::default(),
            preferred_replica: self.preferred_replica(None, text.trim_start().chars().next()),
            events: None,
            reply,
        };
        self.pool.submit(&admission, request).ok()?;
        Some(answer)
    }
}

/// The answer, if it comes in time. A step that hangs answers nobody.
fn wait(mut reply: Reply, until: Instant) -> Option<Answer<TaskOutput>> {
    loop {
        match reply.try_recv() {
            Ok(answer) => return answer.ok(),
            Err(oneshot::error::TryRecvError::Empty) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(_) => return None,
        }
    }
}
