//! The search for what the typed text may mean, level by level: a level is a number of typed characters.
//!
//! A step is a path of tokens with the alignment of its text to the typed one. It stands at the level that the cheapest
//! way of that alignment has reached. Levels are gone through in order. At each one the best few steps are expanded by
//! the tokens that keep an alignment alive, and the steps behind them go to later levels. At the last level all that
//! was typed is used up: these readings become beams of the search, as the openings of the covering set are.
//!
//! What is not as probable as the text as it stands, within the channel's range, is not followed. So a typed text that
//! the model expects costs next to nothing here. Steps without an edit are followed only to find edits behind them: the
//! covering set has the text as it stands, and is never pruned.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::levels::Levels;
use super::readings::Weight;
use super::token_filter::{Floor, From, TokenFilter};
use super::token_walk::TokenWalk;
use super::{Beam, Prefix, Search};
use crate::candidate::Candidate;
use crate::distribution::{Distribution, log_add, log_sum};
use crate::paths::{NodeIndex, Paths, Wanted};
use crate::text::{Role, TokenId};
use crate::typing::Typed;
use crate::typing::alignment::Alignment;
use crate::typing::exact_reading::{ExactReading, UnknownWord, WordStart};

/// A path whose text may be what was meant.
#[derive(Clone, Debug)]
struct Step {
    node: NodeIndex,
    /// Log-probability of the path's tokens.
    joint: f64,
    /// How much that is raised because the text has words that the model doesn't know: see [`UnknownWord`].
    lift: f64,
    /// The word that the text ends in, by levels, and what the ways before that word cost at least.
    word: (WordStart, f32),
    prefix: Prefix,
    alignment: Alignment,
    /// Bytes of the text that are aligned: all but those of an unfinished character.
    aligned: usize,
    /// The cost of the cheapest way in which it was typed so far, and the level that this way has reached.
    cheapest: (f32, usize),
    /// Log-probability of the path and of its cheapest way.
    score: f64,
    /// The levels that its ways have reached.
    reach: RangeInclusive<usize>,
}

/// The corrections that were found so far.
pub(super) struct Corrections {
    /// By level: steps that wait. `[typed characters + 1]`
    steps: Vec<Vec<Step>>,
    /// What steps must reach.
    levels: Levels,
    level: usize,
    /// Steps of this level that were expanded.
    expanded: usize,
    /// Steps that are expanded next; they wait for their distributions.
    selected: Vec<Step>,
    /// Log-probabilities of the readings found so far.
    readings: Vec<f64>,
    /// Log-probabilities of what `readings` has twice.
    repeated: Vec<f64>,
    /// The readings without an edit. `[readings]`
    exact: Vec<ExactReading>,
    /// Words that were typed right, and that the model doesn't know, of the others. By levels.
    unknown: UnknownWord,
}

impl Step {
    /// The log-probability of the path, raised.
    fn raised(&self) -> f64 {
        self.joint + self.lift
    }

    /// The word that a token's last character is in, and the cost before it. `bytes` are the token's.
    fn word_behind(&self, bytes: &[u8]) -> (WordStart, f32) {
        match bytes.first() {
            Some(b' ') => (WordStart::new(self.cheapest.1, self.joint, self.lift), self.cheapest.0),
            _ => self.word,
        }
    }
}

impl Corrections {
    /// What the tokens behind a step must reach.
    fn floor(&self, step: &Step) -> Floor {
        Floor::new(&self.levels, self.level, &step.reach)
    }

    /// A bound on the raised log-probability of what is typed right behind a step, if it is in an unknown word.
    fn raised_bound(&self, step: &Step) -> f64 {
        let next = (step.cheapest.1 + 1).min(self.levels.last());
        let words = [step.word.0, step.word_behind(b" ").0];
        let unknown = words.map(|word| self.unknown.log_prob(&word, next));
        unknown[0].max(unknown[1]) + std::f64::consts::LN_2
    }

    /// Nodes of the steps that wait at later levels, as far as they will be expanded if nothing better turns up. Those
    /// come first that are least below the best reading of their level.
    pub(super) fn later_nodes(&self) -> Vec<NodeIndex> {
        let mut later = Vec::new();
        for (level, steps) in self.steps.iter().enumerate().skip(self.level + 1) {
            let floor = self.levels.floor(level);
            let near = steps.iter().filter(|step| step.score >= floor);
            later.extend(near.map(|step| (self.levels.below_best(level, step.score), step.node)));
        }
        later.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        later.into_iter().map(|(_, node)| node).collect()
    }
}

/// A token that may follow a step.
struct Extension {
    token: TokenId,
    log_prob: f32,
    /// Whether it goes on with the text as it stands.
    is_exact: bool,
}

