//! Open-ended generation: its request, and the checks of the request.

use std::sync::Arc;

use super::caller::Caller;
use super::model::{Model, in_range};
use super::options::{DEFAULT_MAX_NEW_TOKENS, MAX_SUGGESTIONS};
use crate::error::{Error, Kind};
use completion::TokenChoice;
use completion::text::{TextError, TokenId};
use completion::{BeamSearch, Beams, Prompt, Sampling, SamplingOptions, Task};

/// Most stop strings of a request.
pub const MAX_STOP: usize = 16;
/// Most of the best tokens that are told beside each.
const MAX_TOLD: usize = 20;
/// A longer text's power of this is still a number.
const MAX_LENGTH_PENALTY: f32 = 10.0;
/// Most bytes of a stop string.
const MAX_STOP_BYTES: usize = 256;

/// A request to continue a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// What is continued, or what an encoder reads, tokenized as transformers would; the model's start token if empty.
    pub prompt: String,
    /// The prompt's tokens, in place of a text.
    pub prompt_tokens: Option<Vec<u32>>,
    /// The text around the prompt, in the place of the model's own. Tokens have none.
    pub template: Option<String>,
    /// Only so many of the prompt's last tokens are read; all if absent.
    pub truncate: Option<usize>,
    /// Tokens of prompt and sequence together, where that is less.
    pub max_length: Option<usize>,
    /// Tokens of each sequence; 16 if absent. The context may end a sequence earlier.
    pub max_new_tokens: Option<usize>,
    /// The rule by which each token is chosen.
    pub choice: TokenChoice,
    /// So many of the best tokens are told beside each that was chosen.
    pub told: usize,
    /// A sequence ends before any of these.
    pub stop: Vec<String>,
    /// The same seed gives the same sequences; chance if absent.
    pub seed: Option<u64>,
    /// Sequences wanted.
    pub sequences: usize,
    /// The beams of a beam search, at least as many as sequences; without them each sequence gets a token at a time.
    pub beams: Option<Beams>,
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
            prompt_tokens: None,
            template: None,
            truncate: None,
            max_length: None,
            max_new_tokens: None,
            choice: TokenChoice::default(),
            told: 0,
            stop: Vec::new(),
            seed: None,
            sequences: 1,
            beams: None,
            deadline_ms: None,
            session: None,
            caller: Caller::default(),
        }
    }
}

impl Model {
    /// The task of a request; everything that can be wrong with it is found here, before it is queued.
    pub(super) fn generation_task(&self, generation: &Generation) -> Result<Task, Error> {
        let prompt = self.prompt(generation)?;
        let max_new_tokens = generation.max_new_tokens.unwrap_or(DEFAULT_MAX_NEW_TOKENS.min(self.context));
        in_range("max_new_tokens", max_new_tokens as u64, self.context as u64)?;
        let max_new_tokens = match generation.max_length {
            None => max_new_tokens,
            Some(length) if length > prompt.tokens.len() => max_new_tokens.min(length - prompt.tokens.len()),
            Some(length) => {
                let message =
                    format!("max_length is {length}; it must be above the prompt's {} tokens", prompt.tokens.len());
                return Err(Error::new(Kind::InvalidValue, message));
            }
        };
        in_range("n", generation.sequences as u64, MAX_SUGGESTIONS as u64)?;
        check_beams(generation)?;
        let choice = generation.choice;
        check_choice(&choice)?;
        if choice.min_new_tokens > max_new_tokens {
            let min = choice.min_new_tokens;
            let message = format!("min_new_tokens is {min}; it must be at most {max_new_tokens}, the most new tokens");
            return Err(Error::new(Kind::InvalidValue, message));
        }
        check_stop(&generation.stop)?;
        let options = SamplingOptions {
            sequences: generation.sequences,
            max_new_tokens,
            context: self.context,
            choice,
            stop: generation.stop.clone(),
            seed: generation.seed.unwrap_or_else(rand::random),
            told: generation.told,
            listed: self.listed,
        };
        let text = Arc::clone(&self.text);
        let task = match generation.beams {
            Some(beams) => BeamSearch::new(text, prompt, options, beams).map(Task::from),
            None => Sampling::new(text, prompt, options).map(Task::from),
        };
        task.map_err(|error| unreadable(&error))
    }

    /// The text of tokens, without special ones.
    pub(super) fn decode(&self, tokens: &[u32]) -> Result<String, Error> {
        Ok(self.text.codec().map_err(|error| unreadable(&error))?.decode(tokens))
    }

    /// Names and texts of a prompt's tokens, as they are read.
    pub(super) fn read(&self, generation: &Generation) -> Result<Vec<(u32, String)>, Error> {
        let prompt = self.prompt(generation)?;
        let tokens = prompt.source.as_deref().unwrap_or(&prompt.tokens);
        tokens.iter().map(|token| Ok((token.0, self.decode(&[token.0])?))).collect()
    }

