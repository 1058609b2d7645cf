//! Extends the steps of a search for corrections by tokens.
//!
//! Tokens that need no edit are found by the typed text. Those that need one more are found by [`TokenFilter`]. Each is
//! aligned with the typed text, and becomes a step if that reaches the floor of its level.

use std::f64::consts::LN_2;
use std::sync::Arc;

use super::{Corrections, Step};
use crate::distribution::{Distribution, log_add};
use crate::paths::Paths;
use crate::search::token_filter::{Floor, From, TokenFilter};
use crate::search::token_walk::TokenWalk;
use crate::search::{Prefix, Search};
use crate::text::{Role, Text, TokenId};
use crate::typing::Typed;
use crate::typing::alignment::{Alignment, Ways};
use crate::typing::exact_reading::WordStart;

/// What fits behind a step without one more edit.
pub(super) struct Fitting {
    /// The tokens that are probable enough, sorted.
    tokens: Vec<TokenId>,
    /// See [`Step::next_word`].
    next_word: (WordStart, f32),
}

/// A token that may follow a step.
struct Extension {
    token: TokenId,
    log_prob: f32,
    /// Whether it goes on with the text as it stands.
    is_exact: bool,
    /// The word that its last character is in, and what the ways before that word cost at least.
    word: (WordStart, f32),
}

/// Tokens that may follow a step, with their log-probabilities.
struct Extensions<'a> {
    tokens: Vec<(TokenId, f32)>,
    /// Whether they may go on with the text as it stands.
    is_exact: bool,
    /// A bound on the raised log-probability of those that are in an unknown word.
    raised: f64,
    /// The word of those that begin with a space: see [`Step::next_word`].
    next_word: (WordStart, f32),
    floor: &'a Floor,
}

impl<'a> Extensions<'a> {
    /// Tokens that don't fit without one more edit, if at all.
    fn others(tokens: Vec<(TokenId, f32)>, next_word: (WordStart, f32), floor: &'a Floor) -> Self {
        Self { tokens, is_exact: false, raised: f64::NEG_INFINITY, next_word, floor }
    }
}

/// How the text of a step and one more token became the typed text.
struct Aligned<'a> {
    alignment: &'a Alignment,
    /// Bytes of the text that are aligned.
    aligned: usize,
}

/// What the tokens that fit behind a step must reach.
struct FittingFloor<'a> {
    corrections: &'a Corrections,
    text: &'a Text,
    /// The words that a token may be in.
    words: [&'a WordStart; 2],
    floor: &'a Floor,
    /// Typed characters.
    typed: usize,
    /// Characters at the beginning of a token that weren't typed.
    added_space: usize,
    /// The highest log-probability of what was dropped before: what is dropped above it has to be known exactly.
    best_dropped: f64,
}

impl FittingFloor<'_> {
    /// Whether the step that a token leads to may be probable enough to be followed, or to count as dropped. The token
    /// goes on from `ways`, and `known` is the raised log-probability of its path.
    fn admits(&self, token: TokenId, known: f64, ways: Ways) -> bool {
        let length = self.text.folded().length(token).filter(|&length| length > 0);
        // Of other tokens it is not known how far they lead.
        let characters = length.unwrap_or_else(|| {
            let bytes = self.text.bytes(token).unwrap_or_default();
            bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
        });
        let end = (ways.level + characters).saturating_sub(self.added_space);
        let least = match length {
            Some(_) => self.floor.at(end.saturating_sub(self.corrections.level)),
            None => self.floor.least,
        };
        let cost = f64::from(ways.cost);
        if known - cost >= least {
            return true;
        }
        // In an unknown word, the model's probability of a token says little. It ends where what was typed ends.
        let unknown = if end > self.typed {
            f64::NEG_INFINITY
        } else {
            let before = length.map_or(ways.level, |_| end.saturating_sub(1));
            self.corrections.raised_bound(self.words, before)
        };
        // The sum of two probabilities is at most twice the larger one.
        (known + LN_2).max(unknown) - cost >= least.min(self.best_dropped.max(self.floor.least))
    }
}