/// Tokens that may follow a step, with their log-probabilities.
struct Extensions<'a> {
    tokens: Vec<(TokenId, f32)>,
    /// Whether they may go on with the text as it stands.
    is_exact: bool,
    /// A bound on the raised log-probability of those that are in an unknown word.
    raised: f64,
    floor: &'a Floor,
}

/// How the text of a step and one more token became the typed text.
struct Aligned<'a> {
    alignment: &'a Alignment,
    /// Bytes of the text that are aligned.
    aligned: usize,
}

impl Search {
    /// Begins to look for corrections, if any are allowed, and finds out how much each reading is raised because it has
    /// words that the model doesn't know. `joints` are those of the openings' nodes.
    pub(super) fn begin_corrections(&mut self, joints: &[f64], weights: &mut [Weight]) {
        let (Some(mut typing), Some(prefix)) = (self.typing.take(), self.prefix_of(&[], None)) else { return };
        // A style that the model finds improbable is none that it knows queries in.
        let is_style = |plain: &Weight| weights[0].joint < plain.joint - self.readings[1].cost;
        typing.raw_has_edits = !weights.get(1).is_some_and(is_style);
        let mut best = vec![f64::NEG_INFINITY; typing.len() + 1];
        let mut exact = Vec::new();
        for (index, reading) in self.readings.iter().enumerate() {
            let nodes = self.beginnings(reading, joints);
            let joint = |at: usize| nodes.iter().filter(|node| node.0 == at).map(|node| node.1).reduce(f64::max);
            let is_followed = index > 0 || typing.raw_has_edits;
            let unknown = if is_followed { self.text.channel().unknown } else { 0.0 };
            let read = ExactReading::new(&reading.text, unknown, self.text.unknown_words(), joint);
            let Weight { joint, lift } = &mut weights[index];
            *lift = read.lift(reading.text.len(), *joint);
            best[typing.len()] = best[typing.len()].max(*joint + *lift - reading.cost);
            for (at, joint) in nodes.into_iter().filter(|_| is_followed) {
                let Some(beginning) = reading.text.get(..at) else { continue };
                let level = typing.level(beginning.chars().count());
                best[level] = best[level].max(joint + read.lift(at, joint) - reading.cost);
            }
            exact.push(read);
        }
        let all = self.readings.iter().zip(&*weights);
        let readings = all.map(|(reading, weight)| weight.joint + weight.lift - reading.cost).collect();
        let levels = Levels::new(best, self.text.channel().beams, self.text.channel().range_nats);
        let alignment = Alignment::start(&typing);
        let mut steps = vec![Vec::new(); typing.len() + 1];
        let cheapest = alignment.cheapest(&typing);
        let (score, word) = (-f64::from(cheapest.0), (WordStart::default(), cheapest.0));
        let reach = alignment.reach(&typing).unwrap_or(0..=0);
        let (node, joint, lift, aligned) = (Paths::ROOT, 0.0, 0.0, 0);
        steps[0].push(Step { node, joint, lift, word, prefix, alignment, aligned, cheapest, score, reach });
        let (selected, repeated) = (Vec::new(), Vec::new());
        let unknown = self.unknown_word(&typing);
        self.typing = Some(typing);
        self.corrections =
            Some(Corrections { steps, levels, level: 0, expanded: 0, selected, readings, repeated, exact, unknown });
    }

    /// What was typed, as words that the model doesn't know. By levels.
    fn unknown_word(&self, typing: &Typed) -> UnknownWord {
        let plain = self.readings.last().map_or("", |reading| &reading.text);
        let by_bytes = self.text.unknown_words().log_probs(plain);
        let mut by_levels = vec![0.0; typing.len() + 1];
        let places = plain.char_indices().map(|(at, _)| at).chain([plain.len()]);
        for (characters, at) in places.enumerate() {
            by_levels[typing.level(characters)..].fill(by_bytes[at]);
        }
        UnknownWord::new(by_levels, self.text.channel().unknown)
    }

    /// Goes on until a distribution is missing, or to the end: `true` at the end.
    pub(super) fn find_corrections(&mut self) -> bool {
        let (Some(mut corrections), Some(typing)) = (self.corrections.take(), self.typing.take()) else { return true };
        let ended = loop {
            let selected = std::mem::take(&mut corrections.selected);
            // Tokens without one more edit come first: they raise what the others must reach.
            let fitting: Vec<_> =
                selected.iter().map(|step| self.extend_by_fitting(&typing, &mut corrections, step)).collect();
            for (step, fitting) in selected.iter().zip(&fitting) {
                self.extend_by_others(&typing, &mut corrections, step, fitting);
            }
            if corrections.level == typing.len() {
                break true;
            }
            self.select_steps(&mut corrections);
            if corrections.selected.is_empty() {
                corrections.level += 1;
                corrections.expanded = 0;
                continue;
            }
            let missing: Vec<NodeIndex> = corrections.selected.iter().map(|step| step.node).collect();
            let missing: Vec<_> = missing.into_iter().filter(|&node| self.paths.next(node).is_none()).collect();
            for &node in &missing {
                // Whole rows: what was meant is often not among the most probable tokens.
                self.paths.want(Wanted { node, full: true, speculative: false });
            }
            if !missing.is_empty() {
                break false;
            }
        };
        if ended {
            self.end_corrections(corrections);
        } else {
            self.corrections = Some(corrections);
        }
        self.typing = Some(typing);
        ended
    }

