//! Beam search behind a prompt, as a state machine beside sampling: what Hugging Face transformers' `generate` does
//! with `num_beams`.
//!
//! A *beam* is a continuation that is still extended, and a *hypothesis* one that has ended. In each round every beam
//! is scored with every token: the sum of the log-probabilities, each changed by the penalties of
//! [`crate::TokenChoice`]. Of these candidates the best are kept, at least twice as many as there are beams. The best
//! that have not ended are the next beams; those that have ended among the best become hypotheses, scored by length.
//! Nothing is drawn.

use std::cmp::Ordering;
use std::sync::Arc;

use super::detokenizer::Detokenizer;
use super::distribution::Distribution;
use super::paths::{NodeIndex, Paths, Prompt, Wanted};
use super::sampling::{Generated, OtherToken, SampledToken, SamplingOptions, Sequence, SequenceFinish};
use super::token_choice::History;
use crate::text::codec::Codec;
use crate::text::{Text, TextError, TokenId};

/// How a prompt is searched with beams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beams {
    /// Beams that are extended at once, at least 1, and as many hypotheses are kept.
    pub count: usize,
    /// A hypothesis' score is its log-probability divided by its new tokens to this power.
    pub length_penalty: f32,
    /// When the search ends.
    pub early_stopping: EarlyStopping,
}

/// When a beam search ends, given as many hypotheses as beams. Without these it ends at the length limit only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// When the best beam, ended where it is, would not be better than the worst hypothesis: transformers' `False`.
    #[default]
    Unlikely,
    /// At once: `True`.
    Full,
    /// When no beam can become better than the worst hypothesis, however long it gets: `"never"`.
    Never,
}

/// A continuation that is extended.
struct Beam {
    node: NodeIndex,
    /// Its last token.
    last: Option<LinkIndex>,
    /// Sum of the processed log-probabilities of its tokens.
    score: f32,
    text: Detokenizer,
}

/// A continuation that has ended.
struct Hypothesis {
    last: Option<LinkIndex>,
    /// The score that counts: by length.
    score: f32,
    finish: Option<SequenceFinish>,
}

/// A token of one or more continuations that begin alike. Its text is made when the answer is.
struct Link {
    above: Option<LinkIndex>,
    token: SampledToken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct LinkIndex(usize);

/// A beam with one more token.
struct Candidate {
    beam: usize,
    id: u32,
    score: f32,
}

/// The state machine. See the module's documentation.
pub struct BeamSearch {
    text: Arc<Text>,
    codec: Arc<Codec>,
    options: SamplingOptions,
    beams: Beams,
    /// Candidates that are kept in a round.
    keep: usize,
    /// Most new tokens.
    limit: usize,
    paths: Paths,
    /// Best first.
    running: Vec<Beam>,
    /// Best first, at most as many as beams.
    hypotheses: Vec<Hypothesis>,
    links: Vec<Link>,
    /// New tokens of every beam.
    length: usize,
    /// Whether whole rows of the vocabulary are needed.
    full: bool,
    /// The round's candidates so far, and the distributions of the beams they come from, in the beams' order.
    candidates: Vec<Candidate>,
    distributions: Vec<Arc<Distribution>>,
    /// A text without tokens.
    blank: Detokenizer,
    done: bool,
}

impl BeamSearch {
    /// Starts a search behind a prompt, which has at least one token and leaves room in the context. Of the options,
    /// seed and what belongs to drawing mean nothing; `sequences` is at most the number of beams.
    ///
    /// # Errors
    /// The tokenizer can't be read.
    pub fn new(
        text: Arc<Text>,
        prompt: impl Into<Prompt>,
        options: SamplingOptions,
        beams: Beams,
    ) -> Result<Self, TextError> {
        let (prompt, codec) = (prompt.into(), text.codec()?);
        let blank = Detokenizer::behind(&prompt, Arc::clone(&codec), options.stop.clone());
        // A beam has at most as many candidates that end it as there are end tokens.
        let keep = beams.count * (1 + text.ends()).max(2);
        // Nothing is computed behind the last token, so it needs no position.
        let limit = options.max_new_tokens.min((options.context + 1).saturating_sub(prompt.tokens.len())).max(1);
        let full = !options.choice.best_are_listed(keep, options.listed, text.ends());
        let first = Beam { node: Paths::ROOT, last: None, score: 0.0, text: blank.clone() };
        let mut search = Self {
            codec,
            options,
            beams,
            keep,
            limit,
            paths: Paths::new(prompt),
            running: vec![first],
            hypotheses: Vec::new(),
            links: Vec::new(),
            length: 0,
            full,
            candidates: Vec::new(),
            distributions: Vec::new(),
            blank,
            done: false,
            text,
        };
        search.ask();
        Ok(search)
    }

