//! Reads JSON bodies, with errors that name the field, and writes JSON answers. Knows no schema.

use std::cmp::Ordering;
use std::marker::PhantomData;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::error::Category;
use utoipa::ToSchema;

use super::conventions::UnknownFields;
use crate::error::{Error, Kind, shown};

/// A string or a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum OneOrMany {
    /// A single string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings as a list.
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// Reads an optional whole number. JSON doesn't tell 5 from 5.0, so neither does this function.
pub(super) fn whole_number<'de, D: Deserializer<'de>, T: TryFrom<i128>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct Whole<T>(PhantomData<T>);
    impl<T: TryFrom<i128>> Whole<T> {
        fn fit<E: serde::de::Error>(&self, value: i128, said: Unexpected<'_>) -> Result<Option<T>, E> {
            T::try_from(value).map(Some).map_err(|_| E::invalid_value(said, self))
        }
    }
    impl<'de, T: TryFrom<i128>> Visitor<'de> for Whole<T> {
        type Value = Option<T>;
        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let least = if T::try_from(-1).is_ok() { "up" } else { "from 0" };
            // The largest is one less than a power of two, as of all whole numbers of a machine.
            let most = (1..127).rev().map(|bits| (1 << bits) - 1).find(|&most| T::try_from(most).is_ok());
            write!(formatter, "a whole number {least} to {}", most.unwrap_or_default())
        }
        fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Self::Value, E> {
            self.fit(value.into(), Unexpected::Unsigned(value))
        }
        fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
            self.fit(value.into(), Unexpected::Signed(value))
        }
        fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Self::Value, E> {
            if value.fract() != 0.0 {
                return Err(E::invalid_type(Unexpected::Float(value), &self));
            }
            // What is at the edge of i64 and no i64 was rounded to it. Larger ones end at the limits of i128, which fit
            // nothing.
            let beyond = value <= i64::MIN as f64;
            self.fit(if beyond { i128::MIN } else { value as i128 }, Unexpected::Float(value))
        }
        fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Whole(PhantomData))
}

/// Reads a JSON body.
///
/// A byte order mark in front of it is ignored, as RFC 8259 allows.
///
/// # Errors
/// Says which byte is no UTF-8, where the JSON breaks off, or which field is missing, unknown or of the wrong type.
pub fn parse<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, Error> {
    let text = object_in(body)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| wrong(error.path(), error.inner()))?;
    json.end().map_err(more_than_one)?;
    Ok(value)
}

/// Reads a JSON body of another system's schema, and the fields of it that are unknown here.
///
/// # Errors
/// As [`parse`]; for the first unknown field if those are to be refused.
pub fn parse_foreign<'de, T: Deserialize<'de>>(
    body: &'de [u8],
    unknown: UnknownFields,
) -> Result<(T, Vec<String>), Error> {
    let text = object_in(body)?;
    let (mut track, mut ignored) = (serde_path_to_error::Track::new(), Vec::new());
    let mut json = serde_json::Deserializer::from_str(text);
    let tracked = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    // It writes a question mark for what may be absent.
    let value = serde_ignored::deserialize(tracked, |path| ignored.push(path.to_string().replace(".?", "")));
    let value = value.map_err(|error: serde_json::Error| wrong(&track.path(), &error))?;
    json.end().map_err(more_than_one)?;
    match (unknown, ignored.first()) {
        (UnknownFields::Refuse, Some(path)) => {
            let name = path.rsplit('.').next().unwrap_or_default();
            let message = format!(
                "in field {}: unknown field `{}`; leave it out, or start the server with --unknown-fields ignore",
                cut(path),
                cut(name)
            );
            Err(Error::new(Kind::InvalidField, message))
        }
        _ => Ok((value, ignored)),
    }
}

fn more_than_one(error: serde_json::Error) -> Error {
    Error::new(Kind::InvalidJson, format!("the body has more than one JSON value: {error}"))
}

/// What is wrong with a field, or with the whole.
fn wrong(path: &serde_path_to_error::Path, error: &serde_json::Error) -> Error {
    if error.classify() != Category::Data {
        return not_json(error);
    }
    let (field, reason) = (path.to_string(), in_json_terms(&error.to_string()));
    let place = if field == "." { "the body".to_owned() } else { format!("field {}", cut(&field)) };
    Error::new(Kind::InvalidField, format!("in {place}: {reason}"))
}

/// The text of a body that is an object.
fn object_in(body: &[u8]) -> Result<&str, Error> {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
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
    Ok(text)
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
        Err(error) => not_json(&error),
    })
}

/// What editors of one system put in front of UTF-8 files.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Most characters of a field's path in a message, as they are shown.
const MAX_PATH_CHARACTERS: usize = 100;

/// The beginning of a field's path.
fn cut(path: &str) -> String {
    let path = shown(path.to_owned());
    let mut cut: String = path.chars().take(MAX_PATH_CHARACTERS).collect();
    if cut.len() < path.len() {
        cut.push_str("...");
    }
    cut
}

fn not_json(error: &serde_json::Error) -> Error {
    let reason = error.to_string();
    // The parser's words for `\ud800` without its other half are about the hexadecimal digits.
    if reason.contains("hex escape") {
        let (line, column) = (error.line(), error.column());
        let message = format!(
            "the body has half of a surrogate pair at line {line} column {column}; escape both halves, such as \
             \\ud83d\\ude00, or send the character itself"
        );
        return Error::new(Kind::InvalidJson, message);
    }
    Error::new(Kind::InvalidJson, format!("the body is not valid JSON: {reason}"))
}

