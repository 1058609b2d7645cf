//! A search, a sampling or a beam search, which a scheduler treats alike.

use super::paths::Paths;
use super::{BeamSearch, Completions, Generated, Sampling, Search};

/// A state machine that asks for distributions until it is done.
pub enum Task {
    /// Ranked completions of a typed text.
    Search(Box<Search>),
    /// Open-ended generation, a token at a time.
    Sampling(Box<Sampling>),
    /// Open-ended generation of the most probable texts that beams find.
    Beams(Box<BeamSearch>),
}

/// The result of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskOutput {
    /// The result of a search.
    Suggestions(Completions),
    /// The result of a sampling or a beam search.
    Texts(Generated),
}

impl Task {
    /// The paths it refers to and what it wants of them.
    pub fn paths(&self) -> &Paths {
        match self {
            Self::Search(search) => search.paths(),
            Self::Sampling(sampling) => sampling.paths(),
            Self::Beams(beams) => beams.paths(),
        }
    }

    /// See [`Task::paths`].
    pub fn paths_mut(&mut self) -> &mut Paths {
        match self {
            Self::Search(search) => search.paths_mut(),
            Self::Sampling(sampling) => sampling.paths_mut(),
            Self::Beams(beams) => beams.paths_mut(),
        }
    }

    /// Whether it needs nothing more.
    pub fn is_done(&self) -> bool {
        match self {
            Self::Search(search) => search.is_done(),
            Self::Sampling(sampling) => sampling.is_done(),
            Self::Beams(beams) => beams.is_done(),
        }
    }

    /// Goes on until a distribution is missing, or to the end, or until `most` tokens were chosen or beams scored.
    /// What it waited for must have been supplied. Returns their number: a search, which has none, counts as one.
    pub fn advance(&mut self, most: usize) -> usize {
        match self {
            Self::Search(search) => {
                search.advance();
                1
            }
            Self::Sampling(sampling) => sampling.advance(most),
            Self::Beams(beams) => beams.advance(most),
        }
    }

    /// Asks for up to `count` distributions that it will probably want.
    pub fn speculate(&mut self, count: usize) {
        match self {
            Self::Search(search) => search.speculate(count),
            // What comes next depends on a token that is not chosen yet.
            Self::Sampling(_) | Self::Beams(_) => {}
        }
    }

    /// Says what earlier searches of this model were like; see [`Search::expect_no_ends`].
    pub fn expect_no_ends(&mut self) {
        if let Self::Search(search) = self {
            search.expect_no_ends();
        }
    }

    /// Whether a search that is done rarely ended; see [`Search::expect_no_ends`].
    pub fn rarely_ended(&self) -> Option<bool> {
        match self {
            Self::Search(search) => search.is_done().then(|| search.rarely_ended()),
            Self::Sampling(_) | Self::Beams(_) => None,
        }
    }

    /// Whether what is missing belongs to the text that the client sent, not to what comes behind it.
    pub fn is_reading(&self) -> bool {
        match self {
            Self::Search(search) => search.typed_log_prob().is_none(),
            Self::Sampling(_) | Self::Beams(_) => self.paths().len() == 1,
        }
    }

    /// Estimates how many distributions it still needs, for a scheduler to order tasks by.
    pub fn remaining(&self) -> usize {
        match self {
            Self::Search(search) => search.remaining(),
            Self::Sampling(sampling) => sampling.remaining(),
            Self::Beams(beams) => beams.remaining(),
        }
    }

    /// Tokens of the text that the client sent.
    pub fn typed_tokens(&self) -> usize {
        match self {
            Self::Search(search) => search.typed_tokens(),
            Self::Sampling(_) | Self::Beams(_) => self.paths().client_tokens(),
        }
    }

    /// The output so far.
    pub fn output(&self) -> TaskOutput {
        match self {
            Self::Search(search) => TaskOutput::Suggestions(search.completions()),
            Self::Sampling(sampling) => TaskOutput::Texts(sampling.generated()),
            Self::Beams(beams) => TaskOutput::Texts(beams.generated()),
        }
    }
}

impl From<Search> for Task {
    fn from(search: Search) -> Self {
        Self::Search(Box::new(search))
    }
}

impl From<BeamSearch> for Task {
    fn from(beams: BeamSearch) -> Self {
        Self::Beams(Box::new(beams))
    }
}

impl From<Sampling> for Task {
    fn from(sampling: Sampling) -> Self {
        Self::Sampling(Box::new(sampling))
    }
}
