//! People who type, as an open loop: when each key is due, whichever server answers, and what becomes of the keys.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Invocation, Outcome, Pool};
use crate::latency::Latencies;
use crate::tally::{SUPERSEDED, Tally};

/// Answers that come later than this after the last key are not waited for.
const DRAIN: Duration = Duration::from_secs(20);

/// Most keystrokes of a sustained trial that may be superseded, as a share: a server that drops everything is quick.
pub const MOST_SUPERSEDED: f64 = 0.05;
/// The gap between sustained and not at which a search for people ends, as a share.
pub const PRECISION: f64 = 0.07;
/// Keys per second: each person has a speed of their own.
const SPEED: std::ops::Range<f64> = 5.0..8.0;
/// Each pause between keys is the person's usual pause times a factor in this range.
const JITTER: std::ops::Range<f64> = 0.6..1.4;
/// Seconds between queries.
const BETWEEN: std::ops::Range<f64> = 1.0..3.0;
/// A key that is due.
#[derive(Clone, Debug)]
pub struct Keystroke {
    /// Time from the start of the trial at which the key is due.
    pub due: Duration,
    /// Index of the person who types the key.
    pub person: usize,
    /// All that has been typed with it.
    pub text: String,
}

/// All keystrokes of all people, by when they are due. `next` is the text that someone types next, from its first
/// character to its last.
pub fn schedule(mut next: impl FnMut() -> String, people: usize, warmup: Duration, until: Duration) -> Vec<Keystroke> {
    let mut keystrokes = Vec::new();
    for person in 0..people {
        let mut rng = StdRng::seed_from_u64(person as u64);
        let speed = rng.random_range(SPEED);
        // Nobody starts with the others.
        let mut now = rng.random_range(0.0..warmup.as_secs_f64().max(0.001));
        'typing: loop {
            let query = next();
            let ends = query.char_indices().map(|(at, character)| at + character.len_utf8());
            for end in ends {
                if now >= until.as_secs_f64() {
                    break 'typing;
                }
                keystrokes.push(Keystroke { due: Duration::from_secs_f64(now), person, text: query[..end].to_owned() });
                now += rng.random_range(JITTER) / speed;
            }
            now += rng.random_range(BETWEEN);
        }
    }
    keystrokes.sort_by_key(|keystroke| keystroke.due);
    keystrokes
}

/// What counts in a trial.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Suggestions that every key asks for.
    pub suggestions: usize,
    /// Keys that are due before don't count: people start then.
    pub from: Duration,
}

/// What became of the keys of a number of people.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// 99th percentile of a key's latency.
    pub p99_ms: f64,
    /// Share of the keys that a newer one of the same person replaced.
    pub superseded_share: f64,
    /// With fewer suggestions than were asked for.
    pub fewer_share: f64,
}

/// What the keys' tasks write into.
#[derive(Default)]
struct Seen {
    latencies: Latencies,
    tally: Tally,
    fewer: u64,
}

impl Seen {
    /// Adds a key that is over, of which `wanted` suggestions were asked.
    fn add(&mut self, latency: Duration, outcome: &Outcome, wanted: usize) {
        self.tally.add(outcome);
        match outcome {
            Outcome::Answered(answer) => {
                self.latencies.record(latency);
                self.fewer += u64::from(answer.suggestions.len() < wanted);
            }
            Outcome::Status(_) | Outcome::Lost(_) => self.latencies.record_failure(),
        }
    }
}

/// Types people's keys at a server. What is refused, lost or not answered in the end counts as later than any bound.
pub async fn trial(
    address: SocketAddr,
    keystrokes: Vec<Keystroke>,
    Wanted { suggestions, from }: Wanted,
    make: impl Fn(&str) -> Invocation,
) -> Trial {
    let due_in_all = keystrokes.iter().filter(|key| key.due >= from).count() as u64;
    let (pool, seen) = (Arc::new(Pool::new(address)), Arc::new(Mutex::new(Seen::default())));
    let (mut tasks, started) = (JoinSet::new(), Instant::now());
    for key in keystrokes {
        tokio::time::sleep_until(started + key.due).await;
        let invocation = Invocation { session: Some(format!("person-{}", key.person)), ..make(&key.text) };
        let (pool, seen) = (Arc::clone(&pool), Arc::clone(&seen));
        tasks.spawn(async move {
            let outcome = pool.complete(&invocation).await;
            if key.due >= from {
                let latency = (started + key.due).elapsed();
                seen.lock().unwrap_or_else(PoisonError::into_inner).add(latency, &outcome, suggestions);
            }
        });
    }
    drop(tokio::time::timeout(DRAIN, async { while tasks.join_next().await.is_some() {} }).await);
    tasks.shutdown().await;
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    (seen.latencies.len()..due_in_all).for_each(|_| seen.latencies.record_failure());
    let share = |count: u64| count as f64 / due_in_all.max(1) as f64;
    Trial {
        p99_ms: seen.latencies.percentile_ms(99.0),
        superseded_share: share(seen.tally.count(SUPERSEDED)),
        fewer_share: share(seen.fewer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Answer, Suggestion};
    use crate::workload::{Queries, Texts};

    #[test]
    fn people_type_whole_queries_at_their_speed() {
        let queries =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo/queries/heldout_unseen.txt");
        let make = || {
            let mut texts = Texts::new(Queries::load(&queries).unwrap(), 1);
            schedule(|| texts.query(), 10, Duration::from_secs(2), Duration::from_secs(30))
        };
        let keystrokes = make();
        assert_eq!(format!("{keystrokes:?}"), format!("{:?}", make()));
        assert!(keystrokes.is_sorted_by_key(|keystroke| keystroke.due));
        // 5 to 8 keys a second, less the pauses between queries.
        assert!((10 * 28 * 3..10 * 30 * 8).contains(&keystrokes.len()), "{}", keystrokes.len());
        let first: Vec<&str> = keystrokes.iter().filter(|k| k.person == 0).map(|k| k.text.as_str()).collect();
        assert!(first[1].starts_with(first[0]) && first[1].chars().count() == 2, "{first:?}");
    }

    #[test]
    fn answers_that_are_short_of_suggestions_are_counted() {
        let mut seen = Seen::default();
        let answer = |count| Answer { suggestions: vec![Suggestion::default(); count], ..Answer::default() };
        for outcome in [Outcome::Answered(answer(10)), Outcome::Answered(answer(9)), Outcome::Status(429)] {
            seen.add(Duration::from_millis(1), &outcome, 10);
        }
        assert_eq!((seen.latencies.len(), seen.fewer), (3, 1));
        assert!(seen.latencies.percentile_ms(99.0) > 100_000.0, "a refusal is later than any bound");
    }
}
