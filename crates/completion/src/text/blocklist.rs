//! Terms that are never suggested, found in normalised text by Aho-Corasick.
//!
//! A term is blocked where it stands as whole words, so that blocking "cock" leaves "cockpit" and "Hancock" alone; a
//! term that ends in `*` is blocked with every ending. Case, width, accents, characters that aren't seen, and whether
//! words are joined by spaces or hyphens don't matter. A word also ends where a small letter is followed by a capital,
//! and a letter by a digit or the other way round. Pure; the file is read elsewhere.

use aho_corasick::{AhoCorasick, BuildError, MatchKind};

use crate::typing::fold::folded;

/// A compiled blocklist.
#[derive(Debug)]
pub struct Blocklist {
    matcher: AhoCorasick,
    /// Whether each pattern is blocked with every ending. `[patterns]`
    open_ended: Vec<bool>,
}

impl Blocklist {
    /// Compiles terms; those that normalise to nothing are left out.
    ///
    /// # Errors
    /// If there are more terms than the matcher can hold.
    pub fn new<'a>(terms: impl IntoIterator<Item = &'a str>) -> Result<Self, Box<BuildError>> {
        let (mut patterns, mut open_ended) = (Vec::new(), Vec::new());
        for term in terms {
            let stem = Normal::new(term.trim_end_matches('*')).text;
            if !stem.trim().is_empty() {
                patterns.push(stem.trim().to_owned());
                open_ended.push(term.ends_with('*'));
            }
        }
        let matcher = AhoCorasick::builder().match_kind(MatchKind::Standard).build(patterns)?;
        Ok(Self { matcher, open_ended })
    }

    /// Whether a text has a blocked term. Of a text that goes on (`ended` false) the last word may still become another
    /// one.
    pub fn blocks(&self, text: &str, ended: bool) -> bool {
        let Normal { text, borders } = Normal::new(text);
        self.matcher.find_overlapping_iter(&text).any(|found| {
            let starts_word = borders[found.start()] || !text[..found.start()].ends_with(char::is_alphanumeric);
            let rest = &text[found.end()..];
            let is_border = borders[found.end()] || !rest.starts_with(char::is_alphanumeric);
            let ends_word = if rest.is_empty() { ended } else { is_border };
            starts_word && (ends_word || self.open_ended[found.pattern().as_usize()])
        })
    }
}

/// A text as terms are looked for in it.
struct Normal {
    /// Folded, with single spaces for spaces and hyphens.
    text: String,
    /// By byte of `text`: whether a word begins there without a space. `[text + 1]`
    borders: Vec<bool>,
}

impl Normal {
    fn new(original: &str) -> Self {
        let (mut text, mut borders) = (String::with_capacity(original.len()), Vec::with_capacity(original.len() + 1));
        let mut before = ' ';
        for character in original.chars().filter(|&c| !is_unseen(c)) {
            let is_border = is_border(before, character);
            before = character;
            let character = if character.is_whitespace() || is_hyphen(character) { ' ' } else { character };
            if character == ' ' && text.ends_with(' ') {
                continue;
            }
            borders.push(is_border);
            text.extend(folded(character));
            // A mark that folds to nothing gives its place to the next character.
            borders.resize(text.len(), false);
        }
        borders.push(false);
        Self { text, borders }
    }
}

/// Whether a word ends between two characters that belong to words.
fn is_border(before: char, after: char) -> bool {
    let begins_capital = before.is_lowercase() && after.is_uppercase();
    let changes = before.is_alphabetic() && after.is_numeric() || before.is_numeric() && after.is_alphabetic();
    begins_capital || changes
}

/// Hyphens and dashes.
fn is_hyphen(c: char) -> bool {
    matches!(c, '-' | '\u{2010}'..='\u{2015}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}')
}

/// Characters that aren't seen: the soft hyphen, joiners, direction marks, fillers, variation selectors.
fn is_unseen(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_in_any_form_are_blocked_and_others_are_not() {
        let list = Blocklist::new(["cock", "Bad  Phrase", "nasti*", " ", "Straße", "cell module", "ΣΟΦΟΣ"]).unwrap();
        for (text, ended, blocked) in [
            ("cock", true, true),
            ("cock", false, false),
            ("a COCK fight", false, true),
            ("ｃｏｃｋ (", false, true),
            ("cockpit", true, false),
            ("hancock tower", true, false),
            ("peacock", true, false),
            ("very bad phrase,", false, true),
            ("bad\u{a0} phrase", true, true),
            ("bad phrases", true, false),
            ("nasti", false, true),
            ("nastier things", true, true),
            ("dynastic", true, false),
            ("", true, false),
            // Characters that aren't seen, accents, full case folding.
            ("co\u{200b}ck", true, true),
            ("co\u{ad}ck", true, true),
            ("c\u{f6}ck", true, true),
            ("co\u{308}ck", true, true),
            ("strasse 7", true, true),
            ("STRASSE", true, true),
            ("σοφος", true, true),
            ("σοφοσ", true, true),
            // Hyphens, and words without a space between them.
            ("solar cell-module", true, true),
            ("cell\u{2011}module", true, true),
            ("cockL31/31", true, true),
            ("cock31", true, true),
            ("31cock", true, true),
            ("theCock", true, true),
            ("cockney", true, false),
        ] {
            assert_eq!(list.blocks(text, ended), blocked, "{text:?} {ended}");
        }
    }
}
