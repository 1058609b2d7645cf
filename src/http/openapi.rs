//! The OpenAPI document, from the handlers' attributes and the schemas' types. What the derives can't see is said here: types of
//! other modules, answers that many routes have, and limits of the loaded model.

use serde::Serialize;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoResponses, OpenApi, PartialSchema, ToSchema};

use super::errors::ErrorBody;
use super::lmi::{Reply, Request};
use super::sessions::{SessionAnswer, SessionRequest};
use super::suggest::{Invocation, Suggestions};
use super::{completions, invoke, openai, routes, shelf};

#[derive(OpenApi)]
#[openapi(
    paths(
        invoke::invocations,
        routes::ping,
        routes::execution_parameters,
        routes::metrics,
        routes::document,
        completions::completions,
        completions::models,
        completions::model,
        shelf::list,
        shelf::load,
        shelf::get,
        shelf::unload,
        invoke::invoke,
    ),
    components(schemas(super::stream::TokenLine, SuggestionShape))
)]
struct Document;

/// The document. `context` is the room of the model, where there is one.
pub fn document(context: Option<usize>) -> serde_json::Value {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    if let Some(context) = context {
        for (schema, field) in
            [("Invocation", "max_new_tokens"), ("Parameters", "max_new_tokens"), ("CompletionRequest", "max_tokens")]
        {
            let path = format!("/components/schemas/{schema}/properties/{field}");
            if let Some(serde_json::Value::Object(field)) = document.pointer_mut(&path) {
                field.insert("maximum".to_owned(), context.into());
            }
        }
    }
    document
}

/// A body of `POST /invocations`.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what `body::read` reads")]
pub(super) enum InvocationBody {
    /// A typed text to complete.
    Suggest(Invocation),
    /// Prompts to continue.
    Generate(Box<Request>),
    /// About a session.
    Session(SessionRequest),
}

/// An answer of `POST /invocations`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what the handlers write")]
pub(super) enum InvocationAnswer<'a> {
    /// To a typed text.
    Suggest(Suggestions<'a>),
    /// To a prompt.
    One(Reply),
    /// To a list of prompts.
    Many(Vec<Reply>),
    /// About a session.
    Session(SessionAnswer),
}

/// One way to complete the typed text.
#[derive(ToSchema)]
#[schema(as = Suggestion)]
#[expect(dead_code, reason = "describes `complete::Suggestion`")]
pub struct SuggestionShape {
    /// The whole query; it starts with exactly what was typed.
    text: String,
    /// What to add to the typed text.
    completion: String,
    /// Natural logarithm of `probability`.
    #[schema(maximum = 0)]
    logprob: f64,
    /// Probability that the query goes on like this and then ends, given what was typed.
    #[schema(minimum = 0, maximum = 1)]
    probability: f64,
    /// Whether the model ended the query here.
    complete: bool,
}

/// Why an answer is as it is.
#[derive(ToSchema)]
#[schema(as = Finish)]
#[serde(rename_all = "lowercase")]
pub enum FinishShape {
    /// The search ended by itself.
    Complete,
    /// Suggestions were cut at the length limit.
    Length,
    /// What was typed has a blocked term.
    Blocked,
    /// The deadline passed.
    Deadline,
    /// A newer request of the session came.
    Superseded,
}

/// What a request cost.
#[derive(ToSchema)]
#[schema(as = Usage)]
#[expect(dead_code, reason = "describes `schedule::Usage`")]
pub struct UsageShape {
    /// Tokens of the typed text.
    typed_tokens: usize,
    /// Forwards that this request had a row in.
    forwards: usize,
    /// Positions computed for this request.
    positions_computed: usize,
    /// Those of them that the typed text itself needed.
    typed_positions_computed: usize,
    /// Distributions that were known already.
    positions_saved: usize,
}

/// A server-sent event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what `framing` writes")]
pub(super) struct ServerEvent {
    /// A line of the answer as JSON, or `[DONE]` at the end on OpenAI's routes.
    data: String,
}

/// A string or a list of 1 to 32.
pub struct PromptsShape;

impl PartialSchema for PromptsShape {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String).max_length(Some(1000)).format(Some(prompt()));
        let prompt_list = ArrayBuilder::new().items(text()).min_items(Some(1)).max_items(Some(32));
        OneOfBuilder::new().item(text()).item(prompt_list).into()
    }
}

fn prompt() -> utoipa::openapi::schema::SchemaFormat {
    utoipa::openapi::schema::SchemaFormat::Custom("prompt-text".to_owned())
}

