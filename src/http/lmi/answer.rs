//! The continuations of prompts as these servers send them.

use serde::Serialize;
use utoipa::ToSchema;

use super::request::Style;
use crate::engine::Generation;
use completion::{Generated, OtherToken, SampledToken, Sequence, SequenceFinish};
use scheduler::{Answer, Finish};

/// The continuation of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Reply {
    /// The text that continues the prompt.
    pub generated_text: String,
    /// The tokens of the continuation, and why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub details: Option<Details>,
}

/// The tokens of a continuation, and why it ended.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Details {
    /// Why the generation ended.
    pub finish_reason: Reason,
    /// Tokens that were generated, with the one that ended the text.
    pub generated_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The seed; `null` where nothing was drawn.
    pub seed: Option<u64>,
    /// The prompt's tokens, if they were asked for.
    pub prefill: Vec<InputToken>,
    /// The new tokens, in order; last the one that ended the text, if one did, with no text.
    pub tokens: Vec<Token>,
    /// The best tokens in the place of each, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
    /// The other sequences that were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub best_of_sequences: Vec<OtherSequence>,
}

/// A sequence behind the first.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct OtherSequence {
    /// The text that continues the prompt.
    pub generated_text: String,
    /// Why the generation ended.
    pub finish_reason: Reason,
    /// Tokens that were generated.
    pub generated_tokens: usize,
    /// The seed; `null` where nothing was drawn.
    pub seed: Option<u64>,
    /// Always empty: the prompt's tokens are told once.
    pub prefill: Vec<InputToken>,
    /// The new tokens, in order.
    pub tokens: Vec<Token>,
}

/// A token of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct InputToken {
    /// The token's number in the vocabulary.
    pub id: u32,
    /// The token's text by itself.
    pub text: String,
    /// Always `null`: prompts' log-probabilities are not told.
    #[schema(value_type = crate::http::schemas::NullShape)]
    pub logprob: (),
}

/// A generated token.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Token {
    /// The token's number in the vocabulary.
    pub id: u32,
    /// The text that it adds.
    pub text: String,
    /// The token's natural log-probability: Text Generation Inference's name.
    pub logprob: f32,
    /// The same: the Large Model Inference containers' name.
    pub log_prob: f32,
    /// Whether texts leave the token out.
    pub special: bool,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// At a length limit.
    Length,
    /// The model ended the text.
    EosToken,
    /// Before a stop sequence.
    StopSequence,
    /// Before a blocked term.
    Blocked,
    /// The deadline passed.
    Deadline,
    /// A newer request of the session took its place.
    Superseded,
}

impl Reason {
    /// Why a sequence ended, or why the request did if that cut it.
    pub fn new(sequence: Option<SequenceFinish>, request: Finish) -> Self {
        match (sequence, request) {
            (Some(SequenceFinish::Length), _) => Self::Length,
            (Some(SequenceFinish::EndOfText), _) => Self::EosToken,
            (Some(SequenceFinish::Stop), _) => Self::StopSequence,
            (Some(SequenceFinish::Blocked), _) | (None, Finish::Blocked) => Self::Blocked,
            (None, Finish::Superseded) => Self::Superseded,
            (None, Finish::Deadline | Finish::Complete | Finish::Length) => Self::Deadline,
        }
    }
}

impl Reply {
    /// The body of an answer: the first sequence, and with `style.details` its tokens and the other sequences.
    pub fn new(generation: &Generation, style: Style, answer: &Answer<Generated>) -> Self {
        let mut sequences = answer.result.sequences.iter();
        let first = sequences.next();
        let text = |sequence: &Sequence| {
            let prompt = if style.full_text { generation.prompt.as_str() } else { "" };
            format!("{prompt}{}", sequence.text)
        };
        let reason = |finish| Reason::new(finish, answer.finish);
        let details = || Details {
            finish_reason: reason(first.and_then(|sequence| sequence.finish)),
            generated_tokens: first.map_or(0, |sequence| all(sequence).count()),
            prompt_tokens: answer.result.prompt_tokens,
            seed: generation.seed,
            prefill: Vec::new(),
            tokens: first.map(tokens).unwrap_or_default(),
            top_tokens: first.map(|sequence| top_tokens(generation, sequence)).unwrap_or_default(),
            best_of_sequences: sequences
                .map(|sequence| OtherSequence {
                    generated_text: text(sequence),
                    finish_reason: reason(sequence.finish),
                    generated_tokens: all(sequence).count(),
                    seed: generation.seed,
                    prefill: Vec::new(),
                    tokens: tokens(sequence),
                })
                .collect(),
        };
        Self { generated_text: first.map(text).unwrap_or_default(), details: style.details.then(details) }
    }
}

/// The best tokens in the place of each; none if they weren't asked for.
fn top_tokens(generation: &Generation, sequence: &Sequence) -> Vec<Vec<Token>> {
    let told = all(sequence).filter(|_| generation.told > 0);
    told.map(|token| token.best.iter().map(Token::other).collect()).collect()
}

fn tokens(sequence: &Sequence) -> Vec<Token> {
    all(sequence).map(Token::new).collect()
}

/// All generated tokens, the one that ended the text among them: Text Generation Inference tells it as the last one.
fn all(sequence: &Sequence) -> impl Iterator<Item = &SampledToken> {
    sequence.tokens.iter().chain(&sequence.end)
}

impl Token {
    /// A token as it is sent.
    pub fn new(token: &SampledToken) -> Self {
        let SampledToken { id, text, logprob, special, .. } = token.clone();
        Self { id, text, logprob, log_prob: logprob, special }
    }

    /// A token that could have been in another's place.
    fn other(token: &OtherToken) -> Self {
        let OtherToken { id, text, logprob } = token.clone();
        // Only special tokens have none.
        let special = text.is_empty();
        Self { id, text, logprob, log_prob: logprob, special }
    }
}
