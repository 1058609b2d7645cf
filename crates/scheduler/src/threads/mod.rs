//! The threads around the policy: a pool of model threads with one bounded queue.
//!
//! [`pool`] owns the threads. `replica` is the life of one thread, and `worker` its loop around a scheduler. Requests
//! are let in by an [`admission`] and come through the `queue`; while the loop is parked (`parking`), the thread that
//! brings a request enters the loop itself. The `scaler` adds replicas and lets them go. `lookahead` is the work of an
//! idle replica; what it has `prepared` is answered by the thread that asks for it. [`health`] is the state of the
//! engines, [`calibrate`] the timing of a new engine. What is loaded while others answer is loaded in the
//! [`background`]. When an engine ends, its memory goes back ([`mod@heap`]), and threads share what keeps freed memory.

mod active;
pub mod admission;
pub mod background;
pub mod calibrate;
pub mod health;
pub mod heap;
mod lookahead;
pub mod options;
mod parking;
pub mod pool;
mod prepared;
mod queue;
mod replica;
pub mod scaler;
mod worker;
