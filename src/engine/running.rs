//! A request that was accepted: it runs, its parts are streamed as they become final, then it is answered.

use std::sync::Arc;
use std::time::Instant;

use futures_util::{Stream, stream};
use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{Error, Kind};
use crate::metrics::{self, ModelMetrics};
use completion::{Completions, Generated, Suggestion, TaskOutput};
use scheduler::{Answer, Event, Finish, Health, Refusal};

/// The source of an answer.
pub(super) enum AnswerSource {
    /// A model thread, while its engine is healthy.
    Model { reply: oneshot::Receiver<Result<Answer<TaskOutput>, Refusal>>, health: watch::Receiver<Health> },
    /// The answer was known without a model.
    Known(Answer<TaskOutput>),
}

/// What is done to an answer before a client gets it.
pub(super) type Finisher<T> = Box<dyn FnOnce(Answer<T>) -> Answer<T> + Send>;

/// The result of one kind of task.
pub trait TaskResult: Sized {
    /// Takes the result out of a task's output; `None` if another kind of task made it.
    fn from_output(output: TaskOutput) -> Option<Self>;

    /// The suggestions, if it has any.
    fn suggestions(&self) -> &[Suggestion] {
        &[]
    }
}

impl TaskResult for Completions {
    fn from_output(output: TaskOutput) -> Option<Self> {
        if let TaskOutput::Suggestions(completions) = output { Some(completions) } else { None }
    }

    fn suggestions(&self) -> &[Suggestion] {
        &self.suggestions
    }
}

impl TaskResult for Generated {
    fn from_output(output: TaskOutput) -> Option<Self> {
        if let TaskOutput::Texts(generated) = output { Some(generated) } else { None }
    }
}

/// What happens to a request, in order; the last piece is an answer or a failure.
#[derive(Debug)]
pub enum Piece<T> {
    /// A part of the answer is final.
    Event(Event),
    /// The answer, which is the last part.
    Done(Answer<T>),
    /// There is no answer.
    Failed(Error),
}

/// A request that runs. Dropping it stops the work.
pub struct Running<T> {
    pub(super) source: AnswerSource,
    /// Parts of the answer that come before it, if they were asked for.
    pub(super) events: Option<mpsc::Receiver<Event>>,
    pub(super) finisher: Finisher<T>,
    pub(super) ending: Ending,
}

/// A running request whose parts are streamed.
struct Streaming<T> {
    running: Running<T>,
    /// Suggestions that came as events.
    sent: usize,
}

/// A request that is over.
struct Answered<T> {
    /// Suggestions that became final only with the answer.
    late: std::vec::IntoIter<Suggestion>,
    answer: Result<Answer<T>, Error>,
}

/// The next event of a streamed request.
enum Next<T> {
    Event(Event, Streaming<T>),
    Answered(Answered<T>),
}

/// The state of a stream of pieces.
enum Progress<T> {
    Streaming(Streaming<T>),
    Answered(Answered<T>),
    Over,
}

impl<T: TaskResult> Running<T> {
    /// The answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn finish(self) -> Result<Answer<T>, Error> {
        // A channel that is closed early would tell the model thread that nobody waits.
        let Self { source, events: _events, finisher, mut ending } = self;
        let answer = source.answer().await;
        ending.reached(&answer);
        let answer = answer?;
        if let Some(answer) = typed(answer) {
            return Ok(finisher(answer));
        }
        ending.outcome = metrics::RequestOutcome::Failed;
        tracing::error!("a task was answered with another kind of result");
        Err(Error::new(Kind::Internal, "the model failed on this request"))
    }

    /// The parts as they become final, then the answer. All suggestions come, best first.
    pub fn pieces(self) -> impl Stream<Item = Piece<T>> {
        let start = Progress::Streaming(Streaming { running: self, sent: 0 });
        stream::unfold(start, async |progress| {
            let mut answered = match progress {
                Progress::Streaming(streaming) => match streaming.next().await {
                    Next::Event(event, rest) => return Some((Piece::Event(event), Progress::Streaming(rest))),
                    Next::Answered(answered) => answered,
                },
                Progress::Answered(answered) => answered,
                Progress::Over => return None,
            };
            Some(match answered.late.next() {
                Some(late) => (Piece::Event(Event::Suggestion(late)), Progress::Answered(answered)),
                None => (answered.answer.map_or_else(Piece::Failed, Piece::Done), Progress::Over),
            })
        })
    }
}

impl<T: TaskResult> Streaming<T> {
    async fn next(mut self) -> Next<T> {
        if let Some(events) = &mut self.running.events
            && let Some(event) = events.recv().await
        {
            self.sent += usize::from(matches!(event, Event::Suggestion(_)));
            return Next::Event(event, self);
        }
        let answer = self.running.finish().await;
        let suggestions = answer.as_ref().map_or(&[][..], |answer| answer.result.suggestions());
        let late: Vec<_> = suggestions.iter().skip(self.sent).cloned().collect();
        Next::Answered(Answered { late: late.into_iter(), answer })
    }
}

