//! All metrics of the server, in one typed struct, and their Prometheus text.
//!
//! The name, unit and help text of a metric are defined here, and its row in `docs/operations.md` is compared with them
//! by a test. Other modules call a field or a method and never name a metric. Metrics of a model have the label
//! `model`, those of one of its replicas also `replica`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use scheduler::observer::{Observer, ReplicaObserver, StepReport};
use scheduler::prefix_cache::PrefixCacheStats;

/// Bounds of histograms of times, in seconds: from a step of a tiny model to the longest request.
const SECONDS: [f64; 19] = [
    0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];
/// Upper bounds of the buckets of `foretype_step_rows`, in rows.
const ROWS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0];

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Answered; every suggestion is a complete query, or the text ended by itself.
    Complete,
    /// Answered; something was cut at a length limit.
    Length,
    /// Answered at its deadline, with what was found until then.
    Deadline,
    /// Answered because a newer request of its session came.
    Superseded,
    /// Answered with nothing, because of a blocked term.
    Blocked,
    /// The client left before the answer.
    Cancelled,
    /// Refused: the queue was full, or the model wasn't ready.
    Refused,
    /// The engine failed while working on it.
    Failed,
}

impl RequestOutcome {
    fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Length => "length",
            Self::Deadline => "deadline",
            Self::Superseded => "superseded",
            Self::Blocked => "blocked",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    http_requests: IntCounterVec,
    http_seconds: HistogramVec,
    http_connections: IntGaugeVec,
    requests: IntCounterVec,
    queue_seconds: HistogramVec,
    queue_length: IntGaugeVec,
    first_seconds: HistogramVec,
    request_seconds: HistogramVec,
    healthy: IntGaugeVec,
    restarts: IntCounterVec,
    replicas: IntGaugeVec,
    active: IntGaugeVec,
    step_seconds: HistogramVec,
    step_rows: HistogramVec,
    computed: IntCounterVec,
    saved: IntCounterVec,
    wasted: IntCounterVec,
    lookahead: IntCounterVec,
    prefix_cache_bytes: IntGaugeVec,
    prefix_cache_nodes: IntGaugeVec,
    prefix_cache_pages: IntGaugeVec,
    prefix_cache_evicted: IntCounterVec,
    prefix_cache_holds: IntGaugeVec,
    cpu_info: IntGaugeVec,
    gpu_unused: IntGaugeVec,
    /// The engines of each name. There are two for a moment when a model is loaded again while the old one answers its
    /// last requests.
    models: Mutex<HashMap<String, usize>>,
}

/// The metrics of one model. With the last engine of a name its series are gone.
pub struct ModelMetrics {
    metrics: Arc<Metrics>,
    model: String,
    queue_length: IntGauge,
    replicas: IntGauge,
    /// Seconds between receiving a request and its answer.
    pub request_seconds: Histogram,
    healthy: IntGauge,
    restarts: IntCounter,
}

/// One replica's metrics.
struct ReplicaMetrics {
    queue_seconds: Histogram,
    first_seconds: Histogram,
    active: IntGauge,
    step_seconds: Histogram,
    step_rows: Histogram,
    computed: IntCounter,
    saved: IntCounter,
    wasted: IntCounter,
    lookahead: IntCounter,
    prefix_cache_bytes: IntGauge,
    prefix_cache_nodes: IntGauge,
    prefix_cache_pages: IntGauge,
    prefix_cache_evicted: IntCounter,
    prefix_cache_holds: IntGauge,
}

