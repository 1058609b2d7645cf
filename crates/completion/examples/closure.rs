//! Completes a typed text over a model that is a closure: queries with counts, such as a log has them.
//!
//! `cargo run -p foretype-completion --example closure -- hea`

use std::sync::Arc;

use completion::text::{Text, TextError, TokenId};
use completion::{Distribution, Search, SearchOptions, complete_with};

/// Queries and how often they were asked.
const LOG: [(&str, f32); 5] =
    [("heat pump", 60.0), ("heat trap", 20.0), ("heat probe", 10.0), ("hot plate", 6.0), ("bolt", 4.0)];
/// Starts and ends every text.
const END: TokenId = TokenId(24);

fn main() -> Result<(), TextError> {
    let typed = std::env::args().nth(1).unwrap_or_else(|| "hea".to_owned());
    let text = Arc::new(Text::from_json(include_str!("tokenizer.json"), END, &[END], "")?);
    let log: Vec<(Vec<TokenId>, f32)> =
        LOG.iter().map(|&(query, count)| ([&text.encode(query)[..], &[END]].concat(), count)).collect();
    let model = |tokens: &[TokenId]| {
        // A token that no query has next stays improbable, not impossible.
        let mut counts = vec![1e-6_f32; text.vocab()];
        for (query, count) in log.iter().filter(|(query, _)| query.starts_with(&tokens[1..])) {
            counts[query.get(tokens.len() - 1).unwrap_or(&END).0 as usize] += count;
        }
        Distribution::from_row(&counts.iter().map(|count| count.ln()).collect::<Vec<_>>())
    };
    let options = SearchOptions { suggestions: 3, beams: 8, max_new_tokens: 12, context: 32, ..SearchOptions::default() };
    let completions = complete_with(Search::new(Arc::clone(&text), typed.clone(), options), model);
    println!("{typed:?} (proven: {})", completions.proven);
    for suggestion in completions.suggestions {
        println!("{:8.4}  {}", suggestion.probability, suggestion.text);
    }
    Ok(())
}
