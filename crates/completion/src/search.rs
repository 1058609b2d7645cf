//! Best-first beam search over the joint probability of whole queries, as a state machine (Meister et al. 2020: the answers of a
//! beam search, with no more work than its answers need).
//!
//! It opens with the ways in which the typed text can begin a query ([`crate::text::Opening`]) and follows the most probable
//! beginning next, never renormalising: what is compared is the probability of everything from the prompt on. At most `beams`
//! beginnings are followed at each number of new tokens, so that it comes to an end where probability is spread thin. When no
//! beginning is left that could beat the last wanted suggestion, the answer is final. The best probability that was ever dropped
//! unexplored is kept, so that the answer can say whether it is proven.
//!
//! It is driven from outside: its [`Paths`] name the distributions it wants, and when none is missing [`Search::advance`] goes on.
//! [`Search::speculate`] names more that will probably be wanted, for an engine that computes several as quickly as one. The order
//! in which things become known never changes the answer.

mod ahead;
mod outcome;

use std::sync::Arc;

use super::candidate::Candidate;
use super::distribution::{log_add, log_sum};
use super::found::Found;
use super::frontier::{Frontier, Order};
use super::paths::{NodeIndex, Paths, Wanted};
use crate::text::{Method, Opening, PathRule, Role, Text, TokenId};
use ahead::Ahead;

/// With fewer finds than one for so many beams that were followed, whole levels are followed.
const BEAMS_PER_FIND: usize = 16;

/// Distributions that a search needs for each suggestion, about; searches of the demo model do.
const TOKENS_PER_FIND: usize = 4;

/// What to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// Suggestions wanted, at least 1.
    pub suggestions: usize,
    /// Beginnings that are followed at each number of new tokens, at least 1.
    pub beams: usize,
    /// Tokens that may reach beyond the typed text.
    pub max_new_tokens: usize,
    /// Positions that a path, prompt included, may have.
    pub context: usize,
    /// How half-typed tokens are treated.
    pub method: Method,
}

/// What searches before this one were like. It changes what a search asks for and when, never its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experience {
    /// Hardly anything that was followed ended, so that suggestions are cut at a length limit. Then whole levels are followed from the
    /// start: it saves the forwards that would show the same again.
    pub meets_cuts: bool,
    /// The share of the beginnings asked for along with the typed text that turned out to be wanted.
    pub foresight: f64,
}

impl Default for Experience {
    fn default() -> Self {
        Self { meets_cuts: false, foresight: 0.5 }
    }
}

/// A beginning of queries that is being followed.
#[derive(Clone, Debug)]
struct Beam {
    node: NodeIndex,
    /// Log-probability of everything behind the prompt.
    joint: f64,
    rule: PathRule,
    /// The text so far, all that was typed included.
    text: Vec<u8>,
    /// Tokens that reach beyond what was typed.
    new_tokens: usize,
}

/// A beginning at a length limit: nothing is asked of it any more.
#[derive(Clone, Debug)]
struct Cut {
    joint: f64,
    text: Vec<u8>,
}

/// The search. See the module's documentation.
pub struct Search {
    text: Arc<Text>,
    typed: String,
    options: SearchOptions,
    openings: Vec<Opening>,
    /// The last node of each opening's path.
    opening_nodes: Vec<NodeIndex>,
    paths: Paths,
    /// Beams that were followed, and perhaps continued by candidates.
    sources: Vec<Beam>,
    frontier: Frontier,
    /// Of those, the ones whose distributions are needed to go on: the best, or all of a level that nothing is known of.
    waiting: Vec<usize>,
    /// By number of new tokens: how many beams were followed.
    followed: Vec<usize>,
    cut: Vec<Cut>,
    found: Found,
    /// Log of the probability that a query begins with the typed bytes; known once opened.
    typed_log_prob: Option<f64>,
    /// The most probable beginning that was dropped without being followed.
    dropped: f64,
    ahead: Ahead,
    experience: Experience,
    /// For tests: always this order.
    #[cfg(test)]
    fixed_order: Option<Order>,
}

