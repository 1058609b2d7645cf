//! Completion as pure state machines: they say which next-token distributions they need, and get them.
//!
//! [`search`] is beam search for the most probable ways to complete a typed text; [`sampling`] is open-ended generation. They know
//! tokens and text; they know no engine, no KV cache, no other request and no clock. A [`task::Task`] is either. What they ask for
//! is in their [`paths`], [`distribution`] is what they are given; `frontier` and `found` are what a search may follow next and what it
//! found, [`choice`] takes one token
//! from a distribution, `continuation` is the text of a sequence that grows.

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

pub use self::distribution::Distribution;
pub use self::paths::{NodeIndex, Paths, Prompt, Wanted};
pub use self::sampling::{Generated, SampledToken, Sampling, SamplingOptions, Sequence, SequenceFinish};
pub use self::search::{Experience, Search, SearchOptions};
pub use self::task::{Product, Task};

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
