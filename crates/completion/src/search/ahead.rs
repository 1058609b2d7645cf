//! What a search asks for before it has to: what it will probably want next, to be computed along with what it waits for.

use rustc_hash::FxHashSet;

use super::{Beam, Experience, Search};
use crate::candidate::Candidate;
use crate::frontier::Order;
use crate::paths::{NodeIndex, Wanted};
use crate::text::{Role, TokenId};

/// How much less probable than the best beginning one may be to be asked for along with it, in nats.
const SPECULATION_NATS: f64 = 8.0;
/// Candidates that are looked at for each that is asked for: many can't follow or are known.
const LOOKED_AT: usize = 16;
/// How much the last search counts among all that an [`Experience`] is of.
const LEARNED: f64 = 0.1;
/// How much of what was learned is forgotten by a search that shows nothing new, so that a model gets another chance.
const FORGOTTEN: f64 = 0.01;

/// Nodes that were asked for ahead, and what became of them.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Those asked for along with the typed text that weren't followed yet.
    beginnings: FxHashSet<NodeIndex>,
    asked_beginnings: usize,
    followed_beginnings: usize,
    /// Those asked for later that weren't followed yet.
    nodes: FxHashSet<NodeIndex>,
    asked: usize,
    followed: usize,
}

impl Ahead {
    /// Takes note of a node that turned out to be wanted, whether it was asked for ahead or not.
    pub(super) fn follow(&mut self, node: NodeIndex) {
        self.followed_beginnings += usize::from(self.beginnings.remove(&node));
        self.followed += usize::from(self.nodes.remove(&node));
    }

    /// What is known of the foresight of beginnings with this search, of which `before` was known before.
    pub(super) fn learned(&self, before: f64) -> f64 {
        if self.asked_beginnings == 0 {
            return before + FORGOTTEN * (Experience::default().foresight - before);
        }
        before + LEARNED * (self.followed_beginnings as f64 / self.asked_beginnings as f64 - before)
    }
}

impl Search {
    /// Asks for up to `count` more distributions: of the beginnings that come next if nothing better turns up.
    pub fn speculate(&mut self, count: usize) {
        let Some(&first) = self.waiting.first() else {
            if self.typed_log_prob.is_none() {
                self.ask_for_beginnings(count);
            }
            return;
        };
        let Beam { joint, new_tokens, .. } = self.sources[first];
        let asked = match self.order() {
            Order::Best => {
                let worst = joint - SPECULATION_NATS;
                self.ask_ahead(Order::Best, count, |_, candidate| candidate.joint >= worst)
            }
            Order::Shallowest => {
                // The next level's best are among what continues the beams that are known, as far as these are most of their level.
                let followed = self.followed[new_tokens];
                let likely = self.options.beams * (followed - self.waiting.len()) / followed;
                self.ask_ahead(Order::Shallowest, count.min(likely), |level, _| level == new_tokens + 1)
            }
        };
        self.ahead.asked += asked.len();
        for node in asked {
            self.paths.want(Wanted { node, full: false, speculative: true });
            self.ahead.nodes.insert(node);
        }
    }

    /// The share of what is asked for ahead that will be wanted, as far as can be told.
    pub fn foresight(&self) -> f64 {
        if self.typed_log_prob.is_none() {
            return self.experience.foresight;
        }
        (self.ahead.followed + 2) as f64 / (self.ahead.asked + 4) as f64
    }

    /// Asks for up to `count` ways to finish the half-typed word: those that the text in front of it makes most probable, while the text
    /// with the word's typed part is still being read.
    fn ask_for_beginnings(&mut self, count: usize) {
        let count = count.min(self.options.beams);
        for (node, token) in self.likely_beginnings(count) {
            let node = self.paths.child(node, token);
            if self.is_missing(node) {
                self.paths.want(Wanted { node, full: false, speculative: true });
                self.ahead.beginnings.insert(node);
                self.ahead.asked_beginnings += 1;
            }
        }
    }

    /// The most probable of the tokens that finish what is half-typed, at most `count`, each with the node it continues; as far as known.
    fn likely_beginnings(&self, count: usize) -> Vec<(NodeIndex, TokenId)> {
        let joints = self.opening_joints();
        let mut likely: Vec<(f64, usize, TokenId)> = Vec::new();
        for (index, (opening, &node)) in self.openings.iter().zip(&self.opening_nodes).enumerate() {
            let (Some(extensions), Some(next)) = (&opening.extensions, self.paths.next(node)) else { continue };
            let known = extensions.iter().filter_map(|&token| Some((next.log_prob(token.0)?, token)));
            let joint = known.map(|(log_prob, token)| (joints[node.0] + f64::from(log_prob), index, token));
            likely.extend(joint.filter(|&(joint, ..)| joint > f64::NEG_INFINITY));
        }
        // There may be thousands.
        let order = |a: &(f64, usize, TokenId), b: &(f64, usize, TokenId)| {
            b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        };
        let looked_at = LOOKED_AT * count;
        if likely.len() > looked_at {
            likely.select_nth_unstable_by(looked_at, order);
            likely.truncate(looked_at);
        }
        likely.sort_unstable_by(order);
        let worst = likely.first().map_or(f64::INFINITY, |best| best.0 - SPECULATION_NATS);
        let near = likely.into_iter().take_while(|&(joint, ..)| joint >= worst);
        let may_follow = |index: usize, token| {
            let rule = self.follow_path(&self.openings[index].path).map(|(rule, _)| rule);
            self.text.role(token) == Role::Text && rule.is_some_and(|rule| self.text.follow(&rule, token).is_some())
        };
        let may_follow = near.filter(|&(_, index, token)| may_follow(index, token));
        may_follow.take(count).map(|(_, index, token)| (self.opening_nodes[index], token)).collect()
    }

    /// Whether nothing is known of a node, and nothing was asked for.
    fn is_missing(&self, node: NodeIndex) -> bool {
        self.paths.next(node).is_none() && self.paths.wanted().iter().all(|wanted| wanted.node != node)
    }

    /// Up to `count` nodes that come next, in an order, as long as they are `wanted`, and that nothing is known of.
    fn ask_ahead(&mut self, order: Order, count: usize, wanted: impl Fn(usize, &Candidate) -> bool) -> Vec<NodeIndex> {
        let mut looked_at = Vec::new();
        let mut nodes = Vec::new();
        while nodes.len() < count && looked_at.len() < LOOKED_AT * count {
            let Some((level, candidate)) = self.frontier.pop(order) else { break };
            looked_at.push((level, candidate));
            if !wanted(level, &candidate) || self.found.threshold().is_some_and(|kth| candidate.joint <= kth) {
                break;
            }
            let Some((.., new_tokens)) = self.materialise(&candidate) else { continue };
            if self.is_cut(&candidate, new_tokens) {
                continue;
            }
            let node = self.node(&candidate);
            if !nodes.contains(&node) && self.room_at(level) && self.is_missing(node) {
                nodes.push(node);
            }
        }
        looked_at.into_iter().for_each(|(level, candidate)| self.frontier.push(level, candidate));
        nodes
    }
}
