//! The texts that completions begin with: the typed text as it is, and its plain form, without the style of the whole
//! text.
//!
//! Each has a covering set and beams of its own, and the typed text is never pruned. The plain form is less probable by
//! the cost of a style. Otherwise its probabilities are those of a plain text. So a text in capitals has the list of
//! the text in small letters, unless the model knows the text in capitals.

use super::{Beam, Search, SearchOptions};
use crate::candidate::Candidate;
use crate::distribution::log_sum;
use crate::paths::{NodeIndex, Paths};
use crate::text::{Opening, Text, TokenId};
use crate::typing::Typed;

/// The typed text and its plain form.
pub(super) const MOST_READINGS: usize = 2;

/// A text that completions begin with. See the module's documentation.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) text: String,
    /// What its style costs, in nats.
    pub(super) cost: f64,
    /// Empty if the vocabulary can't spell it or the context has no room for it.
    pub(super) openings: Vec<Opening>,
    /// The last node of each opening's path.
    pub(super) nodes: Vec<NodeIndex>,
}

/// The weight of a reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    /// Log-probability that a query begins with it.
    pub(super) joint: f64,
    /// How much that is raised because it has words that the model doesn't know.
    pub(super) lift: f64,
}

impl Reading {
    /// The readings of a typed text. A plain form that can't be read is taken out of `typing`.
    pub(super) fn all(text: &Text, typed: String, typing: Option<&mut Typed>, options: &SearchOptions) -> Vec<Self> {
        let new = |reading: String, cost: f64| {
            let openings = text.openings(&reading, options.method);
            Self { text: reading, cost, openings, nodes: Vec::new() }
        };
        let has_room = |reading: &Self| {
            let longest = reading.openings.iter().map(|opening| opening.path.len()).max().unwrap_or(0);
            text.is_encodable(&reading.text) && text.prompt().len() + longest < options.context
        };
        let mut readings = vec![new(typed, 0.0)];
        let plain = typing.as_ref().and_then(|typing| Some((typing.plain_text()?, f64::from(typing.costs.style()))));
        let plain = plain.map(|(plain, cost)| new(plain, cost)).filter(has_room);
        match (plain, typing) {
            (Some(plain), _) => {
                if !has_room(&readings[0]) {
                    readings[0].openings.clear();
                }
                readings.push(plain);
            }
            (None, Some(typing)) => typing.plain = None,
            (None, None) => {}
        }
        readings
    }

    /// With the nodes of its openings.
    pub(super) fn with_nodes(mut self, paths: &mut Paths) -> Self {
        let node = |path: &[TokenId], paths: &mut Paths| {
            path.iter().fold(Paths::ROOT, |node, &token| paths.child(node, token))
        };
        self.nodes = self.openings.iter().map(|opening| node(&opening.path, paths)).collect();
        self
    }

    /// The openings, each with its last node.
    pub(super) fn openings(&self) -> impl Iterator<Item = (&Opening, NodeIndex)> {
        self.openings.iter().zip(self.nodes.iter().copied())
    }
}

impl Search {
    /// The last nodes of the readings' openings.
    pub(super) fn opening_nodes(&self) -> impl Iterator<Item = NodeIndex> {
        self.readings.iter().flat_map(|reading| reading.nodes.iter().copied())
    }

    /// Whether a text and the bytes behind it begin with a reading.
    pub(super) fn has_reading(&self, text: &[u8], bytes: &[u8]) -> bool {
        let begins = |reading: &[u8]| match reading.split_at_checked(text.len()) {
            Some((first, rest)) => first == text && bytes.starts_with(rest),
            None => text.starts_with(reading),
        };
        self.readings.iter().any(|reading| begins(reading.text.as_bytes()))
    }

    /// Whether bytes behind the beginning of a reading go on with it.
    pub(super) fn goes_on(&self, reading: usize, text: &[u8], bytes: &[u8]) -> bool {
        let rest = self.readings[reading].text.as_bytes().get(text.len()..);
        rest.is_some_and(|rest| rest.starts_with(bytes))
    }