    /// Selects the steps of the level that are expanded next.
    fn select_steps(&mut self, corrections: &mut Corrections) {
        let (beams, level) = (self.text.channel().beams, corrections.level);
        let mut steps = std::mem::take(&mut corrections.steps[level]);
        steps.sort_by(|a, b| b.score.total_cmp(&a.score));
        let worst = corrections.levels.floor(level);
        for step in steps {
            let (score, depth) = (step.score, self.paths.depth(step.node));
            if score < worst || corrections.expanded == beams || depth > self.options.context {
                self.best_dropped = self.best_dropped.max(score);
            } else {
                corrections.expanded += 1;
                corrections.selected.push(step);
            }
        }
    }

    /// Makes beams of the readings.
    fn end_corrections(&mut self, mut corrections: Corrections) {
        let positive = log_sum(corrections.readings.iter().copied());
        let negative = log_sum(corrections.repeated.iter().copied());
        self.readings_log_prob = positive + (-(negative - positive).exp()).ln_1p();
        let least = corrections.levels.best_of_all() - self.text.channel().reading_nats;
        let Some(mut readings) = corrections.steps.pop() else { return };
        readings.retain(|reading| !self.text.blocks(&reading.prefix.text, false));
        for reading in readings {
            let joint = reading.score;
            if joint < least || self.paths.depth(reading.node) > self.options.context {
                self.best_dropped = self.best_dropped.max(joint);
                continue;
            }
            let meant = reading.alignment.finished().map_or(0, |finished| finished.meant);
            let new_tokens = usize::from(reading.prefix.text.len() > meant);
            let prefix = Prefix { new_tokens, ..reading.prefix };
            let beam = self.beams.len();
            self.beams.push(Beam { node: reading.node, joint, prefix });
            self.frontier.push(Self::slot(new_tokens, None), Candidate { joint, beam, token: None });
        }
    }

    /// Completes queries that end behind a step, and extends it by the tokens that fit without one more edit. Returns
    /// those that are probable enough, sorted.
    fn extend_by_fitting(&mut self, typing: &Typed, corrections: &mut Corrections, step: &Step) -> Vec<TokenId> {
        let Some(next) = self.paths.next(step.node).cloned() else { return Vec::new() };
        self.end_step(step, &next);
        let start = step.raised();
        let is_exact = step.alignment.is_as_typed() || step.alignment.is_plain();
        let floor = corrections.floor(step);
        let (cost, level) = step.cheapest;
        let lowest = f64::from(cost) + floor.least - start;
        // In an unknown word, the model's probability of a token says little. Such a word ends where the typed text ends.
        let raised = corrections.raised_bound(step);
        let longest = if raised - f64::from(cost) >= floor.least { typing.len() - level } else { 0 };
        let may_be_unknown = |token: TokenId| {
            let bytes = self.text.bytes(token).unwrap_or_default();
            bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() <= longest
        };
        let fitting = self.fitting_tokens(typing, step, start - floor.least);
        let known = fitting.into_iter().filter_map(|token| Some((token, next.log_prob(token.0)?)));
        let is_near = |&(token, log_prob): &(_, f32)| f64::from(log_prob) >= lowest || may_be_unknown(token);
        let mut tokens: Vec<_> = known.filter(is_near).collect();
        tokens.sort_unstable_by_key(|&(token, _)| token);
        tokens.dedup_by_key(|&mut (token, _)| token);
        let fitting = tokens.iter().map(|&(token, _)| token).collect();
        self.extend_by(typing, corrections, step, Extensions { tokens, is_exact, raised, floor: &floor });
        fitting
    }

