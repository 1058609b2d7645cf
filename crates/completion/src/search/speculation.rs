//! Speculative expansion: the distributions that a search will probably want next, computed along with the missing
//! ones.

use super::preview::Preview;
use super::{Beam, Corrections, Search};
use crate::candidate::Candidate;
use crate::frontier::Order;
use crate::paths::{NodeIndex, Wanted};
use crate::text::{Role, TokenId};

/// How much less probable than the best beam a speculative one may be, in nats.
const MAX_NATS_BELOW_BEST: f64 = 8.0;
/// Candidates examined for each one requested: many can't follow.
const EXAMINED_PER_REQUEST: usize = 16;

/// A token that may finish the half-typed word.
struct Extension {
    joint: f64,
    /// Index of the reading that it finishes.
    reading: usize,
    /// Index of the reading's opening that it extends.
    opening: usize,
    token: TokenId,
}

impl Search {
    /// Requests up to `count` more distributions: of what comes next if nothing better turns up.
    pub fn speculate(&mut self, count: usize) {
        if let Some(&first) = self.waiting.first() {
            self.speculate_on_beams(count, first);
        } else if self.typed_log_prob.is_none() {
            self.speculate_on_openings(count);
        } else if self.corrections.is_some() {
            self.speculate_beside_corrections(count);
        }
    }

    /// Requests beams that come after those that the search waits for, the first of which is `first`.
    fn speculate_on_beams(&mut self, count: usize, first: usize) {
        let Beam { joint, ref prefix, .. } = self.beams[first];
        let new_tokens = prefix.new_tokens;
        let nodes = match self.order() {
            Order::BestFirst => {
                let worst = joint - MAX_NATS_BELOW_BEST;
                self.likely_nodes(Order::BestFirst, count, |_, candidate| candidate.joint >= worst)
            }
            Order::LevelByLevel => {
                // The next level's best beams extend the known beams, as far as these are most of their level.
                let selected = self.selected[new_tokens].all();
                let likely = self.options.beams * (selected - self.waiting.len()) / selected;
                self.likely_nodes(Order::LevelByLevel, count.min(likely), |level, _| level == new_tokens + 1)
            }
        };
        self.request(&nodes, false);
    }

    /// Requests what is needed once this level of the corrections is done: steps of all later levels, so that they wait
    /// for no rows of their own, and beams of the covering set.
    fn speculate_beside_corrections(&mut self, count: usize) {
        let later = self.corrections.as_ref().map_or_else(Vec::new, Corrections::later_nodes);
        let fits = |&node: &NodeIndex| self.paths.depth(node) <= self.options.context;
        let unknown = later.into_iter().filter(|&node| self.is_unknown(node)).filter(fits);
        let steps: Vec<NodeIndex> = unknown.take(count).collect();
        self.request(&steps, true);
        let Some(best) = self.frontier.best() else { return };
        let likely = |_, candidate: &Candidate| candidate.joint >= best - MAX_NATS_BELOW_BEST;
        let beams = self.likely_nodes(Order::BestFirst, count - steps.len(), likely);
        self.request(&beams, false);
    }

    /// Requests the distributions of nodes, or their whole rows.
    fn request(&mut self, nodes: &[NodeIndex], full: bool) {
        for &node in nodes {
            self.paths.want(Wanted { node, full, speculative: true });
        }
    }

    /// Requests up to `count` ways to finish the half-typed word: the most probable ones behind the text in front of
    /// it, while the word's typed part is still being read.
    fn speculate_on_openings(&mut self, count: usize) {
        let mut nodes = Vec::new();
        for (node, token) in self.likely_extensions(count.min(self.options.beams)) {
            let node = self.paths.child(node, token);
            if self.is_unknown(node) {
                nodes.push(node);
            }
        }
        self.request(&nodes, false);
    }

    /// The `count` most probable tokens that finish what is half-typed, each with the node it extends; as far as known.
    fn likely_extensions(&self, count: usize) -> Vec<(NodeIndex, TokenId)> {
        let joints = self.opening_joints();
        let mut likely: Vec<Extension> = Vec::new();
        for (reading, of) in self.readings.iter().enumerate() {
            for (index, (opening, node)) in of.openings().enumerate() {
                let (Some(extensions), Some(next)) = (&opening.extensions, self.paths.next(node)) else { continue };
                let known = extensions.iter().filter_map(|&token| Some((next.log_prob(token.0)?, token)));
                let extension = known.map(|(log_prob, token)| {
                    let joint = joints[node.0] + f64::from(log_prob) - of.cost;
                    Extension { joint, reading, opening: index, token }
                });
                likely.extend(extension.filter(|extension| extension.joint > f64::NEG_INFINITY));
            }
        }
        // There may be thousands.
        let order = |a: &Extension, b: &Extension| {
            b.joint.total_cmp(&a.joint).then((a.reading, a.opening, a.token).cmp(&(b.reading, b.opening, b.token)))
        };
        let examined = EXAMINED_PER_REQUEST * count;
        if likely.len() > examined {
            likely.select_nth_unstable_by(examined, order);
            likely.truncate(examined);
        }
        likely.sort_unstable_by(order);
        let worst = likely.first().map_or(f64::INFINITY, |best| best.joint - MAX_NATS_BELOW_BEST);
        let near = likely.into_iter().take_while(|extension| extension.joint >= worst);
        let allowed = near.filter(|&Extension { reading, opening, token, .. }| {
            let path = &self.readings[reading].openings[opening].path;
            let rule = self.prefix_of(path, Some(reading)).map(|prefix| prefix.rule);
            self.text.role(token) == Role::Text && rule.is_some_and(|rule| self.text.follow(&rule, token).is_some())
        });
        let node = |extension: &Extension| self.readings[extension.reading].nodes[extension.opening];
        allowed.take(count).map(|extension| (node(&extension), extension.token)).collect()
    }

    /// Whether a node's distribution is neither known nor requested.
    pub(super) fn is_unknown(&self, node: NodeIndex) -> bool {
        self.paths.next(node).is_none() && self.paths.wanted().iter().all(|wanted| wanted.node != node)
    }

    /// Up to `count` unknown nodes that come next in an order, as long as their candidates are `likely`.
    fn likely_nodes(
        &mut self,
        order: Order,
        count: usize,
        likely: impl Fn(usize, &Candidate) -> bool,
    ) -> Vec<NodeIndex> {
        // A preview copies the state of the search.
        if count == 0 {
            return Vec::new();
        }
        Preview::new(self, order).unknown_nodes(count, EXAMINED_PER_REQUEST * count, likely)
    }
}
