//! A request that a replica works on, and how it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::client::{Class, Flow};
use crate::job::JobId;
use crate::request::{Answer, Event, Finish, Payer, Refusal, Superseded};
use completion::{SequenceFinish, Task, TaskOutput};

/// Requests that replicas of this process work on, whatever their model: they share its cores.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// One of the requests that a replica works on, as long as it does.
pub(super) struct AtWork;

impl AtWork {
    pub(super) fn begin() -> Self {
        // Nothing else is published with it.
        AT_WORK.fetch_add(1, Ordering::Relaxed);
        Self
    }

    /// Whether any replica of this process works on a request.
    pub(super) fn is_anyone() -> bool {
        AT_WORK.load(Ordering::Relaxed) > 0
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that was taken on.
pub(super) struct Active {
    pub(super) job: JobId,
    pub(super) flow: Flow,
    pub(super) payer: Option<Arc<dyn Payer>>,
    /// Whether its flow has an account that knows of it; a request that is answered from the cache needs none.
    pub(super) is_accounted: bool,
    /// Positions that its flow has paid for.
    pub(super) charged: usize,
    pub(super) deadline: Instant,
    pub(super) received: Instant,
    pub(super) started: Instant,
    pub(super) superseded: Superseded,
    pub(super) stream: Option<Stream>,
    /// Whether something final is known.
    pub(super) has_first: bool,
    pub(super) _at_work: AtWork,
    pub(super) reply: oneshot::Sender<Result<Answer<TaskOutput>, Refusal>>,
}

impl Active {
    /// Whether nobody waits for it at a keyboard.
    pub(super) fn is_bulk(&self) -> bool {
        self.flow.class == Class::Bulk
    }
}

/// Parts of an answer on their way to a client.
pub(super) struct Stream {
    pub(super) events: mpsc::Sender<Event>,
    /// How many tokens of each sequence were sent; for suggestions, the first entry counts them.
    pub(super) sent: Vec<usize>,
}

impl Stream {
    pub(super) fn new(events: mpsc::Sender<Event>, sequences: usize) -> Self {
        Self { events, sent: vec![0; sequences] }
    }

    /// Sends what is new. The channel has room for all of it; a closed one has nobody behind it.
    pub(super) fn send(&mut self, task: &Task) {
        match task {
            Task::Search(search) => {
                for suggestion in search.settled().into_iter().skip(self.sent[0]) {
                    self.sent[0] += 1;
                    let _ = self.events.try_send(Event::Suggestion(suggestion));
                }
            }
            Task::Beams(_) => {}
            Task::Sampling(sampling) => {
                for sequence in 0..sampling.sequences() {
                    for token in sampling.tokens(sequence, self.sent[sequence]) {
                        self.sent[sequence] += 1;
                        let _ = self.events.try_send(Event::Token { sequence, token: token.clone() });
                    }
                }
            }
        }
    }
}

/// Why a task ended by itself.
pub(super) fn finish_of(product: &TaskOutput) -> Finish {
    let is_complete = match product {
        TaskOutput::Suggestions(completions) => completions.suggestions.iter().all(|suggestion| suggestion.complete),
        TaskOutput::Texts(generated) => {
            generated.sequences.iter().all(|sequence| !matches!(sequence.finish, None | Some(SequenceFinish::Length)))
        }
    };
    if is_complete { Finish::Complete } else { Finish::Length }
}
