//! The request for completions: its fields, the checks of its fields, and its translation to the engine's types.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::access::Key;
use crate::engine::{Caller, Generation, Work, check_length_penalty, check_told};
use crate::error::Error;
use crate::http::json::{OneOrMany, refused, single};
use completion::{Beams, EarlyStopping, TokenChoice};

/// Tokens added where nothing is said.
pub const DEFAULT_MAX_TOKENS: usize = 16;
/// Prompts of one request.
pub const MAX_PROMPTS: usize = 32;

/// The body of `POST /v1/completions`.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// The model's name; may be left out where there is one model.
    pub model: Option<String>,
    /// One prompt, or up to 32 of them, each a text or a list of token ids.
    #[schema(value_type = crate::http::schemas::PromptsOrTokensShape)]
    pub prompt: Prompts,
    /// Tokens that may be added; 16 if absent.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub max_tokens: Option<usize>,
    /// Sequences wanted for a prompt.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub n: Option<usize>,
    /// Only the same as `n`; with `use_beam_search` the number of beams, at least `n`.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub best_of: Option<usize>,
    /// Below 1 prefers probable tokens more, 0 takes the most probable one; 1 if absent.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Draw from the most probable tokens that have this probability together; 1 if absent.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Say the log-probability of each token, and of so many of the best in its place.
    #[schema(minimum = 0, maximum = 20)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub logprobs: Option<u8>,
    /// Texts before which a sequence ends.
    #[schema(value_type = Option<crate::http::schemas::StopShape>)]
    pub stop: Option<OneOrMany>,
    /// Send the text as it is generated.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Seed of the random numbers.
    #[schema(minimum = -9223372036854775808_isize, maximum = 9223372036854775807_isize)]
    #[serde(default, deserialize_with = "crate::http::json::whole_number")]
    pub seed: Option<i64>,
    /// A name for the end user; ignored.
    pub user: Option<String>,
    /// Put the prompt in front of the text.
    pub echo: Option<bool>,
    /// Subtracted from a token's logit if it was generated.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Subtracted from a token's logit as often as it was generated.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Only empty.
    #[schema(value_type = Option<crate::http::schemas::EmptyShape>)]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Only empty.
    #[schema(max_length = 0)]
    pub suffix: Option<String>,
    /// A text around each prompt that is a text, with `{input}` where that stands; the model's own if absent.
    #[schema(format = "template-text", min_length = 7, max_length = 65536)]
    pub template: Option<String>,
    /// Search with beams, `best_of` or `n` of them, and send the `n` best sequences, as in vLLM.
    pub use_beam_search: Option<bool>,
    /// With `use_beam_search`: a sequence's log-probability is divided by its length to this power; 1 if absent.
    #[schema(minimum = -10, maximum = 10)]
    pub length_penalty: Option<f64>,
    /// With `use_beam_search`: end as soon as there are as many sequences as beams.
    pub early_stopping: Option<bool>,
    /// Separates what is remembered of this request: only requests with the same salt share it.
    #[schema(min_length = 1, max_length = 256)]
    pub salt: Option<String>,
    /// The key that the request came with.
    #[serde(skip)]
    #[schema(ignore)]
    pub key: Option<Arc<Key>>,
    /// The fields that this schema does not have.
    #[serde(skip)]
    #[schema(ignore)]
    pub ignored: Vec<String>,
}

/// Prompts as texts or as token ids.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a string, a list of strings, or lists of token ids")]
pub enum Prompts {
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// The tokens of a prompt.
    Tokens(Vec<u32>),
    /// The tokens of several.
    TokenLists(Vec<Vec<u32>>),
}

