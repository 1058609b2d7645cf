//! HTTP: routes, what goes over the wire, and errors as JSON. Knows no tokens and no tensors.
//!
//! | file | |
//! |---|---|
//! | [`server`] | listener, limits, one log line a request |
//! | `routes` | which handler a path and method get |
//! | `invoke`, `batch`, `completions`, `shelf` | the handlers: `/invocations`, its JSON Lines, OpenAI's, models by name |
//! | [`body`], [`suggest`], [`lmi`], [`openai`], [`sessions`], [`lines`] | the schemas, and reading them: plain functions of bytes |
//! | [`stream`], [`framing`] | answers that are sent as they are made |
//! | `page` | the page for people at `/`: HTML, style and script of their own |
//! | [`openapi`] | the document about all of it |

mod batch;
pub mod body;
mod completions;
pub mod errors;
pub mod framing;
mod invoke;
pub mod lines;
pub mod lmi;
pub mod openai;
pub mod openapi;
mod page;
mod routes;
pub mod server;
pub mod sessions;
mod shelf;
pub mod stream;
pub mod suggest;
pub mod wire;

pub use self::server::{Listener, ServerOptions, start};
pub use crate::models::ModelState;
