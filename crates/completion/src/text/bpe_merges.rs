//! Byte-pair merges, and when two neighbouring tokens are what they give.
//!
//! Everything rests on two facts about merges applied in the order of their ranks, leftmost first. First, a sequence of
//! tokens is the encoding of its bytes exactly if every two neighbours are the encoding of theirs. Second, the last
//! token of a byte string determines all the tokens before it. The source is the `bpe` crate of `github/rust-gems`,
//! README, "Novel Algorithm"; also Hayase 2025. The tests check both by brute force.
//!
//! This module works inside one pre-token: it knows nothing of how a text is split into them.

use std::collections::HashSet;

use thiserror::Error;

use super::vocabulary::{TokenId, Vocabulary};

/// Why merges and a vocabulary can't be used together.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BpeError {
    /// A merge names a token that the vocabulary doesn't have, or that has no bytes.
    #[error("merge {rank} names token {}, which has no bytes in the vocabulary", token.0)]
    UnknownToken {
        /// Rank of the merge: its index in the list of merges, from 0.
        rank: usize,
        /// The token it names.
        token: TokenId,
    },
    /// The merged token's bytes aren't its parts' bytes.
    #[error("merge {rank} makes token {}, whose bytes aren't those of its two parts", merged.0)]
    WrongBytes {
        /// Rank of the merge: its index in the list of merges, from 0.
        rank: usize,
        /// The token it makes.
        merged: TokenId,
    },
    /// The same pair is merged twice.
    #[error("merge {rank} repeats the pair of an earlier merge")]
    RepeatedPair {
        /// Rank of the later merge: its index in the list of merges, from 0.
        rank: usize,
    },
    /// A merge stands before the one that makes its part, so that what is canonical isn't decided pair by pair.
    #[error("merge {rank} uses token {}, which only a later merge makes", part.0)]
    OutOfOrder {
        /// The earlier merge's place in rank order, from 0.
        rank: usize,
        /// The part that is made too late.
        part: TokenId,
    },
    /// Two tokens have the same bytes, so that bytes don't say which is meant.
    #[error("tokens {} and {} have the same bytes", first.0, second.0)]
    SameBytes {
        /// The token with the lower id.
        first: TokenId,
        /// The other one.
        second: TokenId,
    },
    /// The pre-tokenizer's patterns can't be followed from left to right.
    #[error("completions cannot be exact because the pre-tokenizer {0}")]
    PreTokenizer(String),
    /// Words in the vocabulary aren't merged (`ignore_merges`), and this one isn't what its merges would give.
    #[error("completions cannot be exact because model.ignore_merges is on and no merge makes token {}", token.0)]
    WholeWord {
        /// The token.
        token: TokenId,
    },
}

/// A merge as trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The left part.
    pub left: TokenId,
    /// The right part.
    pub right: TokenId,
    /// The token that both make.
    pub merged: TokenId,
}

/// The merge that makes a token.
#[derive(Clone, Copy, Debug)]
struct Made {
    left: TokenId,
    right: TokenId,
    rank: u32,
}

/// How a token comes to be.
#[derive(Clone, Copy, Debug)]
enum Origin {
    /// No text contains the token.
    Never,
    /// No merge makes the token: it is a single byte, or a character where characters are merged.
    Atom,
    /// The token is made by a merge.
    Merge(Made),
}

/// The merges of a vocabulary.
#[derive(Clone, Debug)]
pub(super) struct BpeMerges {
    /// How each token is made. `[vocab]`
    origins: Vec<Origin>,
    /// By left token id: `pairs[rows[left]..rows[left + 1]]` are its merges. One entry more than tokens.
    rows: Vec<u32>,
    /// Right token and rank of each merge; within a row sorted by the right token.
    pairs: Vec<(TokenId, u32)>,
}

