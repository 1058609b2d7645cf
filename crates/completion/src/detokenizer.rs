//! The text of a generated sequence: which part of it is certain, and where it stops.

use std::sync::Arc;

use crate::paths::Prompt;
use crate::text::Text;
use crate::text::codec::Codec;

/// Turns tokens into text as transformers does. It holds text back while a later token may change it, or while it may
/// be the beginning of a stop string.
#[derive(Clone)]
pub struct Detokenizer {
    codec: Arc<Codec>,
    stop: Vec<String>,
    /// The tokens from which the text behind `settled` characters follows. The first of them are only context: what a
    /// token spells may depend on the one before.
    window: Vec<u32>,
    /// Characters of the window's text that are part of the prompt, or of `held` or `released`.
    settled: usize,
    /// Text that no token can change, but that may begin a stop string.
    held: String,
    released: String,
    stopped: bool,
}

impl Detokenizer {
    /// Nothing yet, behind the tokens of a prompt. Empty stop strings stop nothing.
    pub fn new(codec: Arc<Codec>, stop: Vec<String>, prompt: Vec<u32>) -> Self {
        let stop = stop.into_iter().filter(|s| !s.is_empty()).collect();
        let settled = codec.decode(&prompt).chars().count();
        Self { codec, stop, window: prompt, settled, held: String::new(), released: String::new(), stopped: false }
    }

    /// Nothing yet, behind a prompt. What an encoder read is no part of the answer's text.
    pub fn behind(prompt: &Prompt, codec: Arc<Codec>, stop: Vec<String>) -> Self {
        let of_decoder = prompt.tokens.iter().filter(|_| prompt.source.is_none());
        Self::new(codec, stop, of_decoder.map(|token| token.0).collect())
    }

    /// Adds a token and returns the text that has become certain.
    pub fn push(&mut self, id: u32) -> String {
        self.window.push(id);
        let new = self.unsettled(None);
        let last = self.window.iter().rev().find(|&&id| !self.codec.is_special(id)).copied();
        // Half a character, or a byte that the next one may join.
        if new.ends_with(char::REPLACEMENT_CHARACTER) || last.is_some_and(|id| self.codec.is_single_byte(id)) {
            return String::new();
        }
        self.settle(&new);
        self.window.clear();
        self.window.extend(last);
        self.settled = self.codec.decode(&self.window).chars().count();
        let may_stop = self.stop.iter().map(|stop| overlap(self.held.as_bytes(), stop.as_bytes())).max().unwrap_or(0);
        self.release(self.held.len() - if self.stopped { 0 } else { may_stop })
    }

    /// Releases what is held back; nothing follows.
    pub fn release_rest(&mut self) -> String {
        let new = self.unsettled(None);
        self.window.clear();
        self.settled = 0;
        self.settle(&new);
        self.release(self.held.len())
    }

    /// Whether a stop string was met.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether text is held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty() || !self.unsettled(None).is_empty()
    }

    /// The certain text.
    pub fn released(&self) -> &str {
        &self.released
    }

    /// What a token would add as the next one.
    pub fn text_of(&self, id: u32) -> String {
        let now = self.unsettled(None).chars().count();
        self.unsettled(Some(id)).chars().skip(now).collect()
    }

    /// Whether the text has a blocked term with a token added, or, with none, if it ended here.
    pub fn is_blocked(&self, text: &Text, id: Option<u32>) -> bool {
        if !text.has_blocklist() {
            return false;
        }
        let whole = [self.released.as_str(), &self.held, &self.unsettled(id)].concat();
        text.blocks(whole.as_bytes(), id.is_none())
    }

    /// The text of the window behind what is settled, with one more token if there is one.
    fn unsettled(&self, more: Option<u32>) -> String {
        let text = match more {
            None => self.codec.decode(&self.window),
            Some(id) => self.codec.decode(&[self.window.as_slice(), &[id]].concat()),
        };
        text.chars().skip(self.settled).collect()
    }

    /// Adds text that won't change; what comes from a stop string on is dropped.
    fn settle(&mut self, text: &str) {
        self.held.push_str(text);
        if let Some(at) = self.stop.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
        }
    }

    fn release(&mut self, bytes: usize) -> String {
        let text: String = self.held.drain(..bytes).collect();
        self.released.push_str(&text);
        text
    }
}

