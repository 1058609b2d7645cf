//! The kinds of bodies of `POST /invocations`, told apart by their keys: `requestType` opens or closes a session,
//! `input` is a typed text, `inputs` a prompt. Parses only.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use utoipa::ToSchema;

use super::conventions::UnknownFields;
use super::json;
use super::lmi;
use super::openai::CompletionRequest;
use super::sessions::{self, SessionRequest};
use super::suggest::Invocation;
use crate::access::Key;
use crate::engine::Work;
use crate::error::{Error, Kind};

/// A body of `POST /invocations`.
#[derive(Clone, Debug, PartialEq, ToSchema)]
#[schema(as = InvocationBody)]
#[serde(untagged)]
pub enum Body {
    /// A typed text to complete.
    Suggest(Invocation),
    /// Prompts to continue.
    Generate(Box<lmi::Request>),
    /// Prompts in OpenAI's schema.
    Complete(Box<CompletionRequest>),
    /// A session to open or close.
    Session(SessionRequest),
}

impl Body {
    /// Whether the answer is to be sent as it is made.
    pub fn streams(&self) -> bool {
        match self {
            Self::Session(_) => false,
            Self::Suggest(invocation) => invocation.stream,
            Self::Generate(request) => request.stream.unwrap_or(false),
            Self::Complete(request) => request.stream.unwrap_or(false),
        }
    }

    /// What it asks for of a model with room for `context` tokens.
    pub fn work(&self, context: usize) -> Work {
        match self {
            Self::Session(_) => Work::default(),
            Self::Suggest(typed) => Work::completion(typed.suggestions, typed.max_new_tokens, context),
            Self::Generate(request) => request.work(context),
            Self::Complete(request) => request.work(context),
        }
    }

    /// The session that it names.
    pub fn session(&self) -> Option<&str> {
        match self {
            Self::Session(_) | Self::Complete(_) => None,
            Self::Suggest(invocation) => invocation.session.as_deref(),
            Self::Generate(request) => request.session.as_deref(),
        }
    }

    /// Makes it a request of a session, unless it names one itself. A list of prompts is no session's: they would
    /// supersede each other.
    pub fn set_session(&mut self, id: &str) {
        match self {
            Self::Session(_) | Self::Complete(_) => {}
            Self::Suggest(invocation) => {
                invocation.session.get_or_insert_with(|| id.to_owned());
            }
            Self::Generate(request) => {
                if matches!(request.inputs, json::OneOrMany::One(_)) {
                    request.session.get_or_insert_with(|| id.to_owned());
                }
            }
        }
    }

    /// The salt that it names.
    fn salt(&self) -> Option<&str> {
        match self {
            Self::Session(_) => None,
            Self::Suggest(invocation) => invocation.salt.as_deref(),
            Self::Generate(request) => request.salt.as_deref(),
            Self::Complete(request) => request.salt.as_deref(),
        }
    }

    /// Makes it a request with a key.
    pub fn set_key(&mut self, key: Option<Arc<Key>>) {
        match self {
            Self::Session(_) => {}
            Self::Suggest(invocation) => invocation.key = key,
            Self::Generate(request) => request.key = key,
            Self::Complete(request) => request.key = key,
        }
    }

    /// The time that the client gives the answer.
    pub fn deadline_ms(&self) -> Option<u64> {
        match self {
            Self::Session(_) | Self::Complete(_) => None,
            Self::Suggest(invocation) => invocation.deadline_ms,
            Self::Generate(request) => request.deadline_ms,
        }
    }
}

impl Body {
    /// The fields that its schema does not have.
    pub fn ignored(&self) -> &[String] {
        match self {
            Self::Session(_) | Self::Suggest(_) => &[],
            Self::Generate(request) => &request.ignored,
            Self::Complete(request) => &request.ignored,
        }
    }
}

/// Reads a body of `POST /invocations`.
///
/// # Errors
/// As [`json::parse`], and for bodies that are of no schema or of two.
pub fn read(body: &[u8], unknown: UnknownFields) -> Result<Body, Error> {
    let body = read_shape(body, unknown)?;
    body.session().map_or(Ok(()), sessions::check_in_body)?;
    sessions::check_salt(body.salt())?;
    Ok(body)
}