/// An answer of the task's own kind.
fn typed<T: TaskResult>(answer: Answer<TaskOutput>) -> Option<Answer<T>> {
    let Answer { result, finish, usage, queued, searched } = answer;
    Some(Answer { result: T::from_output(result)?, finish, usage, queued, searched })
}

/// Counts how a request ended when it is dropped: without an answer it was cancelled.
pub(super) struct Ending {
    metrics: Arc<ModelMetrics>,
    received: Instant,
    outcome: metrics::RequestOutcome,
}

impl Ending {
    pub(super) fn new(metrics: Arc<ModelMetrics>, received: Instant) -> Self {
        Self { metrics, received, outcome: metrics::RequestOutcome::Cancelled }
    }

    fn reached(&mut self, answer: &Result<Answer<TaskOutput>, Refusal>) {
        self.outcome = match answer {
            Ok(answer) => {
                self.metrics.request_seconds.observe(self.received.elapsed().as_secs_f64());
                match answer.finish {
                    Finish::Complete => metrics::RequestOutcome::Complete,
                    Finish::Length => metrics::RequestOutcome::Length,
                    Finish::Deadline => metrics::RequestOutcome::Deadline,
                    Finish::Superseded => metrics::RequestOutcome::Superseded,
                    Finish::Blocked => metrics::RequestOutcome::Blocked,
                }
            }
            Err(Refusal::Busy(_) | Refusal::Asleep(_)) => metrics::RequestOutcome::Refused,
            Err(Refusal::Unhealthy(_) | Refusal::Interrupted | Refusal::Stopping | Refusal::Failed) => {
                metrics::RequestOutcome::Failed
            }
        };
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.metrics.ended(self.outcome);
    }
}

impl AnswerSource {
    async fn answer(self) -> Result<Answer<TaskOutput>, Refusal> {
        match self {
            Self::Known(answer) => Ok(answer),
            Self::Model { reply, health } => from_model(reply, health).await,
        }
    }
}

/// Waits for a model thread's answer while the engine is healthy: a forward that hangs answers nobody.
async fn from_model(
    mut reply: oneshot::Receiver<Result<Answer<TaskOutput>, Refusal>>,
    mut health: watch::Receiver<Health>,
) -> Result<Answer<TaskOutput>, Refusal> {
    let failed = async {
        match health.wait_for(|health| *health != Health::Ready).await.map(|health| health.clone()) {
            Ok(Health::Failed(failure)) => Refusal::Unhealthy(failure),
            Ok(Health::Ready) | Err(_) => Refusal::Stopping,
        }
    };
    tokio::select! {
        biased;
        answer = &mut reply => answer.unwrap_or(Err(Refusal::Interrupted)),
        refusal = failed => match reply.try_recv() {
            // It may have come at the same time.
            Ok(answer) => answer,
            Err(_) => Err(refusal),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use futures_util::{FutureExt, StreamExt};
    use scheduler::Usage;
    use std::time::Duration;

    /// A request that is answered with no suggestions.
    fn running<T: 'static>(metrics: &Arc<ModelMetrics>) -> Running<T> {
        let answer = Answer {
            result: TaskOutput::Suggestions(Completions {
                suggestions: Vec::new(),
                proven: true,
                typed_log_prob: None,
                readings: None,
            }),
            finish: Finish::Complete,
            usage: Usage::default(),
            queued: Duration::ZERO,
            searched: Duration::ZERO,
        };
        let ending = Ending::new(Arc::clone(metrics), Instant::now());
        Running {
            source: AnswerSource::Known(answer),
            events: None,
            finisher: Box::new(std::convert::identity),
            ending,
        }
    }

    #[test]
    fn another_kind_of_result_is_an_internal_error() {
        let all = Metrics::new();
        let metrics = Arc::new(all.model("fake"));
        let whole = running::<Generated>(&metrics).finish().now_or_never().unwrap().unwrap_err();
        assert_eq!(whole.kind, Kind::Internal);
        let pieces: Vec<_> = running::<Generated>(&metrics).pieces().collect().now_or_never().unwrap();
        assert!(matches!(&pieces[..], [Piece::Failed(error)] if error.kind == Kind::Internal), "{pieces:?}");
        assert!(all.render().contains(r#"foretype_requests_total{model="fake",outcome="failed"} 2"#));
        assert!(running::<Completions>(&metrics).finish().now_or_never().unwrap().unwrap().result.proven);
    }

    #[test]
    fn every_request_is_counted_once() {
        let all = Metrics::new();
        let metrics = Arc::new(all.model("fake"));
        let pieces: Vec<_> = running::<Completions>(&metrics).pieces().collect().now_or_never().unwrap();
        assert!(matches!(&pieces[..], [Piece::Done(_)]), "{pieces:?}");
        drop(running::<Completions>(&metrics));
        drop(running::<Completions>(&metrics).pieces());
        let text = all.render();
        for line in [r#"outcome="complete"} 1"#, r#"outcome="cancelled"} 2"#] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
