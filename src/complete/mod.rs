//! Completion as pure state machines: they say which next-token distributions they need, and get them.
//!
//! [`search`] is beam search for the most probable ways to complete a typed text. It knows tokens and text; it knows no engine,
//! no KV cache, no other request and no clock. `found` keeps what it found, [`distribution`] is what it is given.

mod candidate;
pub mod distribution;
mod found;
pub mod mix;
pub mod search;

pub use self::distribution::Distribution;
pub use self::search::{NodeIndex, Search, SearchOptions};

/// One way to complete the typed text.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
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
