//! Popular queries: those that a typed text may stand for, and how they are merged into a model's suggestions.
//!
//! | module | holds |
//! |---|---|
//! | [`index`] | the queries and their counts, in memory |
//! | [`lookup`] | the most probable queries that a typed text may stand for |
//!
//! A typed text stands for popular queries by the same channel of typing as for the model's: see [`crate::typing`].
//! Deliberately absent: files, and what is blocked.

mod counts;
pub mod index;
pub mod lookup;

use std::cmp::Ordering;

pub use self::index::{PopularError, PopularQueries};
pub use self::lookup::{Found, Hit, Lookup};
use super::suggestion::{Completions, Suggestion};
use super::text::{Method, Text};
use super::typing::{Tolerance, Typed};

/// What a list is for that popular queries are merged into.
#[derive(Clone, Copy)]
pub struct Merging<'a> {
    /// The model's text side: its blocklist, and the channel of typing.
    pub text: &'a Text,
    /// The typed text.
    pub typed: &'a str,
    /// How half-typed tokens are treated.
    pub method: Method,
    /// What the typed text may be taken to mean.
    pub tolerance: Tolerance,
    /// Suggestions wanted.
    pub count: usize,
    /// Weight of popular queries, from 0 to 1; the model has the rest.
    pub weight: f64,
}

impl PopularQueries {
    /// Merges the popular queries that the typed text may stand for into the suggestions, as far as they aren't blocked.
    pub fn merge_into(&self, completions: Completions, merging: Merging<'_>) -> Completions {
        let Merging { text, typed, method, tolerance, count, weight } = merging;
        // Only the exact method has a tolerance.
        let tolerance = if text.rule(method).is_canonical() { tolerance } else { Tolerance::Off };
        let typing = Typed::tolerant(typed, tolerance, text.costs());
        let lookup = Lookup::new(typed, typing.as_ref(), count).beside(&completions, text.channel().reading_nats);
        let mut found = self.find(lookup);
        found.hits.retain(|hit| !text.blocks(hit.text.as_bytes(), true));
        merge_popular(completions, found, weight, count)
    }
}

/// How much popular queries and the model count in a merged list.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// Of what the model says about queries that begin with exactly the typed text: by what it is multiplied.
    model_as_typed: f64,
    /// The same of popular queries.
    popular_as_typed: f64,
    /// Of what the model says about other queries.
    model_corrected: f64,
    /// The same of popular queries.
    popular_corrected: f64,
}

impl Shares {
    /// Popular queries have the share `weight` of those that begin with exactly the typed text. Whether that was meant,
    /// or which correction of it, follows from the probabilities of both.
    fn new(completions: &Completions, found: &Found, weight: f64) -> Self {
        let readings = completions.readings.unwrap_or_default();
        let (model_as_typed, model) = (readings.as_typed.exp(), readings.all.exp());
        let Found { as_typed, corrected, .. } = *found;
        let divided = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let all = weight * (as_typed + corrected) + (1.0 - weight) * model;
        let meant_as_typed = divided(weight * as_typed + (1.0 - weight) * model_as_typed, all);
        // Where one of them knows nothing, the other one is the answer.
        let within = match found.hits.iter().any(|hit| hit.meaning.edits == 0) {
            false => 0.0,
            true if completions.suggestions.is_empty() => 1.0,
            true => weight,
        };
        Self {
            model_as_typed: meant_as_typed * (1.0 - within) * divided(model, model_as_typed),
            popular_as_typed: meant_as_typed * divided(within, as_typed),
            model_corrected: divided((1.0 - weight) * model, all),
            popular_corrected: divided(weight, all),
        }
    }
}

/// Merges popular queries into the suggestions, and keeps the best `count`. If the model found nothing, because its time
/// was too short, the popular queries are the answer as they are.
fn merge_popular(completions: Completions, found: Found, weight: f64, count: usize) -> Completions {
    if found.hits.is_empty() || weight <= 0.0 {
        return completions;
    }
    let shares = Shares::new(&completions, &found, weight);
    let Completions { mut suggestions, typed_log_prob, readings, .. } = completions;
    for suggestion in &mut suggestions {
        let is_as_typed = suggestion.meaning.edits == 0;
        suggestion.probability *= if is_as_typed { shares.model_as_typed } else { shares.model_corrected };
    }
    for Hit { text, meaning, joint } in found.hits {
        let is_as_typed = meaning.edits == 0;
        let probability = joint * if is_as_typed { shares.popular_as_typed } else { shares.popular_corrected };
        if let Some(known) = suggestions.iter_mut().find(|suggestion| suggestion.text == text) {
            known.probability += probability;
            known.complete = true;
        } else {
            suggestions.push(Suggestion { text, meaning, logprob: 0.0, probability, complete: true });
        }
    }
    suggestions.sort_by(in_order);
    suggestions.truncate(count);
    for suggestion in &mut suggestions {
        suggestion.probability = suggestion.probability.min(1.0);
        suggestion.logprob = suggestion.probability.ln();
    }
    // The search has proven the model's order, not that of the merged list.
    Completions { suggestions, proven: false, typed_log_prob, readings }
}

/// The most probable first. Of equally probable ones the one with fewer edits, then by their text.
fn in_order(a: &Suggestion, b: &Suggestion) -> Ordering {
    let probability = b.probability.total_cmp(&a.probability);
    probability.then(a.meaning.edits.cmp(&b.meaning.edits)).then_with(|| a.text.cmp(&b.text))
}

#[cfg(test)]
mod tests;