impl Metrics {
    /// All metrics at zero, those of the process and of the build included.
    pub fn new() -> Arc<Self> {
        let registry = Registry::new();
        let of = |labels| Family { registry: &registry, labels };
        let (model, replica) = (of(&["model"]), of(&["model", "replica"]));
        let metrics = Self {
            http_requests: of(&["route", "status"]).counter("foretype_http_requests_total", "HTTP requests"),
            http_seconds: of(&["route"])
                .seconds("foretype_http_request_seconds", "From an HTTP request to its answer's head"),
            http_connections: of(&[]).gauge("foretype_http_connections", "Connections of clients"),
            requests: of(&["model", "outcome"])
                .counter("foretype_requests_total", "Requests to a model, by how they ended"),
            queue_seconds: model.seconds("foretype_queue_seconds", "From receiving a request to taking it on"),
            queue_length: model.gauge("foretype_queue_length", "Requests that wait"),
            first_seconds: model.seconds(
                "foretype_first_suggestion_seconds",
                "From receiving a request to its first final suggestion or token",
            ),
            request_seconds: model.seconds("foretype_request_seconds", "From receiving a request to its answer"),
            healthy: model.gauge("foretype_engine_healthy", "1 while the engine works, 0 when it failed"),
            restarts: model.counter("foretype_engine_restarts_total", "Engines loaded again after a failure"),
            replicas: model.gauge("foretype_replicas", "Replicas that work; 0 while the model sleeps"),
            active: replica.gauge("foretype_active_requests", "Requests that share model steps"),
            step_seconds: replica.seconds("foretype_step_seconds", "A model step, copies of keys and values included"),
            step_rows: replica.histogram("foretype_step_rows", "Rows of a model step", &ROWS),
            computed: replica.counter("foretype_positions_computed_total", "Positions computed for requests"),
            saved: replica.counter(
                "foretype_positions_saved_total",
                "Distributions that requests found in the prefix cache or in another request's row",
            ),
            wasted: replica.counter(
                "foretype_positions_wasted_total",
                "Positions computed for requests that were cancelled or superseded",
            ),
            lookahead: replica.counter(
                "foretype_positions_lookahead_total",
                "Positions computed while idle, for a keystroke that may come",
            ),
            prefix_cache_bytes: replica
                .gauge("foretype_prefix_cache_bytes", "Bytes of the prefix cache, pages included"),
            prefix_cache_nodes: replica.gauge("foretype_prefix_cache_nodes", "Nodes of the prefix cache"),
            prefix_cache_pages: replica.gauge("foretype_prefix_cache_pages", "Pages of keys and values in use"),
            prefix_cache_holds: replica
                .gauge("foretype_prefix_cache_holds", "Nodes of the prefix cache that running requests hold"),
            prefix_cache_evicted: replica.counter(
                "foretype_prefix_cache_evicted_total",
                "Nodes of the prefix cache that lost a page or a distribution to eviction",
            ),
            cpu_info: of(&["level"]).gauge("foretype_cpu_info", "The CPU level of foretype's kernels"),
            gpu_unused: of(&["reason"])
                .gauge("foretype_gpu_unused", "1 if a model runs on the CPU although the machine has a GPU"),
            models: Mutex::default(),
            registry: registry.clone(),
        };
        let info = of(&["version"]).gauge("foretype_build_info", "The running version");
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        // Refused only if registered before; the registry is new.
        let _ = registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()));
        Arc::new(metrics)
    }

    /// The Prometheus text of everything.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_else(|error| {
            tracing::error!(%error, "the metrics can't be written");
            String::new()
        })
    }

    /// Requests until now whose client left before the answer, of all models.
    pub fn cancelled(&self) -> u64 {
        let families = self.requests.collect();
        let all = families.iter().flat_map(prometheus::proto::MetricFamily::get_metric);
        let is_cancelled = |metric: &&prometheus::proto::Metric| {
            metric.get_label().iter().any(|label| label.value() == RequestOutcome::Cancelled.label())
        };
        all.filter(is_cancelled).map(|metric| metric.get_counter().get_value() as u64).sum()
    }

    /// Says that a model is computed at a CPU level.
    pub fn cpu_level(&self, level: &str) {
        self.cpu_info.with_label_values(&[level]).set(1);
    }

    /// Says that a model runs on the CPU of a machine with a GPU, and what keeps the GPU from being used.
    pub fn gpu_unused(&self, reason: &str) {
        self.gpu_unused.with_label_values(&[reason]).set(1);
    }

    /// Counts an HTTP request. `route` is the pattern, not the path, so that there are few.
    pub fn http_request(&self, route: &str, status: u16, seconds: f64) {
        self.http_requests.with_label_values(&[route, &status.to_string()]).inc();
        self.http_seconds.with_label_values(&[route]).observe(seconds);
    }

    /// Sets the number of connections of clients.
    pub fn connections(&self, connections: usize) {
        self.http_connections.with_label_values::<&str>(&[]).set(connections as i64);
    }

    /// A model's metrics.
    pub fn model(self: &Arc<Self>, model: &str) -> ModelMetrics {
        *self.models().entry(model.to_owned()).or_default() += 1;
        let label = &[model];
        ModelMetrics {
            queue_length: self.queue_length.with_label_values(label),
            replicas: self.replicas.with_label_values(label),
            request_seconds: self.request_seconds.with_label_values(label),
            healthy: self.healthy.with_label_values(label),
            restarts: self.restarts.with_label_values(label),
            metrics: Arc::clone(self),
            model: model.to_owned(),
        }
    }
}

