//! Merging popular queries into a model's suggestions.

use super::{Outcome, Suggestion};

/// Mixes the model's probabilities with popular queries' shares: each text has `(1 - weight)` of the one and `weight` of the other.
/// If the model found nothing, because its time was too short, the popular queries are the answer as they are.
///
/// `typed` is what all of them begin with; `popular` are queries with their shares among all that begin so.
pub fn mix(outcome: Outcome, typed: &str, popular: Vec<(String, f64)>, weight: f64, count: usize) -> Outcome {
    if popular.is_empty() || weight <= 0.0 {
        return outcome;
    }
    let weight = if outcome.suggestions.is_empty() { 1.0 } else { weight };
    let Outcome { mut suggestions, .. } = outcome;
    for suggestion in &mut suggestions {
        suggestion.probability *= 1.0 - weight;
    }
    for (text, share) in popular {
        match suggestions.iter_mut().find(|suggestion| suggestion.text == text) {
            Some(known) => {
                known.probability += weight * share;
                known.complete = true;
            }
            None => {
                let Some(completion) = text.strip_prefix(typed).map(str::to_owned) else { continue };
                suggestions.push(Suggestion {
                    text,
                    completion,
                    logprob: 0.0,
                    probability: weight * share,
                    complete: true,
                });
            }
        }
    }
    suggestions.sort_by(|a, b| b.probability.total_cmp(&a.probability).then_with(|| a.text.cmp(&b.text)));
    suggestions.truncate(count);
    for suggestion in &mut suggestions {
        suggestion.logprob = suggestion.probability.ln();
    }
    // What the search has proven is the model's order, not the mixture's.
    Outcome { suggestions, proven: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(list: &[(&str, f64)]) -> Outcome {
        let suggestion = |&(text, probability): &(&str, f64)| Suggestion {
            text: text.into(),
            completion: text[4..].into(),
            logprob: probability.ln(),
            probability,
            complete: true,
        };
        Outcome { suggestions: list.iter().map(suggestion).collect(), proven: true }
    }

    #[test]
    fn texts_of_both_add_up_and_popular_ones_stand_in() {
        let popular = || vec![("heat sink".to_owned(), 0.5), ("heat pump".to_owned(), 0.25)];
        let mixed = mix(model(&[("heat pump", 0.5), ("heat lamp", 0.125)]), "heat", popular(), 0.5, 2);
        let list: Vec<(&str, f64)> = mixed.suggestions.iter().map(|s| (s.text.as_str(), s.probability)).collect();
        assert_eq!(list, [("heat pump", 0.375), ("heat sink", 0.25)]);
        assert_eq!(mixed.suggestions[1].completion, " sink");
        assert!(!mixed.proven && (mixed.suggestions[0].logprob - 0.375f64.ln()).abs() < 1e-12);
        let alone = mix(model(&[]), "heat", popular(), 0.1, 5);
        assert_eq!(alone.suggestions[0].probability, 0.5);
        assert_eq!(mix(model(&[("heat pump", 0.5)]), "heat", popular(), 0.0, 5), model(&[("heat pump", 0.5)]));
    }
}
