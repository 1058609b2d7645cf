//! Scheduling: requests come in, forwards go out, nothing is lost in between.
//!
//! [`scheduler`] is the engine loop as a plain struct, over the [`tree`] of what was computed, the [`plan`] of one forward and
//! the [`lanes`]' contents; none of them knows time or threads. [`thread`] runs it on the one thread that owns the engine, and is
//! where queueing, deadlines and clients that went away are dealt with. [`calibrate`] times an engine once, when it is loaded.

pub mod calibrate;
pub mod lanes;
pub mod plan;
pub mod scheduler;
pub mod thread;
pub mod tree;

pub use self::scheduler::Usage;
pub use self::thread::{Answer, Finish, Health, ModelThread, Refusal, Request};