impl Search {
    /// Starts a search. What was typed must leave room in the context: see [`Search::typed_tokens`].
    pub fn new(text: Arc<Text>, typed: String, options: SearchOptions) -> Self {
        let openings = text.openings(&typed, options.method);
        let mut paths = Paths::new(text.prompt().to_vec());
        let opening_nodes: Vec<NodeIndex> = openings
            .iter()
            .map(|opening| opening.path.iter().fold(Paths::ROOT, |node, &token| paths.child(node, token)))
            .collect();
        // Every node of the openings will be a context again when the next character comes, so they are wanted in full.
        (0..paths.len()).for_each(|i| paths.want(Wanted { node: NodeIndex(i), full: true, speculative: false }));
        Self {
            found: Found::new(options.suggestions),
            text,
            typed,
            options,
            openings,
            opening_nodes,
            paths,
            sources: Vec::new(),
            frontier: Frontier::default(),
            waiting: Vec::new(),
            followed: Vec::new(),
            cut: Vec::new(),
            typed_log_prob: None,
            dropped: f64::NEG_INFINITY,
            ahead: Ahead::default(),
            experience: Experience::default(),
            #[cfg(test)]
            fixed_order: None,
        }
    }

    /// The longest path that the typed text needs, in tokens behind the prompt.
    pub fn typed_tokens(&self) -> usize {
        let deepest = self.opening_nodes.iter().map(|&node| self.paths.depth(node)).max();
        deepest.map_or(0, |depth| depth - self.paths.depth(Paths::ROOT))
    }

    /// The paths it refers to and what it wants of them.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// See [`Search::paths`].
    pub fn paths_mut(&mut self) -> &mut Paths {
        &mut self.paths
    }

    /// Distributions that it will still need, about: as many as a search of its kind does, less those that it has had. One that
    /// has had more than that is expected to go on the longer, the longer it has.
    pub fn left(&self) -> usize {
        let usual = self.typed_tokens() + self.options.suggestions * self.options.max_new_tokens.min(TOKENS_PER_FIND);
        usual.abs_diff(self.paths.supplied())
    }

    /// Whether nothing is left to follow.
    pub fn is_done(&self) -> bool {
        self.typed_log_prob.is_some() && self.waiting.is_empty()
    }

    /// Goes on until a distribution is missing, or to the end. What it waited for must have been supplied.
    pub fn advance(&mut self) {
        debug_assert!(!self.paths.is_waiting(), "a distribution is missing");
        self.paths.want_nothing();
        if self.typed_log_prob.is_none() {
            self.open();
        }
        for source in std::mem::take(&mut self.waiting) {
            self.expand(source);
        }
        while let Some(source) = self.next_source() {
            let node = self.sources[source].node;
            if self.paths.next(node).is_some() {
                self.expand(source);
                continue;
            }
            self.paths.want(Wanted { node, full: false, speculative: false });
            self.waiting.push(source);
        }
    }

    /// Tells it what searches of this model are like: see [`Search::experience`].
    pub fn expect(&mut self, experience: Experience) {
        self.experience = experience;
    }

    /// What this search was like, and those that it was told of.
    pub fn experience(&self) -> Experience {
        Experience {
            meets_cuts: self.order() == Order::Shallowest,
            foresight: self.ahead.learned(self.experience.foresight),
        }
    }

    /// Suggestions that were asked for.
    pub fn suggestions_wanted(&self) -> usize {
        self.options.suggestions
    }

    /// The search for what will have been typed if the next character is the one that the first suggestion has there, whether the
    /// model ended that suggestion or it was cut.
    pub fn next_agreeing(&self) -> Option<Self> {
        let next = self.outcome().suggestions.first()?.completion.chars().next()?;
        let search = Self::new(Arc::clone(&self.text), format!("{}{next}", self.typed), self.options.clone());
        // One position must be left for a token that is not typed yet.
        (search.paths.prompt().len() + search.typed_tokens() < search.options.context).then_some(search)
    }

    /// Log-probability that a query begins with the typed bytes; `None` before the first step.
    pub fn typed_log_prob(&self) -> Option<f64> {
        self.typed_log_prob
    }

