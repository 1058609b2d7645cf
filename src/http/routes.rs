//! Which handler a path and method get, and the handlers that need no schema: health, metrics, limits, the document.

use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::{self, Bytes, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, Result, Route};
use serde::Serialize;
use utoipa::ToSchema;

use super::errors::{ErrorBody, method_not_allowed};
use super::openapi::{self, PingErrors};
use super::server::Served;
use super::{completions, invoke, page, shelf};
use crate::error::{Error, Kind};
use crate::models::{ModelState, Models};
use scheduler::Health;

/// Registers all routes.
pub fn configure(config: &mut ServiceConfig) {
    let resource = |path: &str, routes: Vec<Route>, allowed: &'static str| -> Resource {
        let default = web::to(move |request: HttpRequest| not_allowed(request, allowed));
        routes.into_iter().fold(web::resource(path), Resource::route).default_service(default)
    };
    let (get, post, delete) = (web::get, web::post, web::delete);
    let ping_routes = vec![get().to(ping), post().to(ping), web::head().to(ping)];
    config
        .service(resource("/ping", ping_routes, "GET, HEAD, POST"))
        .service(resource("/invocations", vec![post().to(invoke::invocations)], "POST"))
        .service(resource("/execution-parameters", vec![get().to(execution_parameters)], "GET"))
        .service(resource("/metrics", vec![get().to(metrics)], "GET"))
        .service(resource("/openapi.json", vec![get().to(document)], "GET"))
        .service(resource("/v1/completions", vec![post().to(completions::completions)], "POST"))
        .service(resource("/v1/models", vec![get().to(completions::models)], "GET"))
        .service(resource("/v1/models/{id}", vec![get().to(completions::model)], "GET"))
        .service(resource("/models", vec![get().to(shelf::list), post().to(shelf::load)], "GET, POST"))
        .service(resource("/models/{name}", vec![get().to(shelf::get), delete().to(shelf::unload)], "DELETE, GET"))
        .service(resource("/models/{name}/invoke", vec![post().to(invoke::invoke)], "POST"))
        .service(resource("/", vec![get().to(page::index), web::head().to(page::index)], "GET, HEAD"))
        .service(resource("/page.css", vec![get().to(page::style), web::head().to(page::style)], "GET, HEAD"))
        .service(resource("/page.js", vec![get().to(page::script), web::head().to(page::script)], "GET, HEAD"))
        .default_service(web::to(not_found));
}

async fn not_allowed(request: HttpRequest, allowed: &'static str) -> HttpResponse {
    method_not_allowed(request.method().as_str(), request.path(), allowed)
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let message = format!(
        "there is no {}; try POST /invocations or GET /ping, and GET /openapi.json for the rest",
        request.path()
    );
    Error::new(Kind::NotFound, message).error_response()
}

/// The body, or why there is none.
pub(super) fn whole(body: Result<Bytes>, limit: usize) -> Result<Bytes, Error> {
    body.map_err(|error| match error.as_response_error().status_code() {
        actix_web::http::StatusCode::PAYLOAD_TOO_LARGE => {
            Error::new(Kind::BodyTooLarge, format!("the body is over {limit} bytes; an input needs far less"))
        }
        _ => Error::new(Kind::InvalidJson, format!("the body can't be read: {error}")),
    })
}

/// What a content type says, without its parameters; nothing if nothing is said.
pub(super) fn content_type(request: &HttpRequest) -> String {
    let value = request.headers().get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = value.as_deref().unwrap_or_default().split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// JSON, or nothing said; curl's default for `-d` is a form.
pub(super) fn expect_json(request: &HttpRequest) -> Result<(), Error> {
    match content_type(request).as_str() {
        "" | "application/json" => Ok(()),
        other => {
            Err(Error::new(Kind::UnsupportedMediaType, format!("the content type is {other}; send application/json")))
        }
    }
}

/// Whether requests can be answered
///
/// Healthy once a real forward has succeeded, and as long as the engine works. A server of models by name is healthy without any.
#[utoipa::path(method(get, head, post), path = "/ping", responses((status = 200, description = "Healthy"), PingErrors))]
pub(super) async fn ping(served: Data<Served>) -> Result<HttpResponse, Error> {
    let unhealthy = |reason: String| Error::new(Kind::NotReady, reason);
    let Models::Single(model) = &served.models else { return Ok(HttpResponse::Ok().finish()) };
    match &*model.borrow() {
        ModelState::Loading => Err(unhealthy("the model is being loaded".into())),
        ModelState::Failed(reason) => Err(unhealthy(format!("the model can't be loaded: {reason}"))),
        ModelState::Ready(engine) => match engine.health() {
            Health::Ready => Ok(HttpResponse::Ok().finish()),
            Health::Failed(reason) => Err(unhealthy(format!("the model failed: {reason}"))),
        },
    }
}

/// What is counted, as Prometheus text
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "All metrics", body = String, content_type = "text/plain"),
    (status = 405, description = "Another method", body = ErrorBody),
))]
pub(super) async fn metrics(served: Data<Served>) -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(served.metrics.render())
}

/// This document
#[utoipa::path(get, path = "/openapi.json", responses(
    (status = 200, description = "The OpenAPI document", body = openapi::AnyObject),
    (status = 405, description = "Another method", body = ErrorBody),
))]
pub(super) async fn document(served: Data<Served>) -> HttpResponse {
    let context = served.models.only().ok().map(|engine| engine.context());
    HttpResponse::Ok().json(openapi::document(context))
}

/// Requests of a batch transform that are worked on at once, where payloads are small.
const MAX_CONCURRENT_TRANSFORMS: usize = 8;
/// The platform's bound on payloads in flight, in MB.
const MAX_TRANSFORM_MB: usize = 100;

/// How a batch transform should ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExecutionParameters {
    /// Requests at once.
    #[schema(minimum = 1)]
    max_concurrent_transforms: usize,
    /// As many records as fit make a request.
    batch_strategy: BatchStrategy,
    /// Size of a request.
    #[serde(rename = "MaxPayloadInMB")]
    #[schema(minimum = 1)]
    max_payload_in_mb: usize,
}

/// How records make requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum BatchStrategy {
    /// As many as fit.
    MultiRecord,
}

/// How a batch transform should ask
#[utoipa::path(get, path = "/execution-parameters", responses(
    (status = 200, description = "The server's limits", body = ExecutionParameters),
    (status = 405, description = "Another method", body = ErrorBody),
))]
pub(super) async fn execution_parameters(served: Data<Served>) -> HttpResponse {
    // 0 would mean no limit.
    let max_payload_in_mb = (served.max_body_bytes >> 20).clamp(1, MAX_TRANSFORM_MB);
    let max_concurrent_transforms = MAX_CONCURRENT_TRANSFORMS.min(MAX_TRANSFORM_MB / max_payload_in_mb);
    let batch_strategy = BatchStrategy::MultiRecord;
    HttpResponse::Ok().json(ExecutionParameters { max_concurrent_transforms, batch_strategy, max_payload_in_mb })
}
