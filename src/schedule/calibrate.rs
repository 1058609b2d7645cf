//! How many rows a forward can take for little more than the time of one: measured once, when an engine is loaded.
//!
//! A small CPU computes every row for itself; a GPU, or a model whose weights don't fit a cache, computes a dozen in the time of
//! one. How far a search computes ahead of what it waits for depends on it. The answers don't.

use std::time::{Duration, Instant};

use super::scheduler::Scheduler;
use crate::model::BackendError;
use crate::text::TokenId;

/// Rows of the larger of the two forwards that are compared, and most rows that a search may fill.
const MANY: usize = 16;
/// Forwards of each kind, at least and at most; the quickest counts.
const REPEATS: std::ops::RangeInclusive<usize> = 3..=15;
/// Time for the forwards of one kind, beyond the least number: a large model should not start later for this.
const BUDGET: Duration = Duration::from_millis(50);
/// What the rows that a search doesn't wait for may cost, as a share of what a forward costs anyway. Not all of them turn out to be
/// wanted.
const WORTH: f64 = 0.5;

/// Warms the engine up and sets how many rows one search may fill. Returns that number.
///
/// # Errors
/// The engine's.
pub fn calibrate(scheduler: &mut Scheduler, probe: TokenId) -> Result<usize, BackendError> {
    let mut quickest = |rows: usize| -> Result<Duration, BackendError> {
        let mut best = Duration::MAX;
        let begun = Instant::now();
        for repeat in 0..*REPEATS.end() {
            if repeat >= *REPEATS.start() && begun.elapsed() > BUDGET {
                break;
            }
            let started = Instant::now();
            scheduler.warm_up(probe, rows)?;
            best = best.min(started.elapsed());
        }
        Ok(best)
    };
    let (one, many) = (quickest(1)?, quickest(MANY)?);
    let rows = rows_worth_filling(one, many);
    scheduler.set_speculation(rows);
    tracing::debug!(one_row_us = one.as_micros() as u64, many_rows_us = many.as_micros() as u64, rows, "calibrated");
    Ok(rows)
}

/// So many rows that what they add is worth it.
fn rows_worth_filling(one: Duration, many: Duration) -> usize {
    let (one, many) = (one.as_secs_f64(), many.as_secs_f64());
    let row = ((many - one) / (MANY - 1) as f64).max(1e-9);
    let fixed = (one - row).max(0.0);
    ((1.0 + WORTH * fixed / row).round() as usize).clamp(1, MANY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cheap_rows_are_filled_and_dear_ones_are_not() {
        let rows = |one, many| rows_worth_filling(Duration::from_micros(one), Duration::from_micros(many));
        assert_eq!(rows(285, 1900), 2, "a tiny model on a CPU");
        assert_eq!(rows(11_800, 18_000), 15, "a large one, bound by memory");
        assert_eq!(rows(100, 1600), 1, "every row costs the same");
        assert_eq!(rows(100, 90), MANY);
    }
}
