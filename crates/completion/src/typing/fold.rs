//! Folding: what a character is without letter case, width, accents and compatibility form.
//!
//! A character is decomposed (NFKD), loses its accents, and is case-folded in full, so that `ß` becomes `ss` and `ﬁ`
//! becomes `fi`. Marks that aren't accents written above or below a letter, such as Indic vowel signs, stay.

use icu_casemap::CaseMapper;
use rustc_hash::FxHashSet;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::canonical_combining_class;

/// Combining marks of at least this class are written above, below or beside a letter: accents.
const FIRST_ACCENT_CLASS: u8 = 200;

/// The folded form of one character: usually one character, none for an accent by itself, and up to 18 for a ligature.
pub fn folded(character: char) -> impl Iterator<Item = char> {
    // Almost all characters are ASCII, and these need no tables.
    let ascii = character.is_ascii().then(|| character.to_ascii_lowercase());
    let other = (!character.is_ascii()).then(|| fold_beyond_ascii(character));
    ascii.into_iter().chain(other.into_iter().flatten())
}

/// Whether a character is its own folded form.
pub fn is_folded(character: char) -> bool {
    if character.is_ascii() { !character.is_ascii_uppercase() } else { folded(character).eq([character]) }
}

fn fold_beyond_ascii(character: char) -> Vec<char> {
    let mut decomposed = String::new();
    decomposed.extend(std::iter::once(character).nfkd().filter(|&c| canonical_combining_class(c) < FIRST_ACCENT_CLASS));
    let folded = CaseMapper::new().fold_string(&decomposed).into_owned();
    // Folding may bring back what has to be decomposed: U+0130 becomes i and a dot above.
    folded.nfkd().filter(|&c| canonical_combining_class(c) < FIRST_ACCENT_CLASS).collect()
}

/// A character in its usual width and form, with its case and accents.
pub fn narrow(character: char) -> char {
    if character.is_ascii() {
        return character;
    }
    let mut forms = std::iter::once(character).nfkc();
    match (forms.next(), forms.next()) {
        (Some(form), None) => form,
        _ => character,
    }
}

/// A text without its accents.
pub fn without_accents(text: &str) -> String {
    text.nfd().filter(|&c| canonical_combining_class(c) < FIRST_ACCENT_CLASS).nfc().collect()
}

/// The folded form of a text.
pub fn fold(text: &str) -> String {
    text.chars().flat_map(folded).collect()
}

/// A text without its letter case, width and compatibility forms. Its accents stay: they may make another word.
pub fn without_case(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let usual: String = text.nfkc().collect();
    CaseMapper::new().fold_string(&usual).nfkc().collect()
}

/// Keeps the first of those whose texts differ only in letter case and width.
pub fn keep_first_of_each<T>(items: &mut Vec<T>, text: impl Fn(&T) -> &str) {
    let mut seen = FxHashSet::default();
    items.retain(|item| seen.insert(without_case(text(item))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_width_accents_and_compatibility_forms_are_folded() {
        for (text, expected) in [
            ("Wireless CHARGER 7", "wireless charger 7"),
            ("ｌｉｔｈｉｕｍ", "lithium"),
            ("Straße", "strasse"),
            ("ΣΊΣΥΦΟΣ", "σισυφοσ"),
            ("İstanbul", "istanbul"),
            ("ﬁlter", "filter"),
            ("naïve e\u{301}", "naive e"),
            ("①", "1"),
            ("日本", "日本"),
        ] {
            assert_eq!(fold(text), expected, "{text}");
        }
    }

    #[test]
    fn case_and_width_are_left_out_and_accents_stay() {
        for (text, expected) in
            [("Wi-Fi 7", "wi-fi 7"), ("Ａ\u{f1}o", "a\u{f1}o"), ("An\u{303}O", "a\u{f1}o"), ("Straße", "strasse")]
        {
            assert_eq!(without_case(text), expected, "{text}");
        }
    }

    #[test]
    fn only_accents_are_left_out() {
        assert_eq!(without_accents("Café à la Ångström ﬁ 日本 Ｅ"), "Cafe a la Angstrom ﬁ 日本 Ｅ");
    }

    #[test]
    fn what_is_folded_stays_as_it_is() {
        for character in ('\0'..=char::MAX).step_by(7) {
            let once: String = folded(character).collect();
            assert_eq!(fold(&once), once, "{character:?} U+{:04X}", character as u32);
        }
    }
}
