//! The answer of a search.

/// What the typed text stands for in a suggestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Edits between what was meant and what was typed; 0 if the suggestion begins with exactly the typed text. Another
    /// case, width or accents of the whole text are one edit.
    pub edits: u8,
    /// Bytes of the suggestion's text, from its beginning, that the typed text stands for.
    pub meant: usize,
}

/// A query that completes the typed text.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The whole query.
    pub text: String,
    /// How much of `text` the typed text stands for, and the edits between them.
    pub meaning: Meaning,
    /// Natural logarithm of `probability`.
    pub logprob: f64,
    /// Probability that the query goes on like this and then ends, given what was typed. Of one that isn't `complete`,
    /// that it goes on like this.
    pub probability: f64,
    /// Whether the model ended the query here; `false` where it was truncated at the length limit.
    pub complete: bool,
}

impl Suggestion {
    /// What to add to the typed text; `None` if the suggestion doesn't begin with it.
    pub fn completion(&self) -> Option<&str> {
        (self.meaning.edits == 0).then(|| &self.text[self.meaning.meant..])
    }

    /// The beginning of `text` that the typed text stands for.
    pub fn meant(&self) -> &str {
        &self.text[..self.meaning.meant]
    }

    /// The character that a person who means this query types next.
    pub fn next_character(&self) -> Option<char> {
        self.text[self.meaning.meant..].chars().next()
    }
}

/// The suggestions of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Completions {
    /// The suggestions, the most probable first.
    pub suggestions: Vec<Suggestion>,
    /// Whether nothing that was left unexpanded could change the list: no other completion is as probable as the last.
    pub proven: bool,
    /// Natural logarithm of the probability that the model gives to queries that begin with exactly the typed text;
    /// `None` if the search ended before that was known.
    pub typed_log_prob: Option<f64>,
    /// How probable it is that the text was typed; `None` if the search ended before that was known.
    pub readings: Option<Readings>,
}

/// Natural logarithms of how probable it is that a person types the text, whatever that means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Readings {
    /// Queries that begin with exactly the typed text, words included that the model doesn't know.
    pub as_typed: f64,
    /// All readings of the typed text that were found: the probabilities of suggestions are relative to it.
    pub all: f64,
}

impl Default for Readings {
    /// Of a text that no one types.
    fn default() -> Self {
        Self { as_typed: f64::NEG_INFINITY, all: f64::NEG_INFINITY }
    }
}