impl Search {
    /// Completes queries that end behind a step, and extends it by the tokens that fit without one more edit.
    pub(super) fn extend_by_fitting(&mut self, typing: &Typed, corrections: &mut Corrections, step: &Step) -> Fitting {
        let next_word = step.next_word(typing);
        let Some(next) = self.paths.next(step.node).cloned() else { return Fitting { tokens: Vec::new(), next_word } };
        self.end_step(step, &next);
        let start = step.raised();
        let is_exact = step.is_exact();
        let floor = corrections.floor();
        let words = [&step.word.0, &next_word.0];
        let raised = corrections.raised_bound(words, step.alignment.cheapest(typing).1);
        let added_space = usize::from(self.has_added_space(step));
        let must = FittingFloor {
            corrections,
            text: &self.text,
            words,
            floor: &floor,
            typed: typing.len(),
            added_space,
            best_dropped: self.best_dropped,
        };
        let most = next.best().next().map_or(0.0, |(_, log_prob)| f64::from(log_prob));
        let budget = (start + most).max(raised) + LN_2 - floor.least;
        let mut tokens = self.fitting_tokens(typing, step, &next, budget, |token, log_prob, ways| {
            must.admits(token, start + f64::from(log_prob), ways)
        });
        tokens.sort_unstable_by_key(|&(token, _)| token);
        tokens.dedup_by_key(|&mut (token, _)| token);
        let fitting = Fitting { tokens: tokens.iter().map(|&(token, _)| token).collect(), next_word };
        self.extend_by(typing, corrections, step, Extensions { tokens, is_exact, raised, next_word, floor: &floor });
        fitting
    }

    /// Extends a step by the tokens that need one more edit, if it may have one.
    pub(super) fn extend_by_others(
        &mut self,
        typing: &Typed,
        corrections: &mut Corrections,
        step: &Step,
        fitting: &Fitting,
    ) {
        let Some(next) = self.paths.next(step.node).cloned() else { return };
        if step.alignment.finished().is_some() {
            // Every token fits behind a reading.
            self.extend_finished(typing, corrections, step, &next, fitting);
        } else if step.alignment.may_be_edited(typing) {
            self.extend_by_edits(typing, corrections, step, &next, fitting);
        }
    }

    /// Extends a step by tokens that need one more edit: by the listed ones first, because they raise what the others
    /// must reach. `fitting` are those that need none.
    fn extend_by_edits(
        &mut self,
        typing: &Typed,
        corrections: &mut Corrections,
        step: &Step,
        next: &Distribution,
        fitting: &Fitting,
    ) {
        let Fitting { tokens: fitting, next_word } = fitting;
        let next_word = *next_word;
        let least_edit = step.alignment.least_edit(typing);
        let start = step.score - f64::from(least_edit);
        let text = Arc::clone(&self.text);
        let Step { alignment, reach, score, .. } = step;
        let skips_space = self.has_added_space(step);
        let is_exact = step.is_whole() && step.is_exact();
        let from =
            From { alignment, level: corrections.level, reach, score: *score, least_edit, skips_space, is_exact };
        let filter = TokenFilter::new(text.folded(), typing, &from);
        let is_new = |token: &TokenId| fitting.binary_search(token).is_err();
        let floor = corrections.floor();
        let at_floor = filter.at(&floor);
        let least = at_floor.least();
        // An error at the space before an unknown word leaves that as it was typed.
        let (word, cost) = &next_word;
        let is_behind_text = step.prefix.text.last().is_some_and(|&last| last != b' ');
        let unknown = if is_behind_text && *cost > alignment.cheapest(typing).0 {
            corrections.raised_bound([word, word], word.at) - f64::from(*cost)
        } else {
            f64::NEG_INFINITY
        };
        // Ways below all floors are dropped without a trace.
        let most = next.best().next().map_or(f64::NEG_INFINITY, |(_, log_prob)| start + f64::from(log_prob));
        self.best_dropped = self.best_dropped.max(unknown.min(floor.most)).max(most.min(floor.least));
        let mut tokens = Vec::new();
        for (token, log_prob) in next.best().map(|(token, log_prob)| (TokenId(token), log_prob)) {
            if f64::from(log_prob) < least {
                break;
            }
            if at_floor.may_reach(token, log_prob) {
                tokens.extend(is_new(&token).then_some((token, log_prob)));
            } else if start + f64::from(log_prob) > self.best_dropped && is_new(&token) {
                self.best_dropped = self.best_dropped.max(at_floor.dropped(token, log_prob));
            }
        }
        let floor = if tokens.is_empty() {
            floor
        } else {
            self.extend_by(typing, corrections, step, Extensions::others(tokens, next_word, &floor));
            corrections.floor()
        };
        let Some(bound) = next.unlisted_bound() else { return };
        let highest = start + f64::from(bound);
        self.best_dropped = self.best_dropped.max(highest.min(floor.most));
        if highest < floor.least {
            return;
        }
        let Some(row) = next.row() else { return };
        let least = (floor.least - start) as f32;
        let mut tokens = filter.at(&floor).find(row, least..=bound);
        tokens.retain(|(token, _)| is_new(token) && !next.lists(token.0));
        self.extend_by(typing, corrections, step, Extensions::others(tokens, next_word, &floor));
    }

