//! What a tokenizer does with a text before it splits it: Unicode's composed form, and a space before the first word.
//!
//! A tokenizer that composes never produces tokens of a text that isn't composed, so a path through such a text isn't
//! canonical. `Composing` follows a text one character at a time and finds that out.

use std::borrow::Cow;

use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::canonical_combining_class;

/// What stands for a space in the tokens of SentencePiece.
pub(super) const META_SPACE: char = '\u{2581}';

/// When a space is put before a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddedSpace {
    /// Never.
    #[default]
    Never,
    /// Unless the text begins with one, or with an added token.
    IfMissing,
    /// Always.
    Always,
}

/// What is done with a text.
#[derive(Clone, Debug, Default)]
pub struct NormalForm {
    /// Whether the text is composed (NFC).
    pub(super) nfc: bool,
    /// Whether U+2581 is a space.
    pub(super) meta_space: bool,
    pub(super) space: AddedSpace,
    /// Added tokens that are found before the text is composed.
    pub(super) kept: Vec<String>,
    /// All added tokens.
    pub(super) added: Vec<String>,
}

impl NormalForm {
    /// The text as suggestions spell it: as the tokenizer sees it, but without a space that was put before it.
    pub fn normalized<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let spaced = match self.meta_space && text.contains(META_SPACE) {
            true => Cow::Owned(text.replace(META_SPACE, " ")),
            false => Cow::Borrowed(text),
        };
        if !self.nfc || spaced.chars().all(is_plain) {
            return spaced;
        }
        let mut composed = String::with_capacity(spaced.len());
        let mut rest: &str = &spaced;
        while let Some((at, kept)) = first_of(&self.kept, rest) {
            composed.extend(rest[..at].nfc().map(|(character, _)| character));
            composed.push_str(kept);
            rest = &rest[at + kept.len()..];
        }
        composed.extend(rest.nfc().map(|(character, _)| character));
        Cow::Owned(composed)
    }

    /// The text that the tokens of a text spell.
    pub fn spelled<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let normalized = self.normalized(text);
        if self.adds_space(&normalized) { Cow::Owned(format!(" {normalized}")) } else { normalized }
    }

    /// Whether a space is put before a text.
    pub fn adds_space(&self, normalized: &str) -> bool {
        let has_space = || normalized.starts_with(' ') || self.added.iter().any(|added| normalized.starts_with(added));
        match self.space {
            AddedSpace::Never => false,
            _ if normalized.is_empty() => false,
            AddedSpace::IfMissing => !has_space(),
            AddedSpace::Always => true,
        }
    }

    /// Whether texts are composed.
    pub(super) fn composes(&self) -> bool {
        self.nfc
    }

    /// Whether an added token is found before the text is composed.
    pub(super) fn keeps(&self, content: &[u8]) -> bool {
        self.kept.iter().any(|kept| kept.as_bytes() == content)
    }
}

/// The leftmost of some texts in a text, the longest if several begin there, with its place.
pub(super) fn first_of<'a>(texts: &'a [String], text: &str) -> Option<(usize, &'a str)> {
    let found = texts.iter().filter_map(|kept| Some((text.find(kept.as_str())?, kept.as_str())));
    found.min_by_key(|&(at, kept)| (at, std::cmp::Reverse(kept.len())))
}

/// Whether a character neither changes nor is changed by its neighbours.
fn is_plain(character: char) -> bool {
    character < '\u{300}'
}

/// The end of a composed text, as far as it decides which characters leave it composed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Composing {
    /// The last character that isn't a combining mark.
    starter: Option<char>,
    /// The combining class of the last mark behind it; 0 without one. Marks are sorted by it.
    class: u8,
}

impl Composing {
    /// With one more character; none if the text isn't composed then.
    pub(super) fn with(self, character: char) -> Option<Self> {
        if is_plain(character) {
            return Some(Self { starter: Some(character), class: 0 });
        }
        let class = canonical_combining_class(character);
        if class > 0 && class < self.class {
            return None;
        }
        // Another mark between them, of this class or before a starter, keeps a character from its starter.
        let is_blocked = self.class > 0 && (class == 0 || class == self.class);
        let end = self.starter.filter(|_| !is_blocked).into_iter().chain([character]);
        let is_composed = end.clone().nfc().map(|(composed, _)| composed).eq(end);
        let starter = if class == 0 { Some(character) } else { self.starter };
        is_composed.then_some(Self { starter, class })
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle_tests::samples::Random;
    use super::*;

    #[test]
    fn composed_texts_are_followed_and_others_are_not() {
        let mut random = Random::new(3);
        let marks: Vec<char> = ('\u{300}'..'\u{370}').chain(['\u{5b0}', '\u{5bf}', '\u{9be}', '\u{fb1e}']).collect();
        let others: Vec<char> =
            "aeoAsåếạ각가\u{1100}\u{1161}\u{11a8}\u{9c7}\u{dd9}\u{dca}\u{212b}<1ไ".chars().collect();
        let (mut composed, mut not) = (0, 0);
        for _ in 0..400_000 {
            let length = random.below(5) + 1;
            let pick = |random: &mut Random| match random.below(2) {
                0 => *random.pick(&marks),
                _ => *random.pick(&others),
            };
            let text: String = (0..length).map(|_| pick(&mut random)).collect();
            let is_composed = text.nfc().map(|(character, _)| character).eq(text.chars());
            let followed = text.chars().try_fold(Composing::default(), Composing::with).is_some();
            assert_eq!(followed, is_composed, "{:?}", text.escape_unicode().to_string());
            *(if is_composed { &mut composed } else { &mut not }) += 1;
        }
        assert!(composed > 20_000 && not > 20_000, "{composed} {not}");
    }

    #[test]
    fn a_space_is_added_where_the_tokenizer_adds_one() {
        let form = |space| NormalForm { space, added: vec!["<x>".to_owned()], ..NormalForm::default() };
        assert_eq!(form(AddedSpace::IfMissing).spelled("solar"), " solar");
        assert_eq!(form(AddedSpace::IfMissing).spelled(" solar"), " solar");
        assert_eq!(form(AddedSpace::IfMissing).spelled("<x>solar"), "<x>solar");
        assert_eq!(form(AddedSpace::Always).spelled(" solar"), "  solar");
        assert_eq!(form(AddedSpace::Never).spelled("solar"), "solar");
        assert_eq!(form(AddedSpace::Always).spelled(""), "");
        let form = NormalForm { nfc: true, kept: vec!["<e".to_owned()], ..NormalForm::default() };
        assert_eq!(form.normalized("e\u{301}<e\u{301}e\u{301}"), "é<e\u{301}é");
        assert_eq!(NormalForm { meta_space: true, ..NormalForm::default() }.normalized("a\u{2581}b"), "a b");
    }
}