    /// Weighs all ways in which the typed text can begin a query.
    fn open(&mut self) {
        let joints = self.opening_joints();
        let mut candidates = Vec::new();
        for (opening, &node) in self.openings.iter().zip(&self.opening_nodes) {
            let Some((rule, text)) = self.follow_path(&opening.path) else { continue };
            let (source, joint) = (self.sources.len(), joints[node.0]);
            self.sources.push(Beam { node, joint, rule, text, new_tokens: 0 });
            match &opening.extensions {
                None => candidates.push(Candidate { joint, source, token: None }),
                Some(extensions) => {
                    let next = self.paths.next(node);
                    let log_prob = |token: TokenId| Some(joint + f64::from(next?.log_prob(token.0)?));
                    let known = extensions.iter().filter_map(|&token| Some((token, log_prob(token)?)));
                    candidates.extend(known.map(|(token, joint)| Candidate { joint, source, token: Some(token) }));
                }
            }
        }
        candidates.retain(|candidate| candidate.joint > f64::NEG_INFINITY);
        self.typed_log_prob = Some(log_sum(candidates.iter().map(|candidate| candidate.joint)));
        for candidate in candidates {
            self.frontier.push(self.level(&candidate), candidate);
        }
    }

    /// Joint log-probabilities of all nodes so far, from the prompt's distribution on.
    fn opening_joints(&self) -> Vec<f64> {
        let mut joints = vec![0.0; self.paths.len()];
        for index in 1..joints.len() {
            let Some((parent, token)) = self.paths.step_to(NodeIndex(index)) else { continue };
            let step = self.paths.next(parent).and_then(|next| next.log_prob(token.0));
            joints[index] = joints[parent.0] + step.map_or(f64::NEG_INFINITY, f64::from);
        }
        joints
    }

    /// The rule and the text at the end of a path behind the prompt.
    fn follow_path(&self, path: &[TokenId]) -> Option<(PathRule, Vec<u8>)> {
        let mut rule = self.text.rule(self.options.method);
        let mut text = Vec::new();
        for &token in path {
            rule = self.text.follow(&rule, token)?;
            text.extend_from_slice(self.token_bytes(&text, token)?);
        }
        Some((rule, text))
    }

    /// In which order beginnings are followed. Both lead to the same answer: a level's beams are its most probable ones either way.
    ///
    /// Best first does the least work where queries end, because finds make the rest unnecessary. Where hardly anything ends,
    /// all levels fill up anyway, and following them one by one lets an engine compute a level's beams together.
    fn order(&self) -> Order {
        #[cfg(test)]
        if let Some(order) = self.fixed_order {
            return order;
        }
        let followed: usize = self.followed.iter().sum();
        let is_early = followed < self.options.beams && !self.experience.meets_cuts;
        let ends = self.found.len() * BEAMS_PER_FIND > followed || is_early;
        if ends { Order::Best } else { Order::Shallowest }
    }

    /// The next beginning to follow, now a source. `None` if nothing left can change the answer, or if what follows depends on what is
    /// waited for: a level's beams are known before any of them is, those of the next level aren't.
    fn next_source(&mut self) -> Option<usize> {
        let order = self.order();
        let level_waiting = self.waiting.first().map(|&source| self.sources[source].new_tokens);
        if level_waiting.is_some() && order == Order::Best {
            return None;
        }
        loop {
            let (level, candidate) = self.frontier.pop(order)?;
            if level_waiting.is_some_and(|waiting| waiting != level) {
                self.frontier.push(level, candidate);
                return None;
            }
            if self.found.threshold().is_some_and(|kth| candidate.joint <= kth) {
                self.drop_level(level, candidate.joint);
                continue;
            }
            let Some((rule, text, new_tokens)) = self.materialise(&candidate) else { continue };
            if !self.room_at(level) {
                self.drop_level(level, candidate.joint);
                continue;
            }
            if self.followed.len() <= level {
                self.followed.resize(level + 1, 0);
            }
            self.followed[level] += 1;
            let joint = candidate.joint;
            if self.is_cut(&candidate, new_tokens) {
                self.cut.push(Cut { joint, text });
                continue;
            }
            let node = self.node(&candidate);
            self.ahead.follow(node);
            self.sources.push(Beam { node, joint, rule, text, new_tokens });
            return Some(self.sources.len() - 1);
        }
    }

    /// Gives up the candidates of a level; the best of them is `joint`.
    fn drop_level(&mut self, level: usize, joint: f64) {
        self.dropped = self.dropped.max(joint);
        self.frontier.clear(level);
    }

    /// New tokens of the beam that a candidate stands for: those that reach beyond what was typed, one that finishes a half-typed
    /// word included.
    fn level(&self, candidate: &Candidate) -> usize {
        let source = &self.sources[candidate.source];
        let Some(token) = candidate.token else { return source.new_tokens };
        let added = || self.token_bytes(&source.text, token).map_or(0, <[u8]>::len);
        let is_new = source.text.len() >= self.typed.len() || source.text.len() + added() > self.typed.len();
        source.new_tokens + usize::from(is_new)
    }

