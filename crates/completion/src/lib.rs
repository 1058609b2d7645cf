//! Exact completion of a half-typed text, over any model that gives the distribution of the next token.
//!
//! A [`Search`] finds the most probable texts that begin with the typed bytes; a [`Sampling`] or a [`BeamSearch`]
//! continues a prompt. They are state machines: they name the distributions they need ([`Paths`]) and go on once these
//! were supplied. They know tokens and text, and no engine, KV cache or other request. [`complete_with`] drives a
//! search with a closure:
//!
//! ```
//! use std::sync::Arc;
//! use completion::text::{Text, TokenId};
//! use completion::{Distribution, Search, SearchOptions, complete_with};
//!
//! // A tokenizer of 25 tokens; the last one starts and ends every text.
//! let end = TokenId(24);
//! let tokenizer = include_str!("../examples/tokenizer.json");
//! let text = Arc::new(Text::from_json(tokenizer, end, &[end], "")?);
//! // A model that knows two queries, "heat pump" and "heat trap", the first three times as probable.
//! let queries = [("heat pump", 0.75_f32), ("heat trap", 0.25)]
//!     .map(|(query, p)| ([&text.encode(query)[..], &[end]].concat(), p));
//! let model = |tokens: &[TokenId]| {
//!     let mut probabilities = vec![0.0_f32; text.vocab()];
//!     for (query, p) in queries.iter().filter(|(query, _)| query.starts_with(&tokens[1..])) {
//!         probabilities[query.get(tokens.len() - 1).unwrap_or(&end).0 as usize] += p;
//!     }
//!     Distribution::from_row(&probabilities.iter().map(|p| p.ln()).collect::<Vec<_>>())
//! };
//! let options = SearchOptions { suggestions: 2, beams: 4, max_new_tokens: 8, context: 32, ..Default::default() };
//! let completions = complete_with(Search::new(Arc::clone(&text), "hea".to_owned(), options), model);
//! let found: Vec<_> = completions.suggestions.iter().map(|s| (s.text.as_str(), s.probability)).collect();
//! assert_eq!(found[0].0, "heat pump");
//! assert!((found[0].1 - 0.75).abs() < 1e-6 && completions.proven);
//! # Ok::<(), completion::text::TextError>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`text`] | the tokenizer's side: half-typed tokens, canonical tokenization, blocked terms |
//! | [`typing`] | how people type what they mean: edits, folding, alignment |
//! | [`search`], [`sampling`], [`beam_search`], [`task`] | the state machines, and any of them |
//! | [`paths`], [`distribution`] | what they ask for, and what they are given |
//! | [`token_choice`], [`popular`] | one token of a distribution; popular queries, and suggestions merged with them |
//!
//! Deliberately absent: threads, clocks, I/O, async, and every engine.

pub mod beam_search;
mod candidate;
mod detokenizer;
pub mod distribution;
mod frontier;
pub mod paths;
pub mod popular;
pub mod sampling;
pub mod search;
mod suggestion;
pub mod task;
pub mod text;
pub mod token_choice;
mod top_completions;
pub mod typing;

use std::sync::Arc;

pub use self::beam_search::{BeamSearch, Beams, EarlyStopping};
pub use self::distribution::{Distribution, Logits};
pub use self::paths::{NodeIndex, Partition, Paths, Prompt, Wanted};
pub use self::sampling::{Generated, OtherToken, SampledToken, Sampling, SamplingOptions, Sequence, SequenceFinish};
pub use self::search::{Search, SearchOptions};
pub use self::suggestion::{Completions, Meaning, Readings, Suggestion};
pub use self::task::{Task, TaskOutput};
use self::text::TokenId;
pub use self::token_choice::{History, TokenChoice};

/// Runs a search to its end. `next` gives the distribution behind a token sequence, which begins with the prompt.
pub fn complete_with(mut search: Search, mut next: impl FnMut(&[TokenId]) -> Distribution) -> Completions {
    while !search.is_done() {
        while let Some(wanted) = search.paths().wanted().first().copied() {
            let distribution = next(&search.paths().tokens(wanted.node));
            search.paths_mut().supply(wanted.node, Arc::new(distribution));
        }
        search.advance();
    }
    search.completions()
}
