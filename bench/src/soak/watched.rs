//! What happens at one server during a soak: what became of its requests, and its memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::traffic::Verdict;

/// Figures of one server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// What the server goes through.
    pub server: &'static str,
    /// Requests that are over.
    pub requests: u64,
    /// Right answers.
    pub right: u64,
    /// Refusals for load or a failed engine, with the reason.
    pub refused: u64,
    /// Requests that the client cut, or that a killed server did.
    pub cut: u64,
    /// Requests without a whole answer.
    pub lost: u64,
    /// Answers that should not have come.
    pub wrong: u64,
    /// Faults that were caused.
    pub faults: u64,
    /// The most of a minute of the warm-up, in MiB.
    pub memory_mib: f64,
    /// The most of a later minute, in MiB.
    pub memory_most_mib: f64,
    /// Memory of each minute, in MiB.
    pub memory_by_minute: Vec<f64>,
    /// Sum of the gauges that should be 0.
    pub gauges: f64,
    /// What the first lost or wrong request said.
    pub first: String,
}

/// What happened at one server, counted by its clients.
#[derive(Default)]
pub struct Watched {
    counts: Mutex<BTreeMap<&'static str, u64>>,
    first: Mutex<String>,
    faults: AtomicU64,
    /// Memory second by second, in MiB.
    memory: Mutex<Vec<f64>>,
}

impl Watched {
    /// Counts a request that is over.
    pub fn add(&self, verdict: &Verdict) {
        let name = match verdict {
            Verdict::Right => "right",
            Verdict::Refused(_) => "refused",
            Verdict::Cut => "cut",
            Verdict::Lost(_) => "lost",
            Verdict::Wrong(_) => "wrong",
        };
        *lock(&self.counts).entry(name).or_default() += 1;
        if let Verdict::Lost(what) | Verdict::Wrong(what) = verdict {
            let mut first = lock(&self.first);
            if first.is_empty() {
                first.clone_from(what);
            }
        }
    }

    /// Counts a fault.
    pub fn fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the memory of this second, in MiB.
    pub fn memory(&self, mib: Option<f64>) {
        lock(&self.memory).extend(mib);
    }

    /// The figures; memory up to `warm_up` seconds and after.
    pub fn row(&self, server: &'static str, warm_up: usize, gauges: f64) -> Row {
        let counts = lock(&self.counts).clone();
        let count = |name| counts.get(name).copied().unwrap_or(0);
        let memory = lock(&self.memory);
        let (before, after) = memory.split_at(warm_up.min(memory.len()));
        Row {
            server,
            requests: counts.values().sum(),
            right: count("right"),
            refused: count("refused"),
            cut: count("cut"),
            lost: count("lost"),
            wrong: count("wrong"),
            faults: self.faults.load(Ordering::Relaxed),
            memory_mib: most(before),
            memory_most_mib: most(after),
            memory_by_minute: memory.chunks(60).map(median).collect(),
            gauges,
            first: lock(&self.first).clone(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most of a minute.
fn most(seconds: &[f64]) -> f64 {
    seconds.chunks(60).map(median).fold(0.0, f64::max)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_minute_by_minute_after_the_warm_up() {
        let watched = Watched::default();
        (0..300).for_each(|second| watched.memory(Some(if second < 100 { 10.0 } else { 20.0 + f64::from(second) })));
        watched.add(&Verdict::Lost("reset".into()));
        watched.add(&Verdict::Right);
        let row = watched.row("one", 100, 0.0);
        assert_eq!((row.requests, row.right, row.lost, row.first.as_str()), (2, 1, 1, "reset"));
        assert_eq!((row.memory_mib, row.memory_most_mib), (10.0, 20.0 + 290.0));
    }
}
