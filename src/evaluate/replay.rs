//! Typing queries at an engine, one character after the other.

use std::sync::Arc;
use std::time::Instant;

use super::metrics::{Keystroke, ranks};
use completion::popular::{Hit, Lookup, Merging, PopularQueries};
use completion::text::{Method, Text};
use completion::typing::{Tolerance, Typed};
use completion::{Completions, Search, SearchOptions, Task};
use scheduler::Usage;
use scheduler::backend::BackendError;
use scheduler::scheduler::Scheduler;

/// Suggestions in a list; the "10" of MRR@10.
pub(super) const LIST: usize = 10;

/// A method that answers keystrokes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Contender {
    /// The model, half-typed tokens by the covering set.
    Exact,
    /// The model, with typing errors.
    Tolerant,
    /// The model, the last token dropped and constrained.
    Healed,
    /// The model, behind the typed text's tokens.
    Naive,
    /// The popular queries that begin with the typed text; no model.
    Popular,
    /// The popular queries that the typed text may stand for; no model.
    PopularTolerant,
    /// The model with typing errors and the popular queries, as a server merges them.
    Merged,
}

impl Contender {
    /// The contender's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Tolerant => "tolerant",
            Self::Healed => "healed",
            Self::Naive => "naive",
            Self::Popular => "popular",
            Self::PopularTolerant => "popular-tolerant",
            Self::Merged => "merged",
        }
    }

    /// Whether it needs popular queries.
    pub fn is_popular(self) -> bool {
        matches!(self, Self::Popular | Self::PopularTolerant | Self::Merged)
    }

    /// Whether it asks no model.
    pub fn is_without_model(self) -> bool {
        matches!(self, Self::Popular | Self::PopularTolerant)
    }

    fn tolerance(self) -> Tolerance {
        match self {
            Self::Tolerant | Self::PopularTolerant | Self::Merged => Tolerance::Auto,
            Self::Exact | Self::Healed | Self::Naive | Self::Popular => Tolerance::Off,
        }
    }
}

/// The options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Beams of a search.
    pub beams: usize,
    /// New tokens of a search.
    pub max_new_tokens: usize,
    /// Positions of a lane.
    pub context: usize,
    /// Forget everything before each keystroke.
    pub cold: bool,
    /// Prepare for the next keystroke after each answer, as an idle server does; that time is not the person's.
    pub lookahead: bool,
    /// Weight of the popular queries, for [`Contender::Merged`].
    pub popular_weight: f64,
}

/// An engine to type at.
pub struct Replay<'a> {
    /// The model's tokenizer and roles of tokens.
    pub text: &'a Arc<Text>,
    /// The scheduler that runs the model.
    pub scheduler: &'a mut Scheduler,
    /// Popular queries, for the contenders that need them.
    pub popular: Option<&'a PopularQueries>,
    /// The options of the replay.
    pub options: ReplayOptions,
}

