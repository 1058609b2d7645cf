//! What a new engine computes before it is asked: the first keys of queries, and the texts that people type most.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use completion::TaskOutput;
use completion::text::query::Query;
use rustc_hash::FxHashSet;
use scheduler::{Answer, Flow, Refusal, Request, Superseded};
use tokio::sync::oneshot;

use super::hot::{Hot, HotText};
use super::{Completion, Engine, EngineError};

/// Texts that a replica computes at once: they share steps.
const AT_ONCE: usize = 16;
/// Between two looks at whether a text is done.
const LOOK: Duration = Duration::from_millis(1);
/// Most texts that a new version computes because they were typed most, and in each round because they were typed last.
const HOTTEST: usize = 512;
const LATEST: usize = 128;
/// Rounds of the texts that were typed last. Each takes less time than the one before, in which fewer are typed.
const ROUNDS: usize = 3;

type Reply = oneshot::Receiver<Result<Answer<TaskOutput>, Refusal>>;

impl Engine {
    /// The texts that were typed most of late, hottest first. Those of clients with a salt aren't among them.
    pub fn hottest(&self, most: usize) -> Vec<HotText> {
        self.hot().hottest(most)
    }

    /// Computes what the answers to these texts need, and then those to each text with the next character of its first
    /// suggestion, which is what a server that answers has computed ahead. Ends when `within` has passed. Returns how
    /// many texts were computed. Texts that the model can't complete are left out. Blocks.
    pub fn warm(&self, texts: Vec<HotText>, within: Duration) -> usize {
        let mut warming = Warming::new(self, within);
        warming.compute(texts);
        warming.computed
    }

    /// The same for a version that follows another one, with what is typed there until the new one has computed it:
    /// the texts that were typed most, and those that were typed last.
    pub fn warm_as_typed(&self, within: Duration) -> usize {
        let mut warming = Warming::new(self, within);
        warming.compute(self.hottest(HOTTEST));
        for _ in 0..ROUNDS {
            let latest = self.hot().latest(LATEST);
            warming.compute(latest);
        }
        warming.computed
    }

    /// Searches for the empty text, which precedes the first key. The lookahead of each replica then prepares the keys
    /// that begin queries, as it does behind every typed text. Ends when `within` has passed. Blocks.
    pub fn expect_first_keys(&self, within: Duration) {
        if !self.own.options.pool.lookahead {
            return;
        }
        let until = Instant::now() + within;
        self.ask(&Query::before_first_key(), until).into_iter().for_each(|reply| drop(wait(reply, until)));
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

    /// Queues a text as a client's would be, but counts no request. Each replica gets it: those who type it are spread
    /// over all of them. A model that can't complete gets none.
    fn ask(&self, query: &Query, deadline: Instant) -> Vec<Reply> {
        if self.is_encoder_decoder() {
            return Vec::new();
        }
        (0..self.pool.working_replicas()).filter_map(|replica| self.ask_replica(query, replica, deadline)).collect()
    }

    fn ask_replica(&self, query: &Query, replica: usize, deadline: Instant) -> Option<Reply> {
        let admission = self.pool.admit().ok()?;
        let search = self.model().search_for(query, &Completion::default()).ok()?;
        let (reply, answer) = oneshot::channel();
        let request = Request {
            task: search.into(),
            flow: Flow::default(),
            payer: None,
            deadline,
            // Nobody waits, so it doesn't go to another replica.
            received: deadline,
            superseded: Superseded::default(),
            preferred_replica: replica,
            events: None,
            reply,
        };
        self.pool.submit(&admission, request).ok()?;
        Some(answer)
    }
}

/// An engine while it computes texts that nobody waits for.
struct Warming<'a> {
    engine: &'a Engine,
    until: Instant,
    /// The texts that were asked for.
    asked: FxHashSet<String>,
    computed: usize,
}

impl<'a> Warming<'a> {
    fn new(engine: &'a Engine, within: Duration) -> Self {
        Self { engine, until: Instant::now() + within, asked: FxHashSet::default(), computed: 0 }
    }

    /// Computes texts, and what probably follows each of them.
    fn compute(&mut self, texts: Vec<HotText>) {
        let next = self.answers(texts.into_iter().map(|hot| hot.text).collect());
        self.answers(next);
    }

    /// Nobody answers a text that can't be completed.
    fn ask(&self, text: &str) -> Vec<Reply> {
        let query = Query::new(text, self.engine.own.options.max_characters);
        query.map_or_else(|_| Vec::new(), |query| self.engine.ask(&query, self.until))
    }

    /// Computes the texts that weren't asked for yet. Returns each with the next character of its first suggestion.
    fn answers(&mut self, mut texts: Vec<String>) -> Vec<String> {
        texts.retain(|text| self.asked.insert(text.clone()));
        let mut next = Vec::new();
        for texts in texts.chunks(AT_ONCE) {
            if Instant::now() >= self.until {
                break;
            }
            let replies: Vec<Vec<Reply>> = texts.iter().map(|text| self.ask(text)).collect();
            for (text, replies) in texts.iter().zip(replies) {
                let mut answers: Vec<_> = replies.into_iter().filter_map(|reply| wait(reply, self.until)).collect();
                let Some(answer) = answers.pop() else { continue };
                self.computed += 1;
                next.extend(next_character(&answer.result).map(|next| format!("{text}{next}")));
            }
        }
        next
    }
}

fn next_character(answer: &TaskOutput) -> Option<char> {
    match answer {
        TaskOutput::Suggestions(found) => found.suggestions.first()?.next_character(),
        TaskOutput::Texts(_) => None,
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
