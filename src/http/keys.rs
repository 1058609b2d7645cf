//! Asks for a key where the server has keys: `Authorization: Bearer KEY` or `X-Api-Key: KEY`. `/ping` needs none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpRequest, HttpResponse};

use super::errors::OpenAiError;
use super::request::served;
use crate::access::Key;
use crate::access::file::KeyFile;
use crate::error::{Error, Kind};

/// The key that a request came with, among the request's extensions.
#[derive(Clone, Debug)]
pub struct AuthenticatedKey(pub Arc<Key>);

/// The key of a request, if keys are asked for.
pub(super) fn key_of(request: &HttpRequest) -> Option<Arc<Key>> {
    request.extensions().get::<AuthenticatedKey>().map(|key| Arc::clone(&key.0))
}

/// The middleware: a request without a key, or over its key's limits, gets no further.
pub(super) async fn authenticate<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let keys = served(request.request()).and_then(|served| served.keys.clone());
    let Some(keys) = keys.filter(|_| request.path() != "/ping") else {
        return Ok(next.call(request).await?.map_into_left_body());
    };
    match check(&keys, &request) {
        Ok(key) => {
            request.extensions_mut().insert(AuthenticatedKey(key));
            Ok(next.call(request).await?.map_into_left_body())
        }
        Err(refused) => {
            let response = refused.answer(request.path().starts_with("/v1/"));
            Ok(request.into_response(response).map_into_right_body())
        }
    }
}

/// Why a request gets no further.
enum Refused {
    NoKey,
    WrongKey,
    OverLimit { key: Arc<Key>, wait: Duration, what: &'static str },
}

fn check(keys: &KeyFile, request: &ServiceRequest) -> Result<Arc<Key>, Refused> {
    let secret = secret(request).ok_or(Refused::NoKey)?;
    let key = keys.find(secret).ok_or(Refused::WrongKey)?;
    match key.begin(Instant::now()) {
        Ok(()) => Ok(key),
        Err((wait, what)) => Err(Refused::OverLimit { key, wait, what }),
    }
}

fn secret(request: &ServiceRequest) -> Option<&[u8]> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let bearer = header(AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, secret) = value.split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(secret)
    });
    bearer.or_else(|| header("X-Api-Key")).map(<[u8]>::trim_ascii)
}

impl Refused {
    fn answer(self, is_openai: bool) -> HttpResponse {
        let (kind, message) = match &self {
            Self::NoKey => (
                Kind::Unauthorized,
                "the request has no key; send Authorization: Bearer KEY, or X-Api-Key: KEY".to_owned(),
            ),
            Self::WrongKey => (Kind::Unauthorized, "the key is not one of this server's; ask its operator".to_owned()),
            Self::OverLimit { key, what, .. } => (
                Kind::RateLimited,
                format!("the key {} has used up its {what} a second; wait for Retry-After", key.name()),
            ),
        };
        let error = Error::new(kind, message);
        let mut response = match is_openai {
            true => HttpResponse::from_error(OpenAiError::from(error)),
            false => HttpResponse::from_error(error),
        };
        if let Self::OverLimit { wait, .. } = self {
            let seconds = wait.as_secs().saturating_add(1);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        } else {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
