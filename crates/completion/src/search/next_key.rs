//! The key that a person may press next: which characters are probable, and the searches for the typed text and one of
//! them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Search;
use crate::paths::Paths;
use crate::text::{Opening, Role, TokenId};

/// Of all that may be typed next, a probable character has at least this share.
const LEAST_SHARE: f64 = 0.02;
/// Tokens that a probable character is probable by, at most.
const MOST_TOKENS: f64 = 100.0;

impl Search {
    /// The characters that are probably typed next: that of the first suggestion, then the others, most probable first.
    pub fn next_characters(&self) -> Vec<char> {
        if let Some(known) = &self.next_characters {
            return known.clone();
        }
        let suggestions = self.completions().suggestions;
        let mut shares = self.shares_as_typed();
        for corrected in suggestions.iter().filter(|suggestion| suggestion.meaning.edits > 0) {
            if let Some(next) = corrected.next_character() {
                *shares.entry(next).or_default() += corrected.probability;
            }
        }
        let first = suggestions.first().and_then(|suggestion| suggestion.next_character());
        let mut others: Vec<(char, f64)> =
            shares.into_iter().filter(|&(next, share)| share >= LEAST_SHARE && Some(next) != first).collect();
        others.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        first.into_iter().chain(others.into_iter().map(|(next, _)| next)).collect()
    }

    /// By character: the share of the queries that go on with it behind exactly the typed text, of all that may be
    /// meant. Improbable tokens don't count, nor any but the best ones behind openings that end with the typed text.
    fn shares_as_typed(&self) -> FxHashMap<char, f64> {
        let joints = self.opening_joints();
        let mut shares = FxHashMap::default();
        for (Opening { path, extensions }, node) in self.readings[0].openings() {
            let (Some(next), Some(prefix)) = (self.paths.next(node), self.prefix_of(path, Some(0))) else { continue };
            let typed = self.typed().len().saturating_sub(prefix.text.len());
            let mut add = |token: TokenId, log_prob: f32| {
                let share = (joints[node.0] + f64::from(log_prob) - self.readings_log_prob).exp();
                let may_follow =
                    || self.text.role(token) == Role::Text && self.text.follow(&prefix.rule, token).is_some();
                if share < LEAST_SHARE / MOST_TOKENS || !may_follow() {
                    return;
                }
                let behind = self.token_bytes(node == Paths::ROOT, token).and_then(|bytes| bytes.get(typed..));
                let whole = behind.and_then(|bytes| bytes.utf8_chunks().next()).map_or("", |chunk| chunk.valid());
                if let Some(character) = whole.chars().next() {
                    *shares.entry(character).or_default() += share;
                }
            };
            match extensions {
                None => next.best().for_each(|(token, log_prob)| add(TokenId(token), log_prob)),
                Some(tokens) => {
                    let known = tokens.iter().filter_map(|&token| Some((token, next.log_prob(token.0)?)));
                    known.for_each(|(token, log_prob)| add(token, log_prob));
                }
            }
        }
        shares
    }

    /// Gives all distributions back. A search that is done needs them for its next characters only, which are kept.
    pub fn release(&mut self) {
        self.next_characters = Some(self.next_characters());
        self.paths.release();
    }

    /// The search for the typed text and one more character; `None` if the context has no room for it.
    pub fn lookahead(&self, next: char) -> Option<Self> {
        let mut search = Self::new(Arc::clone(&self.text), format!("{}{next}", self.typed()), self.options.clone());
        search.paths.set_partition(self.paths.partition());
        // One position must be left for a token that is not typed yet.
        (search.paths.prompt().len() + search.typed_tokens() < search.options.context).then_some(search)
    }

    /// Whether both searches have the same answer: they ask the same of the same model.
    pub fn asks_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text)
            && (self.typed(), self.is_respelled, &self.options) == (other.typed(), other.is_respelled, &other.options)
            && self.paths.has_same_prompt(&other.paths)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::SearchOptions;
    use super::super::tests::{distribution, log_probs, run};
    use super::*;
    use crate::text::testing::tiny;

    /// The share of a character is the probability that a query begins with it behind the typed text, which a search
    /// for that text says.
    #[test]
    fn probable_characters_are_those_that_a_search_for_each_finds_probable() {
        let text = Arc::new(tiny("abc ", &[("a", "b"), (" ", "a"), ("b", "a"), ("ab", "c")]));
        let options = SearchOptions { suggestions: 5, max_new_tokens: 6, ..SearchOptions::default() };
        let (mut others, mut improbable) = (0, 0);
        for (seed, typed) in (0..30).flat_map(|seed| ["a", "ab", "b a"].map(|typed| (seed, typed))) {
            let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 5.0), text.vocab());
            let mut search = run(Search::new(Arc::clone(&text), typed.into(), options.clone()), model);
            let found = search.next_characters();
            let Some(first) = search.completions().suggestions.first().and_then(|first| first.next_character()) else {
                continue;
            };
            assert_eq!(found[0], first, "{typed} {seed}");
            let share = |next: char| {
                let longer = run(search.lookahead(next).unwrap(), model);
                (longer.typed_log_prob().unwrap() - search.typed_log_prob().unwrap()).exp()
            };
            let mut shares: Vec<(char, f64)> = "abc ".chars().map(|next| (next, share(next))).collect();
            shares.retain(|&(next, _)| next != first);
            shares.sort_by(|a, b| b.1.total_cmp(&a.1));
            let probable: Vec<char> = shares.iter().filter(|(_, share)| *share >= LEAST_SHARE).map(|s| s.0).collect();
            assert_eq!(&found[1..], probable, "{typed} {seed} {shares:?}");
            (others, improbable) = (others + probable.len(), improbable + shares.len() - probable.len());
            search.release();
            assert_eq!(search.next_characters(), found, "they are kept");
        }
        assert!(others > 60 && improbable > 20, "{others} {improbable}");
    }
}
