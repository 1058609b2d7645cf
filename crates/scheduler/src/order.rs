//! The order in which jobs are planned. Pure policy.
//!
//! Cheap jobs come first: most keystrokes are cheap, because the prefix cache has most of what they need. Expensive
//! jobs follow one after the other, in order of arrival: shared evenly, all of them would end at the time of the last
//! one. Every [`LONGEST_WAITING_EVERY`]th step begins with the job that waited longest, so that none starves.
//!
//! Clients take turns: the first job of each comes before the second of any. Bulk jobs have no part in the steps of
//! interactive ones, but for every [`LONGEST_WAITING_EVERY`]th.

use rustc_hash::FxHashMap;

use super::client::Client;

/// A job that still needs at most this many positions is cheap.
pub const CHEAP_POSITIONS: usize = 32;

/// Every this many steps, one begins with the job that waited longest.
pub const LONGEST_WAITING_EVERY: u64 = 8;

/// Longest row that counts as short: beams that grow, not texts that are read.
pub const SHORT_ROW: usize = 4;

/// The properties of a job that decide its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The job's number in the order of arrival.
    pub arrival: u64,
    /// The step in which it last had a row; before its first row, the step of its arrival.
    pub served: u64,
    /// An estimate of the positions that it still needs.
    pub left: usize,
    /// Positions of the row that it waits for first.
    pub row_len: usize,
}

impl Standing {
    fn is_expensive(&self) -> bool {
        self.left.max(self.row_len) > CHEAP_POSITIONS
    }
}

/// The rule by which the jobs of a step are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Cheap jobs, those with least left first, then expensive ones in order of arrival. Each job gets all rows that it
    /// waits for before the next gets any: half of them would not let it go on.
    CheapFirst {
        /// Whether the last step's rows were long. Then jobs with short rows come first, so that prompts which take
        /// several steps delay the other jobs by one step at most.
        after_long: bool,
    },
    /// By the time that they waited. Each job gets one row before any gets a second.
    LongestWaiting,
}

impl Turn {
    /// The rule for the step with the number `forward`, counted from 0.
    pub fn of(forward: u64, after_long: bool) -> Self {
        if (forward + 1).is_multiple_of(LONGEST_WAITING_EVERY) {
            Self::LongestWaiting
        } else {
            Self::CheapFirst { after_long }
        }
    }

    /// Whether bulk jobs have a part in the step beside interactive ones.
    pub fn has_bulk(self) -> bool {
        self == Self::LongestWaiting
    }

    /// Sorts jobs, the first to be planned first.
    pub fn sort<T>(self, jobs: &mut [T], standing: impl Fn(&T) -> Standing) {
        jobs.sort_by_cached_key(|job| {
            let job = standing(job);
            match self {
                Self::LongestWaiting => (false, false, 0, job.served, job.arrival),
                Self::CheapFirst { after_long } => {
                    let is_long = after_long && job.row_len > SHORT_ROW;
                    let left = if job.is_expensive() { 0 } else { job.left };
                    (is_long, job.is_expensive(), left, 0, job.arrival)
                }
            }
        });
    }
}

/// Puts the first job of each client before the second of any, in the order in which they are.
pub fn one_of_each<T>(jobs: Vec<T>, client: impl Fn(&T) -> Client) -> Vec<T> {
    let Some(first) = jobs.first().map(&client) else { return jobs };
    if jobs.iter().all(|job| client(job) == first) {
        return jobs;
    }
    let mut seen: FxHashMap<Client, usize> = FxHashMap::default();
    let mut rounds: Vec<(usize, T)> = Vec::with_capacity(jobs.len());
    for job in jobs {
        let round = seen.entry(client(&job)).or_default();
        rounds.push((*round, job));
        *round += 1;
    }
    rounds.sort_by_key(|&(round, _)| round);
    rounds.into_iter().map(|(_, job)| job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(turn: Turn, jobs: &[(u64, u64, usize, usize)]) -> Vec<u64> {
        let standing = |&(arrival, served, left, row_len): &_| Standing { arrival, served, left, row_len };
        let mut jobs = jobs.to_vec();
        turn.sort(&mut jobs, standing);
        jobs.iter().map(|job| job.0).collect()
    }

    #[test]
    fn cheap_jobs_go_first_and_dear_ones_as_they_came() {
        // Arrival, served, left, length of the row.
        let jobs = [(4, 90, 33, 1), (1, 99, 900, 1), (7, 98, 3, 1), (6, 97, 32, 1), (5, 50, 32, 2), (9, 99, 5, 200)];
        let turn = Turn::CheapFirst { after_long: false };
        assert_eq!(sorted(turn, &jobs), [7, 5, 6, 1, 4, 9], "a long row is expensive, however little comes after it");
        assert_eq!(sorted(Turn::LongestWaiting, &jobs), [5, 4, 6, 7, 1, 9]);
        let texts = [(1, 0, 90, 64), (2, 0, 90, 1), (3, 0, 9, 5)];
        assert_eq!(sorted(Turn::CheapFirst { after_long: true }, &texts), [2, 3, 1]);
    }

    #[test]
    fn one_turn_of_eight_is_who_waited_longests() {
        let turns = (0..80).map(|forward| Turn::of(forward, false));
        assert_eq!(turns.filter(|turn| *turn == Turn::LongestWaiting).count(), 10);
        assert_eq!(
            Turn::of(0, true),
            Turn::CheapFirst { after_long: true },
            "a lone keystroke starts with its own turn"
        );
    }

    #[test]
    fn clients_take_turns_in_the_order_of_their_jobs() {
        let jobs = |jobs: &str| one_of_each(jobs.chars().collect(), |job: &char| Client::session(&job.to_string()));
        assert_eq!(jobs("aaabcb"), ['a', 'b', 'c', 'a', 'b', 'a']);
        assert_eq!(jobs("aaa"), ['a'; 3]);
        assert!(jobs("").is_empty());
    }
}
