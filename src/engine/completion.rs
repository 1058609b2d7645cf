//! Completion of a typed text: its request, the checks of the request, and the popular queries in its answer.

use std::sync::Arc;

use super::caller::Caller;
use super::model::{Model, in_range};
use super::options::{DEFAULT_MAX_NEW_TOKENS, DEFAULT_SUGGESTIONS, MAX_SUGGESTIONS};
use super::running::Finisher;
use crate::error::{Error, Kind};
use completion::popular::Merging;
use completion::text::Method;
use completion::text::query::{Query, QueryError};
use completion::typing::Tolerance;
use completion::{Completions, Search, SearchOptions};
use scheduler::Finish;

/// A request to complete a typed text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The typed text.
    pub input: String,
    /// Suggestions wanted; 10 if absent.
    pub suggestions: Option<usize>,
    /// Tokens that may reach beyond the typed text; 16 if absent.
    pub max_new_tokens: Option<usize>,
    /// Milliseconds after which the best found until then is the answer.
    pub deadline_ms: Option<u64>,
    /// How half-typed tokens are treated.
    pub method: Method,
    /// What the typed text may be taken to mean; the server's default if absent.
    pub tolerance: Option<Tolerance>,
    /// The text around the typed text, in the place of the model's own.
    pub template: Option<String>,
    /// Whose request it is: a newer one of the same session supersedes it.
    pub session: Option<String>,
    /// Who asks.
    pub caller: Caller,
}

impl Model {
    /// The search for a request; everything that can be wrong with it is found here, before it is queued.
    pub(super) fn search(&self, completion: &Completion) -> Result<Search, Error> {
        if self.encoder_tokens.is_some() {
            let message = "this model reads whole texts and answers them; it can't complete what is being typed: send \
                           {\"inputs\": TEXT}, or use /v1/completions";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        self.search_for(&Query::new(&completion.input, self.options.max_characters)?, completion)
    }

    /// The search for a typed text, with the options of a request. The model completes typed texts.
    pub(super) fn search_for(&self, query: &Query, completion: &Completion) -> Result<Search, Error> {
        let suggestions = completion.suggestions.unwrap_or(DEFAULT_SUGGESTIONS);
        let max_new_tokens = completion.max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS.min(self.context));
        in_range("suggestions", suggestions as u64, MAX_SUGGESTIONS as u64)?;
        in_range("max_new_tokens", max_new_tokens as u64, self.context as u64)?;
        let options = SearchOptions {
            suggestions,
            beams: self.options.beams(suggestions),
            max_new_tokens,
            context: self.context,
            method: completion.method,
            tolerance: self.tolerance(completion),
            min_probability: self.options.min_probability,
        };
        let text = self.text_around(completion.template.as_deref())?;
        let before = text.prompt().len();
        let search = Search::new(text, query.as_str().to_owned(), options);
        if !search.is_spelled() {
            return Err(QueryError::NotInVocabulary.into());
        }
        // One position must be left for a token that is not typed yet.
        let limit = self.context - before - 1;
        match search.typed_tokens() {
            found if found > limit => Err(QueryError::TooManyTokens { found, limit }.into()),
            _ => Ok(search),
        }
    }

    fn tolerance(&self, completion: &Completion) -> Tolerance {
        completion.tolerance.unwrap_or(self.options.tolerance)
    }

    /// Merges popular queries, if there are any, into the answer to a typed text, unless that has a blocked term.
    pub(super) fn merge(&self, completion: &Completion) -> Finisher<Completions> {
        let Some(popular) = self.popular.clone() else { return Box::new(std::convert::identity) };
        let (text, weight) = (Arc::clone(&self.text), self.options.popular_weight);
        let typed = Query::new(&completion.input, self.options.max_characters);
        let typed =
            typed.map_or_else(|_| completion.input.clone(), |query| text.normalized(query.as_str()).into_owned());
        let count = completion.suggestions.unwrap_or(DEFAULT_SUGGESTIONS);
        let (method, tolerance) = (completion.method, self.tolerance(completion));
        Box::new(move |answer| {
            if answer.finish == Finish::Blocked {
                return answer;
            }
            answer.map(|completions| {
                let merging = Merging { text: &text, typed: &typed, method, tolerance, count, weight };
                popular.merge_into(completions, merging)
            })
        })
    }
}