    /// The tokens that go on with what was typed without one more edit, from any place that the step's alignment has
    /// reached for at most `budget` nats, with their log-probabilities. `admits` says which are wanted, given the ways
    /// that each goes on from. Some come twice.
    fn fitting_tokens(
        &self,
        typing: &Typed,
        step: &Step,
        next: &Distribution,
        budget: f64,
        admits: impl Fn(TokenId, f32, Ways) -> bool,
    ) -> Vec<(TokenId, f32)> {
        let folded = self.text.folded();
        let (mut tokens, mut fitting) = (Vec::new(), Vec::new());
        let space = self.has_added_space(step).then_some(' ');
        for ways in step.alignment.reached(typing).filter(|ways| f64::from(ways.cost) <= budget) {
            let rest = &typing.folded.characters[ways.level..];
            let text = space.into_iter().chain(rest.iter().copied());
            // Looked up in one pass, before anything is asked of them: see `TokenFilter::find`.
            fitting.extend(folded.fitting(text).filter_map(|token| Some((token, next.log_prob(token.0)?))));
            if !step.is_whole() || !rest.iter().all(char::is_ascii) {
                let parts = folded.parts().iter();
                fitting.extend(parts.filter_map(|&token| Some((token, next.log_prob(token.0)?))));
            }
            tokens.extend(fitting.drain(..).filter(|&(token, log_prob)| admits(token, log_prob, ways)));
        }
        tokens
    }

    /// Whether the tokens behind a step begin with a space that the tokenizer put before the text.
    fn has_added_space(&self, step: &Step) -> bool {
        self.adds_space && step.node == Paths::ROOT
    }

    /// Expands a step whose text is a reading already, though a longer one may be a cheaper one.
    fn extend_finished(
        &mut self,
        typing: &Typed,
        corrections: &mut Corrections,
        step: &Step,
        next: &Distribution,
        fitting: &Fitting,
    ) {
        let floor = corrections.floor();
        let start = step.score;
        let bound = next.unlisted_bound().map_or(f64::NEG_INFINITY, f64::from);
        self.best_dropped = self.best_dropped.max((start + bound).min(floor.most));
        let near = next.known().filter(|&(_, log_prob)| start + f64::from(log_prob) >= floor.least);
        let near = near.map(|(token, log_prob)| (TokenId(token), log_prob));
        let tokens = near.filter(|(token, _)| fitting.tokens.binary_search(token).is_err()).collect();
        self.extend_by(typing, corrections, step, Extensions::others(tokens, fitting.next_word, &floor));
    }

    /// Adds the steps that tokens lead to.
    fn extend_by(&mut self, typing: &Typed, corrections: &mut Corrections, step: &Step, extensions: Extensions<'_>) {
        let Extensions { mut tokens, is_exact, raised, next_word, floor } = extensions;
        if tokens.is_empty() {
            return;
        }
        let most = tokens.iter().map(|token| token.1).fold(f32::NEG_INFINITY, f32::max);
        let budget = ((step.raised() + f64::from(most)).max(raised) - floor.least) as f32;
        let text = Arc::clone(&self.text);
        let is_whole = step.is_whole();
        // The covering set has the readings.
        let may_be_reading = step.is_exact() && step.alignment.finished().is_none();
        tokens.sort_unstable_by_key(|&(token, _)| text.place(token));
        let mut walk = TokenWalk::new(typing, step.alignment, budget);
        for (token, log_prob) in tokens {
            let Some(bytes) = self.token_bytes(step.node == Paths::ROOT, token) else { continue };
            if may_be_reading && self.has_reading(&step.prefix.text, bytes) {
                continue;
            }
            let word = if bytes.first() == Some(&b' ') { next_word } else { step.word };
            let extension = Extension { token, log_prob, is_exact, word };
            let joined;
            let aligned = if is_whole {
                walk.align(bytes).map(|(alignment, length)| (alignment, step.aligned + length))
            } else {
                joined = self.align(typing, step, bytes, budget);
                joined.as_ref().map(|(alignment, aligned)| (alignment, *aligned))
            };
            if let Some((alignment, aligned)) = aligned {
                self.extend_step(corrections, typing, step, extension, Aligned { alignment, aligned });
            }
        }
    }