impl ToSchema for PromptsShape {}

/// A string or a list of at most 16.
pub struct StopShape;

impl PartialSchema for StopShape {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(256));
        OneOfBuilder::new().item(text()).item(ArrayBuilder::new().items(text()).max_items(Some(16))).into()
    }
}

impl ToSchema for StopShape {}

/// An object without fields.
pub struct EmptyShape;

impl PartialSchema for EmptyShape {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().max_properties(Some(0)).into()
    }
}

impl ToSchema for EmptyShape {}

/// An object with any fields.
pub struct AnyObject;

impl PartialSchema for AnyObject {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().into()
    }
}

impl ToSchema for AnyObject {}

/// Nothing.
pub struct NullShape;

impl PartialSchema for NullShape {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(SchemaType::Type(Type::Null)).into()
    }
}

impl ToSchema for NullShape {}

/// What can be wrong on `/invocations`.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes the answers")]
pub(super) enum InvocationErrors {
    /// The request is wrong; the message says how.
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// The model isn't there.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// Another method.
    #[response(status = 405)]
    Method(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is neither JSON nor JSON Lines.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The queue is full; try again.
    #[response(status = 429)]
    Overloaded(ErrorBody),
    /// The model failed on this request.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// The model isn't ready.
    #[response(status = 503)]
    NotReady(ErrorBody),
}

/// What can be wrong on OpenAI's routes.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes the answers")]
pub(super) enum OpenAiErrors {
    /// The request is wrong; the message says how.
    #[response(status = 400)]
    Invalid(openai::ErrorBody),
    /// There is no such model.
    #[response(status = 404)]
    NotFound(openai::ErrorBody),
    /// Another method.
    #[response(status = 405)]
    Method(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(openai::ErrorBody),
    /// The body isn't JSON.
    #[response(status = 415)]
    MediaType(openai::ErrorBody),
    /// The queue is full; try again.
    #[response(status = 429)]
    Overloaded(openai::ErrorBody),
    /// The model failed on this request.
    #[response(status = 500)]
    Internal(openai::ErrorBody),
    /// The model isn't ready.
    #[response(status = 503)]
    NotReady(openai::ErrorBody),
}

/// What can be wrong with pings.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes the answers")]
pub(super) enum PingErrors {
    /// Another method.
    #[response(status = 405)]
    Method(ErrorBody),
    /// The model is being loaded, or failed.
    #[response(status = 503)]
    NotReady(ErrorBody),
}

/// What can be wrong with models by name.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes the answers")]
pub(super) enum ModelErrors {
    /// The model isn't loaded, or this server holds one model only.
    #[response(status = 404)]
    NotFound(ErrorBody),
    /// Another method.
    #[response(status = 405)]
    Method(ErrorBody),
}

/// What can be wrong with loading a model.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes the answers")]
pub(super) enum LoadErrors {
    /// The request or the folder is wrong; the message says how.
    #[response(status = 400)]
    Invalid(ErrorBody),
    /// There is a model of that name.
    #[response(status = 409)]
    Exists(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body isn't JSON.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The model can't be loaded.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// There is no memory left for it.
    #[response(status = 507)]
    OutOfMemory(ErrorBody),
}

#[cfg(test)]
mod tests {
    use super::*;
    use completion::Suggestion;
    use scheduler::{Finish, Usage};

    #[test]
    fn described_types_are_as_described() {
        let document = document(Some(48));
        let fields = |schema: &str| -> Vec<String> {
            let properties = &document["components"]["schemas"][schema]["properties"];
            properties.as_object().unwrap().keys().cloned().collect()
        };
        let keys = |value: serde_json::Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
        let suggestion = Suggestion {
            text: String::new(),
            completion: String::new(),
            logprob: 0.0,
            probability: 1.0,
            complete: true,
        };
        assert_eq!(fields("Suggestion"), keys(serde_json::to_value(suggestion).unwrap()));
        assert_eq!(fields("Usage"), keys(serde_json::to_value(Usage::default()).unwrap()));
        let finishes = [Finish::Complete, Finish::Length, Finish::Blocked, Finish::Deadline, Finish::Superseded];
        assert_eq!(document["components"]["schemas"]["Finish"]["enum"], serde_json::to_value(finishes).unwrap());
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["components"]["schemas"]["Invocation"]["properties"]["max_new_tokens"]["maximum"], 48);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document(None);
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let path = reference.split('"').next().unwrap();
            assert!(document.pointer(path).is_some(), "{path}");
        }
    }
}
