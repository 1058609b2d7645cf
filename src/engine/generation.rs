//! Open-ended generation: its request, and the checks of the request.

use std::sync::Arc;

use super::caller::Caller;
use super::model::{Model, in_range};
use super::options::{DEFAULT_MAX_NEW_TOKENS, MAX_SUGGESTIONS};
use crate::error::{Error, Kind};
use completion::TokenChoice;
use completion::text::TokenId;
use completion::{Prompt, Sampling, SamplingOptions};

/// Most stop strings of a request.
const MAX_STOP: usize = 16;
/// Most bytes of a stop string.
const MAX_STOP_BYTES: usize = 256;

/// A request to continue a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// What is continued, or what an encoder reads, tokenized as transformers would; the model's start token if empty.
    pub prompt: String,
    /// Tokens of each sequence; 16 if absent. The context may end a sequence earlier.
    pub max_new_tokens: Option<usize>,
    /// 0 takes the best token each time.
    pub temperature: f32,
    /// Tokens that are sampled from, best first; 0 for all.
    pub top_k: usize,
    /// Only the best tokens whose probabilities together reach this are sampled from.
    pub top_p: f32,
    /// Above 1 makes tokens that were seen, in the prompt too, less likely.
    pub repetition_penalty: f32,
    /// A sequence ends before any of these.
    pub stop: Vec<String>,
    /// The same seed gives the same sequences; chance if absent.
    pub seed: Option<u64>,
    /// Sequences wanted.
    pub sequences: usize,
    /// Milliseconds after which what was generated until then is the answer.
    pub deadline_ms: Option<u64>,
    /// Whose request it is: a newer one of the same session supersedes it.
    pub session: Option<String>,
    /// Who asks.
    pub caller: Caller,
}

impl Default for Generation {
    /// Greedy, one sequence.
    fn default() -> Self {
        Self {
            prompt: String::new(),
            max_new_tokens: None,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            stop: Vec::new(),
            seed: None,
            sequences: 1,
            deadline_ms: None,
            session: None,
            caller: Caller::default(),
        }
    }
}

impl Model {
    /// The state machine for a request; everything that can be wrong with it is found here, before it is queued.
    pub(super) fn sampling(&self, generation: &Generation) -> Result<Sampling, Error> {
        let prompt = self.prompt(&generation.prompt)?;
        let max_new_tokens = generation.max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS.min(self.context));
        in_range("max_new_tokens", max_new_tokens as u64, self.context as u64)?;
        in_range("n", generation.sequences as u64, MAX_SUGGESTIONS as u64)?;
        let choice = TokenChoice {
            temperature: generation.temperature,
            top_k: generation.top_k,
            top_p: generation.top_p,
            repetition_penalty: generation.repetition_penalty,
        };
        check_choice(&choice)?;
        check_stop(&generation.stop)?;
        let options = SamplingOptions {
            sequences: generation.sequences,
            max_new_tokens,
            context: self.context,
            choice,
            stop: generation.stop.clone(),
            seed: generation.seed.unwrap_or_else(rand::random),
            listed: self.listed,
        };
        Ok(Sampling::new(Arc::clone(&self.text), prompt, options))
    }

    fn prompt(&self, prompt: &str) -> Result<Prompt, Error> {
        let characters = prompt.chars().count();
        if characters > self.options.max_characters {
            let limit = self.options.max_characters;
            let message = format!("the prompt has {characters} characters; at most {limit} are taken");
            return Err(Error::new(Kind::InputTooLong, message));
        }
        match self.encoder_tokens {
            Some(limit) => {
                let source = self.source_tokens(prompt, limit)?;
                Ok(Prompt { tokens: self.text.prompt().to_vec(), source: Some(source) })
            }
            None => self.prompt_tokens(prompt).map(Prompt::from),
        }
    }

    /// The tokens that the encoder reads.
    fn source_tokens(&self, prompt: &str, limit: usize) -> Result<Arc<[TokenId]>, Error> {
        let tokens = self.text.encode_with_special_tokens(prompt);
        if tokens.is_empty() {
            return Err(Error::new(Kind::InvalidInput, "the prompt has no tokens; send a text"));
        }
        if tokens.len() > limit {
            let message = format!("the prompt is {} tokens; this model reads at most {limit}", tokens.len());
            return Err(Error::new(Kind::InputTooLong, message));
        }
        Ok(tokens.into())
    }

    /// The tokens that a decoder without an encoder continues.
    fn prompt_tokens(&self, prompt: &str) -> Result<Vec<TokenId>, Error> {
        if !self.text.is_encodable(prompt) {
            return Err(Error::new(Kind::InvalidInput, "the prompt has characters that the model's vocabulary lacks"));
        }
        let mut tokens = self.text.encode(prompt);
        if tokens.is_empty() {
            tokens.push(self.text.prompt()[0]);
        }
        // One position must be left for a token that is generated.
        let limit = self.context - 1;
        if tokens.len() > limit {
            let message = format!("the prompt is {} tokens; this model has room for {limit}", tokens.len());
            return Err(Error::new(Kind::InputTooLong, message));
        }
        Ok(tokens)
    }
}

/// Checks the parameters by which tokens are chosen.
///
/// # Errors
/// Names the field that is out of its range.
pub fn check_choice(choice: &TokenChoice) -> Result<(), Error> {
    let check = |field: &str, value: f32, good: bool, range: &str| {
        let message = || format!("{field} is {value}; it must be {range}");
        if good { Ok(()) } else { Err(Error::new(Kind::InvalidValue, message())) }
    };
    let TokenChoice { temperature, top_p, repetition_penalty, .. } = *choice;
    check("temperature", temperature, (0.0..=100.0).contains(&temperature), "from 0 to 100")?;
    check("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
    let range = "above 0 and at most 100";
    check("repetition_penalty", repetition_penalty, repetition_penalty > 0.0 && repetition_penalty <= 100.0, range)
}

fn check_stop(stop: &[String]) -> Result<(), Error> {
    if stop.len() > MAX_STOP {
        let message = format!("there are {} stop strings; at most {MAX_STOP} are taken", stop.len());
        return Err(Error::new(Kind::InvalidValue, message));
    }
    match stop.iter().find(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        Some(wrong) => {
            let message = format!("a stop string has {} bytes; it must have 1 to {MAX_STOP_BYTES}", wrong.len());
            Err(Error::new(Kind::InvalidValue, message))
        }
        None => Ok(()),
    }
}