    /// The alignment behind a step and a token, with the bytes that are aligned; `None` if no way is left.
    fn align(&self, typing: &Typed, step: &Step, bytes: &[u8], budget: f32) -> Option<(Alignment, usize)> {
        let mut alignment = step.alignment;
        let pending = &step.prefix.text[step.aligned..];
        let aligned = step.aligned + alignment.push_bytes(typing, pending, bytes, budget);
        (!alignment.is_dead()).then_some((alignment, aligned))
    }

    /// Completes a query that ends behind a step.
    fn end_step(&mut self, step: &Step, next: &Distribution) {
        let Some(finished) = step.alignment.finished() else { return };
        let ends = next.best().filter(|&(token, _)| self.text.role(TokenId(token)) == Role::End);
        let ending = ends.fold(f64::NEG_INFINITY, |sum, (_, log_prob)| log_add(sum, f64::from(log_prob)));
        if ending > f64::NEG_INFINITY
            && self.text.may_end(&step.prefix.rule)
            && let Some(text) = self.presentable(&step.prefix.text, None)
        {
            let text = text.to_owned();
            self.completed.add(text, step.raised() + ending - f64::from(finished.cost));
        }
    }

    /// Adds the step that a token leads to, if it may follow.
    fn extend_step(
        &mut self,
        corrections: &mut Corrections,
        typing: &Typed,
        step: &Step,
        extension: Extension,
        aligned: Aligned<'_>,
    ) {
        let Extension { token, log_prob, is_exact, word } = extension;
        let Aligned { alignment: longer, aligned } = aligned;
        let Step { node, prefix, alignment, .. } = step;
        // The readings of which the text is the beginning.
        let exact = if longer.is_as_typed() { Some(0) } else { longer.is_plain().then_some(1) };
        if self.text.role(token) != Role::Text || (exact.is_some() && !is_exact) {
            return;
        }
        let Some(bytes) = self.token_bytes(*node == Paths::ROOT, token) else { return };
        // No query begins with a space, and a second one in a row makes no distinct query.
        let before =
            prefix.text.last().copied().unwrap_or_else(|| if self.typed().starts_with(' ') { b'x' } else { b' ' });
        if before == b' ' && bytes.first() == Some(&b' ') {
            return;
        }
        let joint = step.joint + f64::from(log_prob);
        let is_repeated = longer.finished().is_some() && self.has_reading(&prefix.text, bytes);
        let (cost, level) = longer.cheapest(typing);
        let is_beyond = level == typing.len() && longer.finished().is_some_and(|finished| finished.meant < aligned);
        let lift = match exact {
            Some(exact) if !is_repeated && self.goes_on(exact, &prefix.text, bytes) => {
                corrections.exact[exact].lift(prefix.text.len() + bytes.len(), joint)
            }
            // The word has no edit so far.
            _ if cost == word.1 && !is_beyond => corrections.unknown.lift(&word.0, level, joint),
            _ => step.lift,
        };
        let score = joint + lift - f64::from(cost);
        let level = level.max(corrections.level);
        let is_low = score < corrections.levels.floor(level);
        if is_low && !is_repeated && score <= self.best_dropped {
            return;
        }
        let Some(rule) = self.text.follow(&prefix.rule, token) else { return };
        if is_repeated {
            // The covering set has it, and a step before it may have been a reading.
            corrections.repeated.extend(alignment.finished().map(|before| joint + step.lift - f64::from(before.cost)));
            return;
        }
        if is_low {
            self.best_dropped = self.best_dropped.max(score);
            return;
        }
        let text = [&prefix.text[..], bytes].concat();
        if let Some(finished) = longer.finished() {
            // What this path has more than the one before it.
            let before = alignment.finished().map_or(0.0, |before| f64::from(-before.cost).exp());
            let more = f64::from(-finished.cost).exp() - before;
            corrections.readings.extend((more > 0.0).then(|| joint + lift + more.ln()));
        }
        corrections.levels.add(level, score);
        let node = self.paths.child(step.node, token);
        let reach = longer.reach(typing).unwrap_or(level..=level);
        let prefix = Prefix { rule, text, new_tokens: 0, reading: None };
        let alignment = *longer;
        corrections.steps[level].push(Step { node, joint, lift, word, prefix, alignment, aligned, score, reach });
    }
}
