//! The answer with completions, as one document or in chunks.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::request::Plan;
use completion::{Generated, SampledToken, Sequence, SequenceFinish};
use scheduler::Answer;

/// The answer to `POST /v1/completions`, and each chunk of a streamed one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Completion {
    /// A name for this answer.
    pub id: String,
    /// Type of the object.
    pub object: CompletionObject,
    /// When it was made, in Unix time.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The sequences: those of the first prompt, then those of the second.
    pub choices: Vec<Choice>,
    /// Tokens of the prompts and the answers.
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

/// One generated sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Choice {
    /// Index among the choices, from 0.
    pub index: usize,
    /// The text that continues the prompt.
    pub text: String,
    /// Log-probabilities of the sequence's tokens, if they were asked for.
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
    /// Those of the best tokens in each place, as many as were asked for; `null` for none.
    pub top_logprobs: Option<Vec<BTreeMap<String, f32>>>,
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

/// Numbers of tokens of the prompts and the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionUsage {
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Tokens of the sequences.
    pub completion_tokens: usize,
    /// Sum of `prompt_tokens` and `completion_tokens`.
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
    /// The log-probabilities of a whole sequence.
    pub fn new(sequence: &Sequence) -> Self {
        let mut logprobs = Self::default();
        let mut offset = 0;
        for token in &sequence.tokens {
            logprobs.push(token, &mut offset);
        }
        logprobs
    }

    /// Adds a token whose text begins at `offset`, and moves that behind it.
    pub fn push(&mut self, token: &SampledToken, offset: &mut usize) {
        self.tokens.push(token.text.clone());
        self.token_logprobs.push(token.logprob);
        if !token.best.is_empty() {
            let mut best = BTreeMap::new();
            // Of tokens with the same text, such as halves of characters, the best one counts.
            token.best.iter().for_each(|other| {
                best.entry(other.text.clone()).or_insert(other.logprob);
            });
            self.top_logprobs.get_or_insert_default().push(best);
        }
        self.text_offset.push(*offset);
        *offset += token.text.chars().count();
    }
}
