//! Measures the fixed cost of a step relative to its rows, once, when an engine is loaded.
//!
//! A small CPU computes every row by itself. A GPU, or a model whose weights don't fit a cache, computes a dozen rows
//! in the time of one. How many nodes a search computes speculatively depends on this ratio. The answers don't.

use std::time::{Duration, Instant};

use crate::backend::BackendError;
use crate::scheduler::Scheduler;
use completion::text::TokenId;

/// Rows of the larger of the two steps that are compared.
const MANY: usize = 16;
/// Forwards of each kind, at least and at most; the fastest counts.
const REPEATS: std::ops::RangeInclusive<usize> = 3..=15;
/// Time for all steps, beyond the least number: a large model should not start later for this.
const BUDGET: Duration = Duration::from_millis(100);
/// Warms the engine up and sets what a step costs beside its rows, in rows. Returns that number.
///
/// # Errors
/// The engine's.
pub fn calibrate(scheduler: &mut Scheduler, probe: TokenId) -> Result<f64, BackendError> {
    let mut best = [(1, Duration::MAX), (MANY, Duration::MAX)];
    let begun = Instant::now();
    for repeat in 0..*REPEATS.end() {
        if repeat >= *REPEATS.start() && begun.elapsed() > BUDGET {
            break;
        }
        // In turns: a machine may be slower for a while, which one kind alone must not meet.
        for (rows, best) in &mut best {
            let started = Instant::now();
            scheduler.warm_up(probe, *rows)?;
            *best = (*best).min(started.elapsed());
        }
    }
    let [(_, one), (_, many)] = best;
    let cost = forward_cost(one, many);
    scheduler.set_forward_cost(cost);
    tracing::debug!(one_row_us = one.as_micros() as u64, many_rows_us = many.as_micros() as u64, cost, "calibrated");
    Ok(cost)
}

/// From the times of a step of one row and of one of many.
fn forward_cost(one: Duration, many: Duration) -> f64 {
    let (one, many) = (one.as_secs_f64(), many.as_secs_f64());
    let row = ((many - one) / (MANY - 1) as f64).max(1e-9);
    ((one - row).max(0.0) / row).min(MANY as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_models_pay_by_the_row_and_large_ones_by_the_forward() {
        let cost = |one, many| forward_cost(Duration::from_micros(one), Duration::from_micros(many));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 0.05, "{found}");
        near(cost(285, 1900), 1.65);
        near(cost(11_800, 18_000), 16.0);
        near(cost(100, 1600), 0.0);
        near(cost(100, 90), 16.0);
    }
}
