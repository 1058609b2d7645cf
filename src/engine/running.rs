//! A request that was accepted: its parts as they become final, then its answer.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::error::{Error, Kind};
use crate::metrics::{self, ModelMetrics};
use completion::{Outcome, Product, Suggestion};
use scheduler::{Answer, Event, Finish, Health, Refusal};

/// Where an answer comes from.
pub(super) enum Source {
    /// A model thread.
    Model(oneshot::Receiver<Result<Answer<Product>, Refusal>>),
    /// It is there.
    Known(Answer<Product>),
}

/// What becomes of a model's answer before a client gets it.
pub(super) type Polish<T> = Box<dyn FnOnce(Answer<Product>) -> Answer<T> + Send>;

/// A running request. Dropping it stops the work.
pub struct Running<T> {
    source: Option<Source>,
    events: Option<mpsc::Receiver<Event>>,
    /// Suggestions that came as events.
    sent: usize,
    /// Events that came with the answer.
    late: VecDeque<Event>,
    answer: Option<Result<Answer<T>, Error>>,
    polish: Option<Polish<T>>,
    health: watch::Receiver<Health>,
    metrics: Option<Arc<ModelMetrics>>,
    received: std::time::Instant,
}

/// A result that may have parts which were not sent as events.
pub trait Parts {
    /// The suggestions, if it has any.
    fn suggestions(&self) -> &[Suggestion];
}

impl Parts for Outcome {
    fn suggestions(&self) -> &[Suggestion] {
        &self.suggestions
    }
}

impl Parts for completion::Generated {
    fn suggestions(&self) -> &[Suggestion] {
        &[]
    }
}

impl<T: Parts> Running<T> {
    pub(super) fn new(
        source: Source,
        events: Option<mpsc::Receiver<Event>>,
        polish: Polish<T>,
        health: watch::Receiver<Health>,
        metrics: Arc<ModelMetrics>,
        received: std::time::Instant,
    ) -> Self {
        Self {
            source: Some(source),
            events,
            sent: 0,
            late: VecDeque::new(),
            answer: None,
            polish: Some(polish),
            health,
            metrics: Some(metrics),
            received,
        }
    }

    /// The next part that is final; `None` when there are no more. All suggestions come, best first.
    pub async fn event(&mut self) -> Option<Event> {
        if let Some(events) = &mut self.events {
            if let Some(event) = events.recv().await {
                self.sent += usize::from(matches!(event, Event::Suggestion(_)));
                return Some(event);
            }
            self.events = None;
        }
        if self.answer.is_none() {
            let answer = self.wait().await;
            if let Ok(answer) = &answer {
                // Suggestions that were cut, or that became certain only with the answer.
                let late = answer.result.suggestions().iter().skip(self.sent).cloned();
                self.late.extend(late.map(Event::Suggestion));
            }
            self.answer = Some(answer);
        }
        self.late.pop_front()
    }

    /// The answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn finish(mut self) -> Result<Answer<T>, Error> {
        match self.answer.take() {
            Some(answer) => answer,
            None => self.wait().await,
        }
    }

    async fn wait(&mut self) -> Result<Answer<T>, Error> {
        let answer = match self.source.take() {
            Some(Source::Known(answer)) => Ok(answer),
            Some(Source::Model(reply)) => from_model(reply, &mut self.health).await,
            None => Err(Refusal::NotReady("its answer was given already".to_owned())),
        };
        self.count(&answer);
        let answer = answer.map_err(Error::from)?;
        let gone = || Error::new(Kind::Internal, "the answer was given already");
        Ok(self.polish.take().ok_or_else(gone)?(answer))
    }

    fn count(&mut self, answer: &Result<Answer<Product>, Refusal>) {
        let Some(metrics) = self.metrics.take() else { return };
        let outcome = match answer {
            Ok(answer) => {
                metrics.request_seconds.observe(self.received.elapsed().as_secs_f64());
                match answer.finish {
                    Finish::Complete => metrics::Outcome::Complete,
                    Finish::Length => metrics::Outcome::Length,
                    Finish::Deadline => metrics::Outcome::Deadline,
                    Finish::Superseded => metrics::Outcome::Superseded,
                    Finish::Blocked => metrics::Outcome::Blocked,
                }
            }
            Err(Refusal::Busy(_)) => metrics::Outcome::Refused,
            Err(Refusal::NotReady(_) | Refusal::Failed) => metrics::Outcome::Failed,
        };
        metrics.ended(outcome);
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if let Some(metrics) = self.metrics.take() {
            metrics.ended(metrics::Outcome::Cancelled);
        }
    }
}

/// Waits for a model thread's answer, but no longer than the engine works: a forward that hangs answers nobody.
async fn from_model(
    mut reply: oneshot::Receiver<Result<Answer<Product>, Refusal>>,
    health: &mut watch::Receiver<Health>,
) -> Result<Answer<Product>, Refusal> {
    let failed = async {
        match health.wait_for(|health| *health != Health::Ready).await.map(|health| health.clone()) {
            Ok(Health::Failed(reason)) => reason,
            Ok(Health::Ready) | Err(_) => "it has been stopped".to_owned(),
        }
    };
    let refused = || Refusal::NotReady("its engine failed while working on this request; try again".to_owned());
    tokio::select! {
        biased;
        answer = &mut reply => answer.unwrap_or_else(|_| Err(refused())),
        reason = failed => match reply.try_recv() {
            // It may have come at the same time.
            Ok(answer) => answer,
            Err(_) => Err(Refusal::NotReady(reason)),
        },
    }
}