    /// Extends a step by the tokens that need one more edit, if it may have one.
    fn extend_by_others(&mut self, typing: &Typed, corrections: &mut Corrections, step: &Step, fitting: &[TokenId]) {
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
        fitting: &[TokenId],
    ) {
        let least_edit = f64::from(typing.costs.least_edit());
        let start = step.score - least_edit;
        let text = Arc::clone(&self.text);
        let Step { alignment, reach, score, .. } = step;
        let skips_space = self.has_added_space(step);
        let from = From { alignment, level: corrections.level, reach, score: *score, skips_space };
        let filter = TokenFilter::new(text.folded(), typing, &from);
        let is_new = |token: &TokenId| fitting.binary_search(token).is_err();
        let floor = corrections.floor(step);
        let most = next.best().map(|(_, log_prob)| log_prob).fold(f32::NEG_INFINITY, f32::max);
        self.best_dropped = self.best_dropped.max((start + f64::from(most)).min(floor.most));
        let best = next.best().map(|(token, log_prob)| (TokenId(token), log_prob));
        let near = best.filter(|&(token, log_prob)| filter.may_reach(&floor, token, log_prob));
        let tokens = near.filter(|(token, _)| is_new(token)).collect();
        self.extend_by(
            typing,
            corrections,
            step,
            Extensions { tokens, is_exact: false, raised: f64::NEG_INFINITY, floor: &floor },
        );
        let Some(bound) = next.unlisted_bound() else { return };
        let floor = corrections.floor(step);
        let highest = start + f64::from(bound);
        self.best_dropped = self.best_dropped.max(highest.min(floor.most));
        if highest < floor.least {
            return;
        }
        let Some(row) = next.row() else { return };
        let least = (floor.least - start) as f32;
        let mut tokens = filter.find(&floor, row, least..=bound);
        tokens.retain(|(token, _)| is_new(token) && !next.lists(token.0));
        self.extend_by(
            typing,
            corrections,
            step,
            Extensions { tokens, is_exact: false, raised: f64::NEG_INFINITY, floor: &floor },
        );
    }

    /// The tokens that go on with what was typed without one more edit, from any place that the step's alignment has
    /// reached for at most `budget` nats. Some come twice.
    fn fitting_tokens(&self, typing: &Typed, step: &Step, budget: f64) -> Vec<TokenId> {
        let folded = self.text.folded();
        let mut tokens = Vec::new();
        let mut rest = String::new();
        for (level, _) in step.alignment.reached(typing).filter(|&(_, cost)| f64::from(cost) <= budget) {
            rest.clear();
            rest.extend(self.has_added_space(step).then_some(' '));
            rest.extend(&typing.folded.characters[level..]);
            tokens.extend(folded.fitting(rest.as_bytes()));
            if !rest.is_ascii() || step.aligned < step.prefix.text.len() {
                tokens.extend(folded.parts());
            }
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
        fitting: &[TokenId],
    ) {
        let floor = corrections.floor(step);
        let start = step.score;
        let bound = next.unlisted_bound().map_or(f64::NEG_INFINITY, f64::from);
        self.best_dropped = self.best_dropped.max((start + bound).min(floor.most));
        let near = next.known().filter(|&(_, log_prob)| start + f64::from(log_prob) >= floor.least);
        let near = near.map(|(token, log_prob)| (TokenId(token), log_prob));
        let tokens = near.filter(|(token, _)| fitting.binary_search(token).is_err()).collect();
        self.extend_by(
            typing,
            corrections,
            step,
            Extensions { tokens, is_exact: false, raised: f64::NEG_INFINITY, floor: &floor },
        );
    }

    /// Adds the steps that tokens lead to.
    fn extend_by(&mut self, typing: &Typed, corrections: &mut Corrections, step: &Step, extensions: Extensions<'_>) {
        let Extensions { mut tokens, is_exact, raised, floor } = extensions;
        let most = tokens.iter().map(|token| token.1).fold(f32::NEG_INFINITY, f32::max);
        let budget = ((step.raised() + f64::from(most)).max(raised) - floor.least) as f32;
        let text = Arc::clone(&self.text);
        let is_whole = step.aligned == step.prefix.text.len();
        tokens.sort_unstable_by_key(|&(token, _)| text.place(token));
        let mut walk = TokenWalk::new(typing, step.alignment, budget);
        for (token, log_prob) in tokens {
            let extension = Extension { token, log_prob, is_exact };
            let Some(bytes) = self.token_bytes(step.node == Paths::ROOT, extension.token) else { continue };
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
        let Extension { token, log_prob, is_exact } = extension;
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
        let (word, cost_before) = step.word_behind(bytes);
        let cheapest @ (cost, level) = longer.cheapest(typing);
        let is_beyond = level == typing.len() && longer.finished().is_some_and(|finished| finished.meant < aligned);
        let lift = match exact {
            Some(exact) if !is_repeated && self.goes_on(exact, &prefix.text, bytes) => {
                corrections.exact[exact].lift(prefix.text.len() + bytes.len(), joint)
            }
            // The word has no edit so far.
            _ if cost == cost_before && !is_beyond => corrections.unknown.lift(&word, level, joint),
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
        let (word, alignment) = ((word, cost_before), *longer);
        let step = Step { node, joint, lift, word, prefix, alignment, aligned, cheapest, score, reach };
        corrections.steps[level].push(step);
    }
}
