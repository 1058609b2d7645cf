//! OpenAI's schema of completions, and its errors. Says what it means to the engine; computes nothing. Chats aren't spoken here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::wire::{OneOrMany, refused, single};
use crate::complete::{Generated, Sequence, SequenceFinish};
use crate::engine::Generation;
use crate::error::{Error, Kind};
use crate::schedule::Answer;

/// Tokens added where nothing is said.
pub const DEFAULT_MAX_TOKENS: usize = 16;
/// Prompts of one request.
pub const MAX_PROMPTS: usize = 32;

/// The body of `POST /v1/completions`.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// The model's name; may be left out where there is one model.
    pub model: Option<String>,
    /// One prompt, or up to 32 of them.
    #[schema(value_type = super::openapi::PromptsShape)]
    pub prompt: OneOrMany,
    /// Tokens that may be added; 16 if absent.
    #[schema(minimum = 1)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub max_tokens: Option<usize>,
    /// Sequences wanted for a prompt.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub n: Option<usize>,
    /// Only the same as `n`.
    #[schema(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub best_of: Option<usize>,
    /// Below 1 prefers probable tokens more, 0 takes the most probable one; 1 if absent.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Draw from the most probable tokens that have this probability together; 1 if absent.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// 0 or 1: say the log-probability of each token. Those of others aren't told.
    #[schema(minimum = 0, maximum = 1)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub logprobs: Option<u8>,
    /// Texts before which a sequence ends.
    #[schema(value_type = Option<super::openapi::StopShape>)]
    pub stop: Option<OneOrMany>,
    /// Send the text as it is generated.
    pub stream: Option<bool>,
    /// How to stream.
    pub stream_options: Option<StreamOptions>,
    /// Seed of the random numbers.
    #[schema(minimum = -9223372036854775808_isize, maximum = 9223372036854775807_isize)]
    #[serde(default, deserialize_with = "super::wire::whole")]
    pub seed: Option<i64>,
    /// Ignored.
    pub user: Option<String>,
    /// Put the prompt in front of the text.
    pub echo: Option<bool>,
    /// Only 0.
    #[schema(minimum = 0, maximum = 0)]
    pub presence_penalty: Option<f64>,
    /// Only 0.
    #[schema(minimum = 0, maximum = 0)]
    pub frequency_penalty: Option<f64>,
    /// Only empty.
    #[schema(value_type = Option<super::openapi::EmptyShape>)]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Only empty.
    #[schema(max_length = 0)]
    pub suffix: Option<String>,
}

/// How to stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Send a last chunk with what it cost.
    pub include_usage: Option<bool>,
}

/// What a request comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One for each prompt.
    pub generations: Vec<Generation>,
    /// With the prompt.
    pub echo: bool,
    /// With log-probabilities.
    pub logprobs: bool,
    /// With a last chunk about usage.
    pub include_usage: bool,
}

impl CompletionRequest {
    /// What the request comes to.
    ///
    /// # Errors
    /// Names the field that asks for what isn't done.
    pub fn plan(self) -> Result<Plan, Error> {
        self.refuse_what_is_not_done()?;
        let temperature = self.temperature.map_or(1.0, single);
        let (echo, logprobs) = (self.echo.unwrap_or(false), self.logprobs.is_some());
        let include_usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let prompts = self.prompt.into_list();
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            return Err(refused("prompt", format!("a list of {}", prompts.len()), "it must have 1 to 32 prompts"));
        }
        let stop = self.stop.map(OneOrMany::into_list).unwrap_or_default();
        let generation = |prompt| Generation {
            prompt,
            max_new_tokens: Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            temperature,
            top_p: self.top_p.map_or(1.0, single),
            stop: stop.clone(),
            seed: self.seed.map(i64::cast_unsigned),
            sequences: self.n.unwrap_or(1),
            ..Generation::default()
        };
        Ok(Plan { generations: prompts.into_iter().map(generation).collect(), echo, logprobs, include_usage })
    }

    fn refuse_what_is_not_done(&self) -> Result<(), Error> {
        let n = self.n.unwrap_or(1);
        if let Some(best_of) = self.best_of.filter(|&best_of| best_of != n) {
            return Err(refused(
                "best_of",
                best_of,
                &format!("all sequences are sent: leave it out or set it to n, {n}"),
            ));
        }
        let neutral = |field, value: Option<f64>| match value {
            Some(value) if value != 0.0 => {
                Err(refused(field, value, "it isn't supported: leave it out or set it to 0"))
            }
            _ => Ok(()),
        };
        neutral("presence_penalty", self.presence_penalty)?;
        neutral("frequency_penalty", self.frequency_penalty)?;
        if self.logit_bias.as_ref().is_some_and(|bias| !bias.is_empty()) {
            return Err(refused("logit_bias", "not empty", "it isn't supported: leave it out"));
        }
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(refused("suffix", "not empty", "text can't be inserted before one: leave it out"));
        }
        match self.logprobs {
            Some(count @ 2..) => {
                Err(refused("logprobs", count, "only the generated tokens' are told: it must be 0 or 1"))
            }
            Some(_) if self.echo == Some(true) => {
                Err(refused("echo", true, "a prompt's log-probabilities aren't told: leave out echo or logprobs"))
            }
            _ => Ok(()),
        }
    }
}

