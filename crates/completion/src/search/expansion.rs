//! How a beam is extended by a token: the text and level of the longer beam, its end, and which texts are shown.

use super::{Beam, Prefix, Search};
use crate::candidate::Candidate;
use crate::distribution::{Distribution, log_add};
use crate::paths::{NodeIndex, Paths};
use crate::text::{Role, TokenId};

/// What a beam is expanded into.
pub(super) struct Children {
    pub(super) candidates: Vec<Candidate>,
    /// The query that ends with the beam, if it may, and its log-probability.
    pub(super) completion: Option<(String, f64)>,
}

impl Search {
    /// Expands a beam by its distribution: into candidates, and a completion if the query may end there.
    pub(super) fn expand(&mut self, beam_index: usize) {
        let Beam { node, ref prefix, .. } = self.beams[beam_index];
        // What comes behind the typed text tells which key comes next.
        let is_opening = prefix.new_tokens == 0;
        let next = if is_opening { self.paths.next(node).cloned() } else { self.paths.take_next(node) };
        let Some(next) = next else { return };
        // Every extension is new: a beam's text covers what was typed.
        let (level, reading) = (prefix.new_tokens + 1, prefix.reading);
        // What is no more probable than this can't be expanded, or changes nothing.
        let full = if self.has_room_at(level, reading) { f64::NEG_INFINITY } else { self.best_dropped };
        let least = self.completed.threshold().map_or(full, |kth| full.max(kth));
        let Children { candidates, completion } = self.children(beam_index, &next, least);
        self.frontier.push_list(Self::slot(level, reading), candidates);
        if let Some(bound) = next.unlisted_bound() {
            self.best_dropped = self.best_dropped.max(self.beams[beam_index].joint + f64::from(bound));
        }
        if let Some((text, ending)) = completion {
            self.completed.add(text, ending);
        }
    }

    /// What a beam with the distribution `next` is expanded into, as far as it is more probable than `least`.
    pub(super) fn children(&self, beam_index: usize, next: &Distribution, least: f64) -> Children {
        let Beam { joint, prefix, .. } = &self.beams[beam_index];
        let mut ending = f64::NEG_INFINITY;
        let mut candidates = Vec::with_capacity(next.best().len());
        for (id, log_prob) in next.best() {
            let joint = joint + f64::from(log_prob);
            match self.text.role(TokenId(id)) {
                Role::End => ending = log_add(ending, joint),
                Role::Text if joint > least => {
                    candidates.push(Candidate { joint, beam: beam_index, token: Some(TokenId(id)) });
                }
                Role::Text | Role::Never => {}
            }
        }
        // A complete query is kept if it says more than what was typed.
        let ends = ending > f64::NEG_INFINITY && self.text.may_end(&prefix.rule);
        let text = if ends { self.presentable(&prefix.text, prefix.reading) } else { None };
        Children { candidates, completion: text.map(|text| (text.to_owned(), ending)) }
    }

    /// A text that can be shown: it starts with its reading and adds something visible, or is a correction; it ends
    /// with no space.
    pub(super) fn presentable<'a>(&self, text: &'a [u8], reading: Option<usize>) -> Option<&'a str> {
        let text = std::str::from_utf8(text).ok()?;
        let adds = match reading {
            Some(index) => !text.strip_prefix(&self.readings[index].text)?.trim().is_empty(),
            None => !self.has_reading(text.as_bytes(), b""),
        };
        let shown = adds && !text.ends_with(char::is_whitespace);
        (shown && !self.text.blocks(text.as_bytes(), true)).then_some(text)
    }

    /// The prefix at the end of a path behind the prompt, on the way to a reading or a correction; `None` if a token
    /// may not follow.
    pub(super) fn prefix_of(&self, path: &[TokenId], reading: Option<usize>) -> Option<Prefix> {
        let mut rule = self.text.rule(self.options.method);
        let mut text = Vec::new();
        for (index, &token) in path.iter().enumerate() {
            rule = self.text.follow(&rule, token)?;
            text.extend_from_slice(self.token_bytes(index == 0, token)?);
        }
        Some(Prefix { rule, text, new_tokens: 0, reading })
    }

    /// The prefix that a candidate stands for; `None` if its token may not follow.
    pub(super) fn extended_prefix(&self, candidate: &Candidate) -> Option<Prefix> {
        let Beam { node, prefix, .. } = &self.beams[candidate.beam];
        let Some(token) = candidate.token else { return Some(prefix.clone()) };
        if self.text.role(token) != Role::Text {
            return None;
        }
        let bytes = self.token_bytes(*node == Paths::ROOT, token)?;
        // A second space in a row makes no distinct query, unless it was typed.
        let typed = prefix.reading.map_or("", |reading| &self.readings[reading].text).as_bytes();
        let generated = prefix.text.len() >= typed.len();
        if generated && prefix.text.last() == Some(&b' ') && bytes.first() == Some(&b' ') {
            return None;
        }
        let rule = self.text.follow(&prefix.rule, token)?;
        let mut text = Vec::with_capacity(prefix.text.len() + bytes.len());
        text.extend_from_slice(&prefix.text);
        text.extend_from_slice(bytes);
        let fits = match prefix.reading {
            Some(_) => text.starts_with(typed) || typed.starts_with(&text),
            // What begins with a reading belongs to its covering set.
            None => !self.has_reading(&text, b""),
        };
        if !fits || self.text.blocks(&text, false) {
            return None;
        }
        Some(Prefix { rule, text, new_tokens: self.level(candidate), reading: prefix.reading })
    }

    /// New tokens of the beam that a candidate stands for: those that reach beyond what was typed, one that finishes a
    /// half-typed word included.
    pub(super) fn level(&self, candidate: &Candidate) -> usize {
        let Beam { node, prefix: Prefix { text, new_tokens, reading, .. }, .. } = &self.beams[candidate.beam];
        let Some(token) = candidate.token else { return *new_tokens };
        let typed = reading.map_or(0, |reading| self.readings[reading].text.len());
        let added = || self.token_bytes(*node == Paths::ROOT, token).map_or(0, <[u8]>::len);
        let is_new = text.len() >= typed || text.len() + added() > typed;
        new_tokens + usize::from(is_new)
    }

    /// Whether the beam that a candidate stands for is at a length limit.
    pub(super) fn is_truncated(&self, candidate: &Candidate, new_tokens: usize) -> bool {
        let depth = self.paths.depth(self.beams[candidate.beam].node) + usize::from(candidate.token.is_some());
        new_tokens >= self.options.max_new_tokens || depth > self.options.context
    }

    /// The node of a candidate.
    pub(super) fn node(&mut self, candidate: &Candidate) -> NodeIndex {
        let from = self.beams[candidate.beam].node;
        candidate.token.map_or(from, |token| self.paths.child(from, token))
    }

    /// The bytes that a token adds to a text. The text of the token before it may be empty: it may be the added space.
    pub(super) fn token_bytes(&self, is_first: bool, token: TokenId) -> Option<&[u8]> {
        if is_first { self.text.first_bytes(token, self.adds_space) } else { self.text.bytes(token) }
    }
}
