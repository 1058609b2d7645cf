//! The text before every query, such as examples, and the space between them.
//!
//! Its tokens come before those of the query, whatever that is. Only a space at its end belongs to the query's first
//! token, where tokenizers have it.

use std::borrow::Cow;

use super::{Text, TextError, TokenId};

impl Text {
    /// With another text before every query. Its tokens don't reach into the query, but a space at its end does: it
    /// belongs to the query's first token.
    ///
    /// # Errors
    /// See [`TextError`].
    pub fn with_text_before(mut self, before: &str) -> Result<Self, TextError> {
        self.prompt.truncate(1);
        let spelled = before.strip_suffix(' ').unwrap_or(before);
        self.is_spaced = spelled.len() < before.len();
        if !spelled.is_empty() {
            let tokens = self.codec()?.encode_part(spelled).filter(|tokens| !tokens.is_empty());
            self.prompt.extend(tokens.ok_or_else(|| TextError::Prompt(before.to_owned()))?);
        }
        Ok(self)
    }

    /// The tokens of a query behind the prompt.
    pub fn encode_query(&self, query: &str) -> Vec<TokenId> {
        self.encode(&self.spaced(query))
    }

    /// A query with the space that the text before it ends with.
    pub(super) fn spaced<'a>(&self, query: &'a str) -> Cow<'a, str> {
        if self.takes_space(query) { Cow::Owned(format!(" {query}")) } else { Cow::Borrowed(query) }
    }

    /// Whether the space before the query is put into its first token. One that the tokenizer adds, or that was typed,
    /// stands for it.
    fn takes_space(&self, query: &str) -> bool {
        self.is_spaced && !query.is_empty() && !query.starts_with(' ') && !self.tokenizer.adds_space(query)
    }

    /// Whether a query that begins like this one has a space before it: of the text before it, or of the tokenizer.
    pub fn adds_space(&self, typed: &str) -> bool {
        self.takes_space(typed) || self.tokenizer.adds_space(typed)
    }

    /// The bytes that a query's first token adds. A space that was put before the query isn't shown.
    pub fn first_bytes(&self, token: TokenId, adds_space: bool) -> Option<&[u8]> {
        let bytes = self.bytes(token)?;
        Some(bytes.strip_prefix(b" ").filter(|_| adds_space).unwrap_or(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{byte_fallback, tiny};
    use super::*;

    #[test]
    fn a_space_before_the_query_is_in_its_first_token() {
        let text = tiny(" ab:", &[(" ", "a")]);
        let spaced = tiny(" ab:", &[(" ", "a")]).with_text_before("b: ").unwrap();
        let of = |text: &Text, typed: &str| text.encode(typed);
        assert_eq!(spaced.prompt()[1..], of(&spaced, "b:"));
        assert_eq!(spaced.encode_query("ab"), of(&spaced, " ab"));
        assert_eq!(spaced.encode_query(" ab"), of(&spaced, " ab"), "it was typed");
        let first = spaced.encode_query("ab")[0];
        assert_eq!(spaced.bytes(first), Some(&b" a"[..]));
        assert_eq!(spaced.first_bytes(first, spaced.adds_space("ab")), Some(&b"a"[..]));
        assert!(!spaced.adds_space(" ab") && !text.adds_space("ab"));
        // Another text before takes the place of the first.
        let plain = spaced.with_text_before("b").unwrap();
        assert_eq!((&plain.prompt()[1..], plain.adds_space("ab")), (&of(&plain, "b")[..], false));
        let none = plain.with_text_before("").unwrap();
        assert_eq!((none.prompt().len(), none.adds_space("ab")), (1, false));
        assert!(none.with_text_before("é ").is_err());
    }

    #[test]
    fn a_space_that_the_tokenizer_adds_is_the_one_before_the_query() {
        let plain = byte_fallback();
        let spaced = plain.clone().with_text_before("ab ").unwrap();
        assert_eq!(spaced.prompt()[1..], plain.encode("ab"));
        assert_eq!(spaced.encode_query("b"), plain.encode("b"), "it is there already");
        assert!(spaced.adds_space("b"));
    }
}
