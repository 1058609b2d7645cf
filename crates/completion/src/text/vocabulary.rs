//! A vocabulary as byte strings, indexed so that "every token that begins with these bytes" is one range of an array.
//!
//! This module knows nothing of merges, of pre-tokens or of what is canonical, and it reads no files.

use std::ops::Range;

/// The number of a token in a model's vocabulary: a row of its embedding, a column of its logits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TokenId(pub u32);

/// Where one token's bytes lie in [`Vocabulary::text`].
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
    token: TokenId,
}

/// The bytes of every token.
///
/// Special tokens (end of text, padding) have no bytes, and so no text ever spells them.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// The tokens' bytes one after the other, in the order of `spans`.
    text: Vec<u8>,
    /// The tokens that have bytes, sorted by them.
    spans: Vec<Span>,
    /// Index in `spans` of each token; `None` for tokens without bytes. `[vocab]`
    places: Vec<Option<u32>>,
    /// By first byte `b`: `spans[first[b]..first[b + 1]]` begin with it. 257 entries.
    first: Vec<u32>,
}

impl Vocabulary {
    /// Builds the index. An empty byte string counts as none, and of an id given twice the last one stands.
    ///
    /// Ids should be dense: the memory is proportional to the largest.
    pub fn from_tokens(tokens: impl Iterator<Item = (TokenId, Option<Vec<u8>>)>) -> Self {
        let mut by_id: Vec<Option<Vec<u8>>> = Vec::new();
        for (token, bytes) in tokens {
            let id = token.0 as usize;
            if id >= by_id.len() {
                by_id.resize(id + 1, None);
            }
            by_id[id] = bytes.filter(|bytes| !bytes.is_empty());
        }
        let mut sorted: Vec<(&[u8], u32)> =
            by_id.iter().zip(0..).filter_map(|(bytes, id)| Some((bytes.as_deref()?, id))).collect();
        sorted.sort_unstable();

        let mut text = Vec::with_capacity(sorted.iter().map(|(bytes, _)| bytes.len()).sum());
        let mut spans = Vec::with_capacity(sorted.len());
        let mut places = vec![None; by_id.len()];
        for (place, &(bytes, id)) in (0..).zip(&sorted) {
            let start = text.len() as u32;
            text.extend_from_slice(bytes);
            spans.push(Span { start, end: text.len() as u32, token: TokenId(id) });
            places[id as usize] = Some(place);
        }
        let first = (0..=256usize).map(|b| sorted.partition_point(|(bytes, _)| usize::from(bytes[0]) < b) as u32);
        Self { first: first.collect(), text, spans, places }
    }

    /// One more than the largest token id.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The bytes of a token; none for special tokens and for ids outside the vocabulary.
    pub fn bytes(&self, token: TokenId) -> Option<&[u8]> {
        let place = (*self.places.get(token.0 as usize)?)?;
        self.spans.get(place as usize).map(|span| self.bytes_of(span))
    }

    /// The place of a token in the order of their bytes; none for special tokens.
    pub fn place(&self, token: TokenId) -> Option<u32> {
        self.places.get(token.0 as usize).copied().flatten()
    }

    /// All tokens that have bytes, with them, in the order of their bytes.
    pub fn in_order(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        self.spans.iter().map(|span| (span.token, self.bytes_of(span)))
    }

    /// The token with exactly these bytes; the one with the lowest id where several have them.
    pub fn token(&self, bytes: &[u8]) -> Option<TokenId> {
        let span = self.spans.get(self.lower_bound(bytes))?;
        (self.bytes_of(span) == bytes).then_some(span.token)
    }

    /// The tokens that begin with `prefix` and are longer than it, in the order of their bytes.
    pub fn extending(&self, prefix: &[u8]) -> impl Iterator<Item = TokenId> {
        let length = prefix.len();
        self.beginning_with(prefix).filter(move |(_, bytes)| bytes.len() > length).map(|(token, _)| token)
    }

    /// The tokens that begin with `prefix` or equal it, with their bytes, in the order of their bytes.
    pub(super) fn beginning_with(&self, prefix: &[u8]) -> impl Iterator<Item = (TokenId, &[u8])> {
        let start = self.lower_bound(prefix);
        let length = self.spans[start..].partition_point(|span| self.bytes_of(span).starts_with(prefix));
        self.spans[start..start + length].iter().map(|span| (span.token, self.bytes_of(span)))
    }

