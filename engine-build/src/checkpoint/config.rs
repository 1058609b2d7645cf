//! Typed access to the fields of `config.json`, with errors that name the field.
//!
//! It knows JSON and the kinds of fields (dimensions, token ids, flags), not which fields a family needs: that is
//! the family's own file.

use serde_json::{Map, Value};
use thiserror::Error;

/// Larger than any dimension of a real model, and small enough that products of two cannot overflow.
const DIMENSION_LIMIT: u64 = 1 << 24;

/// An error in `config.json`, or a setting that is not supported.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The folder has no such file.
    #[error("{0} has no config.json: a checkpoint is the folder that `save_pretrained` wrote")]
    Missing(std::path::PathBuf),
    /// The file is not JSON.
    #[error("{file} is not JSON: {source}")]
    Json {
        /// Name of the file.
        file: &'static str,
        /// The parser's error, with line and column.
        source: serde_json::Error,
    },
    /// JSON, but no object.
    #[error("{0} holds no JSON object: it should be {{\"field\": value, ...}}")]
    NotAnObject(&'static str),
    /// A field that the family cannot do without.
    #[error("config.json has no `{0}`: the model's shape depends on it")]
    FieldMissing(&'static str),
    /// A field of the wrong type.
    #[error("{file} gives `{field}` as {found}: it should be {expected}")]
    FieldType {
        /// Name of the file.
        file: &'static str,
        /// Name of the field.
        field: String,
        /// The value of the field, shortened.
        found: String,
        /// The kind of value that the field needs.
        expected: &'static str,
    },
    /// `model_type` or `architectures` names no supported model.
    #[error("config.json describes {found}, which is not supported: supported are {supported}")]
    Architecture {
        /// The architecture or type that the file names.
        found: String,
        /// The architectures that are supported.
        supported: String,
    },
    /// The activation function has no counterpart here.
    #[error("the activation function `{found}` is not supported: supported are {supported}")]
    Activation {
        /// The activation function that the file names.
        found: String,
        /// The activation functions that are supported.
        supported: String,
    },
    /// The checkpoint is the decoder of an encoder-decoder, which needs its encoder.
    #[error("config.json sets `add_cross_attention`, which is not supported: only decoders that stand alone are")]
    CrossAttention,
    /// A field with a value that there is no code for.
    #[error("config.json sets `{field}` to {found}, which is not supported: supported is {supported}")]
    Unsupported {
        /// Name of the field.
        field: &'static str,
        /// The value of the field.
        found: String,
        /// The values that are supported.
        supported: &'static str,
    },
    /// Heads too many and too large.
    #[error("`num_attention_heads` {heads} times `head_dim` {head_dim} is too large: supported is up to 16777216")]
    HeadsWidth {
        /// `num_attention_heads`.
        heads: u32,
        /// `head_dim`.
        head_dim: u32,
    },
    /// Two sizes of which one has to be a multiple of the other.
    #[error("`{whole}` {size} is not divisible by `{part}` {by}: {reason}")]
    Indivisible {
        /// The field that should be a multiple.
        whole: &'static str,
        /// The value of the field.
        size: u32,
        /// The field that it should be a multiple of.
        part: &'static str,
        /// The value of the divisor.
        by: u32,
        /// Why one must divide the other.
        reason: &'static str,
    },
    /// Rotary embeddings turn pairs of a head's elements.
    #[error(
        "rotary embeddings over {rotated} of a head's {head_dim} elements are not possible: it takes an even number, \
         from 2 to the size of a head, and at most 4096"
    )]
    RotarySize {
        /// Elements that would be rotated.
        rotated: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// A token id beyond the vocabulary.
    #[error("`{field}` is {id}, but the model's vocabulary has only the ids below {vocab}")]
    TokenRange {
        /// Name of the field.
        field: &'static str,
        /// The id of the token.
        id: u32,
        /// The size of the vocabulary, `vocab_size`.
        vocab: u32,
    },
}

/// A JSON object whose fields can be asked for by type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// Name of the file, for error messages.
    file: &'static str,
    fields: Map<String, Value>,
}

