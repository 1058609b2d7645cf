//! Every way to spell a text's bytes with tokens so that the sequence is still the beginning of a canonical one.
//!
//! At each byte there are few: the guesses about what follows the text leave one sequence each, because the last
//! token of a byte string fixes the ones before it. So the work is linear in the text's length, times the few tokens
//! that match at a byte.
//!
//! This module decides nothing itself: it asks [`CanonicalBpe::may_follow`].

use super::canonical::{CanonicalBpe, PathState};
use super::vocabulary::TokenId;

/// A sequence of tokens, represented by its last one.
#[derive(Clone, Copy, Debug)]
struct Node {
    state: PathState,
    token: TokenId,
    /// The node of the sequence without its last token; none where that is empty.
    before: Option<u32>,
    /// Another node that ends at the same byte.
    beside: Option<u32>,
}

/// The sequences that spell each beginning of a text.
#[derive(Debug)]
pub(super) struct TokenLattice<'a> {
    canonical: &'a CanonicalBpe,
    nodes: Vec<Node>,
    /// By number of bytes spelled: the first node that ends there. Index 0 stays empty. [bytes + 1]
    heads: Vec<Option<u32>>,
}

impl CanonicalBpe {
    /// The tokens of a text: what `tokenizers` gives without special tokens.
    ///
    /// Characters that aren't [encodable](Self::is_encodable) are left out, as if the text didn't have them.
    /// (`tokenizers` leaves out the bytes, but splits the text with them in.) The text of a special token is text like
    /// any other.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        if self.is_encodable(text) {
            return TokenLattice::new(self, self.normal_form().spelled(text).as_bytes()).canonical();
        }
        let mut buffer = [0; 4];
        let encodable: String = text.chars().filter(|c| self.is_encodable(c.encode_utf8(&mut buffer))).collect();
        TokenLattice::new(self, self.normal_form().spelled(&encodable).as_bytes()).canonical()
    }
}

impl<'a> TokenLattice<'a> {
    pub(super) fn new(canonical: &'a CanonicalBpe, text: &[u8]) -> Self {
        let mut lattice =
            Self { canonical, nodes: Vec::with_capacity(text.len() * 2), heads: vec![None; text.len() + 1] };
        lattice.extend(canonical.start(), None, 0, text);
        for at in 1..text.len() {
            let mut node = lattice.heads[at];
            while let Some(index) = node {
                let Node { state, beside, .. } = lattice.nodes[index as usize];
                lattice.extend(state, Some(index), at, text);
                node = beside;
            }
        }
        lattice
    }

    /// Adds the sequences one token longer than that of `before`, which ends at byte `at`.
    fn extend(&mut self, state: PathState, before: Option<u32>, at: usize, text: &[u8]) {
        for (token, length) in self.canonical.vocabulary().beginnings_of(&text[at..]) {
            if let Some(state) = self.canonical.may_follow(&state, token) {
                let index = self.nodes.len() as u32;
                let beside = self.heads[at + length].replace(index);
                self.nodes.push(Node { state, token, before, beside });
            }
        }
    }

    /// The sequences that spell the first `at` bytes, by their last node. None for `at` 0.
    pub(super) fn ending_at(&self, at: usize) -> impl Iterator<Item = (u32, PathState)> + '_ {
        let mut next = self.heads.get(at).copied().flatten();
        std::iter::from_fn(move || {
            let index = next?;
            let node = &self.nodes[index as usize];
            next = node.beside;
            Some((index, node.state))
        })
    }

    /// The tokens of a node's sequence.
    pub(super) fn tokens(&self, node: u32) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        let mut next = Some(node);
        while let Some(index) = next {
            let node = &self.nodes[index as usize];
            tokens.push(node.token);
            next = node.before;
        }
        tokens.reverse();
        tokens
    }

    /// The encoding of the whole text. Empty for an empty text, and for one with bytes that the vocabulary lacks.
    pub(super) fn canonical(&self) -> Vec<TokenId> {
        let mut whole = self.ending_at(self.heads.len() - 1).filter(|(_, state)| self.canonical.may_end(state));
        whole.next().map_or_else(Vec::new, |(node, _)| self.tokens(node))
    }
}