/// A reason with the names of JSON's types in place of Rust's.
fn in_json_terms(reason: &str) -> String {
    let Some((found, expected)) = reason.rsplit_once(", expected ") else { return reason.to_owned() };
    let (wanted, place) = expected.split_once(" at line ").unwrap_or((expected, ""));
    let wanted = match wanted {
        "f64" | "f32" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if wanted.starts_with("struct ") => "an object",
        _ => return reason.to_owned(),
    };
    let at = if place.is_empty() { "" } else { " at line " };
    format!("{found}, expected {wanted}{at}{place}")
}

/// The `f32` nearest to a number, but not one of the whole numbers that ranges end at where it is beside it.
pub(super) fn single(value: f64) -> f32 {
    let nearest = value as f32;
    match f64::from(nearest).total_cmp(&value) {
        Ordering::Less if nearest.fract() == 0.0 => nearest.next_up(),
        Ordering::Greater if nearest.fract() == 0.0 => nearest.next_down(),
        _ => nearest,
    }
}

/// The error for a value that this server refuses; `right` says which it takes.
pub(super) fn refused(field: &str, value: impl std::fmt::Display, right: &str) -> Error {
    Error::new(Kind::InvalidValue, format!("{field} is {value}; {right}"))
}

/// Writes an answer.
///
/// # Errors
/// Internal ones, which are logged.
pub(super) fn write(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| {
        tracing::error!(%error, "an answer can't be written");
        Error::new(Kind::Internal, "the answer can't be written")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Invocation {
        #[serde(rename = "input")]
        _input: String,
        #[serde(default, deserialize_with = "whole_number")]
        suggestions: Option<usize>,
    }

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
        has(r#"{"input":"\ud800"}"#, Kind::InvalidJson, "half of a surrogate pair at line 1 column");
        has(r#"{"input":"\udc00x"}"#, Kind::InvalidJson, "half of a surrogate pair");
        has("\u{feff}{}", Kind::InvalidField, "missing field `input`");
        let bytes = parse::<Invocation>(b"{\"input\":\"\xff\"}").unwrap_err();
        assert!(bytes.kind == Kind::InvalidUtf8 && bytes.message.contains("byte 10"), "{bytes:?}");
    }

    #[test]
    fn whole_numbers_may_have_a_point() {
        let suggestions = |number: &str| {
            let body = format!(r#"{{"input":"a","suggestions":{number}}}"#);
            parse::<Invocation>(body.as_bytes()).map(|body| body.suggestions).map_err(|error| error.message)
        };
        assert_eq!(
            (suggestions("5.0"), suggestions("5e1"), suggestions("null")),
            (Ok(Some(5)), Ok(Some(50)), Ok(None))
        );
        assert!(
            suggestions("2.5").unwrap_err().contains("invalid type: floating point `2.5`, expected a whole number")
        );
        for wrong in ["-1", "-1.0", "1e300", "18446744073709551616"] {
            assert!(suggestions(wrong).unwrap_err().contains("invalid value"), "{wrong}");
        }
        assert!(suggestions("\"5\"").unwrap_err().contains("invalid type: string"));
    }

    #[test]
    fn types_have_the_names_of_json() {
        #[derive(Debug, Deserialize)]
        struct Types {
            #[serde(default, deserialize_with = "whole_number")]
            _byte: Option<u8>,
            #[serde(default, deserialize_with = "whole_number")]
            _seed: Option<i64>,
            _number: Option<f64>,
            _flag: Option<bool>,
            _inner: Option<Box<Types>>,
            _list: Option<Vec<bool>>,
            _map: Option<std::collections::BTreeMap<String, f64>>,
        }
        for (field, expected) in [
            ("_byte", "a whole number from 0 to 255"),
            ("_seed", "a whole number up to 9223372036854775807"),
            ("_number", "a number"),
            ("_flag", "true or false"),
            ("_inner", "an object"),
            ("_list", "a list"),
            ("_map", "an object"),
        ] {
            let error = parse::<Types>(format!(r#"{{"{field}":"x"}}"#).as_bytes()).unwrap_err();
            let message = format!("in field {field}: invalid type: string \"x\", expected {expected} at line 1");
            assert!(error.message.starts_with(&message), "{error:?}");
        }
    }

    #[test]
    fn a_huge_name_of_a_field_stays_out_of_the_message() {
        let name = "x\n".repeat(1 << 19).replace('\n', "\\n");
        let error = parse::<Invocation>(format!(r#"{{"input":"a","{name}":1}}"#).as_bytes()).unwrap_err();
        assert!(error.message.len() < 5000 && error.message.contains("expected"), "{}", error.message);
        assert!(!error.message.contains('\n'));
    }

    #[test]
    fn the_smallest_whole_number_is_not_the_one_below() {
        #[derive(Debug, serde::Deserialize)]
        struct Seed(#[serde(deserialize_with = "whole_number")] Option<i64>);
        let seed = |number: &str| serde_json::from_str::<Seed>(number).map(|seed| seed.0).ok();
        assert_eq!(seed("-9223372036854775808"), Some(Some(i64::MIN)));
        assert_eq!(seed("-9223372036854775809"), None);
        assert_eq!((seed("9223372036854775807"), seed("9223372036854775808")), (Some(Some(i64::MAX)), None));
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
