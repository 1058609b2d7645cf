//! The answer of a search.

/// One way to complete the typed text.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The whole query; it starts with exactly what was typed.
    pub text: String,
    /// What to add to the typed text.
    pub completion: String,
    /// Natural logarithm of `probability`.
    pub logprob: f64,
    /// Probability that the query goes on like this and then ends, given what was typed. Of one that isn't `complete`,
    /// that it goes on like this.
    pub probability: f64,
    /// Whether the model ended the query here; `false` where it was truncated at the length limit.
    pub complete: bool,
}

/// The suggestions of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Completions {
    /// Best first.
    pub suggestions: Vec<Suggestion>,
    /// Whether nothing that was left unexpanded could change the list: no other completion is as probable as the last.
    pub proven: bool,
}
