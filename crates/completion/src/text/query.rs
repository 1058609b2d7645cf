//! What people type, checked: errors say what was wrong and what would be right.

/// A typed text that may be completed: not empty, no control characters, not over-long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query(String);

/// Why a text can't be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Nothing but white space.
    #[error("the input is empty; send at least one character that is not a space")]
    Empty,
    /// More characters than the limit.
    #[error("the input has {found} characters; at most {limit} are accepted")]
    TooManyCharacters {
        /// Characters in the input.
        found: usize,
        /// The most that are accepted.
        limit: usize,
    },
    /// More tokens than the model has positions for.
    #[error("the input has {found} tokens; this model has room for {limit} and at least one more")]
    TooManyTokens {
        /// Tokens of the input.
        found: usize,
        /// The most that are accepted.
        limit: usize,
    },
    /// NUL, a line break or another control character.
    #[error(
        "the input has the {} U+{:04X} at character {position}; send printable text on one line",
        if .character.is_control() { "control character" } else { "line separator" },
        *.character as u32
    )]
    ControlCharacter {
        /// The control character.
        character: char,
        /// Characters before it.
        position: usize,
    },
    /// Bytes that the model's tokens can't spell.
    #[error("the input has characters that this model's vocabulary can't spell")]
    NotInVocabulary,
}

impl Query {
    /// Checks a text against a limit in characters. A tab becomes a space, and so does a line break at the end.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn new(text: &str, max_characters: usize) -> Result<Self, QueryError> {
        // A tab in a paste, or the line break at its end, is a space.
        let line = text.trim_end_matches(ends_a_line);
        let end = if line.len() < text.len() && !line.ends_with(' ') { " " } else { "" };
        let text = &format!("{line}{end}").replace('\t', " ");
        let found = text.chars().count();
        if text.trim().is_empty() {
            return Err(QueryError::Empty);
        }
        if found > max_characters {
            return Err(QueryError::TooManyCharacters { found, limit: max_characters });
        }
        match text.chars().enumerate().find(|&(_, c)| c.is_control() || ends_a_line(c)) {
            Some((position, character)) => Err(QueryError::ControlCharacter { character, position }),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// The empty text, which precedes the first key. A request may not have it.
    pub fn before_first_key() -> Self {
        Self(String::new())
    }

    /// The text, exactly as typed but for tabs and a line break at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a character ends a line: Unicode's mandatory breaks, but for the form feed and the vertical tab.
fn ends_a_line(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| Query::new(text, 8).unwrap_err().to_string();
        assert_eq!(Query::new("  ab é", 8).unwrap().as_str(), "  ab é");
        assert!(error(" \u{a0}").contains("empty"));
        assert!(error("123456789").contains("9 characters; at most 8"));
        assert!(error("ab\0").contains("U+0000 at character 2"));
        assert_eq!(Query::new("a\tb\r\n", 8).unwrap().as_str(), "a b ");
        assert_eq!(Query::new("ab \n", 8).unwrap().as_str(), "ab ");
        assert!(error("\t\n").contains("empty"));
        assert!(error("a\nb").contains("U+000A at character 1"));
        for (c, name) in
            [('\u{85}', "control character"), ('\u{2028}', "line separator"), ('\u{2029}', "line separator")]
        {
            assert!(error(&format!("a{c}b")).contains(&format!("{name} U+{:04X} at character 1", u32::from(c))));
            assert_eq!(Query::new(&format!("ab{c}"), 8).unwrap().as_str(), "ab ");
        }
        assert!(error("é\u{9f}").contains("U+009F at character 1"));
    }
}
