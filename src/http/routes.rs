//! The handlers: read the request, ask the engine, write the answer. One line of log per request at most, none for pings.

use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::{self, Bytes, Data, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, ResponseError, Result};

use super::errors::method_not_allowed;
use super::server::{ModelState, Served};
use super::wire::{self, Invocation, Suggestions};
use crate::error::{Error, Kind};
use crate::schedule::Health;

/// Registers all routes.
pub fn configure(config: &mut ServiceConfig) {
    config
        .service(
            web::resource("/ping")
                .route(web::get().to(ping))
                .route(web::post().to(ping))
                .route(web::head().to(ping))
                .default_service(web::to(|request: HttpRequest| not_allowed(request, "GET, HEAD, POST"))),
        )
        .service(
            web::resource("/invocations")
                .route(web::post().to(invocations))
                .default_service(web::to(|request: HttpRequest| not_allowed(request, "POST"))),
        )
        .default_service(web::to(not_found));
}

async fn not_allowed(request: HttpRequest, allowed: &'static str) -> HttpResponse {
    method_not_allowed(request.method().as_str(), request.path(), allowed)
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let message = format!("there is no {}; try POST /invocations or GET /ping", request.path());
    Error::new(Kind::NotFound, message).error_response()
}

/// Healthy once a real forward has succeeded, and as long as the engine works.
async fn ping(served: Data<Served>) -> Result<HttpResponse, Error> {
    let unhealthy = |reason: String| Error::new(Kind::NotReady, reason);
    match &*served.model.borrow() {
        ModelState::Loading => Err(unhealthy("the model is being loaded".into())),
        ModelState::Failed(reason) => Err(unhealthy(format!("the model can't be loaded: {reason}"))),
        ModelState::Ready(engine) => match engine.health() {
            Health::Ready => Ok(HttpResponse::Ok().finish()),
            Health::Failed(reason) => Err(unhealthy(format!("the model failed: {reason}"))),
        },
    }
}

async fn invocations(request: HttpRequest, body: Result<Bytes>, served: Data<Served>) -> Result<HttpResponse, Error> {
    expect_json(&request)?;
    let body = body.map_err(|error| body_error(&error, served.max_body_bytes))?;
    let invocation: Invocation = wire::parse(&body)?;
    let engine = served.engine()?;
    let answer = engine.complete(&invocation.into()).await?;
    Ok(HttpResponse::Ok().json(Suggestions::new(engine.name(), &answer)))
}

/// JSON, or nothing said; curl's default for `-d` is a form.
fn expect_json(request: &HttpRequest) -> Result<(), Error> {
    let Some(value) = request.headers().get(CONTENT_TYPE) else { return Ok(()) };
    let value = String::from_utf8_lossy(value.as_bytes());
    let essence = value.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") || essence.is_empty() {
        return Ok(());
    }
    Err(Error::new(Kind::UnsupportedMediaType, format!("the content type is {essence}; send application/json")))
}

fn body_error(error: &actix_web::Error, limit: usize) -> Error {
    match error.as_response_error().status_code() {
        actix_web::http::StatusCode::PAYLOAD_TOO_LARGE => {
            Error::new(Kind::BodyTooLarge, format!("the body is over {limit} bytes; an input needs far less"))
        }
        _ => Error::new(Kind::InvalidJson, format!("the body can't be read: {error}")),
    }
}
