//! What every handler starts from: the server's state, a request's body and content type, and the client that the
//! scheduler shares the model's time among.

use std::convert::Infallible;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, ORIGIN};
use actix_web::web::{Bytes, Data, block};
use actix_web::{FromRequest, HttpRequest};
use futures_util::future::{FutureExt, LocalBoxFuture};
use rustc_hash::FxBuildHasher;
use scheduler::Client;
use tokio::time::timeout;

use super::connections::Connections;
use super::conventions::Conventions;
use super::encoding::Encoding;
use super::keys::key_of;
use super::routes::Routes;
use super::trace::LogRequests;
use crate::access::file::KeyFile;
use crate::error::{Error, Kind};
use crate::metrics::Metrics;
use crate::models::Models;

/// The server's state, which all handlers share.
pub(super) struct Served {
    pub models: Models,
    /// What this listener serves.
    pub routes: Routes,
    pub max_body_bytes: usize,
    pub body_timeout: Duration,
    pub conventions: Conventions,
    pub page: bool,
    pub metrics: Arc<Metrics>,
    /// When this server was started, in Unix time.
    pub started: u64,
    /// Whether it is being stopped.
    pub stopping: Arc<AtomicBool>,
    pub connections: Arc<Connections>,
    /// The keys that requests need, if they need one.
    pub keys: Option<Arc<KeyFile>>,
    pub log_requests: LogRequests,
    /// Requests so far, for a sample of them.
    pub number: AtomicU64,
}

/// The state of the server that a request came to.
pub(super) fn served(request: &HttpRequest) -> Option<&Data<Served>> {
    request.app_data()
}

/// A request's whole body, decoded, or why it can't be read.
pub(super) struct WholeBody(pub Result<Bytes, Error>);

impl FromRequest for WholeBody {
    type Error = Infallible;
    type Future = LocalBoxFuture<'static, Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let served = served(request).cloned();
        let encoding = request.headers().get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let encoding = Encoding::named(encoding.as_deref().unwrap_or_default());
        let bytes = Bytes::from_request(request, payload);
        async move {
            let Some(served) = served else {
                return Ok(Self(Err(Error::new(Kind::Internal, "the server failed on this request"))));
            };
            Ok(Self(async { served.read(bytes, encoding?).await }.await))
        }
        .boxed_local()
    }
}

impl Served {
    /// The number of a request, from 0.
    pub(super) fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    async fn read(
        &self,
        body: impl Future<Output = actix_web::Result<Bytes>>,
        encoding: Option<Encoding>,
    ) -> Result<Bytes, Error> {
        let (limit, within) = (self.max_body_bytes, self.body_timeout);
        let body = timeout(within, body).await.map_err(|_| {
            let message = format!("the body did not come within {} s; send it at once", within.as_secs_f64());
            Error::new(Kind::RequestTimeout, message)
        })?;
        let body = body.map_err(|error| match error.as_response_error().status_code() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Error::new(Kind::BodyTooLarge, format!("the body is over {limit} bytes; an input needs far less"))
            }
            _ => Error::new(Kind::InvalidJson, format!("the body can't be read: {error}")),
        })?;
        let Some(encoding) = encoding else { return Ok(body) };
        // A large one takes milliseconds.
        block(move || encoding.decode(&body, limit)).await.map_or_else(
            |_| Err(Error::new(Kind::Internal, "the server failed on this request")),
            |decoded| decoded.map(Bytes::from),
        )
    }
}

/// A request's content type in lower case, without parameters; empty if the request names none.
///
/// # Errors
/// If a page of a browser sends a body without a content type. A page of any other site may do that without the
/// browser asking first.
pub(super) fn content_type(request: &HttpRequest) -> Result<String, Error> {
    let value = request.headers().get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = value.as_deref().unwrap_or_default().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    if essence.is_empty() && request.headers().contains_key(ORIGIN) {
        let message = "the content type is missing; send application/json from a web page";
        return Err(Error::new(Kind::UnsupportedMediaType, message));
    }
    Ok(essence)
}

/// Accepts JSON and, from programs, requests without a content type; curl's default for `-d` is a form.
pub(super) fn expect_json(request: &HttpRequest) -> Result<(), Error> {
    match content_type(request)?.as_str() {
        "" | "application/json" => Ok(()),
        other => {
            Err(Error::new(Kind::UnsupportedMediaType, format!("the content type is {other}; send application/json")))
        }
    }
}

