//! Health, metrics and limits: the routes for the platform of a container.

use std::sync::Arc;

use actix_web::web::Data;
use actix_web::{HttpResponse, Result};
use serde::Serialize;
use utoipa::ToSchema;

use super::errors::ErrorBody;
use super::request::Served;
use super::responses::PingErrors;
use crate::engine::Engine;
use crate::error::{Error, Kind};
use crate::models::{ModelState, Models};
use scheduler::Health;

/// Whether requests can be answered
///
/// Healthy once a real forward has succeeded, and as long as the engine works. A server of models by name is healthy
/// without any.
#[utoipa::path(method(get, head, post), path = "/ping", responses((status = 200, description = "Healthy"), PingErrors))]
pub(super) async fn ping(served: Data<Served>) -> Result<HttpResponse, Error> {
    let unhealthy = |reason: String| Error::new(Kind::NotReady, reason);
    let Models::Single(model) = &served.models else { return Ok(HttpResponse::Ok().finish()) };
    model.look(|state| match state {
        ModelState::Loading => Err(unhealthy("the model is being loaded".into())),
        ModelState::Downloading(from) => Err(unhealthy(format!("the model is being downloaded from {from}"))),
        ModelState::Failed(reason) => Err(unhealthy(format!("the model can't be loaded: {reason}"))),
        ModelState::Ready(versions) => {
            let failed = |engine: &Arc<Engine>| match engine.health() {
                Health::Ready => None,
                Health::Failed(reason) => Some(unhealthy(format!("the model failed: {reason}"))),
            };
            versions.engines().find_map(failed).map_or_else(|| Ok(HttpResponse::Ok().finish()), Err)
        }
    })
}

/// What is counted, as Prometheus text
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "All metrics", body = String, content_type = "text/plain"),
    (status = 405, description = "Another method", body = ErrorBody),
))]
pub(super) async fn metrics(served: Data<Served>) -> HttpResponse {
    served.metrics.connections(served.connections.count());
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(served.metrics.render())
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
    /// A request has as many records as fit.
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