impl Replay<'_> {
    /// Types every query, and searches after each character except the last. `progress` is called after each query.
    /// Returns one [`Keystroke`] per search, in order.
    ///
    /// # Errors
    /// A forward of the engine failed.
    pub fn run(
        &mut self,
        queries: &[String],
        contender: Contender,
        mut progress: impl FnMut(),
    ) -> Result<Vec<Keystroke>, BackendError> {
        let mut keystrokes = Vec::new();
        for (index, query) in queries.iter().enumerate() {
            let mut first: Option<String> = None;
            let ends: Vec<usize> = query.char_indices().map(|(at, _)| at).skip(1).collect();
            for (typed, &end) in ends.iter().enumerate() {
                let prefix = &query[..end];
                if prefix.trim().is_empty() || !self.text.is_encodable(prefix) {
                    continue;
                }
                let agreed = first.as_ref().is_some_and(|first| first.starts_with(prefix));
                let (mut keystroke, list) = self.keystroke(prefix, contender)?;
                (keystroke.rank, keystroke.partial_rank) = ranks(query, prefix, list.iter().map(String::as_str));
                (keystroke.query, keystroke.typed, keystroke.agreed) = (index, typed + 1, agreed);
                keystrokes.push(keystroke);
                first = list.into_iter().next();
            }
            progress();
        }
        Ok(keystrokes)
    }

    /// Asks for one typed text; returns what it cost and the list.
    ///
    /// # Errors
    /// The engine's.
    pub fn keystroke(&mut self, typed: &str, contender: Contender) -> Result<(Keystroke, Vec<String>), BackendError> {
        if self.options.cold {
            self.scheduler.reset();
        }
        let started = Instant::now();
        let mut keystroke = Keystroke::default();
        let mut ahead = None;
        let list: Vec<String> = if contender.is_without_model() {
            self.hits(typed, contender).into_iter().map(|hit| hit.text).collect()
        } else {
            let (completions, usage, next) = self.search(typed, contender)?;
            ahead = next;
            keystroke.forwards = usage.forwards;
            keystroke.computed = usage.positions_computed;
            keystroke.typed_computed = usage.typed_positions_computed;
            keystroke.saved = usage.positions_saved;
            keystroke.proven = completions.proven;
            completions.suggestions.into_iter().map(|suggestion| suggestion.text).collect()
        };
        keystroke.latency_ms = started.elapsed().as_secs_f64() * 1000.0;
        if let Some(next) = ahead {
            self.finish(next)?;
        }
        Ok((keystroke, list))
    }

    /// The texts of a list and their probabilities.
    ///
    /// # Errors
    /// The engine's.
    pub fn list(&mut self, typed: &str, contender: Contender) -> Result<(Vec<String>, Vec<f64>), BackendError> {
        if contender.is_without_model() {
            return Ok(self.hits(typed, contender).into_iter().map(|hit| (hit.text, hit.joint)).unzip());
        }
        let (completions, ..) = self.search(typed, contender)?;
        Ok(completions.suggestions.into_iter().map(|suggestion| (suggestion.text, suggestion.probability)).unzip())
    }

    /// The popular queries that the typed text may stand for, without a model.
    fn hits(&self, typed: &str, contender: Contender) -> Vec<Hit> {
        let Some(popular) = self.popular else { return Vec::new() };
        let typing = Typed::tolerant(typed, contender.tolerance(), self.text.costs());
        popular.find(Lookup::new(typed, typing.as_ref(), LIST)).hits
    }

    /// Searches; returns what was found, what it cost, and the search to prepare with, if that is asked for.
    fn search(
        &mut self,
        typed: &str,
        contender: Contender,
    ) -> Result<(Completions, Usage, Option<Search>), BackendError> {
        let method = match contender {
            Contender::Healed => Method::Healed,
            Contender::Naive => Method::Naive,
            _ => Method::Exact,
        };
        let tolerance = contender.tolerance();
        let options = SearchOptions {
            suggestions: LIST,
            beams: self.options.beams,
            max_new_tokens: self.options.max_new_tokens,
            context: self.options.context,
            method,
            tolerance,
            min_probability: 0.0,
        };
        let search = Search::new(Arc::clone(self.text), typed.to_owned(), options);
        // A server refuses what the context has no room for.
        if self.text.prompt().len() + search.typed_tokens() >= self.options.context {
            let nothing = Completions { suggestions: Vec::new(), proven: false, typed_log_prob: None, readings: None };
            return Ok((nothing, Usage::default(), None));
        }
        let (completions, usage, next) = self.finish(search)?;
        let popular = self.popular.filter(|_| contender == Contender::Merged);
        let weight = self.options.popular_weight;
        let merging = Merging { text: self.text, typed, method, tolerance, count: LIST, weight };
        let merged = popular.map(|popular| popular.merge_into(completions.clone(), merging));
        Ok((merged.unwrap_or(completions), usage, next))
    }

    fn finish(&mut self, search: Search) -> Result<(Completions, Usage, Option<Search>), BackendError> {
        let job = self.scheduler.add(search);
        loop {
            match self.scheduler.step() {
                Ok(stepped) if stepped.done.contains(&job) => break,
                Ok(stepped) if stepped.failed.contains(&job) => {
                    self.scheduler.remove(job);
                    return Err(BackendError::NotANumber(0));
                }
                Ok(_) => {}
                Err(error) => {
                    self.scheduler.remove(job);
                    self.scheduler.reset();
                    return Err(error);
                }
            }
        }
        let Some((Task::Search(search), usage)) = self.scheduler.take(job) else {
            unreachable!("the job was added above as a search")
        };
        let first = self.options.lookahead.then(|| search.next_characters().first().copied()).flatten();
        let next = first.and_then(|next| search.lookahead(next));
        Ok((search.completions(), usage, next))
    }
}