    /// Makes candidates of all ways in which the typed text can begin a query.
    pub(super) fn weigh_openings(&mut self) {
        let joints = self.opening_joints();
        let lists: Vec<Vec<Vec<Candidate>>> =
            (0..self.readings.len()).map(|index| self.weigh_reading(index, &joints)).collect();
        let joint = |lists: &Vec<Vec<Candidate>>| log_sum(lists.iter().flatten().map(|candidate| candidate.joint));
        let mut weights: Vec<Weight> = lists.iter().map(|lists| Weight { joint: joint(lists), lift: 0.0 }).collect();
        self.typed_log_prob = Some(weights[0].joint);
        self.begin_corrections(&joints, &mut weights);
        let raised = |(reading, weight): (&Reading, &Weight)| weight.joint + weight.lift - reading.cost;
        let all: Vec<f64> = self.readings.iter().zip(&weights).map(raised).collect();
        self.as_typed_log_prob = all[0];
        self.readings_log_prob = log_sum(all.iter().copied());
        for beam in &mut self.beams {
            let reading = beam.prefix.reading.unwrap_or(0);
            beam.joint += weights[reading].lift - self.readings[reading].cost;
        }
        for (index, lists) in lists.into_iter().enumerate() {
            let Reading { text, cost, .. } = &self.readings[index];
            let Weight { joint, lift } = weights[index];
            if joint < text.chars().count() as f64 * self.options.min_probability.ln() {
                continue;
            }
            // Only the text as it stands is followed however improbable it is.
            if index > 0 && all[index] < all[0] - self.text.channel().reading_nats {
                self.best_dropped = self.best_dropped.max(all[index]);
                continue;
            }
            let raise = lift - cost;
            for mut list in lists {
                list.iter_mut().for_each(|candidate| candidate.joint += raise);
                let level = list.first().map_or(0, |first| self.level(first));
                self.frontier.push_list(Self::slot(level, Some(index)), list);
            }
        }
    }

    /// Makes candidates of the ways in which a reading can begin a query: lists of one level each.
    fn weigh_reading(&mut self, index: usize, joints: &[f64]) -> Vec<Vec<Candidate>> {
        let mut lists = Vec::new();
        for (opening, node) in self.readings[index].openings() {
            let Some(prefix) = self.prefix_of(&opening.path, Some(index)) else { continue };
            let (beam, joint) = (self.beams.len(), joints[node.0]);
            self.beams.push(Beam { node, joint, prefix });
            let Some(extensions) = &opening.extensions else {
                lists.push(vec![Candidate { joint, beam, token: None }]);
                continue;
            };
            let Some(next) = self.paths.next(node) else { continue };
            let candidate = |&token: &TokenId| {
                let joint = joint + f64::from(next.log_prob(token.0)?);
                Some(Candidate { joint, beam, token: Some(token) })
            };
            // Only the first one may spell no more than what was typed.
            let (first, others) = extensions.split_at(extensions.len().min(1));
            lists.extend([first, others].map(|tokens| tokens.iter().filter_map(candidate).collect()));
        }
        for list in &mut lists {
            list.retain(|candidate| candidate.joint > f64::NEG_INFINITY);
        }
        lists
    }

    /// Joint log-probabilities of the openings' nodes. `[nodes]`
    pub(super) fn opening_joints(&self) -> Vec<f64> {
        let mut joints = vec![0.0; self.paths.len()];
        for index in 1..joints.len() {
            let Some((parent, token)) = self.paths.step_to(NodeIndex(index)) else { continue };
            let step = self.paths.next(parent).and_then(|next| next.log_prob(token.0));
            joints[index] = joints[parent.0] + step.map_or(f64::NEG_INFINITY, f64::from);
        }
        joints
    }

    /// The bytes of a reading that each node of its openings spells, with the node's joint log-probability.
    pub(super) fn beginnings(&self, reading: &Reading, joints: &[f64]) -> Vec<(usize, f64)> {
        let mut spelled = vec![None; joints.len()];
        let mut found = Vec::new();
        for &end in &reading.nodes {
            let mut path = Vec::new();
            let mut node = end;
            while spelled[node.0].is_none() {
                path.push(node);
                match self.paths.step_to(node) {
                    Some((parent, _)) => node = parent,
                    None => break,
                }
            }
            for node in path.into_iter().rev() {
                let length = self.paths.step_to(node).map_or(0, |(parent, token)| {
                    let bytes = self.token_bytes(parent == Paths::ROOT, token);
                    spelled[parent.0].unwrap_or(0) + bytes.map_or(0, <[u8]>::len)
                });
                spelled[node.0] = Some(length);
                found.push((length, joints[node.0]));
            }
        }
        found
    }
}
