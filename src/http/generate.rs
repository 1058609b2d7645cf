//! The routes of Text Generation Inference: `/generate`, `/generate_stream` and `/info`.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, Result};
use serde::Serialize;
use utoipa::ToSchema;

use super::conventions::{Conventions, InputsAnswer};
use super::errors::ErrorBody;
use super::framing::ServerEvent;
use super::invoke::{Form, answer};
use super::lmi::{MAX_INPUTS, Request};
use super::request::{Served, WholeBody};
use super::responses::InvocationErrors;
use super::schemas;
use crate::engine::{MAX_STOP, MAX_SUGGESTIONS};
use crate::error::Error;

/// Continues a prompt, answered with an object, or several, answered with a list
#[utoipa::path(post, path = "/generate", request_body = Request, responses(
    (status = 200, description = "The continuation, or those of a list of prompts", body = schemas::RepliesShape),
    InvocationErrors,
))]
pub(super) async fn generate(
    request: HttpRequest,
    body: WholeBody,
    served: Data<Served>,
) -> Result<HttpResponse, Error> {
    let conventions = Conventions { inputs: InputsAnswer::Lmi, ..served.conventions };
    let form = Form { conventions, stream: Some(false) };
    answer(&request, body.0, form, |person| Ok(served.models.only()?.of(person))).await
}

/// Continues a prompt, answered with server-sent events
#[utoipa::path(post, path = "/generate_stream", request_body = Request, responses(
    (status = 200, description = "The tokens", content((ServerEvent = "text/event-stream"))), InvocationErrors,
))]
pub(super) async fn generate_stream(
    request: HttpRequest,
    body: WholeBody,
    served: Data<Served>,
) -> Result<HttpResponse, Error> {
    let form = Form { conventions: served.conventions, stream: Some(true) };
    answer(&request, body.0, form, |person| Ok(served.models.only()?.of(person))).await
}

/// The model and the limits of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Info {
    /// The model's name.
    model_id: String,
    /// What the model does: always `text-generation`.
    model_pipeline_tag: &'static str,
    /// Sequences of a prompt.
    max_best_of: usize,
    /// Texts that end a sequence.
    max_stop_sequences: usize,
    /// Tokens of a prompt.
    max_input_tokens: usize,
    /// Tokens of a prompt and its continuation.
    max_total_tokens: usize,
    /// Prompts of a request.
    max_client_batch_size: usize,
    /// The server: always `foretype`.
    router: &'static str,
    /// The server's version.
    version: &'static str,
}

/// The model and the limits of requests, in the schema of Text Generation Inference
#[utoipa::path(get, path = "/info", responses(
    (status = 200, description = "The model and the limits", body = Info),
    (status = 404, description = "There are models by name", body = ErrorBody),
    (status = 405, description = "Another method", body = ErrorBody),
    (status = 503, description = "The model is not ready", body = ErrorBody),
))]
pub(super) async fn info(served: Data<Served>) -> Result<HttpResponse, Error> {
    let versions = served.models.only()?;
    let engine = versions.main();
    Ok(HttpResponse::Ok().json(Info {
        model_id: versions.name().to_owned(),
        model_pipeline_tag: "text-generation",
        max_best_of: MAX_SUGGESTIONS,
        max_stop_sequences: MAX_STOP,
        max_input_tokens: engine.context() - 1,
        max_total_tokens: engine.context(),
        max_client_batch_size: MAX_INPUTS,
        router: "foretype",
        version: env!("CARGO_PKG_VERSION"),
    }))
}
