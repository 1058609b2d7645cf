//! The token sequences with which a completion of a typed text can begin: its *covering set*.
//!
//! A person types bytes, a model continues tokens, and the tokens of the finished text needn't begin with those of the
//! typed one. The covering set of a typed text P holds, for every text X that starts with P, the shortest beginning of
//! X's encoding that spells all of P (Phan 2024, arXiv 2410.09303; Hayase 2025, "ByteSampler"). It is the encoding of P
//! itself, and sequences `c . t` where the context `c` spells the beginning of P and the token `t` the rest and usually
//! more. The members exclude each other: their probabilities add up to P's.
//!
//! This module scores nothing and calls no model. The same tokens never come twice, and no member is missing; what may
//! come in excess is a `t` that ends inside a character, as [`CanonicalBpe`] says.

use super::canonical::{CanonicalBpe, PathState};
use super::token_lattice::TokenLattice;
use super::vocabulary::TokenId;

/// A context from which the typed bytes can be finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// The tokens that spell `typed[..at]`. They are the encoding of that text, unless its last characters are split
    /// differently in view of those behind it.
    pub tokens: Vec<TokenId>,
    /// How many bytes of the [spelled](super::normal_form::NormalForm::spelled) text they spell; always less than it
    /// has. It may lie inside a character.
    pub at: usize,
    state: PathState,
}

impl Context {
    /// The state after the context's tokens, for [`CanonicalBpe::may_follow`].
    pub fn state(&self) -> PathState {
        self.state
    }
}

/// The covering set of a typed text, without the last tokens: see [`CanonicalBpe::extensions`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoveringSet {
    /// The encoding of the typed text.
    pub canonical: Vec<TokenId>,
    /// The contexts with at least one extension; longest `at` first. Two may have the same `at`.
    pub contexts: Vec<Context>,
}

impl CanonicalBpe {
    /// The covering set of a typed text.
    ///
    /// If the text has characters that can't be spelled ([`CanonicalBpe::is_encodable`]), nothing covers it: there are
    /// no contexts then, and `canonical` is the encoding without them.
    pub fn covering_set(&self, typed: &str) -> CoveringSet {
        if !self.is_encodable(typed) {
            return CoveringSet { canonical: self.encode(typed), contexts: Vec::new() };
        }
        let spelled = self.normal_form().spelled(typed);
        let bytes = spelled.as_bytes();
        let lattice = TokenLattice::new(self, bytes);
        let mut contexts = Vec::new();
        for at in (1..bytes.len()).rev() {
            for (node, state) in lattice.ending_at(at) {
                if self.is_extended(bytes, at, &state) {
                    contexts.push(Context { tokens: lattice.tokens(node), at, state });
                }
            }
        }
        let state = self.start();
        if !bytes.is_empty() && self.is_extended(bytes, 0, &state) {
            contexts.push(Context { tokens: Vec::new(), at: 0, state });
        }
        CoveringSet { canonical: lattice.canonical(), contexts }
    }

    /// The tokens `t` that may follow a context of [`CanonicalBpe::covering_set`] so that `context . t` covers the
    /// typed text, in the order of their bytes.
    ///
    /// They spell the rest of the typed text and more. One may spell just the rest, if the tokens then differ from the
    /// canonical ones: the text can't end there, but goes on to something that is split differently. With a vocabulary
    /// that has a token `"  "`, this is `"a"`, `" "`, `" "` for the typed `"a  "`, on the way to `"a  b"`.
    pub fn extensions(&self, typed: &str, context: &Context) -> Vec<TokenId> {
        self.covering(self.normal_form().spelled(typed).as_bytes(), context.at, context.state).collect()
    }

    /// Whether there is an extension.
    fn is_extended(&self, typed: &[u8], at: usize, state: &PathState) -> bool {
        self.may_span(state, &typed[at..]) && self.covering(typed, at, *state).next().is_some()
    }

    fn covering<'a>(&'a self, typed: &'a [u8], at: usize, state: PathState) -> impl Iterator<Item = TokenId> + 'a {
        let rest = typed.get(at..).filter(|rest| !rest.is_empty());
        let tokens = rest.into_iter().flat_map(|rest| {
            let longer = move |bytes: &[u8]| bytes.len() > rest.len();
            self.vocabulary().beginning_with(rest).map(move |(token, bytes)| (token, longer(bytes)))
        });
        tokens.filter_map(move |(token, longer)| {
            let after = self.may_follow(&state, token)?;
            (longer || !self.may_end(&after)).then_some(token)
        })
    }
}
