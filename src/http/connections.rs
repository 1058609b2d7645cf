//! How many connections there may be: fewer than the process has descriptors, so that there is always one for a health
//! check. Connections over the limit are accepted, told so when they ask for anything but `/ping`, and closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix_web::HttpResponse;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Extensions, ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::middleware::Next;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Kind};

/// Connections that wait to be accepted.
pub const BACKLOG: i32 = 1024;

/// The connections of a server, and how many there may be.
pub(super) struct Connections {
    open: AtomicUsize,
    /// Connections that may ask for everything.
    limit: usize,
}

/// A connection that is open, until it is dropped.
pub(super) struct Open {
    connections: Arc<Connections>,
    is_within_limit: bool,
}

impl Connections {
    /// At most `wanted` connections, and fewer where the process has few descriptors.
    pub(super) fn new(wanted: usize) -> Self {
        let limit = wanted.min(limit_by(free_descriptors())).max(1);
        if limit < wanted {
            tracing::warn!(limit, wanted, "too few descriptors for --max-connections; raise the limit of open files");
        }
        Self { open: AtomicUsize::new(0), limit }
    }

    /// Connections that are accepted at once. Those over the limit are there to be told.
    pub(super) fn accepted(&self) -> usize {
        self.limit + spare(self.limit)
    }

    /// Counts a new connection.
    pub(super) fn opened(self: &Arc<Self>, data: &mut Extensions) {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        data.insert(Open { connections: Arc::clone(self), is_within_limit: before < self.limit });
    }

    /// Number of connections.
    pub(super) fn count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Open {
    fn is_over(&self) -> bool {
        !self.is_within_limit && self.connections.count() > self.connections.limit
    }
}

/// Refuses what comes on connections over the limit, before its body is read.
pub(super) async fn bound<B: MessageBody>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, actix_web::Error> {
    let is_over = request.conn_data::<Open>().is_some_and(Open::is_over);
    if !is_over || request.path() == "/ping" {
        return Ok(next.call(request).await?.map_into_left_body());
    }
    let error =
        Error::new(Kind::Overloaded, "the server has too many connections; use fewer, or try again in a moment");
    let mut response = HttpResponse::from_error(error);
    response.head_mut().set_connection_type(ConnectionType::Close);
    Ok(request.into_response(response).map_into_right_body())
}

/// Connections over the limit that are accepted, to be told.
fn spare(limit: usize) -> usize {
    (limit / 2).clamp(4, 256)
}

/// The limit for a number of descriptors that are free; a quarter of them, at most 256, stays for files.
fn limit_by(descriptors: usize) -> usize {
    let connections = descriptors - (descriptors / 4).min(256);
    connections - (connections / 3).clamp(4, 256).min(connections)
}

/// Descriptors that the process may still open.
fn free_descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize);
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    most.saturating_sub(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accepted_leaves_descriptors_for_files() {
        for descriptors in [0, 1, 8, 20, 44, 100, 1000, 1_000_000] {
            let limit = limit_by(descriptors);
            assert!(limit + spare(limit) <= descriptors.max(4), "{descriptors}: {limit}");
        }
        assert_eq!((limit_by(44), limit_by(1000)), (22, 500));
    }

    #[test]
    fn a_connection_over_the_limit_is_let_in_when_others_have_gone() {
        let connections = Arc::new(Connections { open: AtomicUsize::new(0), limit: 1 });
        let (mut first, mut second) = (Extensions::new(), Extensions::new());
        connections.opened(&mut first);
        connections.opened(&mut second);
        let is_over = |data: &Extensions| data.get::<Open>().unwrap().is_over();
        assert_eq!((connections.count(), is_over(&first), is_over(&second)), (2, false, true));
        drop(first);
        assert_eq!((connections.count(), is_over(&second)), (1, false));
    }
}
