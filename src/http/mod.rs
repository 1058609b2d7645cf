//! HTTP: routes, what goes over the wire, and errors as JSON. Knows no tokens and no tensors.
//!
//! Each row imports only from the rows below it:
//!
//! | file | |
//! |---|---|
//! | [`server`] | listener, limits |
//! | [`trace`], `observe` | around every request: one log line, metrics |
//! | `connections`, [`cors`], `keys` | around every request: connections, origins, keys |
//! | `routes` | which handler serves which path |
//! | [`openapi`] | the document about the handlers and the wire types |
//! | `invoke`, `generate`, `batch`, `models`, `status`, `page` | the handlers |
//! | `answer`, `completions`, [`stream`] | answers, whole or sent as they are made |
//! | `request`, `responses`, [`errors`] | the server's state, a request's body and who pays for it; error answers |
//! | [`body`], [`suggest`], [`lmi`], [`openai`], [`sessions`] | the wire types: plain functions of bytes |
//! | [`json`], [`encoding`], `schemas`, [`framing`], [`lines`], [`plain`] | JSON, its lines, CSV, events |
//! | [`conventions`] | what other systems do |

mod answer;
mod batch;
pub mod body;
mod completions;
mod connections;
pub mod conventions;
pub mod cors;
pub mod encoding;
pub mod errors;
pub mod framing;
mod generate;
mod invoke;
pub mod json;
mod keys;
pub mod lines;
pub mod lmi;
mod models;
mod observe;
pub mod openai;
pub mod openapi;
mod page;
pub mod plain;
mod request;
mod responses;
mod routes;
mod schemas;
pub mod server;
pub mod sessions;
mod status;
pub mod stream;
pub mod suggest;
pub mod trace;

pub use self::keys::AuthenticatedKey;
pub use self::routes::Routes;
pub use self::server::{Listener, ServerOptions, start};
