//! Merging popular queries into a model's suggestions.

use super::suggestion::{Completions, Meaning, Suggestion};

/// Popular queries, and what they count beside the model's suggestions.
#[derive(Clone, Debug)]
pub struct PopularQueries {
    /// Queries with their shares among all that begin with the typed text.
    pub shares: Vec<(String, f64)>,
    /// Weight of the shares, from 0 to 1; the model's probabilities have the rest.
    pub weight: f64,
}

/// Merges popular queries into the suggestions for `typed`, and keeps the best `count`. If the model found nothing,
/// because its time was too short, the popular queries are the answer as they are.
pub fn merge_popular(completions: Completions, popular: PopularQueries, typed: &str, count: usize) -> Completions {
    let PopularQueries { shares, weight } = popular;
    if shares.is_empty() || weight <= 0.0 {
        return completions;
    }
    let Completions { mut suggestions, typed_log_prob, .. } = completions;
    let weight = if suggestions.is_empty() { 1.0 } else { weight };
    for suggestion in &mut suggestions {
        suggestion.probability *= 1.0 - weight;
    }
    for (text, share) in shares {
        let probability = weight * share;
        if let Some(known) = suggestions.iter_mut().find(|suggestion| suggestion.text == text) {
            known.probability += probability;
            known.complete = true;
        } else if text.starts_with(typed) {
            let meaning = Meaning { edits: 0, meant: typed.len() };
            suggestions.push(Suggestion { text, meaning, logprob: 0.0, probability, complete: true });
        }
    }
    suggestions.sort_by(|a, b| b.probability.total_cmp(&a.probability).then_with(|| a.text.cmp(&b.text)));
    suggestions.truncate(count);
    for suggestion in &mut suggestions {
        suggestion.logprob = suggestion.probability.ln();
    }
    // The search has proven the model's order, not that of the merged list.
    Completions { suggestions, proven: false, typed_log_prob }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(list: &[(&str, f64)]) -> Completions {
        let suggestion = |&(text, probability): &(&str, f64)| Suggestion {
            text: text.into(),
            meaning: Meaning { edits: 0, meant: 4 },
            logprob: probability.ln(),
            probability,
            complete: true,
        };
        Completions { suggestions: list.iter().map(suggestion).collect(), proven: true, typed_log_prob: None }
    }

    #[test]
    fn texts_of_both_add_up_and_popular_ones_stand_in() {
        let shares = vec![("heat sink".to_owned(), 0.5), ("heat pump".to_owned(), 0.25)];
        let popular = |weight| PopularQueries { shares: shares.clone(), weight };
        let mixed = merge_popular(model(&[("heat pump", 0.5), ("heat lamp", 0.125)]), popular(0.5), "heat", 2);
        let list: Vec<(&str, f64)> = mixed.suggestions.iter().map(|s| (s.text.as_str(), s.probability)).collect();
        assert_eq!(list, [("heat pump", 0.375), ("heat sink", 0.25)]);
        assert_eq!(mixed.suggestions[1].completion(), Some(" sink"));
        assert!(!mixed.proven && (mixed.suggestions[0].logprob - 0.375f64.ln()).abs() < 1e-12);
        let alone = merge_popular(model(&[]), popular(0.1), "heat", 5);
        assert_eq!(alone.suggestions[0].probability, 0.5);
        let unmerged = model(&[("heat pump", 0.5)]);
        assert_eq!(merge_popular(unmerged.clone(), popular(0.0), "heat", 5), unmerged);
    }
}
