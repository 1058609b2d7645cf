//! What GPT-2's pre-tokenizer can tell of a character: letter, number, white space or other, and the few characters
//! that contractions are made of.
//!
//! The classes `\p{L}`, `\p{N}` and `\s` are `regex-syntax`'s, because the `fancy-regex` engine inside `tokenizers`
//! takes them from there too: the same Unicode version by construction. This module splits nothing: see `split`.

use regex_syntax::hir::{Class, HirKind};

/// A character, as far as the pre-tokenizer can tell it from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// U+0020, the only white space that attaches to what follows.
    Space,
    /// Any other `\s`.
    White,
    /// A letter that no contraction contains.
    Letter,
    /// `s`, `t`, `m`, `d`: after an apostrophe, a whole contraction.
    LetterStmd,
    /// `r`, `v`: after an apostrophe and before an `e`, a contraction.
    LetterRv,
    /// `l`: after an apostrophe and before an `l`, a contraction.
    LetterL,
    /// `e`.
    LetterE,
    /// `\p{N}`.
    Number,
    /// The apostrophe, U+0027.
    Quote,
    /// Everything else.
    Other,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Space,
        Self::White,
        Self::Letter,
        Self::LetterStmd,
        Self::LetterRv,
        Self::LetterL,
        Self::LetterE,
        Self::Number,
        Self::Quote,
        Self::Other,
    ];

    /// Whether `\s` matches.
    pub(super) fn is_white(self) -> bool {
        matches!(self, Self::Space | Self::White)
    }

    /// Whether `\p{L}` matches.
    pub(super) fn is_letter(self) -> bool {
        matches!(self, Self::Letter | Self::LetterStmd | Self::LetterRv | Self::LetterL | Self::LetterE)
    }

    /// Whether `[^\s\p{L}\p{N}]` matches.
    pub(super) fn is_other(self) -> bool {
        matches!(self, Self::Quote | Self::Other)
    }
}

/// A set of kinds: bit `kind as u16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct KindSet(u16);

impl KindSet {
    pub(super) fn insert(&mut self, kind: Kind) {
        self.0 |= 1 << kind as u16;
    }

    /// Whether the predicate holds for any kind of the set.
    pub(super) fn any(self, predicate: impl Fn(Kind) -> bool) -> bool {
        Kind::ALL.into_iter().any(|kind| self.0 & 1 << kind as u16 != 0 && predicate(kind))
    }
}

/// Maps characters to their kinds.
#[derive(Clone, Debug)]
pub(super) struct Kinds {
    ascii: [Kind; 128],
    /// First and last code point of each range whose characters aren't [`Kind::Other`]; sorted, disjoint.
    ranges: Vec<(u32, u32, Kind)>,
}

impl Kinds {
    /// Reads the tables; none if `regex-syntax` was built without its Unicode tables.
    pub(super) fn new() -> Option<Self> {
        let mut ranges = Vec::new();
        for (class, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number), (r"\s", Kind::White)] {
            let HirKind::Class(Class::Unicode(class)) = regex_syntax::parse(class).ok()?.into_kind() else {
                return None;
            };
            ranges.extend(class.ranges().iter().map(|r| (r.start() as u32, r.end() as u32, kind)));
        }
        ranges.sort_unstable_by_key(|&(start, ..)| start);
        let mut kinds = Self { ascii: [Kind::Other; 128], ranges };
        for byte in 0..128u8 {
            kinds.ascii[usize::from(byte)] = match byte {
                b' ' => Kind::Space,
                b'\'' => Kind::Quote,
                b's' | b't' | b'm' | b'd' => Kind::LetterStmd,
                b'r' | b'v' => Kind::LetterRv,
                b'l' => Kind::LetterL,
                b'e' => Kind::LetterE,
                _ => kinds.look_up(u32::from(byte)),
            };
        }
        Some(kinds)
    }

    /// The kind of a character.
    pub(super) fn of(&self, character: char) -> Kind {
        let code = character as u32;
        self.ascii.get(code as usize).copied().unwrap_or_else(|| self.look_up(code))
    }

    fn look_up(&self, code: u32) -> Kind {
        let place = self.ranges.partition_point(|&(_, end, _)| end < code);
        self.ranges.get(place).filter(|&&(start, ..)| start <= code).map_or(Kind::Other, |&(.., kind)| kind)
    }

    /// The kinds of all characters whose UTF-8 begins with `start`, one to three bytes of a character of at least
    /// one byte more; none if there is no such character.
    pub(super) fn of_partial(&self, start: &[u8]) -> Option<KindSet> {
        let (low, high) = partial_range(start)?;
        let mut set = KindSet::default();
        let mut next = low; // the first code point not yet looked at
        let place = self.ranges.partition_point(|&(_, end, _)| end < low);
        for &(start, end, kind) in self.ranges[place..].iter().take_while(|&&(start, ..)| start <= high) {
            if start > next {
                set.insert(Kind::Other);
            }
            set.insert(kind);
            next = end + 1;
        }
        if next <= high {
            set.insert(Kind::Other);
        }
        Some(set)
    }
}

/// The first and last code point whose UTF-8 begins with these bytes and is longer; none if there is none.
fn partial_range(start: &[u8]) -> Option<(u32, u32)> {
    if std::str::from_utf8(start).err()?.error_len().is_some() {
        return None;
    }
    let (length, lowest, highest) = match *start.first()? {
        0xED => (3, 0x800, 0xD7FF), // what follows would be surrogates
        0xC2..=0xDF => (2, 0x80, 0x7FF),
        0xE0..=0xEF => (3, 0x800, 0xFFFF),
        _ => (4, 0x10000, 0x10FFFF),
    };
    let lead_bits = u32::from(start[0]) & (0x7F >> length);
    let code = start[1..].iter().fold(lead_bits, |code, byte| code << 6 | u32::from(byte & 0x3F));
    let free_bits = 6 * (length - start.len());
    let low = code << free_bits;
    Some((low.max(lowest), (low | ((1 << free_bits) - 1)).min(highest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_characters_have_the_kinds_of_their_completions() {
        let kinds = Kinds::new().expect("tables");
        let mut sets = std::collections::HashMap::<Vec<u8>, KindSet>::new();
        for character in '\u{80}'..=char::MAX {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            for length in 1..bytes.len() {
                sets.entry(bytes[..length].to_vec()).or_default().insert(kinds.of(character));
            }
        }
        for (start, set) in &sets {
            assert_eq!(kinds.of_partial(start), Some(*set), "{start:x?}");
        }
        for bad in [&b""[..], b"a", b"\x80", b"\xc0", b"\xe0\x80", b"\xed\xa0", b"\xf5", b"\xc3\xa9", b"\xf4\x90"] {
            assert_eq!(kinds.of_partial(bad), None, "{bad:x?}");
        }
    }

    #[test]
    fn kinds_are_the_classes_of_the_regex() {
        let kinds = Kinds::new().expect("tables");
        for (text, kind) in [
            (" ", Kind::Space),
            ("\t\n\r\u{b}\u{c}\u{85}\u{a0}\u{2028}\u{3000}", Kind::White),
            ("aAéж日ªʰ", Kind::Letter),
            ("1²½Ⅷ٣", Kind::Number),
            ("'", Kind::Quote),
            ("!’_\u{301}\u{200b}\u{0}\u{1c}😀", Kind::Other),
        ] {
            for character in text.chars() {
                assert_eq!(kinds.of(character), kind, "{character:?}");
            }
        }
    }
}
