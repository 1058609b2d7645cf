//! Aligns many tokens with the typed text; the prefixes that they share are aligned once.

use crate::typing::Typed;
use crate::typing::alignment::Alignment;

/// Aligns one token after another, and keeps the alignments of the last token's prefixes for the next one.
pub(super) struct TokenWalk<'a> {
    typed: &'a Typed,
    /// Alignments that cost more, in nats, are dropped.
    budget: f32,
    /// The bytes of the last token.
    last: Vec<u8>,
    /// Alignments of prefixes of `last`, shortest first, each with the prefix's length in bytes. The first prefix is
    /// empty.
    prefixes: Vec<(usize, Alignment)>,
    /// The length in bytes of the shortest prefix of `last` that no alignment within the budget is left for.
    dead: Option<usize>,
}

impl<'a> TokenWalk<'a> {
    /// Aligns tokens behind a text that has the alignment `start` and ends with a whole character.
    pub(super) fn new(typed: &'a Typed, start: Alignment, budget: f32) -> Self {
        Self { typed, budget, last: Vec::new(), prefixes: vec![(0, start)], dead: None }
    }

    /// The alignment behind a token and the bytes of the token's whole characters; `None` if no alignment is left.
    /// Fastest if tokens come in the order of their bytes.
    pub(super) fn align(&mut self, bytes: &[u8]) -> Option<(&Alignment, usize)> {
        let common = bytes.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        if self.dead.is_some_and(|dead| dead <= common) {
            return None;
        }
        self.dead = None;
        let kept = self.prefixes.iter().rposition(|(length, _)| *length <= common)?;
        self.prefixes.truncate(kept + 1);
        self.last.clear();
        self.last.extend_from_slice(bytes);
        let whole = bytes[self.prefixes[kept].0..].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        for character in whole.chars() {
            // Aligned where it is kept: an alignment is large.
            self.prefixes.extend_from_within(self.prefixes.len() - 1..);
            let (length, alignment) = self.prefixes.last_mut()?;
            alignment.push(self.typed, character, self.budget);
            *length += character.len_utf8();
            if alignment.is_dead() {
                self.dead = Some(*length);
                self.prefixes.pop();
                return None;
            }
        }
        self.prefixes.last().map(|(length, alignment)| (alignment, *length))
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
            assert_eq!(
                walk.align(token).map(|(alignment, whole)| (*alignment, whole)),
                expected,
                "{}",
                String::from_utf8_lossy(token)
            );
        }
    }
}
