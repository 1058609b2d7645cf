//! Shares an engine's steps among many completions, and keeps what was computed.
//!
//! The policy is plain data and structs without threads, clocks or I/O:
//!
//! | module | what it decides or holds |
//! |---|---|
//! | [`scheduler`] | the engine loop: which nodes of which jobs go into the next step, and who gets the results |
//! | [`prefix_cache`] | what was computed: distributions, and pages of keys and values, by prefix |
//! | [`plan`], [`order`] | the rows of a step, and whose come first |
//! | [`lanes`], [`sources`] | the KV lanes that rows use; the encoder outputs that they read |
//! | [`client`], [`fair`], [`places`] | who pays for work; the accounts of all; how many run at once |
//! | [`mod@line`], [`sessions`] | which request is next; which is its session's newest |
//! | [`scaling`] | how many replicas a model has |
//! | [`backend`], [`fake`] | the seam to an engine, and a deterministic engine for tests |
//! | [`request`], [`observer`] | what comes in and goes back; what is reported |
//!
//! [`threads`] wraps it: model threads, the queue in front of them, deadlines, failures.
//!
//! Invariants: only a model thread computes with a [`backend::Backend`]. What the prefix cache holds, and what shares a
//! step, never changes an answer, only its cost. Every accepted request is answered.

pub mod backend;
pub mod client;
pub mod fair;
pub mod fake;
pub mod job;
pub mod lanes;
pub mod line;
pub mod observer;
pub mod order;
pub mod places;
pub mod plan;
pub mod prefix_cache;
pub mod request;
pub mod scaling;
pub mod scheduler;
pub mod sessions;
pub mod sources;
pub mod threads;

pub use self::backend::{LoadError, Loader};
pub use self::client::{Class, Client, Flow};
pub use self::job::{JobId, Usage};
pub use self::request::{Answer, Event, Failure, Finish, Payer, Refusal, Request, Superseded};
pub use self::scaling::Replicas;
pub use self::threads::admission::Admission;
pub use self::threads::background::in_background;
pub use self::threads::health::Health;
pub use self::threads::heap::share_arenas;
pub use self::threads::options::{PoolOptions, RESTART_EVERY};
pub use self::threads::pool::{Pool, PoolError};
pub use self::threads::scaler::{Occupied, Room};