fn read_shape(body: &[u8], unknown: UnknownFields) -> Result<Body, Error> {
    let keys: Keys = json::parse(body)?;
    let shape = |message: &str| Err(Error::new(Kind::InvalidField, message));
    match keys {
        Keys { request_type: true, .. } => json::parse(body).map(Body::Session),
        Keys { input: true, inputs: true, .. } => shape(
            "the body has both `input` and `inputs`; send `input` to complete a typed text or `inputs` to continue \
             a prompt",
        ),
        Keys { input: true, .. } => json::parse(body).map(Body::Suggest),
        Keys { inputs: true, .. } => {
            let (request, ignored) = json::parse_foreign::<lmi::Request>(body, unknown)?;
            Ok(Body::Generate(Box::new(lmi::Request { ignored, ..request })))
        }
        Keys { prompt: true, .. } => {
            let (request, ignored) = json::parse_foreign::<CompletionRequest>(body, unknown)?;
            Ok(Body::Complete(Box::new(CompletionRequest { ignored, ..request })))
        }
        Keys { .. } => shape(
            "missing field `input` (a typed text to complete), `inputs` or `prompt` (a prompt to continue); the body \
             has none",
        ),
    }
}

/// Which of the keys that tell the schemas apart a body has.
#[derive(Default)]
struct Keys {
    request_type: bool,
    input: bool,
    inputs: bool,
    prompt: bool,
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = Keys;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Keys::default();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match &*key {
                        "requestType" => keys.request_type = true,
                        "input" => keys.input = true,
                        "inputs" => keys.inputs = true,
                        "prompt" => keys.prompt = true,
                        _ => {}
                    }
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(keys)
            }
        }
        deserializer.deserialize_map(KeysVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_keys_decide() {
        let kind = |body: &str| match read(body.as_bytes(), UnknownFields::Refuse) {
            Ok(Body::Session(_)) => "session".to_owned(),
            Ok(Body::Suggest(_)) => "suggest".to_owned(),
            Ok(Body::Generate(_)) => "generate".to_owned(),
            Ok(Body::Complete(_)) => "complete".to_owned(),
            Err(error) => error.message,
        };
        assert_eq!(kind(r#"{"requestType":"NEW_SESSION"}"#), "session");
        assert_eq!(kind(r#"{"stream":true,"input":"a"}"#), "suggest");
        assert_eq!(kind(r#"{"parameters":{"n":null},"inputs":["a","b"]}"#), "generate");
        assert_eq!(kind(r#"{"prompt":[1,2]}"#), "complete");
        let ignoring = read(br#"{"inputs":"a","x":1,"parameters":{"topk":5}}"#, UnknownFields::Ignore).unwrap();
        assert_eq!(ignoring.ignored(), ["x", "parameters.topk"]);
        assert!(kind("{}").contains("`input`") && kind("{}").contains("`inputs`"));
        assert!(kind(r#"{"input":"a","inputs":"b"}"#).contains("both"));
        assert!(kind(r#"{"inputs":5}"#).contains("in field inputs: expected a string or a list of strings"));
        assert!(kind(r#"{"inputs":"a","parameters":{"topk":5}}"#).contains("in field parameters.topk: unknown field"));
        assert!(kind(r#"{"requestType":"OPEN"}"#).contains("unknown variant `OPEN`, expected"));
        assert!(kind(r#"{"input":"a","session":"a b"}"#).contains("session is no session's name"));
        assert!(kind(r#"{"inputs":"\ud800"}"#).contains("half of a surrogate pair"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&body, UnknownFields::Ignore);
        }

        #[test]
        fn no_object_makes_it_panic(
            key in "input|inputs|prompt|requestType|parameters|stream|x",
            value in r#"[\[\]{}",:a-z0-9.\\-]{0,24}"#,
        ) {
            let _ = read(format!("{{\"{key}\":{value}}}").as_bytes(), UnknownFields::Refuse);
        }
    }
}