    fn prompt(&self, generation: &Generation) -> Result<Prompt, Error> {
        let characters = generation.prompt.chars().count();
        if characters > self.options.max_characters {
            let limit = self.options.max_characters;
            let message = format!("the prompt has {characters} characters; at most {limit} are taken");
            return Err(Error::new(Kind::InputTooLong, message));
        }
        let mut tokens = self.prompt_tokens(generation)?;
        let dropped = tokens.len().saturating_sub(generation.truncate.unwrap_or(usize::MAX).max(1));
        tokens.drain(..dropped);
        match self.encoder_tokens {
            Some(limit) => {
                let source = source_tokens(tokens, limit)?;
                Ok(Prompt { tokens: self.text.prompt().to_vec(), source: Some(source) })
            }
            None => self.fitting(tokens).map(Prompt::from),
        }
    }

    /// All tokens of the prompt, as transformers has them.
    fn prompt_tokens(&self, generation: &Generation) -> Result<Vec<TokenId>, Error> {
        let Some(ids) = &generation.prompt_tokens else {
            let codec = self.text.codec().map_err(|error| unreadable(&error))?;
            let tokens = codec.encode(&self.prompt_around(&generation.prompt, generation.template.as_deref())?);
            return tokens.ok_or_else(|| Error::new(Kind::InvalidInput, "the model's tokenizer can't read the prompt"));
        };
        if generation.template.is_some() {
            let message = "there is a template, and the prompt is token ids: send a text, or leave out the template";
            return Err(Error::new(Kind::InvalidValue, message));
        }
        let vocab = self.text.vocab();
        match ids.iter().find(|&&id| id as usize >= vocab) {
            Some(id) => {
                let message =
                    format!("prompt has the token {id}; the model's tokens are 0 to {}", vocab.saturating_sub(1));
                Err(Error::new(Kind::InvalidValue, message))
            }
            None => Ok(ids.iter().copied().map(TokenId).collect()),
        }
    }

    /// The tokens that a decoder without an encoder continues.
    fn fitting(&self, mut tokens: Vec<TokenId>) -> Result<Vec<TokenId>, Error> {
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

/// The tokens that an encoder reads.
fn source_tokens(tokens: Vec<TokenId>, limit: usize) -> Result<Arc<[TokenId]>, Error> {
    if tokens.is_empty() {
        return Err(Error::new(Kind::InvalidInput, "the prompt has no tokens; send a text"));
    }
    if tokens.len() > limit {
        let message = format!("the prompt is {} tokens; this model reads at most {limit}", tokens.len());
        return Err(Error::new(Kind::InputTooLong, message));
    }
    Ok(tokens.into())
}

/// What a tokenizer lacks is the operator's to know.
fn unreadable(error: &TextError) -> Error {
    tracing::error!(%error, "prompts can't be read");
    Error::new(Kind::Internal, "the model's tokenizer can't be used for prompts")
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
    let TokenChoice { temperature, top_p, typical_p, repetition_penalty, .. } = *choice;
    check("temperature", temperature, (0.0..=100.0).contains(&temperature), "from 0 to 100")?;
    check("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
    check("typical_p", typical_p, typical_p > 0.0 && typical_p <= 1.0, "above 0 and at most 1")?;
    for (field, value) in
        [("frequency_penalty", choice.frequency_penalty), ("presence_penalty", choice.presence_penalty)]
    {
        check(field, value, (-2.0..=2.0).contains(&value), "from -2 to 2")?;
    }
    let range = "above 0 and at most 100";
    check("repetition_penalty", repetition_penalty, repetition_penalty > 0.0 && repetition_penalty <= 100.0, range)
}

/// Checks the parameters of a beam search.
fn check_beams(generation: &Generation) -> Result<(), Error> {
    let Some(Beams { count, length_penalty, .. }) = generation.beams else { return Ok(()) };
    in_range("num_beams", count as u64, MAX_SUGGESTIONS as u64)?;
    check_length_penalty(length_penalty)?;
    let wrong = match generation.sequences {
        sequences if sequences > count => {
            format!("num_return_sequences is {sequences}; it must be at most num_beams, {count}")
        }
        _ if generation.choice.temperature > 0.0 => {
            "num_beams is there, and tokens are drawn; a beam search draws none: ask for one of both".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Error::new(Kind::InvalidValue, wrong))
}

/// Checks the power by which a beam search counts length.
///
/// # Errors
/// It is out of its range.
pub fn check_length_penalty(penalty: f32) -> Result<(), Error> {
    if (-MAX_LENGTH_PENALTY..=MAX_LENGTH_PENALTY).contains(&penalty) {
        return Ok(());
    }
    let limit = MAX_LENGTH_PENALTY;
    Err(Error::new(Kind::InvalidValue, format!("length_penalty is {penalty}; it must be from -{limit} to {limit}")))
}

/// Checks how many of the best tokens are to be told.
///
/// # Errors
/// Names the field that asks for too many.
pub fn check_told(field: &str, told: usize) -> Result<(), Error> {
    if told <= MAX_TOLD {
        return Ok(());
    }
    Err(Error::new(Kind::InvalidValue, format!("{field} is {told}; it must be from 0 to {MAX_TOLD}")))
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