    /// The tokens that `text` begins with, shortest first, each with its length in bytes.
    pub(super) fn beginnings_of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (TokenId, usize)> + 'a {
        let mut length = 0;
        let mut range = 0..self.spans.len();
        std::iter::from_fn(move || {
            loop {
                // Of the tokens that share their first `length` bytes, those that end there sort first.
                if let Some(span) = self.spans[range.clone()].first()
                    && (span.end - span.start) as usize == length
                {
                    range.start += 1;
                    return Some((span.token, length));
                }
                if length == text.len() || range.is_empty() {
                    return None;
                }
                range = self.narrow(range.clone(), length, text[length]);
                length += 1;
            }
        })
    }

    /// The part of `range`, whose tokens share their first `depth` bytes, in which `byte` comes next.
    fn narrow(&self, range: Range<usize>, depth: usize, byte: u8) -> Range<usize> {
        if depth == 0 {
            let byte = usize::from(byte);
            return self.first[byte] as usize..self.first[byte + 1] as usize;
        }
        let next = |span: &Span| self.bytes_of(span).get(depth).copied();
        let spans = &self.spans[range.clone()];
        let start = spans.partition_point(|span| next(span) < Some(byte));
        let length = spans[start..].partition_point(|span| next(span) == Some(byte));
        range.start + start..range.start + start + length
    }

    /// The place of the first token that doesn't sort before `bytes`.
    fn lower_bound(&self, bytes: &[u8]) -> usize {
        self.spans.partition_point(|span| self.bytes_of(span) < bytes)
    }

    fn bytes_of(&self, span: &Span) -> &[u8] {
        &self.text[span.start as usize..span.end as usize]
    }

    /// Two tokens of those that `counts` holds for that have the same bytes, if there are any.
    pub(super) fn twins(&self, counts: impl Fn(TokenId) -> bool) -> Option<(TokenId, TokenId)> {
        let counted: Vec<&Span> = self.spans.iter().filter(|span| counts(span.token)).collect();
        let twins = counted.windows(2).find(|pair| self.bytes_of(pair[0]) == self.bytes_of(pair[1]))?;
        Some((twins[0].token, twins[1].token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[&str]) -> Vocabulary {
        Vocabulary::from_tokens((0..).map(TokenId).zip(tokens.iter().map(|t| Some(t.as_bytes().to_vec()))))
    }

    #[test]
    fn finds_what_extends_a_prefix() {
        let v = vocabulary(&["b", "abc", "a", "ab", "", "abd", "ac"]);
        let extending = |prefix: &str| v.extending(prefix.as_bytes()).map(|t| t.0).collect::<Vec<_>>();
        assert_eq!(extending("ab"), [1, 5]);
        assert_eq!(extending("a"), [3, 1, 5, 6]);
        assert_eq!(extending(""), [2, 3, 1, 5, 6, 0]);
        assert_eq!(extending("c"), [] as [u32; 0]);
        assert_eq!(v.bytes(TokenId(4)), None);
        assert_eq!(v.bytes(TokenId(99)), None);
        assert_eq!(v.token(b"abd"), Some(TokenId(5)));
        assert_eq!(v.len(), 7);
    }

    #[test]
    fn finds_the_beginnings_of_a_text() {
        let v = vocabulary(&["b", "abc", "a", "ab", "abcde", "b"]);
        let found: Vec<_> = v.beginnings_of(b"abcd").map(|(t, n)| (t.0, n)).collect();
        assert_eq!(found, [(2, 1), (3, 2), (1, 3)]);
        assert_eq!(v.beginnings_of(b"").count(), 0);
        assert_eq!(v.beginnings_of(b"b").collect::<Vec<_>>(), [(TokenId(0), 1), (TokenId(5), 1)]);
        assert_eq!(v.twins(|_| true), Some((TokenId(0), TokenId(5))));
        assert_eq!(v.twins(|token| token.0 > 0), None);
    }

    #[test]
    fn an_empty_vocabulary_answers() {
        let v = vocabulary(&[]);
        assert!(v.is_empty());
        assert_eq!(v.extending(b"").count() + v.beginnings_of(b"a").count(), 0);
    }
}
