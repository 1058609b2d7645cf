//! Replays queries keystroke by keystroke, and measures the quality of the suggestions and their cost.
//!
//! [`replay`] drives a scheduler, without a server or a thread; [`typos`] types with errors; [`metrics`] is the
//! arithmetic, [`report`] the tables and the plot.

pub mod metrics;
pub mod replay;
pub mod report;
pub mod typos;

pub use self::replay::{Contender, Replay, ReplayOptions};