    /// Distributions that it may still need.
    pub fn remaining(&self) -> usize {
        if self.done { 0 } else { self.beams.count * (self.limit - self.length) }
    }

    /// The paths it refers to and what it wants of them.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// See [`BeamSearch::paths`].
    pub fn paths_mut(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// Whether the answer is found.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Tokens of the text that the client sent.
    pub fn prompt_tokens(&self) -> usize {
        self.paths.client_tokens()
    }

    /// Scores the tokens of up to `most` beams, which takes time in proportion. Once all beams are scored, it takes the
    /// next ones and waits for their distributions. Those that it waited for must have been supplied. Returns how many
    /// beams were scored.
    pub fn advance(&mut self, most: usize) -> usize {
        debug_assert!(!self.paths.is_waiting(), "a distribution is missing");
        let mut scored = 0;
        while !self.done && self.distributions.len() < self.running.len() && scored < most {
            scored += 1;
            if !self.score(self.distributions.len()) {
                self.full = true;
                self.candidates.clear();
                self.distributions.clear();
                self.ask();
                return scored;
            }
        }
        if !self.done && self.distributions.len() == self.running.len() {
            self.take_best();
            self.ask();
        }
        scored
    }

    /// The best hypotheses; before the end, the beams are among them.
    pub fn generated(&self) -> Generated {
        let beams = self.running.iter().filter(|_| !self.done).map(|beam| Hypothesis {
            last: beam.last,
            score: self.by_length(beam.score),
            finish: None,
        });
        let ended =
            self.hypotheses.iter().map(|&Hypothesis { last, score, finish }| Hypothesis { last, score, finish });
        let mut all: Vec<Hypothesis> = ended.chain(beams).collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        let sequences = all.iter().take(self.options.sequences).map(|one| self.sequence(one)).collect();
        Generated { prompt_tokens: self.prompt_tokens(), sequences }
    }

    /// Wants the distribution behind every beam.
    fn ask(&mut self) {
        self.paths.want_nothing();
        if self.done {
            return;
        }
        for beam in &self.running {
            self.paths.want(Wanted { node: beam.node, full: self.full, speculative: false });
        }
    }

    /// Adds the best candidates of a beam to the round's. Whether its distribution lists enough tokens for that.
    fn score(&mut self, index: usize) -> bool {
        let beam = &self.running[index];
        let Some(next) = self.paths.take_next(beam.node) else { return false };
        let new = self.ids(beam.last);
        let history = History { prompt: self.paths.prompt(), new: &new };
        let any = self.paths.source().is_some();
        let may_end = new.len() >= self.options.choice.min_new_tokens;
        let (text, codec, keep) = (&self.text, &self.codec, self.keep);
        let is_end = |id| text.is_end(TokenId(id));
        let mut scored: Vec<(u32, f32)> = next.known().collect();
        scored.retain(|&(id, _)| (any || codec.has(id)) && (may_end || !is_end(id)));
        if scored.len() < keep && !next.is_full() && next.unlisted_bound().is_some() {
            return false;
        }
        self.options.choice.process(&mut scored, history);
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if text.has_blocklist() {
            scored.sort_unstable_by(order);
            let allowed = |&(id, _): &(u32, f32)| !beam.text.is_blocked(text, Some(id).filter(|&id| !is_end(id)));
            scored = scored.into_iter().filter(allowed).take(keep).collect();
        } else if scored.len() > keep {
            scored.select_nth_unstable_by(keep, order);
            scored.truncate(keep);
        }
        let candidate = |(id, score)| Candidate { beam: index, id, score: beam.score + score };
        self.candidates.extend(scored.into_iter().map(candidate));
        self.distributions.push(next);
        true
    }

    /// Ends a round: the best candidates become the next beams, or hypotheses.
    fn take_best(&mut self) {
        let mut candidates = std::mem::take(&mut self.candidates);
        let distributions = std::mem::take(&mut self.distributions);
        let before = std::mem::take(&mut self.running);
        candidates.sort_by(better);
        candidates.truncate(self.keep);
        if candidates.is_empty() {
            // Every token is taken out, or is one of a blocked term.
            let finish = Some(SequenceFinish::Blocked);
            let ended = |beam: &Beam| Hypothesis { last: beam.last, score: self.by_length(beam.score), finish };
            let ended: Vec<Hypothesis> = before.iter().map(ended).collect();
            self.hypotheses.extend(ended);
            self.done = true;
            return;
        }
        self.length += 1;
        for (rank, candidate) in candidates.iter().enumerate() {
            let beam = &before[candidate.beam];
            let is_end = self.text.is_end(TokenId(candidate.id));
            let mut text = beam.text.clone();
            if !is_end {
                text.push(candidate.id);
            }
            let finish = match () {
                () if is_end => Some(SequenceFinish::EndOfText),
                () if text.is_stopped() => Some(SequenceFinish::Stop),
                () if self.length == self.limit => Some(SequenceFinish::Length),
                () => None,
            };
            match finish {
                // A good end among many better beginnings is none of the best.
                Some(_) if rank < self.beams.count => {
                    let last = Some(self.link(beam, candidate, &distributions[candidate.beam]));
                    self.hypotheses.push(Hypothesis { last, score: self.by_length(candidate.score), finish });
                }
                None if self.running.len() < self.beams.count => {
                    let last = Some(self.link(beam, candidate, &distributions[candidate.beam]));
                    let node = self.paths.child(beam.node, TokenId(candidate.id));
                    self.running.push(Beam { node, last, score: candidate.score, text });
                }
                _ => {}
            }
        }
        self.hypotheses.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.hypotheses.truncate(self.beams.count);
        self.done = self.is_over();
    }

    /// Whether no beam is worth another round.
    fn is_over(&self) -> bool {
        let Some(best) = self.running.first() else { return true };
        let worst = self.hypotheses.last().filter(|_| self.hypotheses.len() == self.beams.count);
        let Some(worst) = worst else { return false };
        let longest = self.beams.length_penalty > 0.0;
        let reachable = match self.beams.early_stopping {
            EarlyStopping::Full => return true,
            EarlyStopping::Never if longest => best.score / self.divisor(self.limit),
            EarlyStopping::Never | EarlyStopping::Unlikely => self.by_length(best.score),
        };
        reachable <= worst.score
    }

    /// A score of the round's length as that of a hypothesis.
    fn by_length(&self, score: f32) -> f32 {
        score / self.divisor(self.length)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the reference's scores are f32")]
    fn divisor(&self, length: usize) -> f32 {
        (length.max(1) as f64).powf(f64::from(self.beams.length_penalty)) as f32
    }

    /// Keeps a candidate's token.
    fn link(&mut self, beam: &Beam, candidate: &Candidate, next: &Distribution) -> LinkIndex {
        let id = candidate.id;
        let other = |(id, logprob)| OtherToken { id, text: beam.text.text_of(id), logprob };
        let best = next.best().take(self.options.told).map(other).collect();
        let logprob = next.log_prob(id).unwrap_or(f32::NEG_INFINITY);
        let token = SampledToken { id, text: String::new(), logprob, special: self.codec.is_special(id), best };
        self.links.push(Link { above: beam.last, token });
        LinkIndex(self.links.len() - 1)
    }

    /// The tokens of a continuation, in order.
    fn tokens(&self, last: Option<LinkIndex>) -> Vec<&SampledToken> {
        let above = |link: &LinkIndex| self.links[link.0].above;
        let mut tokens: Vec<_> = std::iter::successors(last, above).map(|link| &self.links[link.0].token).collect();
        tokens.reverse();
        tokens
    }

    fn ids(&self, last: Option<LinkIndex>) -> Vec<u32> {
        self.tokens(last).into_iter().map(|token| token.id).collect()
    }

    /// A continuation with the texts of its tokens.
    fn sequence(&self, one: &Hypothesis) -> Sequence {
        let mut tokens: Vec<SampledToken> = self.tokens(one.last).into_iter().cloned().collect();
        let end = (one.finish == Some(SequenceFinish::EndOfText)).then(|| tokens.pop()).flatten();
        let mut text = self.blank.clone();
        for token in &mut tokens {
            token.text = text.push(token.id);
        }
        let stopped = text.is_stopped();
        let rest = if stopped { String::new() } else { text.release_rest() };
        if let Some(last) = tokens.last_mut() {
            last.text.push_str(&rest);
        }
        let finish = if text.is_stopped() { Some(SequenceFinish::Stop) } else { one.finish };
        Sequence { text: text.released().to_owned(), tokens, finish, end }
    }
}

/// The better candidate first; of equal ones that of the better beam.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.score.total_cmp(&a.score).then(a.beam.cmp(&b.beam)).then(a.id.cmp(&b.id))
}

#[cfg(test)]
#[path = "beam_search_tests.rs"]
mod tests;