impl Metrics {
    /// Nothing that runs under the lock can leave the map half changed.
    fn models(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a model's series.
    fn forget(&self, model: &str) {
        let counters = [
            &self.requests,
            &self.restarts,
            &self.computed,
            &self.saved,
            &self.wasted,
            &self.lookahead,
            &self.prefix_cache_evicted,
        ];
        let gauges = [
            &self.queue_length,
            &self.replicas,
            &self.healthy,
            &self.active,
            &self.prefix_cache_bytes,
            &self.prefix_cache_nodes,
            &self.prefix_cache_pages,
            &self.prefix_cache_holds,
        ];
        counters.into_iter().for_each(|counter| remove_series(counter, model));
        gauges.into_iter().for_each(|gauge| remove_series(gauge, model));
        for histogram in
            [&self.queue_seconds, &self.first_seconds, &self.request_seconds, &self.step_seconds, &self.step_rows]
        {
            remove_series(histogram, model);
        }
    }
}

/// Removes the series of a metric that have a model's label.
fn remove_series<B: MetricVecBuilder>(metric: &MetricVec<B>, model: &str) {
    for family in metric.collect() {
        for series in family.get_metric() {
            let labels: HashMap<&str, &str> =
                series.get_label().iter().map(|label| (label.name(), label.value())).collect();
            if labels.get("model") == Some(&model) {
                // Refused only if it is gone already.
                let _ = metric.remove(&labels);
            }
        }
    }
}

impl Drop for ModelMetrics {
    fn drop(&mut self) {
        let mut models = self.metrics.models();
        if let Entry::Occupied(mut engines) = models.entry(self.model.clone()) {
            *engines.get_mut() -= 1;
            if *engines.get() == 0 {
                engines.remove();
                self.metrics.forget(&self.model);
            }
        }
    }
}

impl ModelMetrics {
    /// Counts a request that has ended.
    pub fn ended(&self, outcome: RequestOutcome) {
        self.metrics.requests.with_label_values(&[self.model.as_str(), outcome.label()]).inc();
    }
}

impl Observer for ModelMetrics {
    fn replica(&self, replica: usize) -> Box<dyn ReplicaObserver> {
        let (m, model, replica) = (&self.metrics, self.model.as_str(), replica.to_string());
        let label = &[model, replica.as_str()];
        Box::new(ReplicaMetrics {
            queue_seconds: m.queue_seconds.with_label_values(&[model]),
            first_seconds: m.first_seconds.with_label_values(&[model]),
            active: m.active.with_label_values(label),
            step_seconds: m.step_seconds.with_label_values(label),
            step_rows: m.step_rows.with_label_values(label),
            computed: m.computed.with_label_values(label),
            saved: m.saved.with_label_values(label),
            wasted: m.wasted.with_label_values(label),
            lookahead: m.lookahead.with_label_values(label),
            prefix_cache_bytes: m.prefix_cache_bytes.with_label_values(label),
            prefix_cache_nodes: m.prefix_cache_nodes.with_label_values(label),
            prefix_cache_pages: m.prefix_cache_pages.with_label_values(label),
            prefix_cache_evicted: m.prefix_cache_evicted.with_label_values(label),
            prefix_cache_holds: m.prefix_cache_holds.with_label_values(label),
        })
    }

    fn queue_length(&self, requests: usize) {
        self.queue_length.set(requests as i64);
    }

    fn replicas(&self, replicas: usize) {
        self.replicas.set(replicas as i64);
    }

    fn healthy(&self, healthy: bool) {
        self.healthy.set(i64::from(healthy));
    }

    fn restarted(&self) {
        self.restarts.inc();
    }
}

impl ReplicaObserver for ReplicaMetrics {
    fn active(&self, requests: usize) {
        self.active.set(requests as i64);
    }

    fn dequeued(&self, waited: Duration) {
        self.queue_seconds.observe(waited.as_secs_f64());
    }

    fn first_result(&self, after: Duration) {
        self.first_seconds.observe(after.as_secs_f64());
    }

    fn stepped(&self, step: StepReport) {
        self.step_seconds.observe(step.took.as_secs_f64());
        self.step_rows.observe(step.rows as f64);
        if step.lookahead { &self.lookahead } else { &self.computed }.inc_by(step.positions);
    }

    fn prefix_cache(&self, cache: &PrefixCacheStats, evicted: u64) {
        self.prefix_cache_bytes.set(cache.bytes as i64);
        self.prefix_cache_nodes.set(cache.nodes as i64);
        self.prefix_cache_pages.set(cache.pages as i64);
        self.prefix_cache_holds.set(cache.holds as i64);
        self.prefix_cache_evicted.inc_by(evicted);
    }

    fn ended(&self, saved: usize, wasted: usize) {
        self.saved.inc_by(saved as u64);
        self.wasted.inc_by(wasted as u64);
    }
}

/// Metrics of the same labels.
struct Family<'a> {
    registry: &'a Registry,
    labels: &'a [&'a str],
}

impl Family<'_> {
    fn counter(&self, name: &str, help: &str) -> IntCounterVec {
        register(self.registry, IntCounterVec::new(Opts::new(name, help), self.labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGaugeVec {
        register(self.registry, IntGaugeVec::new(Opts::new(name, help), self.labels))
    }

    fn seconds(&self, name: &str, help: &str) -> HistogramVec {
        self.histogram(name, help, &SECONDS)
    }

    fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        register(self.registry, HistogramVec::new(options, self.labels))
    }
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    let metric = made.expect("names and labels are constants of this file, and valid");
    registry.register(Box::new(metric.clone())).expect("every name of this file is there once");
    metric
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
