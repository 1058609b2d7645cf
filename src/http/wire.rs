//! Reading JSON bodies, with errors that name the field. Knows no schema: those are in [`super::suggest`], [`super::lmi`] and
//! [`super::openai`].

use std::cmp::Ordering;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::{Error, Kind};

/// A string or a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Any number.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Reads a JSON body.
///
/// # Errors
/// Says which byte is no UTF-8, where the JSON breaks off, or which field is missing, unknown or of the wrong type.
pub fn parse<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Error> {
    let text = std::str::from_utf8(body).map_err(|e| {
        Error::new(
            Kind::InvalidUtf8,
            format!("the body is not UTF-8 from byte {} on; send UTF-8 encoded JSON", e.valid_up_to()),
        )
    })?;
    if text.trim().is_empty() {
        return Err(Error::new(
            Kind::InvalidJson,
            "the body is empty; send a JSON object such as {\"input\": \"wireless char\"}",
        ));
    }
    expect_object(text)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.inner();
        match inner.classify() {
            serde_json::error::Category::Data if field == "." => {
                Error::new(Kind::InvalidField, format!("in the body: {inner}"))
            }
            serde_json::error::Category::Data => Error::new(Kind::InvalidField, format!("in field {field}: {inner}")),
            _ => Error::new(Kind::InvalidJson, format!("the body is not valid JSON: {inner}")),
        }
    })?;
    json.end().map_err(|e| Error::new(Kind::InvalidJson, format!("the body has more than one JSON value: {e}")))?;
    Ok(value)
}

/// Serde would read an array as the fields in order; nobody means that.
fn expect_object(text: &str) -> Result<(), Error> {
    if text.trim_start().starts_with('{') {
        return Ok(());
    }
    Err(match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Error::new(
            Kind::InvalidField,
            "the body is JSON but no object; send one such as {\"input\": \"wireless char\"}",
        ),
        Err(error) => Error::new(Kind::InvalidJson, format!("the body is not valid JSON: {error}")),
    })
}

/// A number for the engine: the nearest, but not one of the whole numbers that ranges end at where it is beside it.
pub(super) fn single(value: f64) -> f32 {
    let nearest = value as f32;
    match f64::from(nearest).total_cmp(&value) {
        Ordering::Less if nearest.fract() == 0.0 => nearest.next_up(),
        Ordering::Greater if nearest.fract() == 0.0 => nearest.next_down(),
        _ => nearest,
    }
}

/// Refuses a value that this server has no use for, and says which it has.
pub(super) fn refused(field: &str, value: impl std::fmt::Display, right: &str) -> Error {
    Error::new(Kind::InvalidValue, format!("{field} is {value}; {right}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::suggest::Invocation;
    use proptest::prelude::*;

    #[test]
    fn errors_name_the_field() {
        let error = |body: &str| parse::<Invocation>(body.as_bytes()).unwrap_err();
        let has = |body: &str, kind: Kind, words: &str| {
            let error = error(body);
            assert!(error.kind == kind && error.message.contains(words), "{body}: {error:?}");
        };
        has("", Kind::InvalidJson, "empty");
        has("{", Kind::InvalidJson, "EOF");
        has("{} {}", Kind::InvalidField, "missing field `input`");
        has(r#"{"input":"a"} x"#, Kind::InvalidJson, "more than one");
        has(r#"{"input":5}"#, Kind::InvalidField, "in field input: invalid type: integer `5`, expected a string");
        has(r#"{"input":"a","sugestions":5}"#, Kind::InvalidField, "unknown field `sugestions`");
        has(r#"{"input":"a","suggestions":-1}"#, Kind::InvalidField, "in field suggestions");
        has(r#"{"input":"a","input":"b"}"#, Kind::InvalidField, "duplicate field `input`");
        has("[\"a\",1,1,1]", Kind::InvalidField, "no object");
        let bytes = parse::<Invocation>(b"{\"input\":\"\xff\"}").unwrap_err();
        assert!(bytes.kind == Kind::InvalidUtf8 && bytes.message.contains("byte 10"), "{bytes:?}");
    }

    #[test]
    fn numbers_stay_on_their_side_of_a_limit() {
        assert!(single(5e-324) > 0.0 && single(-5e-324) < 0.0);
        assert!(single(1.000_000_000_1) > 1.0 && single(0.999_999_999_9) < 1.0 && single(100.000_000_1) > 100.0);
        assert_eq!((single(0.7), single(0.0), single(1.0)), (0.7, 0.0, 1.0));
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse::<Invocation>(&body);
        }
    }
}
