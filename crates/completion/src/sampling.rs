//! Sampling: open-ended generation behind a prompt, as a state machine beside the search.
//!
//! What it samples from is what Hugging Face transformers would: penalties, then temperature, top-k, top-p and
//! typical-p, in this order; temperature 0 is greedy. No token is banned but those that the tokenizer lacks, and only a
//! length, an end token or a stop string ends a sequence. What holds for queries does not hold here. Each sequence
//! draws one number a token from its own stream of a seeded generator, so what it says depends on the seed and the
//! model, never on what else is being computed.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::detokenizer::Detokenizer;
use super::paths::{NodeIndex, Paths, Prompt, Wanted};
use super::token_choice::{History, TokenChoice};
use crate::text::codec::Codec;
use crate::text::{Text, TextError, TokenId};

/// Settings of a sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Sequences wanted, at least 1.
    pub sequences: usize,
    /// Tokens of a sequence, prompt not counted.
    pub max_new_tokens: usize,
    /// Positions that a path, prompt included, may have.
    pub context: usize,
    /// The rule by which a token is chosen from its distribution.
    pub choice: TokenChoice,
    /// A sequence ends before any of these.
    pub stop: Vec<String>,
    /// Seed of the random numbers.
    pub seed: u64,
    /// So many of the best tokens are told beside each that was chosen.
    pub told: usize,
    /// How many of the best tokens every distribution lists. Where they decide, whole rows aren't wanted.
    pub listed: usize,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceFinish {
    /// At a length limit.
    Length,
    /// The model ended the text.
    EndOfText,
    /// Before a stop string.
    Stop,
    /// Before a blocked term.
    Blocked,
}

/// A token of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token's id.
    pub id: u32,
    /// The text that is certain with it. A character of several tokens comes with the last of them, and text that may
    /// begin a stop string waits until it is known not to.
    pub text: String,
    /// Natural log-probability that the model gives it, before penalties and temperature.
    pub logprob: f32,
    /// Whether texts leave it out.
    pub special: bool,
    /// The best tokens in its place with their log-probabilities, if they are to be told, best first.
    pub best: Vec<OtherToken>,
}

/// A token that could have been in another's place.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherToken {
    /// The token's id.
    pub id: u32,
    /// The text that it would add.
    pub text: String,
    /// Natural log-probability that the model gives it.
    pub logprob: f32,
}

/// A generated sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// What was generated behind the prompt, without the end of text or the stop string.
    pub text: String,
    /// The sequence's tokens; their texts make up `text`.
    pub tokens: Vec<SampledToken>,
    /// Why it ended; `None` while it could go on.
    pub finish: Option<SequenceFinish>,
    /// The token that ended it, if one did. It is none of `tokens`.
    pub end: Option<SampledToken>,
}

/// The result of a sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Tokens of the prompt, or of the source that an encoder read.
    pub prompt_tokens: usize,
    /// The sequences, as many as were asked for; fewer where a beam search was cut before it had as many.
    pub sequences: Vec<Sequence>,
}

struct Draft {
    node: NodeIndex,
    random: ChaCha8Rng,
    text: Detokenizer,
    tokens: Vec<SampledToken>,
    finish: Option<SequenceFinish>,
    end: Option<SampledToken>,
}

/// The state machine. See the module's documentation.
pub struct Sampling {
    text: Arc<Text>,
    codec: Arc<Codec>,
    options: SamplingOptions,
    paths: Paths,
    drafts: Vec<Draft>,
    /// The sequence that gets its token next.
    turn: usize,
}

impl Sampling {
    /// Starts sampling behind a prompt, which has at least one token and leaves room in the context.
    ///
    /// # Errors
    /// The tokenizer can't be read.
    pub fn new(text: Arc<Text>, prompt: impl Into<Prompt>, options: SamplingOptions) -> Result<Self, TextError> {
        let (prompt, codec) = (prompt.into(), text.codec()?);
        let blank = Detokenizer::behind(&prompt, Arc::clone(&codec), options.stop.clone());
        let draft = |sequence: usize| {
            let mut random = ChaCha8Rng::seed_from_u64(options.seed);
            random.set_stream(sequence as u64);
            Draft { node: Paths::ROOT, random, text: blank.clone(), tokens: Vec::new(), finish: None, end: None }
        };
        let drafts = (0..options.sequences).map(draft).collect();
        let mut sampling = Self { text, codec, paths: Paths::new(prompt), drafts, turn: 0, options };
        sampling.ask();
        Ok(sampling)
    }

    /// Distributions that it may still need.
    pub fn remaining(&self) -> usize {
        let drafts = self.drafts.iter().filter(|draft| draft.finish.is_none());
        drafts.map(|draft| self.options.max_new_tokens - draft.tokens.len()).sum()
    }

