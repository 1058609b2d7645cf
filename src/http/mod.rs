//! HTTP: routes, what goes over the wire, and errors as JSON. Knows no tokens and no tensors.

pub mod errors;
mod routes;
pub mod server;
pub mod wire;

pub use self::server::{ModelState, ServerOptions, start};