/// The answer to `POST /v1/completions`, and each chunk of a streamed one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Completion {
    /// A name for this answer.
    pub id: String,
    /// What this is.
    pub object: CompletionObject,
    /// When it was made, in Unix time.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The sequences: those of the first prompt, then those of the second.
    pub choices: Vec<Choice>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub usage: Option<CompletionUsage>,
}

/// The only value of a completion's `object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CompletionObject {
    /// A completion.
    TextCompletion,
}

/// A sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Choice {
    /// Its place among the choices.
    pub index: usize,
    /// The text.
    pub text: String,
    /// Its tokens' log-probabilities, if they were asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it ended; `null` while it goes on.
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities of a choice's tokens, as lists of the same length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Logprobs {
    /// The texts that the tokens add.
    pub tokens: Vec<String>,
    /// Natural logarithms.
    pub token_logprobs: Vec<f32>,
    /// Always `null`: other tokens' aren't told.
    #[schema(value_type = super::openapi::NullShape)]
    pub top_logprobs: (),
    /// Where each token's text begins, in characters.
    pub text_offset: Vec<usize>,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended the text, or a stop text came.
    Stop,
    /// At the length limit, or at the time limit.
    Length,
    /// Before a blocked term.
    ContentFilter,
}

/// What an answer cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionUsage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of the sequences.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
}

impl CompletionUsage {
    /// Adds what a prompt's answer cost.
    pub fn add(&mut self, answer: &Generated) {
        self.prompt_tokens += answer.prompt_tokens;
        self.completion_tokens += answer.sequences.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

impl FinishReason {
    /// A sequence that a time limit cut has no reason of its own here.
    pub fn new(finish: Option<SequenceFinish>) -> Self {
        match finish {
            Some(SequenceFinish::EndOfText | SequenceFinish::Stop) => Self::Stop,
            Some(SequenceFinish::Blocked) => Self::ContentFilter,
            Some(SequenceFinish::Length) | None => Self::Length,
        }
    }
}

impl Completion {
    /// An answer, or a chunk of one, without choices yet.
    pub fn new(model: &str, created: u64) -> Self {
        let id = format!("cmpl-{}", uuid::Uuid::new_v4().simple());
        Self {
            id,
            object: CompletionObject::TextCompletion,
            created,
            model: model.into(),
            choices: Vec::new(),
            usage: None,
        }
    }

    /// Adds the answers to all prompts.
    #[must_use]
    pub fn with_answers(mut self, plan: &Plan, answers: &[Answer<Generated>]) -> Self {
        let mut usage = CompletionUsage::default();
        for (generation, answer) in plan.generations.iter().zip(answers) {
            let prompt = if plan.echo { generation.prompt.as_str() } else { "" };
            for sequence in &answer.result.sequences {
                self.choices.push(Choice {
                    index: self.choices.len(),
                    text: format!("{prompt}{}", sequence.text),
                    logprobs: plan.logprobs.then(|| Logprobs::new(sequence)),
                    finish_reason: Some(FinishReason::new(sequence.finish)),
                });
            }
            usage.add(&answer.result);
        }
        self.usage = Some(usage);
        self
    }
}

impl Logprobs {
    /// Those of a whole sequence.
    pub fn new(sequence: &Sequence) -> Self {
        let mut logprobs = Self::default();
        let mut offset = 0;
        for token in &sequence.tokens {
            logprobs.push(&token.text, token.logprob, &mut offset);
        }
        logprobs
    }

    /// Adds a token whose text begins at `offset`, and moves that behind it.
    pub fn push(&mut self, text: &str, logprob: f32, offset: &mut usize) {
        self.tokens.push(text.to_owned());
        self.token_logprobs.push(logprob);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
    }
}

/// A model that can be named in requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelCard {
    /// Its name.
    pub id: String,
    /// What this is.
    pub object: ModelObject,
    /// When this server was started, in Unix time.
    pub created: u64,
    /// Whose it is.
    pub owned_by: &'static str,
}

/// The only value of a model's `object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelObject {
    /// A model.
    Model,
}

