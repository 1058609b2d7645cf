//! Scheduling: requests come in, forwards go out, nothing is lost in between.
//!
//! [`scheduler`] is the engine loop as a plain struct, over the [`tree`] of what was computed, the [`plan`] of one forward, the
//! [`order`] in which it is made, the [`lanes`]' contents and the [`sources`] that were read; [`waiting`] says who is next; [`sessions`] which request is its session's newest. None of them knows
//! threads or reads a clock.
//!
//! [`pool`] owns the model threads. Each runs `worker`, the loop around a scheduler, and takes [`request`]s from the one `queue`;
//! while it waits, its loop is `parked`, where a request that needs nothing but the tree is answered by the thread that brings it;
//! [`health`] is what is known of the engines. [`calibrate`] times an engine once, when it is loaded.

mod active;
pub mod backend;
pub mod calibrate;
pub mod fake;
pub mod health;
mod job;
pub mod lanes;
pub mod observer;
pub mod order;
mod parked;
pub mod plan;
pub mod pool;
mod queue;
pub mod request;
pub mod scheduler;
pub mod sessions;
pub mod sources;
pub mod tree;
pub mod waiting;
mod worker;

pub use self::health::Health;
pub use self::pool::{Loader, Pool, PoolOptions};
pub use self::request::{Answer, Event, Finish, Refusal, Request, Superseded};
pub use self::scheduler::Usage;
