//! What a search has found: its answer until now, the part of it that is certain, and whether all of it is proven. Follows nothing.

use super::{Cut, Search};
use crate::{Outcome, Suggestion};

impl Search {
    /// What was found until now, best first. Until the search is done, only complete queries; then also those that were cut.
    pub fn outcome(&self) -> Outcome {
        let mut suggestions = self.suggestions_above(f64::NEG_INFINITY);
        if self.is_done() {
            let cut = self.cut_texts(self.options.suggestions - suggestions.len());
            suggestions.extend(cut.into_iter().map(|(text, joint)| self.suggestion(text, joint, false)));
        }
        Outcome { suggestions, proven: self.is_proven() }
    }

    /// Whether a suggestion is known that nothing can surpass any more.
    pub fn has_settled(&self) -> bool {
        self.found.highest().is_some_and(|best| best >= self.best_unexplored())
    }

    /// The suggestions that nothing can surpass any more, best first: the answer will begin with them.
    pub fn settled(&self) -> Vec<Suggestion> {
        self.suggestions_above(self.best_unexplored())
    }

    /// Log-probability of the best beginning that will still be looked at.
    fn best_unexplored(&self) -> f64 {
        let waiting = self.waiting.iter().map(|&source| self.sources[source].joint);
        waiting.chain(self.frontier.best()).fold(f64::NEG_INFINITY, f64::max)
    }

    /// The complete suggestions that are at least so probable, best first.
    fn suggestions_above(&self, joint: f64) -> Vec<Suggestion> {
        let best = self.found.best().into_iter().take_while(|&(_, found)| found >= joint);
        best.map(|(text, joint)| self.suggestion(text, joint, true)).collect()
    }

    fn suggestion(&self, text: &str, joint: f64, complete: bool) -> Suggestion {
        let logprob = joint - self.typed_log_prob.unwrap_or(0.0);
        Suggestion {
            text: text.to_owned(),
            completion: text[self.typed.len()..].to_owned(),
            logprob: logprob.min(0.0),
            probability: logprob.exp().min(1.0),
            complete,
        }
    }

    fn is_proven(&self) -> bool {
        let waiting = self.waiting.iter().map(|&source| self.sources[source].joint);
        let cut = self.cut.iter().map(|cut| cut.joint);
        let unexplored = waiting.chain(cut).chain(self.frontier.best()).fold(self.dropped, f64::max);
        self.typed_log_prob.is_some()
            && self.found.threshold().map_or(unexplored == f64::NEG_INFINITY, |kth| unexplored <= kth)
    }

    /// The texts of at most so many beginnings that were cut, best first, without those that a better one already has.
    fn cut_texts(&self, most: usize) -> Vec<(&str, f64)> {
        let mut cut: Vec<&Cut> = self.cut.iter().collect();
        cut.sort_by(|a, b| b.joint.total_cmp(&a.joint));
        let mut texts: Vec<(&str, f64)> = Vec::new();
        for Cut { joint, text } in cut {
            if texts.len() == most {
                break;
            }
            let valid = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
            let Some(text) = self.presentable(valid.trim_end().as_bytes()) else { continue };
            if !self.found.contains(text) && texts.iter().all(|(known, _)| *known != text) {
                texts.push((text, *joint));
            }
        }
        texts
    }
}