    /// Whether another beam of so many new tokens may be followed. Where they are cut, following costs nothing: there is room for as
    /// many as may be suggested.
    fn room_at(&self, new_tokens: usize) -> bool {
        let SearchOptions { beams, suggestions, max_new_tokens, .. } = self.options;
        let most = if new_tokens < max_new_tokens { beams } else { beams.max(suggestions) };
        self.followed.get(new_tokens).is_none_or(|&followed| followed < most)
    }

    /// Whether the beginning that a candidate stands for, of so many new tokens, is at a length limit.
    fn is_cut(&self, candidate: &Candidate, new_tokens: usize) -> bool {
        let depth = self.paths.depth(self.sources[candidate.source].node) + usize::from(candidate.token.is_some());
        new_tokens >= self.options.max_new_tokens || depth > self.options.context
    }

    /// Its node.
    fn node(&mut self, candidate: &Candidate) -> NodeIndex {
        let from = self.sources[candidate.source].node;
        candidate.token.map_or(from, |token| self.paths.child(from, token))
    }

    /// What a token adds to a text.
    fn token_bytes(&self, text: &[u8], token: TokenId) -> Option<&[u8]> {
        if text.is_empty() { self.text.first_bytes(token) } else { self.text.bytes(token) }
    }

    /// Ends a beam and continues it, each as its distribution has it.
    fn expand(&mut self, source: usize) {
        let Some(next) = self.paths.take_next(self.sources[source].node) else { return };
        let beam = &self.sources[source];
        // Whatever it is continued by is new: a beam's text covers what was typed.
        let level = beam.new_tokens + 1;
        let mut ending = f64::NEG_INFINITY;
        self.frontier.make_room(level, next.best().len());
        for (id, log_prob) in next.best() {
            let joint = beam.joint + f64::from(log_prob);
            match self.text.role(TokenId(id)) {
                Role::End => ending = log_add(ending, joint),
                Role::Text if self.found.threshold().is_none_or(|kth| joint > kth) => {
                    self.frontier.push(level, Candidate { joint, source, token: Some(TokenId(id)) });
                }
                Role::Text | Role::Never => {}
            }
        }
        if let Some(bound) = next.unlisted_bound() {
            self.dropped = self.dropped.max(beam.joint + f64::from(bound));
        }
        // A complete query is kept if it says more than what was typed.
        if ending > f64::NEG_INFINITY
            && self.text.may_end(&beam.rule)
            && let Some(text) = self.presentable(&beam.text)
        {
            let text = text.to_owned();
            self.found.add(text, ending);
        }
    }

    /// A text that can be shown: it starts with what was typed, adds something visible and ends with no space.
    fn presentable<'a>(&self, text: &'a [u8]) -> Option<&'a str> {
        let text = std::str::from_utf8(text).ok()?;
        let completion = text.strip_prefix(&self.typed)?;
        let shown = !completion.trim().is_empty() && !text.ends_with(char::is_whitespace);
        (shown && !self.text.blocks(text.as_bytes(), true)).then_some(text)
    }

    /// The rule, the text and the new tokens of the beginning that a candidate stands for; `None` if its token may not follow.
    fn materialise(&self, candidate: &Candidate) -> Option<(PathRule, Vec<u8>, usize)> {
        let source = &self.sources[candidate.source];
        let Some(token) = candidate.token else {
            return Some((source.rule, source.text.clone(), source.new_tokens));
        };
        if self.text.role(token) != Role::Text {
            return None;
        }
        let bytes = self.token_bytes(&source.text, token)?;
        // A second space in a row is no distinct query, unless it was typed.
        let generated = source.text.len() >= self.typed.len();
        if generated && source.text.last() == Some(&b' ') && bytes.first() == Some(&b' ') {
            return None;
        }
        let rule = self.text.follow(&source.rule, token)?;
        let mut text = Vec::with_capacity(source.text.len() + bytes.len());
        text.extend_from_slice(&source.text);
        text.extend_from_slice(bytes);
        let common = text.len().min(self.typed.len());
        if text[..common] != self.typed.as_bytes()[..common] || self.text.blocks(&text, false) {
            return None;
        }
        Some((rule, text, self.level(candidate)))
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
