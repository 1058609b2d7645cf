//! Aligns many tokens with the typed text; the prefixes that they share are aligned once.

use crate::typing::Typed;
use crate::typing::alignment::Alignment;

/// The alignments of a token's beginnings.
pub(super) struct TokenWalk<'a> {
    typed: &'a Typed,
    start: Alignment,
    /// Ways that cost more are dropped.
    budget: f32,
    /// The bytes of the last token.
    last: Vec<u8>,
    /// Alignments of beginnings of `last`, shortest first, each with its length in bytes.
    beginnings: Vec<(usize, Alignment)>,
    /// The length of the shortest beginning of `last` that leaves no way.
    dead: Option<usize>,
}

impl<'a> TokenWalk<'a> {
    /// Behind a text that has the alignment `start` and ends with a whole character.
    pub(super) fn new(typed: &'a Typed, start: Alignment, budget: f32) -> Self {
        Self { typed, start, budget, last: Vec::new(), beginnings: Vec::new(), dead: None }
    }

    /// The alignment behind a token and the bytes of the token's whole characters; `None` if no way is left. It is
    /// quickest if tokens come in the order of their bytes.
    pub(super) fn align(&mut self, bytes: &[u8]) -> Option<(Alignment, usize)> {
        let common = bytes.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        if self.dead.is_some_and(|dead| dead <= common) {
            return None;
        }
        self.dead = None;
        while self.beginnings.last().is_some_and(|(length, _)| *length > common) {
            self.beginnings.pop();
        }
        self.last.clear();
        self.last.extend_from_slice(bytes);
        let (mut length, mut alignment) = self.beginnings.last().copied().unwrap_or((0, self.start));
        let whole = bytes[length..].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        for character in whole.chars() {
            alignment.push(self.typed, character, self.budget);
            length += character.len_utf8();
            if alignment.is_dead() {
                self.dead = Some(length);
                return None;
            }
            self.beginnings.push((length, alignment));
        }
        Some((alignment, length))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::typing::Tolerance;
    use crate::typing::channel::Channel;

    #[test]
    fn tokens_have_the_alignments_that_each_has_by_itself() {
        let typed = Typed::new("wirless char", Tolerance::Auto, &Arc::new(Channel::default().costs()));
        let mut walk = TokenWalk::new(&typed, Alignment::start(&typed), 16.0);
        let tokens = ["wir", "wire", "wireless", "wirez", "wit", "xy", "xyz", "wir", "w\u{e9}"];
        for token in tokens.map(str::as_bytes).into_iter().chain([&b"w\xc3"[..]]) {
            let mut alone = Alignment::start(&typed);
            let whole = alone.push_bytes(&typed, &[], token, 16.0);
            let expected = (!alone.is_dead()).then_some((alone, whole));
            assert_eq!(walk.align(token), expected, "{}", String::from_utf8_lossy(token));
        }
    }
}
