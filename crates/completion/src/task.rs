//! What a request wants done: a search or sampling. The scheduler treats them alike.

use super::paths::Paths;
use super::{Experience, Generated, Outcome, Sampling, Search};

/// A state machine that asks for distributions until it is done.
pub enum Task {
    /// Ranked completions of a typed text.
    Search(Box<Search>),
    /// Open-ended generation.
    Sampling(Box<Sampling>),
}

/// What a task came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Product {
    /// Of a search.
    Suggestions(Outcome),
    /// Of sampling.
    Texts(Generated),
}

impl Task {
    /// The paths it refers to and what it wants of them.
    pub fn paths(&self) -> &Paths {
        match self {
            Self::Search(search) => search.paths(),
            Self::Sampling(sampling) => sampling.paths(),
        }
    }

    /// See [`Task::paths`].
    pub fn paths_mut(&mut self) -> &mut Paths {
        match self {
            Self::Search(search) => search.paths_mut(),
            Self::Sampling(sampling) => sampling.paths_mut(),
        }
    }

    /// Whether it needs nothing more.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Search(search) => search.is_done(),
            Self::Sampling(sampling) => sampling.is_done(),
        }
    }

    /// Goes on until a distribution is missing, or to the end. What it waited for must have been supplied.
    pub fn advance(&mut self) {
        match self {
            Self::Search(search) => search.advance(),
            Self::Sampling(sampling) => sampling.advance(),
        }
    }

    /// Asks for up to `count` distributions that it will probably want.
    pub fn speculate(&mut self, count: usize) {
        match self {
            Self::Search(search) => search.speculate(count),
            // What comes next depends on a token that is not chosen yet.
            Self::Sampling(_) => {}
        }
    }

    /// The share of what is asked for ahead that will be wanted, as far as can be told.
    pub fn foresight(&self) -> f64 {
        match self {
            Self::Search(search) => search.foresight(),
            Self::Sampling(_) => 0.0,
        }
    }

    /// Tells it what tasks of its kind before it were like.
    pub fn expect(&mut self, experience: Experience) {
        match self {
            Self::Search(search) => search.expect(experience),
            Self::Sampling(_) => {}
        }
    }

    /// What it was like, if there is something to learn from it.
    pub fn experience(&self) -> Option<Experience> {
        match self {
            Self::Search(search) => search.is_done().then(|| search.experience()),
            Self::Sampling(_) => None,
        }
    }

    /// Whether what is missing belongs to the text that the client sent, not to what comes behind it.
    pub fn is_reading(&self) -> bool {
        match self {
            Self::Search(search) => search.typed_log_prob().is_none(),
            Self::Sampling(sampling) => sampling.paths().len() == 1,
        }
    }

    /// Distributions that it will still need, about; for a server to decide who goes first.
    pub fn left(&self) -> usize {
        match self {
            Self::Search(search) => search.left(),
            Self::Sampling(sampling) => sampling.left(),
        }
    }

    /// Tokens of the text that the client sent.
    pub fn typed_tokens(&self) -> usize {
        match self {
            Self::Search(search) => search.typed_tokens(),
            Self::Sampling(sampling) => sampling.prompt_tokens(),
        }
    }

    /// What it came to until now.
    pub fn product(&self) -> Product {
        match self {
            Self::Search(search) => Product::Suggestions(search.outcome()),
            Self::Sampling(sampling) => Product::Texts(sampling.generated()),
        }
    }
}

impl From<Search> for Task {
    fn from(search: Search) -> Self {
        Self::Search(Box::new(search))
    }
}

impl From<Sampling> for Task {
    fn from(sampling: Sampling) -> Self {
        Self::Sampling(Box::new(sampling))
    }
}
