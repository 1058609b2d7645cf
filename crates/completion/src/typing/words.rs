//! Which words of a typed text are codes, and whether its letter case is a style.
//!
//! A code is typed as it is meant: `$PRE3`, `US10123456`, `H04L`. Codes look like typing errors to a language model,
//! and a wrong code is worse than none. So signs and words with digits have no edits, and no edit brings a sign or a
//! digit into a text. Neither has a word in capitals among others that are not, and its case is meant.
//!
//! A text may be typed in another style as a whole: in capitals, in Title Case, in full width. Its plain form is in
//! small letters of the usual width. In a query with field names (`TTL:`) or other operators (`$PRE3`), these, codes
//! and `AND`, `OR` and `NOT` keep their case in the plain form, too: `TTL:(SOLAR AND WIND` is `TTL:(solar AND wind`.

use std::ops::Range;

use super::fold::{folded, narrow};

/// Words that are operators in a query that has others.
const OPERATORS: [&str; 3] = ["AND", "OR", "NOT"];
/// The sign behind a field name.
const BEHIND_FIELD: char = ':';
/// The sign before an operator such as `$PRE3`.
const BEFORE_OPERATOR: char = '$';

/// What is known of a character from the word that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Character {
    /// Whether it belongs to a code.
    pub is_code: bool,
    /// Whether its case is meant.
    pub is_cased: bool,
    /// What it is in the text's plain form.
    pub plain: char,
}

/// The characters of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// The characters of the text, in order.
    pub characters: Vec<Character>,
    /// Whether letters have one style, codes aside: all small, all capitals, or a capital at the beginning of each
    /// word.
    pub has_style: bool,
}

/// Whether an edit may bring a character into a text, or take it out.
pub fn may_be_edited(c: char) -> bool {
    c.is_alphabetic() || is_separator(c)
}

/// Whether a character may stand between words without being a sign.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, '-' | '\'' | '\u{2019}')
}

/// Finds the codes of a text, and its plain form.
pub fn classify(text: &str) -> Words {
    let all: Vec<char> = text.chars().map(narrow).collect();
    let all_capitals = !all.iter().any(|c| c.is_lowercase());
    let mut characters = Vec::with_capacity(all.len());
    let mut has_style = true;
    let same_kind = |a: &char, b: &char| a.is_alphanumeric() == b.is_alphanumeric();
    for run in all.chunk_by(same_kind) {
        let is_word = run[0].is_alphanumeric();
        let capitals = run.iter().filter(|c| c.is_uppercase()).count();
        let is_cased = is_word && capitals >= 2 && !all_capitals;
        let is_code = is_cased || run.iter().any(|c| c.is_numeric());
        characters.extend(run.iter().map(|&c| Character { is_code: is_code || !may_be_edited(c), is_cased, plain: c }));
        let is_small_or_title = run.iter().skip(1).all(|c| !c.is_uppercase());
        has_style &= is_cased || all_capitals || is_small_or_title;
    }
    // A capital here and there is no style: all words have one, or none has.
    let words = || {
        all.chunk_by(same_kind).filter(|run| run[0].is_alphabetic() && run.iter().skip(1).all(|c| !c.is_uppercase()))
    };
    let titled = words().filter(|word| word[0].is_uppercase()).count();
    let small = words().filter(|word| word[0].is_lowercase()).count();
    has_style &= all_capitals || titled == 0 || small == 0;
    if has_style && all.iter().any(|c| c.is_uppercase()) {
        make_plain(&all, &mut characters);
    }
    Words { characters, has_style }
}

/// Writes the plain form of a text with a style in small letters, where case isn't meant.
fn make_plain(all: &[char], characters: &mut [Character]) {
    let mut words = Vec::new();
    let mut start = 0;
    for run in all.chunk_by(|a, b| a.is_alphanumeric() == b.is_alphanumeric()) {
        words.extend(run[0].is_alphanumeric().then(|| start..start + run.len()));
        start += run.len();
    }
    let is_operator = |word: &Range<usize>| {
        let is_capital = all[word.clone()].iter().all(|c| !c.is_lowercase()) && all[word.start].is_alphabetic();
        let before = word.start.checked_sub(1).map(|before| all[before]);
        is_capital && (all.get(word.end) == Some(&BEHIND_FIELD) || before == Some(BEFORE_OPERATOR))
    };
    let has_operators = words.iter().any(is_operator);
    for word in words {
        let text = &all[word.clone()];
        let is_meant = || {
            let is_known = OPERATORS.iter().any(|operator| operator.chars().eq(text.iter().copied()));
            is_operator(&word) || is_known || text.iter().any(|c| c.is_numeric())
        };
        let is_cased = characters[word.start].is_cased || (has_operators && is_meant());
        for character in &mut characters[word] {
            if is_cased {
                (character.is_cased, character.is_code) = (true, true);
            } else {
                character.plain = small(character.plain);
            }
        }
    }
}

/// A character's small letter, if that is the same letter by itself.
fn small(character: char) -> char {
    let mut letters = character.to_lowercase();
    match (letters.next(), letters.next()) {
        (Some(letter), None) if folded(letter).eq(folded(character)) => letter,
        _ => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> String {
        let words = classify(text);
        text.chars().zip(words.characters).map(|(c, word)| if word.is_code { c } else { '_' }).collect()
    }

    #[test]
    fn codes_are_found() {
        assert_eq!(codes("heat $PRE3 pump"), "_____$PRE3_____");
        assert_eq!(codes("TTL:(heta exch"), "TTL:(_________");
        assert_eq!(codes("lithium-ion 18650"), "____________18650");
        assert_eq!(codes("SOLAR PAN"), "_________");
        assert_eq!(codes("Wireless Char"), "_____________");
        assert!(classify("heat AND pump").characters[6].is_cased && !classify("HEAT AND").characters[6].is_cased);
    }

    #[test]
    fn capitals_are_a_style_or_are_meant() {
        for styled in ["heat pump", "HEAT PUMP 7", "Heat Pump", "TTL:(Heat Pump", "heat AND pump", "ｈｅａｔ", "日本"]
        {
            assert!(classify(styled).has_style, "{styled}");
        }
        for meant in ["pH meter", "Heat pump", "the Ångström unit"] {
            assert!(!classify(meant).has_style, "{meant}");
        }
    }

    #[test]
    fn the_plain_form_of_a_styled_text_keeps_what_is_meant() {
        let plain = |text: &str| -> String { classify(text).characters.iter().map(|c| c.plain).collect() };
        for (styled, expected) in [
            ("HEAT PUMP 7", "heat pump 7"),
            ("Heat Pump", "heat pump"),
            ("3D PRINTER", "3d printer"),
            ("ROCK AND ROLL", "rock and roll"),
            ("TTL:(HEAT AND PUMP", "TTL:(heat AND pump"),
            ("TTL:(Heat AND Pump", "TTL:(heat AND pump"),
            ("\"AIR FILTER\" $PRE3 \"HEPA", "\"air filter\" $PRE3 \"hepa"),
            ("IPC:H04L9/08 NOT TTL:(CLOUD", "IPC:H04L9/08 NOT TTL:(cloud"),
            ("ｈｅａｔ Ｐｕｍｐ", "heat Pump"),
            ("ＨＥＡＴ", "heat"),
            ("ＴＴＬ：（ｈｅａｔ", "TTL:(heat"),
            ("pH meter", "pH meter"),
            ("İSTANBUL", "İstanbul"),
            ("日本", "日本"),
        ] {
            assert_eq!(plain(styled), expected, "{styled}");
        }
    }
}
