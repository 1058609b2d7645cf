//! Limits of the queue and of running requests.

use std::time::Duration;

use crate::scaling::Replicas;

/// Bounds on what waits and runs, and what runs it.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Requests that wait to be taken on; one more is refused.
    pub max_queued: usize,
    /// Once the oldest has waited so long, the newest is taken first.
    pub patience: Duration,
    /// Interactive requests that share a replica's steps; [`crate::places`] has what goes beside them.
    pub max_batch: usize,
    /// Engines, each with a thread of its own.
    pub replicas: Replicas,
    /// Whether the replicas of the start are loaded, and compute until [`Pool::release`], at a low priority. Not
    /// for engines with threads of their own, whose priority would stay.
    ///
    /// [`Pool::release`]: super::pool::Pool::release
    pub in_background: bool,
    /// Positions of one step, padding included.
    pub step_tokens: usize,
    /// Whether an idle engine prepares for the characters that are probably typed next.
    pub lookahead: bool,
    /// Bound of each replica's prefix cache, in bytes; pages of keys and values are the engine's.
    pub prefix_cache_bytes: usize,
    /// A forward that takes longer is given up: the model is unhealthy until it comes back.
    pub hang_after: Duration,
    /// Least time between two restarts of an engine: one that fails sooner after a restart stays unhealthy.
    pub restart_every: Duration,
}

/// The usual [`PoolOptions::restart_every`]: a rare fault is survived as often as it comes, a broken engine is
/// reported.
pub const RESTART_EVERY: Duration = Duration::from_secs(600);
