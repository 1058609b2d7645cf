//! The text of a generated sequence: which part of it is certain, and where it stops.

use crate::text::Text;

/// Turns tokens' bytes into text. It holds text back while it may be half a character or the beginning of a stop
/// string.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    stop: Vec<String>,
    bytes: Vec<u8>,
    released: String,
    /// How many of the bytes `released` stands for.
    released_bytes: usize,
    stopped: bool,
}

impl Detokenizer {
    /// Nothing yet. Empty stop strings stop nothing.
    pub fn new(stop: Vec<String>) -> Self {
        let stop = stop.into_iter().filter(|s| !s.is_empty()).collect();
        Self { stop, bytes: Vec::new(), released: String::new(), released_bytes: 0, stopped: false }
    }

    /// Adds a token's bytes and returns the text that has become certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.bytes.extend_from_slice(bytes);
        let held = &self.bytes[self.released_bytes..];
        let found = self.stop.iter().filter_map(|stop| position(held, stop.as_bytes())).min();
        let certain = match found {
            Some(at) => {
                self.stopped = true;
                at
            }
            None => held.len() - self.stop.iter().map(|stop| overlap(held, stop.as_bytes())).max().unwrap_or(0),
        };
        self.release(certain, self.stopped)
    }

    /// Releases what is held back; it can't grow any more.
    pub fn release_rest(&mut self) -> String {
        self.release(self.bytes.len() - self.released_bytes, true)
    }

    /// Whether a stop string was met.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether there is no text yet, certain or not.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether text is held back.
    pub fn is_holding(&self) -> bool {
        self.released_bytes < self.bytes.len()
    }

    /// The certain text.
    pub fn released(&self) -> &str {
        &self.released
    }

    /// Whether the text has a blocked term with `bytes` added, or, with none, if it ended here.
    pub fn is_blocked(&self, text: &Text, bytes: Option<&[u8]>) -> bool {
        if !text.has_blocklist() {
            return false;
        }
        match bytes {
            None => text.blocks(&self.bytes, true),
            Some(bytes) => text.blocks(&[&self.bytes, bytes].concat(), false),
        }
    }

    /// Releases `count` of the bytes held back, except, unless it is the `last` time, half a character at the end.
    fn release(&mut self, count: usize, last: bool) -> String {
        let candidate = &self.bytes[self.released_bytes..self.released_bytes + count];
        let mut text = String::new();
        let mut used = 0;
        let mut chunks = candidate.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            // Invalid bytes at the very end may be completed by the next token.
            let invalid = chunk.invalid();
            let may_grow = chunks.peek().is_none()
                && !last
                && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if !invalid.is_empty() && !may_grow {
                text.push(char::REPLACEMENT_CHARACTER);
                used += invalid.len();
            }
        }
        self.released_bytes += used;
        self.released.push_str(&text);
        text
    }
}

/// Where `needle` begins in `text`.
fn position(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

/// Bytes at the end of `text` that `needle` begins with, not all of it.
fn overlap(text: &[u8], needle: &[u8]) -> usize {
    (1..needle.len().min(text.len() + 1)).rev().find(|&n| text.ends_with(&needle[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushes(stop: &[&str], pieces: &[&[u8]]) -> (Vec<String>, Detokenizer) {
        let mut text = Detokenizer::new(stop.iter().map(|s| (*s).to_owned()).collect());
        let released = pieces.iter().map(|piece| text.push(piece)).collect();
        (released, text)
    }

    #[test]
    fn a_character_comes_with_its_last_byte() {
        let (released, mut text) =
            pushes(&[], &[b"a", "é".as_bytes()[..1].as_ref(), "é".as_bytes()[1..].as_ref(), b"\xc3"]);
        assert_eq!(released, ["a", "", "é", ""]);
        assert_eq!((text.release_rest().as_str(), text.released()), ("\u{fffd}", "aé\u{fffd}"));
        let (released, _) = pushes(&[], &[b"a\xffb"]);
        assert_eq!(released, ["a\u{fffd}b"]);
    }

    #[test]
    fn a_stop_string_is_never_released_even_across_tokens() {
        let (released, text) = pushes(&["END"], &[b"xE", b"N", b"Dy"]);
        assert_eq!(
            (released, text.is_stopped(), text.released()),
            (vec!["x".into(), String::new(), String::new()], true, "x")
        );
        let (released, mut text) = pushes(&["END"], &[b"xEN", b"E", b"N"]);
        assert_eq!(released, ["x", "EN", ""]);
        assert_eq!((text.release_rest().as_str(), text.is_stopped()), ("EN", false));
        let (_, text) = pushes(&["b", "ab"], &[b"xab"]);
        assert_eq!(text.released(), "x", "the stop string that begins first counts");
        assert_eq!(pushes(&[""], &[b"a"]).0, ["a"]);
    }
}
