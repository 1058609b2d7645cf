//! Which web pages of other sites may read answers: those of the origins that are named, and without one none.

use std::time::Duration;

use actix_cors::Cors;
use actix_web::http::Method;
use actix_web::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName};

use super::sessions::{CLOSED_SESSION_HEADER, NEW_SESSION_HEADER, SESSION_HEADER};

/// Time that a browser may remember an answer to its question.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The middleware for these origins.
pub(super) fn cors(origins: &[String]) -> Cors {
    let own = [SESSION_HEADER, "X-Api-Key", "X-Request-Id", "traceparent"];
    let own = own.iter().filter_map(|name| name.parse::<HeaderName>().ok());
    let cors = Cors::default()
        .allowed_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allowed_headers([ACCEPT, AUTHORIZATION, CONTENT_TYPE].into_iter().chain(own))
        .expose_headers([NEW_SESSION_HEADER, CLOSED_SESSION_HEADER, "X-Request-Id", "Retry-After"])
        .max_age(MAX_AGE.as_secs() as usize);
    // Requests of other origins are answered as without this, and their pages can't read the answers.
    origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin)).block_on_origin_mismatch(false)
}

/// Checks an origin of the command line: scheme, host and perhaps port.
///
/// # Errors
/// What is wrong with it.
pub fn check_origin(origin: &str) -> Result<String, String> {
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let is_host =
        |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:[]".contains(c));
    if host.is_some_and(is_host) {
        return Ok(origin.to_ascii_lowercase());
    }
    Err("an origin is a scheme and a host, such as https://search.example.com, without a path".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_no_path() {
        for good in ["https://a.example", "http://localhost:3000", "http://[::1]:80"] {
            assert_eq!(check_origin(good).as_deref(), Ok(good));
        }
        for bad in ["", "*", "null", "a.example", "https://", "https://a.example/", "ftp://a"] {
            assert!(check_origin(bad).is_err(), "{bad}");
        }
    }
}
