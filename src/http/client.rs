//! Who pays for a request: the client that the scheduler shares the model's time among.

use std::net::IpAddr;

use actix_web::HttpRequest;
use actix_web::http::header::HeaderMap;
use scheduler::Client;

use super::keys::key_of;

/// The client of a request: the name of its API key, else the session, else the address that it comes from.
pub(super) fn of(request: &HttpRequest, session: Option<&str>) -> Client {
    let keyed = key_of(request).map(|key| Client::key(key.name()));
    keyed.or_else(|| session.map(Client::session)).unwrap_or_else(|| {
        let peer = request.peer_addr().map(|peer| peer.ip());
        address(peer, request.headers()).map_or_else(Client::default, Client::address)
    })
}

/// Where a request comes from. A proxy is believed if it is on this machine: behind a socket file, or a loopback
/// address.
fn address(peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
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
        of(&request.to_http_request(), session)
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
        assert_eq!(of(&keyed, Some("ada")), Client::key("search"));
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
