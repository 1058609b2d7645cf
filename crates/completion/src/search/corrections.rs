//! The search for what the typed text may mean, level by level: a level is a number of typed characters.
//!
//! A step is a path of tokens with the alignment of its text to the typed one. It stands at the level that the cheapest
//! way of that alignment has reached. Levels are gone through in order. At each one the best few steps are expanded by
//! the tokens that keep an alignment alive, and the steps behind them go to later levels. At the last level all that was
//! typed is used up: these readings become beams of the search, as the openings of the covering set are.
//!
//! What is not as probable as the text as it stands, within the channel's range, is not followed. So a typed text that
//! the model expects costs next to nothing here. Steps without an edit are followed only to find edits behind them: the
//! covering set has the text as it stands, and is never pruned.

use rustc_hash::FxHashSet;

use super::{Beam, Prefix, Search};
use crate::candidate::Candidate;
use crate::distribution::{Distribution, log_add, log_sum};
use crate::paths::{NodeIndex, Paths, Wanted};
use crate::text::{Role, TokenId};
use crate::typing::Typed;
use crate::typing::alignment::Alignment;
use crate::typing::exact_reading::ExactReading;

/// A token may end so many characters before or behind where its length says.
const MOST_EDITS: usize = 2;
/// Token lengths, in characters, that are told apart.
const LENGTHS: usize = 32;

/// A path whose text may be what was meant.
#[derive(Clone, Debug)]
struct Step {
    node: NodeIndex,
    /// Log-probability of the path's tokens.
    joint: f64,
    /// How much that is raised because the text has words that the model doesn't know: see [`ExactReading`].
    lift: f64,
    prefix: Prefix,
    alignment: Alignment,
    /// Bytes of the text that are aligned: all but those of an unfinished character.
    aligned: usize,
}

/// The corrections that were found so far.
pub(super) struct Corrections {
    /// By level: steps that wait. `[typed characters + 1]`
    levels: Vec<Vec<Step>>,
    /// By level: log-probability of the best reading so far, the text as it stands included. `[typed characters + 1]`
    best: Vec<f64>,
    level: usize,
    /// Steps of this level that were expanded.
    expanded: usize,
    /// Steps that are expanded next; they wait for their distributions.
    selected: Vec<Step>,
    /// Log-probabilities of the readings found so far.
    readings: Vec<f64>,
    /// Log-probabilities of what `readings` has twice.
    repeated: Vec<f64>,
    exact: ExactReading,
}

/// A token that may follow a step.
struct Extension {
    token: TokenId,
    log_prob: f32,
    /// Whether it goes on with the text as it stands.
    is_exact: bool,
}

/// What a step's tokens must reach to be followed.
struct Floor {
    /// By a token's length in characters: the log-probability of the path that it leads to, less the cost of its edits.
    by_length: [f64; LENGTHS],
    least: f64,
}

impl Floor {
    /// For steps at `level`.
    fn new(best: &[f64], level: usize, range: f64) -> Self {
        let last = best.len() - 1;
        let lowest = |from: usize, to: usize| best[from..=to].iter().copied().fold(f64::INFINITY, f64::min) - range;
        let by_length = std::array::from_fn(|length| {
            let from = (level + length).saturating_sub(MOST_EDITS).clamp(level, last);
            let to = if length + 1 == LENGTHS { last } else { (level + length + MOST_EDITS).min(last) };
            lowest(from, to)
        });
        Self { by_length, least: by_length.iter().copied().fold(f64::INFINITY, f64::min) }
    }
}

impl Search {
    /// Begins to look for corrections, if any are allowed. Returns how much the text as it stands is raised because it
    /// has words that the model doesn't know. `joints` are those of the openings' nodes, `typed` is that of the text.
    pub(super) fn begin_corrections(&mut self, joints: &[f64], typed: f64) -> f64 {
        let (Some(typing), Some(prefix)) = (&self.typing, self.prefix_of(&[])) else { return 0.0 };
        let nodes = self.opening_beginnings(joints);
        let joint = |at: usize| nodes.iter().filter(|node| node.0 == at).map(|node| node.1).reduce(f64::max);
        let exact = ExactReading::new(&self.typed, self.text.channel(), joint);
        let lift = exact.lift(self.typed.len(), typed);
        let mut best = vec![f64::NEG_INFINITY; typing.len() + 1];
        best[typing.len()] = typed + lift;
        for (at, joint) in nodes {
            let Some(beginning) = self.typed.get(..at) else { continue };
            let level = typing.level(beginning.chars().count());
            best[level] = best[level].max(joint + exact.lift(at, joint));
        }
        // A text is at most as probable as its beginning.
        for level in (0..typing.len()).rev() {
            best[level] = best[level].max(best[level + 1]);
        }
        let alignment = Alignment::start(typing);
        let mut levels = vec![Vec::new(); typing.len() + 1];
        levels[0].push(Step { node: Paths::ROOT, joint: 0.0, lift: 0.0, prefix, alignment, aligned: 0 });
        let readings = vec![typed + lift];
        let (selected, repeated) = (Vec::new(), Vec::new());
        self.corrections =
            Some(Corrections { levels, best, level: 0, expanded: 0, selected, readings, repeated, exact });
        lift
    }