impl BpeMerges {
    /// Checks and indexes `merges`, in rank order. What is merged are bytes, or characters, as far as those are tokens.
    /// No merge makes an added token.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        merges: &[Merge],
        added: &HashSet<TokenId>,
        by_characters: bool,
    ) -> Result<Self, BpeError> {
        if let Some((first, second)) = vocabulary.twins(|token| !added.contains(&token)) {
            return Err(BpeError::SameBytes { first, second });
        }
        let is_atom = |bytes: &[u8]| {
            let is_character = || std::str::from_utf8(bytes).is_ok_and(|text| text.chars().count() == 1);
            bytes.len() == 1 || by_characters && is_character()
        };
        let origin = |id| match vocabulary.bytes(TokenId(id)) {
            Some(bytes) if is_atom(bytes) && !added.contains(&TokenId(id)) => Origin::Atom,
            _ => Origin::Never,
        };
        let atoms: Vec<Origin> = (0..vocabulary.len() as u32).map(origin).collect();
        let built = Self::build(vocabulary, merges, &atoms)?;
        let late: Vec<(usize, TokenId)> = built.late(merges).collect();
        if late.is_empty() {
            return Ok(built);
        }
        // Files that list every way to make a token have merges that never happen: where their part is made, the whole
        // was made before. Anything else isn't decided pair by pair.
        let ranks: HashSet<usize> = late.iter().map(|&(rank, _)| rank).collect();
        let kept = merges.iter().enumerate().filter(|(rank, _)| !ranks.contains(rank));
        let kept: Vec<Merge> = kept.map(|(_, &merge)| merge).collect();
        let built = Self::build(vocabulary, &kept, &atoms)?;
        let rank_of = |token| built.made(token).map(|made| made.rank);
        let happens = |&&(rank, part): &&(usize, TokenId)| match (rank_of(merges[rank].merged), rank_of(part)) {
            (Some(whole), Some(part)) => whole > part,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        match late.iter().find(happens).copied().or_else(|| built.late(&kept).next()) {
            Some((rank, part)) => Err(BpeError::OutOfOrder { rank, part }),
            None => Ok(built),
        }
    }

    fn build(vocabulary: &Vocabulary, merges: &[Merge], atoms: &[Origin]) -> Result<Self, BpeError> {
        let (rows, pairs) = index_pairs(vocabulary, merges)?;
        let mut built = Self { origins: atoms.to_vec(), rows, pairs };
        for (rank, &Merge { left, right, merged }) in (0..).zip(merges) {
            // Of several merges that make the same token, the order of ranks lets one happen at most.
            if built.exists(left) && built.exists(right) && !built.exists(merged) && built.holds(left, right, rank) {
                built.origins[merged.0 as usize] = Origin::Merge(Made { left, right, rank });
            }
        }
        Ok(built)
    }

    /// The merges that rank before one that makes their part, each with the part.
    fn late(&self, merges: &[Merge]) -> impl Iterator<Item = (usize, TokenId)> {
        merges.iter().enumerate().filter_map(|(rank, &Merge { left, right, .. })| {
            let is_late = |part: &TokenId| self.made(*part).is_some_and(|made| made.rank as usize > rank);
            [left, right].into_iter().find(is_late).map(|part| (rank, part))
        })
    }

    /// Whether any text's encoding contains this token, as far as the merges decide it.
    pub(super) fn exists(&self, token: TokenId) -> bool {
        !matches!(self.origins.get(token.0 as usize), None | Some(Origin::Never))
    }

    /// Whether the encoding of the two tokens' bytes is these two tokens. Both must exist.
    pub(super) fn is_canonical_pair(&self, left: TokenId, right: TokenId) -> bool {
        self.holds(left, right, u32::MAX)
    }

    /// Whether the border between two neighbours is never merged across, by any merge that ranks before `limit`.
    ///
    /// It undoes the merges, the latest first, of the two tokens at the border. While two tokens stood at the border,
    /// no merge of these two may have had a lower rank than the merge that replaced one of them.
    fn holds(&self, mut left: TokenId, mut right: TokenId, mut limit: u32) -> bool {
        loop {
            if self.rank(left, right).is_some_and(|rank| rank < limit) {
                return false;
            }
            match (self.made(left), self.made(right)) {
                (None, None) => return true,
                (Some(made), None) => (left, limit) = (made.right, made.rank),
                (Some(made), Some(other)) if made.rank > other.rank => (left, limit) = (made.right, made.rank),
                // Equal merges happen leftmost first: the border's own merge would come before the right token's.
                (_, Some(made)) => (right, limit) = (made.left, made.rank + 1),
            }
        }
    }

    fn made(&self, token: TokenId) -> Option<Made> {
        match self.origins.get(token.0 as usize) {
            Some(Origin::Merge(made)) => Some(*made),
            _ => None,
        }
    }

    fn rank(&self, left: TokenId, right: TokenId) -> Option<u32> {
        let left = left.0 as usize;
        let row = &self.pairs[self.rows[left] as usize..self.rows[left + 1] as usize];
        row.binary_search_by_key(&right, |&(right, _)| right).ok().map(|place| row[place].1)
    }
}

