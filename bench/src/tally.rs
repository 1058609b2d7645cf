//! What became of many requests.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::client::{Outcome, Usage};

/// Counts of outcomes and sums of costs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Requests that are over.
    pub requests: u64,
    /// Requests with status 200.
    pub answered: u64,
    /// By finish of a 200, or `status 429` and the like, or `lost`.
    pub outcomes: BTreeMap<String, u64>,
    /// Answers without suggestions, superseded ones left out.
    pub empty: u64,
    /// Sum over the answers.
    pub forwards: u64,
    /// Sum over the answers.
    pub computed: u64,
    /// Sum over the answers.
    pub saved: u64,
    /// What the first lost connection said.
    pub first_loss: Option<String>,
}

/// The finish of a request that a newer one of its session replaced.
pub const SUPERSEDED: &str = "superseded";

impl Tally {
    /// Adds a request that is over.
    pub fn add(&mut self, outcome: &Outcome) {
        self.requests += 1;
        let name = match outcome {
            Outcome::Answered(answer) => {
                let Usage { forwards, positions_computed, positions_saved } = answer.usage;
                self.answered += 1;
                self.forwards += forwards;
                self.computed += positions_computed;
                self.saved += positions_saved;
                self.empty += u64::from(answer.suggestions.is_empty() && answer.finish != SUPERSEDED);
                answer.finish.clone()
            }
            Outcome::Status(status) => format!("status {status}"),
            Outcome::Lost(reason) => {
                self.first_loss.get_or_insert_with(|| reason.clone());
                "lost".to_owned()
            }
        };
        *self.outcomes.entry(name).or_default() += 1;
    }

    /// How many had this outcome.
    pub fn count(&self, outcome: &str) -> u64 {
        self.outcomes.get(outcome).copied().unwrap_or(0)
    }

    /// Requests that were neither answered nor refused for load.
    pub fn errors(&self) -> u64 {
        self.requests - self.answered - self.count("status 429")
    }

    /// Answers of searches that came to their end.
    pub fn whole(&self) -> u64 {
        self.count("complete") + self.count("length") + self.count("blocked")
    }

    /// Per answered request.
    pub fn per_answer(&self, sum: u64) -> f64 {
        sum as f64 / self.answered.max(1) as f64
    }

    /// All outcomes on one line, such as `complete 98, status 429 2`.
    pub fn line(&self) -> String {
        self.outcomes.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Answer;

    #[test]
    fn refusals_are_no_errors_and_losses_are() {
        let mut tally = Tally::default();
        tally.add(&Outcome::Answered(Answer { finish: SUPERSEDED.into(), ..Answer::default() }));
        tally.add(&Outcome::Answered(Answer { finish: "deadline".into(), ..Answer::default() }));
        tally.add(&Outcome::Status(429));
        tally.add(&Outcome::Status(500));
        tally.add(&Outcome::Lost("reset".into()));
        assert_eq!((tally.answered, tally.errors(), tally.empty), (2, 2, 1));
        assert_eq!(tally.line(), "deadline 1, lost 1, status 429 1, status 500 1, superseded 1");
    }
}
