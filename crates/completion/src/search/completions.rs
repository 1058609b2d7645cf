//! The answer of a search so far, the settled part of it, and whether it is proven.

use rustc_hash::FxHashSet;

use super::{Search, Truncated};
use crate::suggestion::{Completions, Meaning, Readings, Suggestion};
use crate::typing::alignment::{Alignment, Finished};

impl Search {
    /// The completions so far, best first. Until the search is done, only complete queries; then also truncated ones.
    pub fn completions(&self) -> Completions {
        let mut suggestions = self.suggestions_above(f64::NEG_INFINITY);
        if self.is_done() {
            let truncated = self.truncated_suggestions(self.options.suggestions - suggestions.len());
            suggestions.extend(truncated);
        }
        let readings = Readings { as_typed: self.as_typed_log_prob, all: self.readings_log_prob };
        let readings = self.typed_log_prob.map(|_| readings);
        Completions { suggestions, proven: self.is_proven(), typed_log_prob: self.typed_log_prob, readings }
    }

    /// Whether [`Search::settled`] has a suggestion.
    pub fn has_settled(&self) -> bool {
        self.completed.highest().is_some_and(|best| best >= self.best_unexpanded())
    }

    /// The suggestions that nothing can surpass any more, best first: the answer will begin with them.
    pub fn settled(&self) -> Vec<Suggestion> {
        self.suggestions_above(self.best_unexpanded())
    }

    /// Log-probability of the best beam that may still be expanded; no bound is known while corrections are looked for.
    fn best_unexpanded(&self) -> f64 {
        if self.corrections.is_some() {
            return f64::INFINITY;
        }
        let waiting = self.waiting.iter().map(|&beam| self.beams[beam].joint);
        waiting.chain(self.frontier.best()).fold(f64::NEG_INFINITY, f64::max)
    }

    /// The complete suggestions with at least this log-probability, best first.
    fn suggestions_above(&self, joint: f64) -> Vec<Suggestion> {
        let best = self.completed.best().into_iter().take_while(|&(_, completed)| completed >= joint);
        best.map(|(text, joint)| self.suggestion(text, self.meaning(text), joint, true)).collect()
    }

    fn suggestion(&self, text: &str, meaning: Meaning, joint: f64, complete: bool) -> Suggestion {
        let logprob = joint - self.readings_log_prob;
        Suggestion {
            text: text.to_owned(),
            meaning,
            logprob: logprob.min(0.0),
            probability: logprob.exp().min(1.0),
            complete,
        }
    }

    /// What the typed text stands for in a suggestion.
    fn meaning(&self, text: &str) -> Meaning {
        let read = self.readings.iter().position(|reading| text.starts_with(&reading.text));
        let edits = u8::from(read == Some(1) || self.is_respelled);
        let exact = Meaning { edits, meant: self.readings[read.unwrap_or(0)].text.len() };
        if read.is_some() {
            return exact;
        }
        let finished = self.typing.as_ref().and_then(|typing| Alignment::of_text(typing, text));
        finished.map_or(exact, |Finished { edits, meant, .. }| Meaning { edits, meant })
    }

    fn is_proven(&self) -> bool {
        let truncated = self.truncated.iter().map(|truncated| truncated.joint);
        let unexpanded = truncated.fold(self.best_dropped.max(self.best_unexpanded()), f64::max);
        self.typed_log_prob.is_some()
            && self.corrections.is_none()
            && self.completed.threshold().map_or(unexpanded == f64::NEG_INFINITY, |kth| unexpanded <= kth)
    }

    /// Up to `most` truncated beams, best first, without those whose text a better one already has.
    fn truncated_suggestions(&self, most: usize) -> Vec<Suggestion> {
        let mut truncated: Vec<&Truncated> = self.truncated.iter().collect();
        truncated.sort_by(|a, b| b.joint.total_cmp(&a.joint));
        let (mut suggestions, mut forms) = (Vec::new(), FxHashSet::default());
        for Truncated { joint, text, reading } in truncated {
            if suggestions.len() == most {
                break;
            }
            let valid = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
            let Some(text) = self.presentable(valid.trim_end().as_bytes(), *reading) else { continue };
            if !self.completed.contains(text) && forms.insert(self.completed.form(text)) {
                // A space at the end may have been typed: it belongs to what was meant, and isn't shown.
                let Meaning { edits, meant } = self.meaning(valid);
                let meaning = Meaning { edits, meant: meant.min(text.len()) };
                suggestions.push(self.suggestion(text, meaning, *joint, false));
            }
        }
        suggestions
    }
}
