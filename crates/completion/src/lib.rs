//! Exact completion of a half-typed text, over any model that gives the distribution of the next token.
//!
//! A [`Search`] finds the most probable texts that begin with the typed bytes. A [`Sampling`] continues a prompt. Both are state
//! machines: they name the distributions that they need ([`Paths`]), and go on when those were supplied. They know tokens and text, and
//! no engine, KV cache, other request, clock or thread. [`complete_with`] drives a search with a closure:
//!
//! ```
//! use std::sync::Arc;
//! use completion::text::{Method, Text, TokenId};
//! use completion::{Distribution, Search, SearchOptions, complete_with};
//!
//! // A tokenizer of 25 tokens; the last one starts and ends every text.
//! let end = TokenId(24);
//! let tokenizer = include_str!("../examples/tokenizer.json");
//! let text = Arc::new(Text::from_json(tokenizer, end, &[end], "")?);
//! // A model that knows two queries, "heat pump" and "heat trap", the first three times as probable.
//! let queries = [("heat pump", 0.75_f32), ("heat trap", 0.25)].map(|(query, p)| ([&text.encode(query)[..], &[end]].concat(), p));
//! let model = |tokens: &[TokenId]| {
//!     let mut probabilities = vec![0.0_f32; text.vocab()];
//!     for (query, p) in queries.iter().filter(|(query, _)| query.starts_with(&tokens[1..])) {
//!         probabilities[query.get(tokens.len() - 1).unwrap_or(&end).0 as usize] += p;
//!     }
//!     Distribution::from_row(&probabilities.iter().map(|p| p.ln()).collect::<Vec<_>>())
//! };
//! let options = SearchOptions { suggestions: 2, beams: 4, max_new_tokens: 8, context: 32, method: Method::Exact };
//! let outcome = complete_with(Search::new(Arc::clone(&text), "hea".to_owned(), options), model);
//! let found: Vec<_> = outcome.suggestions.iter().map(|s| (s.text.as_str(), s.probability)).collect();
//! assert_eq!(found[0].0, "heat pump");
//! assert!((found[0].1 - 0.75).abs() < 1e-6 && outcome.proven);
//! # Ok::<(), completion::text::TextError>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`text`] | the tokenizer's side: half-typed tokens, which token may follow, blocked terms |
//! | [`search`], [`sampling`], [`task`] | the state machines, and either of them |
//! | [`paths`], [`distribution`] | what they ask for, and what they are given |
//! | [`choice`], [`mix`] | one token of a distribution; suggestions merged with popular queries |
//!
//! Deliberately absent: threads, clocks, I/O, async, and every engine.

mod candidate;
pub mod choice;
mod continuation;
pub mod distribution;
mod found;
mod frontier;
pub mod mix;
pub mod paths;
pub mod sampling;
pub mod search;
pub mod task;
pub mod text;

use std::sync::Arc;

pub use self::distribution::Distribution;
pub use self::paths::{NodeIndex, Paths, Prompt, Wanted};
pub use self::sampling::{Generated, SampledToken, Sampling, SamplingOptions, Sequence, SequenceFinish};
pub use self::search::{Experience, Search, SearchOptions};
pub use self::task::{Product, Task};
use self::text::TokenId;

/// Runs a search to its end. `next` gives the distribution of the token behind a sequence of tokens, which begins with the prompt.
pub fn complete_with(mut search: Search, mut next: impl FnMut(&[TokenId]) -> Distribution) -> Outcome {
    while !search.is_done() {
        while let Some(wanted) = search.paths().wanted().first().copied() {
            let distribution = next(&search.paths().tokens(wanted.node));
            search.paths_mut().supply(wanted.node, Arc::new(distribution));
        }
        search.advance();
    }
    search.outcome()
}

/// One way to complete the typed text.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The whole query; it starts with exactly what was typed.
    pub text: String,
    /// What to add to the typed text.
    pub completion: String,
    /// Natural logarithm of `probability`.
    pub logprob: f64,
    /// Probability that the query goes on like this and then ends, given what was typed. Of one that isn't `complete`, that it
    /// goes on like this.
    pub probability: f64,
    /// Whether the model ended the query here; `false` where it was cut at the length limit.
    pub complete: bool,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Best first.
    pub suggestions: Vec<Suggestion>,
    /// Whether nothing that was left unexplored could change the list: no unexplored completion is as probable as the last one.
    pub proven: bool,
}