/// The models that can be named in requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelCards {
    /// What this is.
    pub object: ListObject,
    /// The models.
    pub data: Vec<ModelCard>,
}

/// The only value of a list's `object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ListObject {
    /// A list.
    List,
}

impl ModelCard {
    /// The card of a model.
    pub fn new(id: &str, created: u64) -> Self {
        Self { id: id.to_owned(), object: ModelObject::Model, created, owned_by: "foretype" }
    }
}

/// The fields that the engine knows by other names.
const RENAMED: [(&str, &str); 1] = [("max_new_tokens", "max_tokens")];

/// An error with the names of this schema's fields.
pub fn renamed(mut error: Error) -> Error {
    for (engine, here) in RENAMED {
        if let Some(rest) = error.message.strip_prefix(engine).filter(|rest| rest.starts_with(' ')) {
            error.message = format!("{here}{rest}");
        }
    }
    error
}

/// The body of an error, as OpenAI's clients expect it, and our `kind` beside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorInner,
}

/// An error as OpenAI's clients expect it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorInner {
    /// For people.
    pub message: String,
    /// What kind of trouble it is.
    #[serde(rename = "type")]
    pub class: ErrorClass,
    /// The field that is wrong, if it is one.
    pub param: Option<String>,
    /// `model_not_found` for a model that isn't there.
    pub code: Option<&'static str>,
    /// As in the other routes' errors.
    pub kind: Kind,
}

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The request is wrong.
    InvalidRequestError,
    /// There are too many.
    RateLimitError,
    /// The server is in trouble.
    ServerError,
}

impl From<&Error> for ErrorBody {
    fn from(error: &Error) -> Self {
        let class = match error.kind {
            Kind::Overloaded => ErrorClass::RateLimitError,
            Kind::NotReady | Kind::Internal | Kind::OutOfMemory => ErrorClass::ServerError,
            _ => ErrorClass::InvalidRequestError,
        };
        let code = (error.kind == Kind::ModelNotFound).then_some("model_not_found");
        let param = param(error).map(str::to_owned);
        Self { error: ErrorInner { message: error.message.clone(), class, param, code, kind: error.kind } }
    }
}

/// The field that a message names first.
fn param(error: &Error) -> Option<&str> {
    let message = error.message.as_str();
    match error.kind {
        Kind::ModelNotFound => Some("model"),
        Kind::EmptyInput | Kind::InputTooLong | Kind::InvalidInput => Some("prompt"),
        Kind::InvalidValue => message.split(' ').next(),
        Kind::InvalidField => match message.strip_prefix("in field ") {
            Some(rest) => rest.split(':').next(),
            None => message.split('`').nth(1),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire;
    use proptest::prelude::*;

    fn plan(body: &str) -> Result<Plan, ErrorInner> {
        let request = wire::parse::<CompletionRequest>(body.as_bytes());
        request.and_then(CompletionRequest::plan).map_err(|error| ErrorBody::from(&error).error)
    }

    #[test]
    fn neutral_values_are_fine_and_others_are_refused_by_name() {
        let fine = plan(
            r#"{"prompt":["a","b"],"n":2,"best_of":2,"presence_penalty":0,"logit_bias":{},"suffix":"","user":"x","seed":-1}"#,
        )
        .unwrap();
        assert_eq!((fine.generations.len(), fine.generations[1].sequences), (2, 2));
        let first = &fine.generations[0];
        assert_eq!((first.temperature, first.max_new_tokens, first.seed), (1.0, Some(16), Some(u64::MAX)));
        for (fields, param) in [
            (r#""best_of":2"#, "best_of"),
            (r#""presence_penalty":1"#, "presence_penalty"),
            (r#""frequency_penalty":-1"#, "frequency_penalty"),
            (r#""logit_bias":{"5":1}"#, "logit_bias"),
            (r#""suffix":"x""#, "suffix"),
            (r#""logprobs":5"#, "logprobs"),
            (r#""logprobs":1,"echo":true"#, "echo"),
            (r#""max_tokens":-1"#, "max_tokens"),
            (r#""tokens":1"#, "tokens"),
        ] {
            let error = plan(&format!(r#"{{"prompt":"a",{fields}}}"#)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{error:?}");
        }
        assert_eq!(plan("{}").unwrap_err().param.as_deref(), Some("prompt"));
    }

    #[test]
    fn fields_have_this_schemas_names() {
        let error = renamed(Error::new(Kind::InvalidValue, "max_new_tokens is 0; it must be from 1 to 48"));
        assert_eq!(error.message, "max_tokens is 0; it must be from 1 to 48");
        assert_eq!(ErrorBody::from(&error).error.param.as_deref(), Some("max_tokens"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = wire::parse::<CompletionRequest>(&body);
        }
    }
}
