//! What GPT-2's pre-tokenizer can tell of a character: letter, number, white space or other, and the few characters
//! that contractions are made of.
//!
//! The classes `\p{L}`, `\p{N}` and `\s` are `regex-syntax`'s, because the `fancy-regex` engine inside `tokenizers`
//! takes them from there too: the same Unicode version by construction. This module splits nothing: see `split`.

use regex_syntax::hir::{Class, HirKind};

/// A character, as far as the pre-tokenizer can tell it from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CharacterClass {
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

impl CharacterClass {
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

/// A set of classes: bit `class as u16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ClassSet(u16);

impl ClassSet {
    pub(super) fn insert(&mut self, class: CharacterClass) {
        self.0 |= 1 << class as u16;
    }

    /// Whether the predicate holds for any class of the set.
    pub(super) fn any(self, predicate: impl Fn(CharacterClass) -> bool) -> bool {
        CharacterClass::ALL.into_iter().any(|class| self.0 & 1 << class as u16 != 0 && predicate(class))
    }
}

/// Maps characters to their classes.
#[derive(Clone, Debug)]
pub(super) struct CharacterClasses {
    ascii: [CharacterClass; 128],
    /// First and last code point of each range whose characters aren't [`CharacterClass::Other`]; sorted, disjoint.
    ranges: Vec<(u32, u32, CharacterClass)>,
}

impl CharacterClasses {
    /// Reads the tables; none if `regex-syntax` was built without its Unicode tables.
    pub(super) fn new() -> Option<Self> {
        let mut ranges = Vec::new();
        for (pattern, class) in
            [(r"\p{L}", CharacterClass::Letter), (r"\p{N}", CharacterClass::Number), (r"\s", CharacterClass::White)]
        {
            let HirKind::Class(Class::Unicode(matching)) = regex_syntax::parse(pattern).ok()?.into_kind() else {
                return None;
            };
            ranges.extend(matching.ranges().iter().map(|r| (r.start() as u32, r.end() as u32, class)));
        }
        ranges.sort_unstable_by_key(|&(start, ..)| start);
        let mut classes = Self { ascii: [CharacterClass::Other; 128], ranges };
        for byte in 0..128u8 {
            classes.ascii[usize::from(byte)] = match byte {
                b' ' => CharacterClass::Space,
                b'\'' => CharacterClass::Quote,
                b's' | b't' | b'm' | b'd' => CharacterClass::LetterStmd,
                b'r' | b'v' => CharacterClass::LetterRv,
                b'l' => CharacterClass::LetterL,
                b'e' => CharacterClass::LetterE,
                _ => classes.look_up(u32::from(byte)),
            };
        }
        Some(classes)
    }

    /// The class of a character.
    pub(super) fn of(&self, character: char) -> CharacterClass {
        let code = character as u32;
        self.ascii.get(code as usize).copied().unwrap_or_else(|| self.look_up(code))
    }

    fn look_up(&self, code: u32) -> CharacterClass {
        let place = self.ranges.partition_point(|&(_, end, _)| end < code);
        self.ranges.get(place).filter(|&&(start, ..)| start <= code).map_or(CharacterClass::Other, |&(.., class)| class)
    }

    /// The classes of all characters whose UTF-8 begins with `start`, one to three bytes of a character of at least
    /// one byte more; none if there is no such character.
    pub(super) fn of_partial(&self, start: &[u8]) -> Option<ClassSet> {
        let (low, high) = partial_range(start)?;
        let mut set = ClassSet::default();
        let mut next = low; // the first code point not yet looked at
        let place = self.ranges.partition_point(|&(_, end, _)| end < low);
        for &(start, end, class) in self.ranges[place..].iter().take_while(|&&(start, ..)| start <= high) {
            if start > next {
                set.insert(CharacterClass::Other);
            }
            set.insert(class);
            next = end + 1;
        }
        if next <= high {
            set.insert(CharacterClass::Other);
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
    fn partial_characters_have_the_classes_of_their_completions() {
        let classes = CharacterClasses::new().expect("tables");
        let mut sets = std::collections::HashMap::<Vec<u8>, ClassSet>::new();
        for character in '\u{80}'..=char::MAX {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            for length in 1..bytes.len() {
                sets.entry(bytes[..length].to_vec()).or_default().insert(classes.of(character));
            }
        }
        for (start, set) in &sets {
            assert_eq!(classes.of_partial(start), Some(*set), "{start:x?}");
        }
        for bad in [&b""[..], b"a", b"\x80", b"\xc0", b"\xe0\x80", b"\xed\xa0", b"\xf5", b"\xc3\xa9", b"\xf4\x90"] {
            assert_eq!(classes.of_partial(bad), None, "{bad:x?}");
        }
    }

    #[test]
    fn classes_are_those_of_the_regex() {
        let classes = CharacterClasses::new().expect("tables");
        for (text, class) in [
            (" ", CharacterClass::Space),
            ("\t\n\r\u{b}\u{c}\u{85}\u{a0}\u{2028}\u{3000}", CharacterClass::White),
            ("aAéж日ªʰ", CharacterClass::Letter),
            ("1²½Ⅷ٣", CharacterClass::Number),
            ("'", CharacterClass::Quote),
            ("!’_\u{301}\u{200b}\u{0}\u{1c}😀", CharacterClass::Other),
        ] {
            for character in text.chars() {
                assert_eq!(classes.of(character), class, "{character:?}");
            }
        }
    }
}
