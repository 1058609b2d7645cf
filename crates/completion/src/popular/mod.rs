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
use super::suggestion::{Completions, Meaning, Suggestion};
use super::text::{Method, Text};
use super::typing::fold::keep_first_of_each;
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
    /// Merges the popular queries that the typed text may stand for into the suggestions, as far as they aren't
    /// blocked.
    pub fn merge_into(&self, completions: Completions, merging: Merging<'_>) -> Completions {
        let Merging { text, typed, method, tolerance, count, weight } = merging;
        // Only the exact method has a tolerance.
        let tolerance = if text.rule(method).is_canonical() { tolerance } else { Tolerance::Off };
        let typing = Typed::tolerant(typed, tolerance, text.costs());
        let lookup = Lookup::new(typed, typing.as_ref(), count).beside(&completions, text.channel().reading_nats);
        let mut found = self.find(lookup);
        found.hits.retain(|hit| !text.blocks(hit.text.as_bytes(), true));
        merge_popular(completions, found, weight, count, typing.is_some())
    }
}

/// By what the probabilities of one kind of suggestions are multiplied in a merged list. There are two kinds: those
/// that begin with exactly the typed text, and the others.
#[derive(Clone, Copy, Debug)]
struct Factors {
    /// Of the model's suggestions.
    model: f64,
    /// Of popular queries.
    popular: f64,
}

impl Factors {
    /// Popular queries have the share `weight` of each kind. Which kind was meant follows from the probabilities of
    /// both.
    fn of_each(completions: &Completions, found: &Found, weight: f64) -> impl Fn(&Meaning) -> Self + use<> {
        let readings = completions.readings.unwrap_or_default();
        let (model_as_typed, model) = (readings.as_typed.exp(), readings.all.exp());
        let all = weight * (found.as_typed + found.corrected) + (1.0 - weight) * model;
        let of_kind = |is_as_typed: bool, popular_kind: f64, model_kind: f64| {
            let is_kind = |meaning: &Meaning| (meaning.edits == 0) == is_as_typed;
            // Where one of them knows nothing, the other one is the answer.
            let weight_of_kind = if !found.hits.iter().any(|hit| is_kind(&hit.meaning)) {
                0.0
            } else if !completions.suggestions.iter().any(|suggestion| is_kind(&suggestion.meaning)) {
                1.0
            } else {
                weight
            };
            let divided = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
            let kind = divided(weight * popular_kind + (1.0 - weight) * model_kind, all);
            Self {
                model: kind * (1.0 - weight_of_kind) * divided(model, model_kind),
                popular: kind * divided(weight_of_kind, popular_kind),
            }
        };
        let as_typed = of_kind(true, found.as_typed, model_as_typed);
        let corrected = of_kind(false, found.corrected, (model - model_as_typed).max(0.0));
        move |meaning| if meaning.edits == 0 { as_typed } else { corrected }
    }
}

/// Merges popular queries into the suggestions, and keeps the best `count`. If the model found nothing, because its
/// time was too short, the popular queries are the answer as they are. With `one_case` the list has the most probable
/// one of those that differ only in letter case and width.
fn merge_popular(completions: Completions, found: Found, weight: f64, count: usize, one_case: bool) -> Completions {
    if found.hits.is_empty() || weight <= 0.0 {
        return completions;
    }
    let factors = Factors::of_each(&completions, &found, weight);
    let Completions { mut suggestions, typed_log_prob, readings, .. } = completions;
    for suggestion in &mut suggestions {
        suggestion.probability *= factors(&suggestion.meaning).model;
    }
    for Hit { text, meaning, joint } in found.hits {
        let probability = joint * factors(&meaning).popular;
        if let Some(known) = suggestions.iter_mut().find(|suggestion| suggestion.text == text) {
            known.probability += probability;
            known.complete = true;
        } else {
            suggestions.push(Suggestion { text, meaning, logprob: 0.0, probability, complete: true });
        }
    }
    suggestions.sort_by(in_order);
    if one_case {
        keep_first_of_each(&mut suggestions, |suggestion| &suggestion.text);
    }
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
