//! The error answers that several routes share, for the OpenAPI document.

use utoipa::IntoResponses;

use super::errors::ErrorBody;
use super::openai;

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
    /// The server asks for a key.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// 408: the body did not come in time.
    #[response(status = 408)]
    Timeout(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body is neither JSON nor JSON Lines, or has an unknown encoding.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The queue is full, or the key's limits are used up; try again.
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
    /// The server asks for a key.
    #[response(status = 401)]
    Unauthorized(openai::ErrorBody),
    /// 408: the body did not come in time.
    #[response(status = 408)]
    Timeout(openai::ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(openai::ErrorBody),
    /// The body isn't JSON, or has an unknown encoding.
    #[response(status = 415)]
    MediaType(openai::ErrorBody),
    /// The queue is full, or the key's limits are used up; try again.
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
    /// 405: the path does not have this method.
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
    /// 409: a model of that name is loaded or being loaded, or another version of it is.
    #[response(status = 409)]
    Exists(ErrorBody),
    /// The server asks for a key.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// 408: the body did not come in time.
    #[response(status = 408)]
    Timeout(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    TooLarge(ErrorBody),
    /// The body isn't JSON, or has an unknown encoding.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The model can't be loaded.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// There is no memory left for it.
    #[response(status = 507)]
    OutOfMemory(ErrorBody),
}