impl Config {
    /// Parses the bytes of `file`, which is only named in errors.
    pub(crate) fn parse(file: &'static str, bytes: &[u8]) -> Result<Self, ConfigError> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => Ok(Self { file, fields }),
            Ok(_) => Err(ConfigError::NotAnObject(file)),
            Err(source) => Err(ConfigError::Json { file, source }),
        }
    }

    /// A required size of at least 1, under the first of `names` that is present (transformers accepts aliases).
    pub(crate) fn dimension(&self, names: &[&'static str]) -> Result<u32, ConfigError> {
        for name in names {
            if let Some(size) = self.dimension_opt(name)? {
                return Ok(size);
            }
        }
        Err(ConfigError::FieldMissing(names.first().copied().unwrap_or_default()))
    }

    /// A size of at least 1, or `None` where the field is absent or null.
    pub(crate) fn dimension_opt(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(name, "a whole number from 1 to 16777216", |value| {
            let size = value.as_u64().filter(|size| (1..=DIMENSION_LIMIT).contains(size))?;
            u32::try_from(size).ok()
        })
    }

    pub(crate) fn flag_or(&self, name: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A number above 0, as an epsilon must be.
    pub(crate) fn positive_or(&self, name: &str, default: f32) -> Result<f32, ConfigError> {
        #[expect(clippy::cast_possible_truncation, reason = "the graph's attribute is an f32")]
        let positive = |value: &Value| value.as_f64().map(|v| v as f32).filter(|v| v.is_finite() && *v > 0.0);
        Ok(self.typed(name, "a number above 0", positive)?.unwrap_or(default))
    }

    /// A number above 0 in full precision, or `None` where the field is absent or null.
    pub(crate) fn positive_opt(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        let positive = |value: &Value| value.as_f64().filter(|v| (1e-9..=1e18).contains(v));
        self.typed(name, "a number above 0", positive)
    }

    /// An object's fields; absent and null read as `None`.
    pub(crate) fn object_opt(&self, name: &str) -> Result<Option<Self>, ConfigError> {
        let fields = self.typed(name, "an object", Value::as_object)?;
        Ok(fields.map(|fields| Self { file: self.file, fields: fields.clone() }))
    }

    /// Whether a field is this text, or a list, nested however deep, that has it.
    pub(crate) fn mentions(&self, name: &str, text: &str) -> bool {
        fn found(value: &Value, text: &str) -> bool {
            match value {
                Value::String(string) => string == text,
                Value::Array(items) => items.iter().any(|item| found(item, text)),
                _ => false,
            }
        }
        self.fields.get(name).is_some_and(|value| found(value, text))
    }

    pub(crate) fn text_or<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, ConfigError> {
        Ok(self.text_opt(name)?.unwrap_or(default))
    }

    pub(crate) fn text_opt(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        self.typed(name, "a string", Value::as_str)
    }

    /// A list of strings; absent and null read as empty.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<&str>, ConfigError> {
        let texts = |value: &'_ Value| -> Option<usize> {
            value.as_array().filter(|list| list.iter().all(Value::is_string)).map(Vec::len)
        };
        self.typed(name, "a list of strings", texts)?;
        let list = self.fields.get(name).and_then(Value::as_array);
        Ok(list.into_iter().flatten().filter_map(Value::as_str).collect())
    }

    /// One token id or a list of them, as `eos_token_id` may be; absent and null read as none.
    pub(crate) fn token_ids(&self, name: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = |value: &Value| match value {
            Value::Array(list) => list.iter().map(id).collect(),
            single => id(single).map(|id| vec![id]),
        };
        Ok(self.typed(name, "a token id or a list of token ids", ids)?.unwrap_or_default())
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        match self.fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| ConfigError::FieldType {
                file: self.file,
                field: name.to_owned(),
                found: shortened(value),
                expected,
            }),
        }
    }
}

/// The JSON of a value, short enough for an error message.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 40 { text } else { text.chars().take(37).chain("...".chars()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Config {
        Config::parse("config.json", json.as_bytes()).expect("an object")
    }

    #[test]
    fn aliases_are_tried_in_order() {
        let config = config(r#"{"hidden_size": 8, "n_embd": null}"#);
        assert_eq!(config.dimension(&["n_embd", "hidden_size"]).expect("present"), 8);
        let error = config.dimension(&["n_head", "num_attention_heads"]).expect_err("absent");
        assert!(error.to_string().contains("no `n_head`"), "{error}");
    }

    #[test]
    fn end_of_text_is_one_id_or_a_list() {
        assert_eq!(config(r#"{"e": 3}"#).token_ids("e").expect("an id"), [3]);
        assert_eq!(config(r#"{"e": [3, 4]}"#).token_ids("e").expect("a list"), [3, 4]);
        assert_eq!(config("{}").token_ids("e").expect("absent"), [0; 0]);
        assert!(config(r#"{"e": [3, -4]}"#).token_ids("e").is_err());
    }

    #[test]
    fn wrong_types_are_named_and_shortened() {
        let long = "x".repeat(100);
        let error = config(&format!(r#"{{"n_embd": "{long}"}}"#)).dimension(&["n_embd"]).expect_err("a string");
        assert!(error.to_string().len() < 140, "{error}");
        for zero_or_worse in ["0", "-1", "1.5", "16777217", "true"] {
            assert!(config(&format!(r#"{{"n": {zero_or_worse}}}"#)).dimension(&["n"]).is_err(), "{zero_or_worse}");
        }
    }
}