/// The client of a request: the name of its API key, else the session, else the address that it comes from.
pub(super) fn client_of(request: &HttpRequest, session: Option<&str>) -> Client {
    let keyed = key_of(request).map(|key| Client::key(key.name()));
    keyed
        .or_else(|| session.map(Client::session))
        .unwrap_or_else(|| sender_of(request).map_or_else(Client::default, Client::address))
}

/// A hash of who a request is of: the session, else the address that it comes from. It is the same on each server of
/// this release, so that a person meets the same version of a model everywhere.
pub(super) fn person_of(request: &HttpRequest, session: Option<&str>) -> u64 {
    match session {
        Some(session) => FxBuildHasher.hash_one(("session", session)),
        None => FxBuildHasher.hash_one(("address", sender_of(request))),
    }
}

/// The address that a request comes from, if it is known.
fn sender_of(request: &HttpRequest) -> Option<IpAddr> {
    address_of(request.peer_addr().map(|peer| peer.ip()), request.headers())
}

/// Where a request comes from. A proxy is believed if it is on this machine: behind a socket file, or a loopback
/// address.
fn address_of(peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
    if peer.is_some_and(|peer| !peer.to_canonical().is_loopback()) {
        return peer;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Of a list only the last one is the proxy's own word.
    let last = |list: &str| list.rsplit(',').next().and_then(|address| address.trim().parse().ok());
    let told = text("x-real-ip").and_then(last).or_else(|| text("x-forwarded-for").and_then(last));
    told.or(peer)
}

#[cfg(test)]
mod tests {
    use actix_web::HttpMessage;
    use actix_web::test::TestRequest;

    use super::super::keys::AuthenticatedKey;
    use super::*;
    use crate::access::Keys;

    fn client(peer: Option<&str>, headers: &[(&'static str, &'static str)], session: Option<&str>) -> Client {
        let mut request = TestRequest::default();
        if let Some(peer) = peer {
            request = request.peer_addr(format!("{peer}:5").parse().unwrap());
        }
        let request = headers.iter().fold(request, |request, &header| request.insert_header(header));
        client_of(&request.to_http_request(), session)
    }

    #[test]
    fn the_session_comes_before_the_address_and_a_key_before_both() {
        let address = |text: &str| Client::address(text.parse().unwrap());
        assert_eq!(client(Some("10.0.0.1"), &[], None), address("10.0.0.1"));
        assert_eq!(client(Some("10.0.0.1"), &[], Some("ada")), Client::session("ada"));
        assert_eq!(client(None, &[], None), Client::default());
        let json = br#"{"keys": [{"name": "search", "key": "0123456789abcdef"}]}"#;
        let key = Keys::parse(json, &Keys::default()).unwrap().find(b"0123456789abcdef").unwrap();
        let keyed = TestRequest::default().to_http_request();
        keyed.extensions_mut().insert(AuthenticatedKey(key));
        assert_eq!(client_of(&keyed, Some("ada")), Client::key("search"));
    }

    #[test]
    fn people_are_told_apart_evenly_by_their_session_or_else_by_their_address() {
        let request = |address: &str| TestRequest::default().peer_addr(address.parse().unwrap()).to_http_request();
        let one = request("10.0.0.1:5");
        assert_eq!(person_of(&one, Some("ada")), person_of(&request("10.0.0.2:6"), Some("ada")));
        assert_eq!(person_of(&one, None), person_of(&request("10.0.0.1:9"), None));
        assert_ne!(person_of(&one, None), person_of(&request("10.0.0.2:5"), None));
        let tenths = (0..10_000).map(|i| person_of(&one, Some(&format!("session-{i}"))) / (u64::MAX / 10));
        let in_first = tenths.filter(|tenth| *tenth == 0).count();
        assert!((900..1100).contains(&in_first), "{in_first}");
    }

    #[test]
    fn only_a_proxy_on_this_machine_is_believed() {
        let address = |text: &str| Client::address(text.parse().unwrap());
        let forwarded = [("x-forwarded-for", "1.1.1.1, 10.0.0.9")];
        assert_eq!(client(Some("10.0.0.1"), &forwarded, None), address("10.0.0.1"));
        for peer in [None, Some("127.0.0.1"), Some("[::1]"), Some("[::ffff:127.0.0.1]")] {
            assert_eq!(client(peer, &forwarded, None), address("10.0.0.9"), "{peer:?}: the last one");
            let real = [("x-real-ip", "10.0.0.8"), forwarded[0]];
            assert_eq!(client(peer, &real, None), address("10.0.0.8"));
        }
        assert_eq!(client(Some("127.0.0.1"), &[("x-real-ip", "nonsense")], None), address("127.0.0.1"));
    }
}
