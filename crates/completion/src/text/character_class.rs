//! Characters by what a pre-tokenizer can tell of them: two characters are of one class if every set of characters that
//! its patterns name has both or neither.
//!
//! The sets are `regex-syntax`'s, because the `fancy-regex` engine inside `tokenizers` takes them from there too: the
//! same Unicode version by construction.

use std::collections::HashMap;

use regex_syntax::hir::ClassUnicode;

/// The number of a class, from 0.
pub(super) type ClassIndex = usize;

/// The most classes.
const MAX_CLASSES: usize = 128;

/// A set of classes: bit `class`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ClassSet(u128);

impl ClassSet {
    pub(super) fn insert(&mut self, class: ClassIndex) {
        self.0 |= 1 << class;
    }

    pub(super) fn has(self, class: ClassIndex) -> bool {
        self.0 & 1 << class != 0
    }

    /// Whether the sets have a class in common.
    pub(super) fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Maps characters to their classes.
#[derive(Clone, Debug)]
pub(super) struct CharacterClasses {
    ascii: [u8; 128],
    /// First code point and class of each range; sorted. A range ends where the next one begins.
    ranges: Vec<(u32, u8)>,
    /// Which sets have the characters of each class. `[classes][sets]`
    members: Vec<Vec<bool>>,
}

impl CharacterClasses {
    /// The classes that some sets make; none if they are more than are supported.
    pub(super) fn new(sets: &[ClassUnicode]) -> Option<Self> {
        let edges = sets.iter().flat_map(|set| set.ranges());
        let mut edges: Vec<u32> = edges.flat_map(|r| [r.start() as u32, r.end() as u32 + 1]).chain([0]).collect();
        edges.sort_unstable();
        edges.dedup();
        let mut known = HashMap::new();
        let mut classes = Self { ascii: [0; 128], ranges: Vec::new(), members: Vec::new() };
        for start in edges.into_iter().filter(|&edge| edge <= char::MAX as u32) {
            let member: Vec<bool> = sets.iter().map(|set| has(set, start)).collect();
            let class = *known.entry(member.clone()).or_insert(classes.members.len());
            if class == classes.members.len() {
                classes.members.push(member);
            }
            if class >= MAX_CLASSES {
                return None;
            }
            if classes.ranges.last().is_none_or(|last| usize::from(last.1) != class) {
                classes.ranges.push((start, class as u8));
            }
        }
        for code in 0..128 {
            classes.ascii[code] = classes.look_up(code as u32);
        }
        Some(classes)
    }

    /// How many classes there are.
    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// Whether a set, by its place in those that the classes were made of, has the characters of a class.
    pub(super) fn is_in(&self, class: ClassIndex, set: usize) -> bool {
        self.members[class][set]
    }

    /// The class of a character.
    pub(super) fn of(&self, character: char) -> ClassIndex {
        let code = character as u32;
        usize::from(self.ascii.get(code as usize).copied().unwrap_or_else(|| self.look_up(code)))
    }

    fn look_up(&self, code: u32) -> u8 {
        let place = self.ranges.partition_point(|&(start, _)| start <= code);
        place.checked_sub(1).map_or(0, |place| self.ranges[place].1)
    }

    /// The classes of all characters whose UTF-8 begins with `start`, one to three bytes of a character of at least
    /// one byte more; none if there is no such character.
    pub(super) fn of_partial(&self, start: &[u8]) -> Option<ClassSet> {
        let (low, high) = partial_range(start)?;
        let mut set = ClassSet::default();
        set.insert(usize::from(self.look_up(low)));
        let place = self.ranges.partition_point(|&(start, _)| start <= low);
        for &(_, class) in self.ranges[place..].iter().take_while(|&&(start, _)| start <= high) {
            set.insert(usize::from(class));
        }
        Some(set)
    }
}

/// Whether a set has a code point.
fn has(set: &ClassUnicode, code: u32) -> bool {
    let place = set.ranges().partition_point(|range| (range.end() as u32) < code);
    set.ranges().get(place).is_some_and(|range| range.start() as u32 <= code)
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
    use super::super::pattern::Program;
    use super::*;

    const SETS: &str = r"\p{L}|\p{N}|\s|[^\s\p{L}\p{N}]|[a-f]";

    fn classes() -> (CharacterClasses, Vec<ClassUnicode>) {
        let sets = Program::regex(SETS).unwrap().sets;
        (CharacterClasses::new(&sets).unwrap(), sets)
    }

    #[test]
    fn partial_characters_have_the_classes_of_their_completions() {
        let (classes, _) = classes();
        let mut sets = HashMap::<Vec<u8>, ClassSet>::new();
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
    fn characters_of_a_class_are_in_the_same_sets() {
        let (classes, sets) = classes();
        assert_eq!((sets.len(), classes.count()), (5, 5));
        for character in '\0'..=char::MAX {
            let class = classes.of(character);
            for (index, set) in sets.iter().enumerate() {
                assert_eq!(classes.is_in(class, index), has(set, character as u32), "{character:?}");
            }
        }
        assert_eq!(classes.of('x'), classes.of('日'));
        assert_ne!(classes.of('x'), classes.of('b'));
    }
}
