//! Which words of a typed text are codes, and whether its letter case is a style.
//!
//! A code is typed as it is meant: `$PRE3`, `US10123456`, `H04L`. Codes look like typing errors to a language model,
//! and a wrong code is worse than none. So signs and words with digits have no edits, and no edit brings a sign or a
//! digit into a text. Neither has a word in capitals among others that are not, nor a field name (`TTL:`) nor an
//! operator behind its sign (`$P`), and their case is meant.
//!
//! The space beside a code is typed like any other. It may be missing (`H04LNOT`), or swapped with a code's character
//! (`N OT`). Only behind a sign that opens something (`TTL:(`) none is missing. A small letter among a code's
//! capitals may be one too many (`NOTi`), or stand for a space (`NOTkTTL`).
//!
//! A text may be typed in another style as a whole: in capitals, in Title Case, in full width. Its plain form is in
//! small letters of the usual width. In a query with field names (`TTL:`) or other operators (`$PRE3`), these, codes
//! and `AND`, `OR` and `NOT` keep their case in the plain form, too: `TTL:(SOLAR AND WIND` is `TTL:(solar AND wind`.
//! So does the beginning of such a word at the end of the text: `TTL:(Solar) A` is `TTL:(solar) A`. It may also begin a
//! word in the text's style, so it isn't a code, and its case isn't known to be meant.

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
    /// Whether it is a small letter in a code with capitals.
    pub is_stray: bool,
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
    for place in runs(&all) {
        let run = &all[place.clone()];
        let is_word = run[0].is_alphanumeric();
        let capitals = run.iter().filter(|c| c.is_uppercase()).count();
        let is_cased = is_word && ((capitals >= 2 && !all_capitals) || is_operator(&all, &place));
        let is_code = is_cased || run.iter().any(|c| c.is_numeric());
        characters.extend(run.iter().map(|&plain| {
            let is_code = is_code || !may_be_edited(plain);
            Character { is_code, is_stray: is_cased && plain.is_lowercase(), is_cased, plain }
        }));
        let is_small_or_title = run.iter().skip(1).all(|c| !c.is_uppercase());
        has_style &= is_cased || all_capitals || is_small_or_title;
    }
    // A capital here and there is no style: all words have one, or none has.
    let is_other = |place: &Range<usize>| all[place.start].is_alphabetic() && !characters[place.start].is_cased;
    let firsts = || runs(&all).filter(is_other).map(|place| all[place.start]);
    has_style &= all_capitals || !firsts().any(char::is_uppercase) || !firsts().any(char::is_lowercase);
    if has_style && all.iter().any(|c| c.is_uppercase()) {
        make_plain(&all, &mut characters);
    }
    Words { characters, has_style }
}

/// Where words are, and where the characters between them are.
fn runs(all: &[char]) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    all.chunk_by(|a, b| a.is_alphanumeric() == b.is_alphanumeric()).map(move |run| {
        end += run.len();
        end - run.len()..end
    })
}

/// Whether a word in capitals is a field name or stands behind an operator's sign.
fn is_operator(all: &[char], word: &Range<usize>) -> bool {
    let is_capital = all[word.start].is_uppercase() && all[word.clone()].iter().all(|c| !c.is_lowercase());
    let before = word.start.checked_sub(1).map(|before| all[before]);
    is_capital && (all.get(word.end) == Some(&BEHIND_FIELD) || before == Some(BEFORE_OPERATOR))
}

/// Writes the plain form of a text with a style in small letters, where case isn't meant.
fn make_plain(all: &[char], characters: &mut [Character]) {
    let words: Vec<_> = runs(all).filter(|place| all[place.start].is_alphanumeric()).collect();
    let has_operators = words.iter().any(|word| is_operator(all, word));
    for word in words {
        let text = &all[word.clone()];
        if has_operators && word.end == all.len() && begins_operator(text) {
            continue;
        }
        let is_meant = || {
            let is_known = OPERATORS.iter().any(|operator| operator.chars().eq(text.iter().copied()));
            is_known || text.iter().any(|c| c.is_numeric())
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

/// Whether a word and at least one more letter are an operator.
fn begins_operator(word: &[char]) -> bool {
    let begins = |operator: &str| operator.len() > word.len() && operator.chars().zip(word).all(|(a, &b)| a == b);
    OPERATORS.into_iter().any(begins)
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
        assert_eq!(codes("heat $P"), "_____$P");
        assert_eq!(codes("TTL:(heta exch"), "TTL:(_________");
        assert_eq!(codes("lithium-ion 18650"), "____________18650");
        assert_eq!(codes("SOLAR PAN"), "_________");
        assert_eq!(codes("Wireless Char"), "_____________");
        assert!(classify("heat AND pump").characters[6].is_cased && !classify("HEAT AND").characters[6].is_cased);
    }

    #[test]
    fn capitals_are_a_style_or_are_meant() {
        for styled in [
            "heat pump",
            "HEAT PUMP 7",
            "Heat Pump",
            "TTL:(Heat Pump",
            "heat AND pump",
            "heat $W3 pump",
            "ｈｅａｔ",
            "日本",
        ] {
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
            ("TTL:(Heat Pump) N", "TTL:(heat pump) N"),
            ("TTL:(HEAT PUMP) NO", "TTL:(heat pump) NO"),
            ("TTL:(HEAT PUMP) NOZ", "TTL:(heat pump) noz"),
            ("Heat Pump N", "heat pump n"),
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
