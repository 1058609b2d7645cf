//! Terms that are never suggested, found in normalised text by Aho-Corasick.
//!
//! A term is blocked where it stands as whole words, so that blocking "cock" leaves "cockpit" and "Hancock" alone; a
//! term that ends in `*` is blocked with every ending. Case, width and runs of spaces don't matter. Pure; the file is
//! read elsewhere.

use aho_corasick::{AhoCorasick, BuildError, MatchKind};
use unicode_normalization::UnicodeNormalization;

/// A compiled blocklist.
#[derive(Debug)]
pub struct Blocklist {
    matcher: AhoCorasick,
    /// By pattern: whether it is blocked with every ending.
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
            let stem = normalise(term.trim_end_matches('*'));
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
        let text = normalise(text);
        self.matcher.find_overlapping_iter(&text).any(|found| {
            let starts_word = !text[..found.start()].ends_with(char::is_alphanumeric);
            let rest = &text[found.end()..];
            let ends_word = if rest.is_empty() { ended } else { !rest.starts_with(char::is_alphanumeric) };
            starts_word && (ends_word || self.open_ended[found.pattern().as_usize()])
        })
    }
}

/// Compatibility forms, lower case, single spaces.
fn normalise(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    for c in text.nfkc().flat_map(char::to_lowercase) {
        let c = if c.is_whitespace() { ' ' } else { c };
        if !(c == ' ' && normal.ends_with(' ')) {
            normal.push(c);
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_in_any_form_are_blocked_and_others_are_not() {
        let list = Blocklist::new(["cock", "Bad  Phrase", "nasti*", " "]).unwrap();
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
        ] {
            assert_eq!(list.blocks(text, ended), blocked, "{text:?} {ended}");
        }
    }
}