    /// The bytes of the typed text that each node of the openings spells, with the node's joint log-probability.
    fn opening_beginnings(&self, joints: &[f64]) -> Vec<(usize, f64)> {
        let mut spelled = vec![0; joints.len()];
        for index in 1..joints.len() {
            let Some((parent, token)) = self.paths.step_to(NodeIndex(index)) else { continue };
            let is_first = parent == Paths::ROOT;
            let bytes = if is_first { self.text.first_bytes(token) } else { self.text.bytes(token) };
            spelled[index] = spelled[parent.0] + bytes.map_or(0, <[u8]>::len);
        }
        spelled.into_iter().zip(joints.iter().copied()).collect()
    }

    /// Goes on until a distribution is missing, or to the end: `true` at the end.
    pub(super) fn find_corrections(&mut self) -> bool {
        let (Some(mut corrections), Some(typing)) = (self.corrections.take(), self.typing.take()) else { return true };
        let ended = loop {
            for step in std::mem::take(&mut corrections.selected) {
                self.expand_step(&typing, &mut corrections, &step);
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
        self.typing = Some(typing);
        if ended {
            self.end_corrections(corrections);
        } else {
            self.corrections = Some(corrections);
        }
        ended
    }

    /// Selects the steps of the level that are expanded next.
    fn select_steps(&mut self, corrections: &mut Corrections) {
        let (beams, range) = (self.text.channel().beams, self.text.channel().range_nats);
        let level = corrections.level;
        let mut steps = std::mem::take(&mut corrections.levels[level]);
        steps.sort_by(|a, b| self.score(b).total_cmp(&self.score(a)));
        let worst = corrections.best[level] - range;
        for step in steps {
            let (score, depth) = (self.score(&step), self.paths.depth(step.node));
            if score < worst || corrections.expanded == beams || depth > self.options.context {
                self.best_dropped = self.best_dropped.max(score);
            } else {
                corrections.expanded += 1;
                corrections.selected.push(step);
            }
        }
    }

    /// Log-probability of a step's path and of how it was typed so far.
    fn score(&self, step: &Step) -> f64 {
        let typing = self.typing.as_ref();
        step.joint + step.lift - typing.map_or(0.0, |typing| f64::from(step.alignment.cheapest(typing).0))
    }

    /// Makes beams of the readings.
    fn end_corrections(&mut self, mut corrections: Corrections) {
        let positive = log_sum(corrections.readings.iter().copied());
        let negative = log_sum(corrections.repeated.iter().copied());
        self.readings_log_prob = positive + (-(negative - positive).exp()).ln_1p();
        let (beams, range) = (self.text.channel().beams, self.text.channel().reading_nats);
        let (Some(mut readings), Some(&best)) = (corrections.levels.pop(), corrections.best.last()) else { return };
        readings.retain(|reading| !self.text.blocks(&reading.prefix.text, false));
        readings.sort_by(|a, b| self.score(b).total_cmp(&self.score(a)));
        for (rank, reading) in readings.into_iter().enumerate() {
            let joint = self.score(&reading);
            if rank >= beams || joint < best - range || self.paths.depth(reading.node) > self.options.context {
                self.best_dropped = self.best_dropped.max(joint);
                continue;
            }
            let meant = reading.alignment.finished().map_or(0, |finished| finished.meant);
            let new_tokens = usize::from(reading.prefix.text.len() > meant);
            let prefix = Prefix { new_tokens, corrected: true, ..reading.prefix };
            let beam = self.beams.len();
            self.beams.push(Beam { node: reading.node, joint, prefix });
            self.frontier.push(new_tokens, Candidate { joint, beam, token: None });
        }
    }

    /// Expands a step by its distribution.
    fn expand_step(&mut self, typing: &Typed, corrections: &mut Corrections, step: &Step) {
        let Some(next) = self.paths.next(step.node).cloned() else { return };
        self.end_step(step, &next);
        let floor = Floor::new(&corrections.best, corrections.level, self.text.channel().range_nats);
        let is_exact = step.alignment.is_exact();
        if is_exact {
            let rest = self.typed.get(step.prefix.text.len()..).unwrap_or_default().as_bytes();
            let tokens: Vec<TokenId> = self.text.beginnings_of(rest).map(|(token, _)| token).collect();
            for token in tokens {
                if let Some(log_prob) = next.log_prob(token.0) {
                    self.extend_step(typing, corrections, step, Extension { token, log_prob, is_exact }, &floor);
                }
            }
        }
        // On the text as it stands an edit is still to come.
        let cost = if is_exact { typing.costs.least() } else { step.alignment.cheapest(typing).0 };
        let start = step.joint + step.lift - f64::from(cost);
        let is_near = |&(token, log_prob): &(u32, f32)| {
            let length = self.text.token_length(TokenId(token)).min(LENGTHS - 1);
            start + f64::from(log_prob) >= floor.by_length[length]
        };
        let mut near: Vec<(u32, f32)> = next.best().filter(is_near).collect();
        if let Some(bound) = next.unlisted_bound() {
            let highest = start + f64::from(bound);
            self.best_dropped = self.best_dropped.max(highest.min(floor.least));
            if highest >= floor.least {
                let listed: FxHashSet<u32> = next.best().map(|(token, _)| token).collect();
                let least = (floor.least - start) as f32;
                let unlisted = next.known().filter(|&(_, log_prob)| log_prob >= least && log_prob <= bound);
                near.extend(unlisted.filter(|known| is_near(known) && !listed.contains(&known.0)));
            }
        }
        for (token, log_prob) in near {
            let extension = Extension { token: TokenId(token), log_prob, is_exact: false };
            self.extend_step(typing, corrections, step, extension, &floor);
        }
    }

    /// Completes a query that ends behind a step.
    fn end_step(&mut self, step: &Step, next: &Distribution) {
        let Some(finished) = step.alignment.finished() else { return };
        let ends = next.best().filter(|&(token, _)| self.text.role(TokenId(token)) == Role::End);
        let ending = ends.fold(f64::NEG_INFINITY, |sum, (_, log_prob)| log_add(sum, f64::from(log_prob)));
        if ending > f64::NEG_INFINITY
            && self.text.may_end(&step.prefix.rule)
            && let Some(text) = self.presentable(&step.prefix.text, true)
        {
            let text = text.to_owned();
            self.completed.add(text, step.joint + step.lift + ending - f64::from(finished.cost));
        }
    }

    /// Adds the step that a token leads to, if it may follow and something typed still fits.
    fn extend_step(
        &mut self,
        typing: &Typed,
        corrections: &mut Corrections,
        step: &Step,
        extension: Extension,
        floor: &Floor,
    ) {
        let Extension { token, log_prob, is_exact } = extension;
        let Step { prefix, alignment, aligned, .. } = step;
        if self.text.role(token) != Role::Text {
            return;
        }
        let Some(bytes) = self.token_bytes(&prefix.text, token) else { return };
        if prefix.text.last() == Some(&b' ') && bytes.first() == Some(&b' ') {
            return;
        }
        let joint = step.joint + f64::from(log_prob);
        let budget = (joint + step.lift - floor.least) as f32;
        let mut longer = *alignment;
        let aligned = aligned + longer.push_bytes(typing, &prefix.text[*aligned..], bytes, budget);
        if longer.is_dead() || (longer.is_exact() && !longer.is_whole() && !is_exact) {
            return;
        }
        let Some(rule) = self.text.follow(&prefix.rule, token) else { return };
        if longer.is_whole() {
            // The covering set has it, and a step before it may have been a reading.
            corrections.repeated.extend(alignment.finished().map(|before| joint + step.lift - f64::from(before.cost)));
            return;
        }
        let text = [&prefix.text[..], bytes].concat();
        let lift = if longer.is_exact() { corrections.exact.lift(text.len(), joint) } else { step.lift };
        let (cost, level) = longer.cheapest(typing);
        let score = joint + lift - f64::from(cost);
        let level = level.max(corrections.level);
        if score < corrections.best[level] - self.text.channel().range_nats {
            self.best_dropped = self.best_dropped.max(score);
            return;
        }
        if let Some(finished) = longer.finished() {
            // What this path has more than the one before it.
            let before = alignment.finished().map_or(0.0, |before| f64::from(-before.cost).exp());
            let more = f64::from(-finished.cost).exp() - before;
            corrections.readings.extend((more > 0.0).then(|| joint + lift + more.ln()));
        }
        corrections.best[level] = corrections.best[level].max(score);
        let node = self.paths.child(step.node, token);
        let prefix = Prefix { rule, text, new_tokens: 0, corrected: true };
        corrections.levels[level].push(Step { node, joint, lift, prefix, alignment: longer, aligned });
    }
}