/// Bytes at the end of `text` that `needle` begins with, not all of it.
fn overlap(text: &[u8], needle: &[u8]) -> usize {
    (1..needle.len().min(text.len() + 1)).rev().find(|&n| text.ends_with(&needle[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::testing::{byte_fallback, tiny};

    /// Pushes tokens, written as texts of one token each.
    fn pushes(text: &Text, stop: &[&str], pieces: &[&str]) -> (Vec<String>, Detokenizer) {
        let stop = stop.iter().map(|s| (*s).to_owned()).collect();
        let mut sequence = Detokenizer::new(text.codec().unwrap(), stop, Vec::new());
        let released = pieces.iter().flat_map(|piece| text.encode(piece)).map(|token| sequence.push(token.0));
        let released = released.collect();
        (released, sequence)
    }

    #[test]
    fn a_character_comes_with_its_last_byte() {
        // The bytes of é are the letters Ã and © of the byte alphabet.
        let text = tiny("aÃ©", &[]);
        let push =
            |sequence: &mut Detokenizer, ids: &[u32]| ids.iter().map(|&id| sequence.push(id)).collect::<Vec<_>>();
        let new = || Detokenizer::new(text.codec().unwrap(), Vec::new(), Vec::new());
        let mut sequence = new();
        assert_eq!(push(&mut sequence, &[0, 1, 2, 1]), ["a", "", "é", ""]);
        assert_eq!((sequence.release_rest().as_str(), sequence.released()), ("\u{fffd}", "aé\u{fffd}"));
        let mut sequence = new();
        assert_eq!(push(&mut sequence, &[2, 0]), ["", "\u{fffd}a"]);
        assert_eq!(sequence.text_of(1), "\u{fffd}");
    }

    #[test]
    fn a_stop_string_is_never_released_even_across_tokens() {
        let text = tiny("ENDxyab", &[("x", "E"), ("D", "y"), ("xE", "N")]);
        let (released, sequence) = pushes(&text, &["END"], &["xE", "N", "Dy"]);
        assert_eq!(
            (released, sequence.is_stopped(), sequence.released()),
            (vec!["x".into(), String::new(), String::new()], true, "x")
        );
        let (released, mut sequence) = pushes(&text, &["END"], &["xEN", "E", "N"]);
        assert_eq!(released, ["x", "EN", ""]);
        assert_eq!((sequence.release_rest().as_str(), sequence.is_stopped()), ("EN", false));
        let (_, sequence) = pushes(&text, &["b", "ab"], &["x", "a", "b"]);
        assert_eq!(sequence.released(), "x", "the stop string that begins first counts");
        assert_eq!(pushes(&text, &[""], &["a"]).0, ["a"]);
    }

    #[test]
    fn a_run_of_bytes_is_one_text_or_none_and_spaces_are_those_of_the_whole() {
        let text = byte_fallback();
        let codec = text.codec().unwrap();
        let id = |token: &str| codec.id(token).unwrap();
        let [euro, a, space_a, end] =
            [["<0xE2>", "<0x82>", "<0xAC>"].map(id).to_vec(), vec![id("a")], vec![id("▁a")], vec![id("</s>")]];
        for (tokens, whole) in [
            ([space_a.clone(), euro.clone(), a.clone()].concat(), "a€a"),
            ([space_a.clone(), end, space_a.clone()].concat(), "a a"),
            // The byte that begins no character takes the others of its run with it.
            ([euro.clone(), vec![id("<0xE2>")], a].concat(), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}a"),
        ] {
            let mut sequence = Detokenizer::new(Arc::clone(&codec), Vec::new(), Vec::new());
            tokens.iter().for_each(|&id| {
                sequence.push(id);
            });
            sequence.release_rest();
            assert_eq!((sequence.released(), codec.decode(&tokens).as_str()), (whole, whole));
        }
        let mut behind = Detokenizer::new(codec, Vec::new(), space_a.clone());
        assert_eq!(behind.push(space_a[0]), " a", "behind a prompt the space counts");
    }
}