    /// The paths it refers to and what it wants of them.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// See [`Sampling::paths`].
    pub fn paths_mut(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// Whether every sequence has ended.
    pub fn is_done(&self) -> bool {
        self.drafts.iter().all(|draft| draft.finish.is_some())
    }

    /// Adds a token to up to `most` of the sequences that go on, which takes time in proportion. Once all of them have
    /// theirs, it waits for the next distributions. Those that it waited for must have been supplied. Returns how many
    /// tokens were chosen.
    pub fn advance(&mut self, most: usize) -> usize {
        debug_assert!(!self.paths.is_waiting(), "a distribution is missing");
        let mut chosen = 0;
        while self.turn < self.drafts.len() && chosen < most {
            if self.drafts[self.turn].finish.is_none() {
                self.extend(self.turn);
                chosen += 1;
            }
            self.turn += 1;
        }
        if self.turn == self.drafts.len() {
            self.turn = 0;
            self.ask();
        }
        chosen
    }

    /// The sequences as far as they are generated.
    pub fn generated(&self) -> Generated {
        let sequence = |draft: &Draft| Sequence {
            text: draft.text.released().to_owned(),
            tokens: draft.tokens.clone(),
            finish: draft.finish,
            end: draft.end.clone(),
        };
        let sequences = self.drafts.iter().map(sequence).collect();
        Generated { prompt_tokens: self.prompt_tokens(), sequences }
    }

    /// Tokens of the text that the client sent.
    pub fn prompt_tokens(&self) -> usize {
        self.paths.client_tokens()
    }

    /// The tokens of a sequence from the `from`-th on, as far as their texts won't change any more.
    pub fn tokens(&self, sequence: usize, from: usize) -> &[SampledToken] {
        let draft = &self.drafts[sequence];
        // Without tokens, finding out whether text is held back would decode the prompt, in each step.
        if draft.tokens.len() <= from {
            return &[];
        }
        // What is held back goes to the last token if the sequence ends with it.
        let may_change = draft.finish.is_none() && draft.text.is_holding();
        &draft.tokens[from..draft.tokens.len() - usize::from(may_change)]
    }

    /// Sequences, ended or not.
    pub fn sequences(&self) -> usize {
        self.drafts.len()
    }

    /// Wants the distribution behind every sequence that goes on, each path once.
    fn ask(&mut self) {
        self.paths.want_nothing();
        let full = !self.options.choice.is_decided_by(self.options.listed, self.text.ends());
        for draft in self.drafts.iter().filter(|draft| draft.finish.is_none()) {
            let known = self.paths.next(draft.node).is_some();
            if !known && self.paths.wanted().iter().all(|wanted| wanted.node != draft.node) {
                self.paths.want(Wanted { node: draft.node, full, speculative: false });
            }
        }
    }

    /// Chooses a token for a sequence and adds it, or ends the sequence.
    fn extend(&mut self, index: usize) {
        let draft = &mut self.drafts[index];
        let Some(next) = self.paths.next(draft.node).cloned() else { return };
        let new: Vec<u32> = draft.tokens.iter().map(|token| token.id).collect();
        let history = History { prompt: self.paths.prompt(), new: &new };
        let (text, codec, so_far) = (&self.text, &self.codec, &draft.text);
        // An encoder-decoder may generate ids that the tokenizer lacks.
        let any = self.paths.source().is_some();
        let may_end = new.len() >= self.options.choice.min_new_tokens;
        let offered = |id: u32| (any || codec.has(id)) && (may_end || !text.is_end(TokenId(id)));
        let allowed = |id: u32| !so_far.is_blocked(text, Some(id).filter(|&id| !text.is_end(TokenId(id))));
        let number = draft.random.random::<f64>();
        let Some((id, logprob)) = self.options.choice.choose(&next, history, number, (offered, allowed)) else {
            draft.finish(SequenceFinish::Blocked);
            return;
        };
        let other = |(id, logprob)| OtherToken { id, text: so_far.text_of(id), logprob };
        let best = next.best().take(self.options.told).map(other).collect();
        let mut token = SampledToken { id, text: String::new(), logprob, special: codec.is_special(id), best };
        if text.is_end(TokenId(id)) {
            draft.end = Some(token);
            draft.finish(SequenceFinish::EndOfText);
            return;
        }
        token.text = draft.text.push(id);
        draft.tokens.push(token);
        if draft.text.is_stopped() {
            draft.finish = Some(SequenceFinish::Stop);
            return;
        }
        draft.node = self.paths.child(draft.node, TokenId(id));
        let full = self.paths.depth(draft.node) > self.options.context;
        if full || draft.tokens.len() >= self.options.max_new_tokens {
            draft.finish(SequenceFinish::Length);
        }
    }
}

impl Draft {
    /// Ends the sequence; what was held back goes to its last token.
    fn finish(&mut self, finish: SequenceFinish) {
        let rest = self.text.release_rest();
        if let Some(last) = self.tokens.last_mut() {
            last.text.push_str(&rest);
        }
        self.finish = Some(if self.text.is_stopped() { SequenceFinish::Stop } else { finish });
    }
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
