//! People who type, as an open loop: when each key is due, whichever server answers.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};

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

#[cfg(test)]
mod tests {
    use super::*;
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
}