impl Prompts {
    fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }

    /// A text, or tokens, for each prompt.
    fn into_list(self) -> Vec<(String, Option<Vec<u32>>)> {
        let tokens = |tokens| (String::new(), Some(tokens));
        match self {
            Self::Text(text) => vec![(text, None)],
            Self::Texts(texts) => texts.into_iter().map(|text| (text, None)).collect(),
            Self::Tokens(list) => vec![tokens(list)],
            Self::TokenLists(lists) => lists.into_iter().map(tokens).collect(),
        }
    }
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send a last chunk with what it cost.
    pub include_usage: Option<bool>,
}

/// A checked request: one generation for each prompt, and the form of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The generations, one for each prompt.
    pub generations: Vec<Generation>,
    /// Puts the prompt before the answer.
    pub echo: bool,
    /// With log-probabilities.
    pub logprobs: bool,
    /// With a last chunk about usage.
    pub include_usage: bool,
}

impl CompletionRequest {
    /// What the request asks for of a model with room for `context` tokens.
    pub fn work(&self, context: usize) -> Work {
        let new = Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
        let n = self.n.unwrap_or(1);
        let rows = if self.searches() { self.best_of.unwrap_or(n).max(n) } else { n };
        Work::generations(self.prompt.count().min(MAX_PROMPTS), rows, new, context)
    }

