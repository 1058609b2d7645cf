//! The threads around the policy: a pool of model threads behind one bounded queue.
//!
//! [`pool`] owns the threads. Each lives as `replica` says, and runs `worker`, the loop around a scheduler.
//! Requests come through the `queue`, or, while the loop is in its `parking` place, from the thread that brings
//! them. `lookahead` is an idle replica's work, [`health`] what is known of the engines, [`calibrate`] the timing of
//! an engine that was just loaded.

mod active;
pub mod calibrate;
pub mod health;
mod lookahead;
pub mod options;
mod parking;
pub mod pool;
mod queue;
mod replica;
mod worker;
