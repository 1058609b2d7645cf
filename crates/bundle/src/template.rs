//! The text that stands around every input of a model, such as examples of what is wanted.
//!
//! The server decides what becomes of it: completion needs an input that ends a line, a prompt doesn't.

/// Stands for the input in a template.
pub const PLACEHOLDER: &str = "{input}";
/// Most bytes of a template.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 16;

/// A text with one place for the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    before: String,
    after: String,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// No place for the input, or several.
    #[error("a template has {PLACEHOLDER} once, where the input is to stand; this one has it {0} times")]
    Placeholders(usize),
    /// More bytes than the limit.
    #[error("the template has {0} bytes; it may have at most {MAX_TEMPLATE_BYTES}")]
    TooLong(usize),
}

impl Template {
    /// From a text that has [`PLACEHOLDER`] once. Other braces stand for themselves.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong(text.len()));
        }
        match text.split(PLACEHOLDER).collect::<Vec<_>>()[..] {
            [before, after] => Ok(Self { before: before.to_owned(), after: after.to_owned() }),
            ref parts => Err(TemplateError::Placeholders(parts.len() - 1)),
        }
    }

    /// The text before the input.
    pub fn before(&self) -> &str {
        &self.before
    }

    /// The text behind the input, where it is on the input's line: a query that is completed can't have it.
    pub fn after_on_line(&self) -> Option<&str> {
        let line = self.after.lines().next().unwrap_or_default();
        (!line.is_empty()).then_some(line)
    }

    /// The text with an input in its place.
    pub fn around(&self, input: &str) -> String {
        [&self.before, input, &self.after].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_has_one_place() {
        let template = Template::new("{a}: {b}\nq: {input}\nr:").unwrap();
        assert_eq!(template.around("heat {input}"), "{a}: {b}\nq: heat {input}\nr:");
        assert_eq!((template.before(), template.after_on_line()), ("{a}: {b}\nq: ", None));
        assert_eq!(Template::new("{input} =").unwrap().after_on_line(), Some(" ="));
        assert_eq!(Template::new("{input}").unwrap(), Template { before: String::new(), after: String::new() });
        for (text, words) in [("q: ", "0 times"), ("{input}{input}", "2 times"), ("{ input }", "0 times")] {
            assert!(Template::new(text).unwrap_err().to_string().contains(words), "{text}");
        }
        let long = format!("{}{PLACEHOLDER}", "a".repeat(MAX_TEMPLATE_BYTES));
        assert_eq!(Template::new(&long), Err(TemplateError::TooLong(MAX_TEMPLATE_BYTES + 7)));
    }
}