    /// What the request comes to.
    ///
    /// # Errors
    /// Names the field that asks for what isn't done.
    pub fn plan(self) -> Result<Plan, Error> {
        self.refuse_what_is_not_done()?;
        let beams = self.beams()?;
        // What is searched is the distribution as it is.
        let otherwise = if beams.is_some() { 0.0 } else { 1.0 };
        let temperature = self.temperature.map_or(otherwise, single);
        let (echo, logprobs) = (self.echo.unwrap_or(false), self.logprobs.is_some());
        let include_usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let told = self.logprobs.map_or(0, usize::from);
        check_told("logprobs", told)?;
        let prompts = self.prompt.into_list();
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            return Err(refused("prompt", format!("a list of {}", prompts.len()), "it must have 1 to 32 prompts"));
        }
        if prompts.iter().any(|(_, tokens)| tokens.as_ref().is_some_and(Vec::is_empty)) {
            return Err(refused("prompt", "a list without token ids", "each prompt must have a token, or be a text"));
        }
        let stop = self.stop.map(OneOrMany::into_list).unwrap_or_default();
        let choice = TokenChoice {
            temperature,
            top_p: self.top_p.map_or(1.0, single),
            frequency_penalty: self.frequency_penalty.map_or(0.0, single),
            presence_penalty: self.presence_penalty.map_or(0.0, single),
            ..TokenChoice::default()
        };
        let generation = |(prompt, prompt_tokens)| Generation {
            prompt,
            prompt_tokens,
            template: self.template.clone(),
            told,
            max_new_tokens: Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            choice,
            stop: stop.clone(),
            seed: self.seed.map(i64::cast_unsigned),
            sequences: self.n.unwrap_or(1),
            beams,
            caller: Caller { key: self.key.clone(), salt: self.salt.clone() },
            ..Generation::default()
        };
        Ok(Plan { generations: prompts.into_iter().map(generation).collect(), echo, logprobs, include_usage })
    }

    fn searches(&self) -> bool {
        self.use_beam_search == Some(true)
    }

    /// The beams of a search, if there is one.
    fn beams(&self) -> Result<Option<Beams>, Error> {
        let length_penalty = self.length_penalty.map_or(1.0, single);
        check_length_penalty(length_penalty)?;
        if !self.searches() {
            return Ok(None);
        }
        if self.stream == Some(true) {
            let right = "with use_beam_search nothing is final before the end: set stream to false";
            return Err(refused("stream", true, right));
        }
        let n = self.n.unwrap_or(1);
        let count = self.best_of.unwrap_or(n);
        if count < n {
            return Err(refused("best_of", count, &format!("with use_beam_search it must be at least n, {n}")));
        }
        for (field, value, neutral) in [("temperature", self.temperature, 0.0), ("top_p", self.top_p, 1.0)] {
            if let Some(value) = value.filter(|&value| value != neutral) {
                let right = format!("with use_beam_search nothing is drawn: leave it out or set it to {neutral}");
                return Err(refused(field, value, &right));
            }
        }
        let early_stopping =
            if self.early_stopping == Some(true) { EarlyStopping::Full } else { EarlyStopping::default() };
        Ok(Some(Beams { count, length_penalty, early_stopping }))
    }

    fn refuse_what_is_not_done(&self) -> Result<(), Error> {
        let n = self.n.unwrap_or(1);
        if let Some(best_of) = self.best_of.filter(|&best_of| best_of != n && !self.searches()) {
            return Err(refused(
                "best_of",
                best_of,
                &format!("all sequences are sent: leave it out or set it to n, {n}"),
            ));
        }
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(refused("logit_bias", "not empty", "it isn't supported: leave it out"));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(refused("suffix", "not empty", "text can't be inserted before one: leave it out"));
        }
        match self.logprobs {
            Some(_) if self.echo == Some(true) => {
                Err(refused("echo", true, "a prompt's log-probabilities aren't told: leave out echo or logprobs"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::errors::{ErrorBody, ErrorInner};
    use super::*;
    use crate::http::json;

    fn plan(body: &str) -> Result<Plan, ErrorInner> {
        let request = json::parse::<CompletionRequest>(body.as_bytes());
        request.and_then(CompletionRequest::plan).map_err(|error| ErrorBody::from(&error).error)
    }

    #[test]
    fn neutral_values_are_fine_and_others_are_refused_by_name() {
        let fine = plan(
            r#"{"prompt":["a","b"],"n":2,"best_of":2,"presence_penalty":0,"logit_bias":{},"suffix":"","user":"x",
                "seed":-1}"#,
        )
        .unwrap();
        assert_eq!((fine.generations.len(), fine.generations[1].sequences), (2, 2));
        let first = &fine.generations[0];
        assert_eq!((first.choice.temperature, first.max_new_tokens, first.seed), (1.0, Some(16), Some(u64::MAX)));
        for (fields, param) in [
            (r#""best_of":2"#, "best_of"),
            (r#""logit_bias":{"5":1}"#, "logit_bias"),
            (r#""suffix":"x""#, "suffix"),
            (r#""logprobs":21"#, "logprobs"),
            (r#""logprobs":1,"echo":true"#, "echo"),
            (r#""max_tokens":-1"#, "max_tokens"),
        ] {
            let error = plan(&format!(r#"{{"prompt":"a",{fields}}}"#)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
        }
        assert_eq!(plan("{}").unwrap_err().param.as_deref(), Some("prompt"));
        let empty = plan(r#"{"prompt":[[1],[]]}"#).unwrap_err();
        assert!(empty.message.contains("without token ids"), "{empty:?}");
    }

    #[test]
    fn a_beam_search_is_asked_for_by_vllms_name() {
        let found = plan(r#"{"prompt":"a","n":2,"best_of":4,"use_beam_search":true,"length_penalty":0.6}"#).unwrap();
        let beams = Beams { count: 4, length_penalty: 0.6, early_stopping: EarlyStopping::Unlikely };
        let first = &found.generations[0];
        assert_eq!((first.beams, first.sequences, first.choice.temperature), (Some(beams), 2, 0.0));
        for (fields, param) in [
            (r#""n":3,"best_of":2"#, "best_of"),
            (r#""n":3,"stream":true"#, "stream"),
            (r#""n":3,"temperature":0.7"#, "temperature"),
            (r#""n":3,"top_p":0.7"#, "top_p"),
            (r#""n":3,"length_penalty":20"#, "length_penalty"),
        ] {
            let error = plan(&format!(r#"{{"prompt":"a","use_beam_search":true,{fields}}}"#)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = json::parse::<CompletionRequest>(&body);
        }
    }
}
