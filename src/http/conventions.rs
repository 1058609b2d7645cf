//! What clients of other systems are used to: the form of answers to `inputs`, and fields that foretype doesn't know.

use clap::ValueEnum;

/// The form of an answer to `inputs` on `/invocations`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum InputsAnswer {
    /// A list, `[{"generated_text": ...}]`, and streams of server-sent events.
    #[default]
    HuggingFace,
    /// An object, `{"generated_text": ...}`, for a single prompt, and streams of JSON Lines.
    Lmi,
}

/// What becomes of a request with unknown fields in a schema of another system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UnknownFields {
    /// It is answered 400.
    Refuse,
    /// It is answered without them, and a header of the answer names them.
    #[default]
    Ignore,
}

/// Both choices of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conventions {
    /// The form of an answer to `inputs`.
    pub inputs: InputsAnswer,
    /// What becomes of unknown fields.
    pub unknown: UnknownFields,
}

/// The header that names the fields that were ignored.
pub const IGNORED_FIELDS_HEADER: &str = "x-foretype-ignored-fields";
/// Most characters of its value.
const MAX_NAMES_CHARACTERS: usize = 1000;

/// The value of the header; `None` if nothing was ignored. Characters that headers can't have are question marks.
pub fn ignored_names(fields: &[String]) -> Option<String> {
    let names = fields.join(", ");
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    (!fields.is_empty()).then(|| names.chars().take(MAX_NAMES_CHARACTERS).map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_a_header() {
        let names = |fields: &[&str]| ignored_names(&fields.iter().map(|&f| f.to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&[]), None);
        assert_eq!(names(&["padding", "parameters.a\r\né"]).as_deref(), Some("padding, parameters.a???"));
        assert_eq!(names(&["x".repeat(5000).as_str()]).map(|value| value.len()), Some(1000));
    }
}
