//! Latencies, in a histogram of three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer latencies, and requests that got no suggestions at all, count as this.
const LONGEST: Duration = Duration::from_secs(120);

/// Latencies of a run.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST.as_micros() as u64, 3);
        #[expect(clippy::expect_used, reason = "the bounds are constants")]
        Self(histogram.expect("bounds that a histogram can have"))
    }
}

impl Latencies {
    /// Adds one latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record((latency.as_micros() as u64).max(1));
    }

    /// Adds one that is later than any bound.
    pub fn record_failure(&mut self) {
        self.record(LONGEST);
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Mean in milliseconds; 0 if there are none.
    pub fn mean_ms(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// Percentile in milliseconds; 0 if there are none.
    pub fn percentile_ms(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_in_milliseconds() {
        let mut latencies = Latencies::default();
        assert_eq!((latencies.len(), latencies.percentile_ms(99.0)), (0, 0.0));
        (1..=99).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        latencies.record_failure();
        assert!((latencies.percentile_ms(50.0) - 50.0).abs() < 0.1);
        assert!(latencies.percentile_ms(100.0) >= 120_000.0);
    }
}