/// [`BpeMerges::rows`] and [`BpeMerges::pairs`].
type PairIndex = (Vec<u32>, Vec<(TokenId, u32)>);

/// Checks the merges one by one, and sorts them by their left token.
fn index_pairs(vocabulary: &Vocabulary, merges: &[Merge]) -> Result<PairIndex, BpeError> {
    let mut sorted = Vec::with_capacity(merges.len());
    for (rank, &Merge { left, right, merged }) in merges.iter().enumerate() {
        let bytes = |token| vocabulary.bytes(token).ok_or(BpeError::UnknownToken { rank, token });
        let (head, tail, whole) = (bytes(left)?, bytes(right)?, bytes(merged)?);
        if whole.strip_prefix(head) != Some(tail) {
            return Err(BpeError::WrongBytes { rank, merged });
        }
        sorted.push((left, right, rank as u32));
    }
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1)) {
        return Err(BpeError::RepeatedPair { rank: pair[1].2 as usize });
    }
    let mut rows = vec![0u32; vocabulary.len() + 1];
    for (left, ..) in &sorted {
        rows[left.0 as usize + 1] += 1;
    }
    for id in 0..vocabulary.len() {
        rows[id + 1] += rows[id];
    }
    Ok((rows, sorted.into_iter().map(|(_, right, rank)| (right, rank)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds merges over the tokens `a`, `b`, `c`, `ab`, `bc`, `abc`, a special token and `d`, by their places.
    fn build(merges: &[(u32, u32, u32)]) -> Result<BpeMerges, BpeError> {
        let tokens = [Some("a"), Some("b"), Some("c"), Some("ab"), Some("bc"), Some("abc"), None, Some("d")];
        let tokens = tokens.map(|text| text.map(|text| text.as_bytes().to_vec()));
        let vocabulary = Vocabulary::from_tokens((0..).map(TokenId).zip(tokens));
        let merges: Vec<_> = merges
            .iter()
            .map(|&(left, right, merged)| Merge { left: TokenId(left), right: TokenId(right), merged: TokenId(merged) })
            .collect();
        BpeMerges::new(&vocabulary, &merges, &HashSet::new(), false)
    }

    #[test]
    fn refuses_merges_that_cannot_have_been_trained() {
        let error = |merges: &[(u32, u32, u32)]| build(merges).unwrap_err();
        assert_eq!(error(&[(0, 6, 3)]), BpeError::UnknownToken { rank: 0, token: TokenId(6) });
        assert_eq!(error(&[(0, 1, 99)]), BpeError::UnknownToken { rank: 0, token: TokenId(99) });
        assert_eq!(error(&[(0, 1, 3), (0, 2, 3)]), BpeError::WrongBytes { rank: 1, merged: TokenId(3) });
        assert_eq!(error(&[(0, 1, 3), (0, 1, 3)]), BpeError::RepeatedPair { rank: 1 });
        assert_eq!(error(&[(3, 2, 5), (0, 1, 3)]), BpeError::OutOfOrder { rank: 0, part: TokenId(3) });
        let twins = Vocabulary::from_tokens((0..2).map(|id| (TokenId(id), Some(b"a".to_vec()))));
        let same = BpeError::SameBytes { first: TokenId(0), second: TokenId(1) };
        assert_eq!(BpeMerges::new(&twins, &[], &HashSet::new(), false).unwrap_err(), same);
        assert!(BpeMerges::new(&twins, &[], &HashSet::from([TokenId(1)]), false).is_ok(), "an added token may be one");
    }

    #[test]
    fn a_forestalled_merge_makes_nothing() {
        let merges = build(&[(1, 2, 4), (0, 1, 3), (3, 2, 5)]).unwrap();
        assert!(merges.exists(TokenId(3)) && !merges.exists(TokenId(5)), "bc merges before ab can");
        assert!(merges.is_canonical_pair(TokenId(0), TokenId(4)));
        assert!(!merges.is_canonical_pair(TokenId(3), TokenId(2)));
        assert!(!merges.exists(TokenId(6)) && !merges.exists(TokenId(99)));
        // Either way to make `abc` may stand in the list: the order decides which one happens.
        let merges = build(&[(1, 2, 4), (0, 1, 3), (3, 2, 5), (0, 4, 5)]).unwrap();
        assert!(merges.exists(TokenId(5)));
    }
}
