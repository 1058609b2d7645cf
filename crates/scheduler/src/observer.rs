//! What the threads of a model report while they work. The caller decides who counts it.

use std::time::Duration;

use crate::prefix_cache::PrefixCacheStats;

/// Reports of a model.
pub trait Observer: Send + Sync {
    /// The reports of one of its replicas.
    fn replica(&self, replica: usize) -> Box<dyn ReplicaObserver>;
    /// The number of requests in the queue.
    fn queue_length(&self, requests: usize);
    /// The number of replicas that work.
    fn replicas(&self, replicas: usize);
    /// Whether every engine works.
    fn healthy(&self, healthy: bool);
    /// An engine was loaded again after a failure.
    fn restarted(&self);
}

/// Reports of a replica.
pub trait ReplicaObserver: Send {
    /// The number of requests that share the replica's steps.
    fn active(&self, requests: usize);
    /// A request left the queue.
    fn dequeued(&self, waited: Duration);
    /// A request has its first suggestion or token.
    fn first_result(&self, after: Duration);
    /// A step was computed.
    fn stepped(&self, step: StepReport);
    /// The prefix cache, and the nodes that it evicted since the last report.
    fn prefix_cache(&self, cache: &PrefixCacheStats, evicted: u64);
    /// A request ended. `saved` distributions came from the prefix cache; `wasted` positions were computed for nobody.
    fn ended(&self, saved: usize, wasted: usize);
}

/// Measurements of one model step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Copies of keys and values included.
    pub took: Duration,
    /// Rows of the step.
    pub rows: usize,
    /// Positions computed.
    pub positions: u64,
    /// Whether nobody waited for the step.
    pub lookahead: bool,
}

/// Reports that nobody counts.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn replica(&self, _: usize) -> Box<dyn ReplicaObserver> {
        Box::new(Self)
    }
    fn queue_length(&self, _: usize) {}
    fn replicas(&self, _: usize) {}
    fn healthy(&self, _: bool) {}
    fn restarted(&self) {}
}

impl ReplicaObserver for Unobserved {
    fn active(&self, _: usize) {}
    fn dequeued(&self, _: Duration) {}
    fn first_result(&self, _: Duration) {}
    fn stepped(&self, _: StepReport) {}
    fn prefix_cache(&self, _: &PrefixCacheStats, _: u64) {}
    fn ended(&self, _: usize, _: usize) {}
}
