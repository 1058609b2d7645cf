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

mod extension;

use std::ops::RangeInclusive;

use super::levels::Levels;
use super::readings::Weight;
use super::token_filter::Floor;
use super::{Beam, Prefix, Search};
use crate::candidate::Candidate;
use crate::distribution::log_sum;
use crate::paths::{NodeIndex, Paths, Wanted};
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
    /// Log-probability of the path and of the cheapest way in which it was typed so far.
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

    /// Whether all of its text is aligned.
    fn is_whole(&self) -> bool {
        self.aligned == self.prefix.text.len()
    }

    /// Whether its text, as far as it is aligned, is the beginning of a reading.
    fn is_exact(&self) -> bool {
        self.alignment.is_as_typed() || self.alignment.is_plain()
    }

    /// The word that begins if a space is next, and what the ways before that word cost at least.
    fn next_word(&self, typing: &Typed) -> (WordStart, f32) {
        // An error at the space is none in the word.
        let mut alignment = self.alignment;
        alignment.push(typing, ' ', f32::INFINITY);
        let (cost, level) = alignment.cheapest(typing);
        (WordStart::new(level, self.joint, self.lift), cost)
    }
}

impl Corrections {
    /// What the tokens behind a step of this level must reach.
    fn floor(&self) -> Floor {
        Floor::new(&self.levels, self.level)
    }

    /// A bound on the raised log-probability of what is typed right behind a step at `level`, if it is in an unknown
    /// one of `words`.
    fn raised_bound(&self, words: [&WordStart; 2], level: usize) -> f64 {
        let unknown = words.map(|word| {
            let next = (level + 1).max(word.at).min(self.levels.last());
            self.unknown.log_prob(word, next)
        });
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
        let (cost, _) = alignment.cheapest(&typing);
        let (score, word) = (-f64::from(cost), (WordStart::default(), cost));
        let reach = alignment.reach(&typing).unwrap_or(0..=0);
        let (node, joint, lift, aligned) = (Paths::ROOT, 0.0, 0.0, 0);
        steps[0].push(Step { node, joint, lift, word, prefix, alignment, aligned, score, reach });
        let (selected, repeated) = (Vec::new(), Vec::new());
        // The last reading is the plain form, if there is one.
        let (last, read) = (self.readings.len() - 1, &exact[exact.len() - 1]);
        let unknown = read.unknown_word(&typing.bytes_by_level(&self.readings[last].text));
        self.typing = Some(typing);
        self.corrections =
            Some(Corrections { steps, levels, level: 0, expanded: 0, selected, readings, repeated, exact, unknown });
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
}
