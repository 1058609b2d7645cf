//! A token bucket: so much a second, with a second's worth at once. Pure: the caller says what time it is.

use std::time::{Duration, Instant};

/// A token bucket. What is taken afterwards may bring it into debt.
#[derive(Clone, Debug)]
pub struct Bucket {
    per_second: f64,
    /// Never over `burst`; below 0 in debt.
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    /// A full one.
    pub fn new(per_second: f64, now: Instant) -> Self {
        let mut bucket = Self { per_second, tokens: 0.0, filled: now };
        bucket.tokens = bucket.burst();
        bucket
    }

    /// Tokens of a full bucket.
    fn burst(&self) -> f64 {
        self.per_second.max(1.0)
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst());
        self.filled = self.filled.max(now);
    }

    /// How long it takes until a token is there; `None` if one is.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        self.fill(now);
        // Sums of rounded numbers may be a little short.
        let missing = 1.0 - self.tokens;
        (missing > 1e-9).then(|| Duration::try_from_secs_f64(missing / self.per_second).unwrap_or(Duration::MAX))
    }

    /// Takes tokens, whether they are there or not.
    pub fn take(&mut self, tokens: f64, now: Instant) {
        self.fill(now);
        self.tokens -= tokens;
    }

    /// Tokens that come in a second.
    pub fn per_second(&self) -> f64 {
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_second_is_worth_what_it_says() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2.0, start);
        for _ in 0..2 {
            assert_eq!(bucket.wait(start), None);
            bucket.take(1.0, start);
        }
        assert_eq!(bucket.wait(start), Some(Duration::from_millis(500)));
        assert_eq!(bucket.wait(start + Duration::from_millis(500)), None);
        bucket.take(11.0, start + Duration::from_millis(500));
        assert_eq!(bucket.wait(start + Duration::from_millis(500)), Some(Duration::from_millis(5500)));
        assert_eq!(bucket.wait(start), Some(Duration::from_millis(5500)), "time never goes back");
        let mut slow = Bucket::new(0.1, start);
        slow.take(1.0, start);
        assert_eq!(slow.wait(start), Some(Duration::from_secs(10)));
    }

    #[test]
    fn random_use_gets_the_rate_and_a_burst_at_most() {
        let mut rng = StdRng::seed_from_u64(7);
        for rate in [0.5, 3.0, 1000.0] {
            let start = Instant::now();
            let (mut bucket, mut now, mut taken) = (Bucket::new(rate, start), start, 0.0);
            for _ in 0..10_000 {
                now += Duration::from_micros(rng.random_range(0..2_000_000 / rate.ceil() as u64));
                if bucket.wait(now).is_none() {
                    bucket.take(1.0, now);
                    taken += 1.0;
                }
                let passed = (now - start).as_secs_f64();
                assert!(taken <= rate.max(1.0) + passed * rate + 1e-6, "{taken} in {passed} s at {rate}");
            }
            assert!(taken > (now - start).as_secs_f64() * rate * 0.5, "{taken} at {rate}");
        }
    }
}
