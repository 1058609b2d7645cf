//! Whose rows are planned first. Pure policy.
//!
//! Shared evenly, many dear requests would all end at the time of the last one. So they are worked off one after the
//! other, in the order in which they came, and those that need little more go before them: most keystrokes need little,
//! because the prefix cache has most of what they ask for, and wait for none of the dear ones. Now and then it is the
//! turn of who waited longest, so that nobody starves.

/// Positions up to which what is left of a job is cheap.
pub const CHEAP_POSITIONS: usize = 32;

/// One forward of so many is planned for who waited longest.
pub const LONGEST_WAITING_EVERY: u64 = 8;

/// Longest row that counts as short: beams that grow, not texts that are read.
pub const SHORT_ROW: usize = 4;

/// What a job's place depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its place among all jobs that ever came.
    pub arrival: u64,
    /// The forward in which it last had a row; that of its arrival before it had one.
    pub served: u64,
    /// Positions that it will still need, about.
    pub left: usize,
    /// Positions of the row that it waits for first.
    pub row_len: usize,
}

impl Standing {
    fn is_dear(&self) -> bool {
        self.left.max(self.row_len) > CHEAP_POSITIONS
    }
}

/// By what the jobs of one step are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Cheap jobs, those with least left first, then dear ones in the order of their arrival. Each gets all that it
    /// waits for before the next gets anything: who gets half of it can't go on.
    CheapFirst {
        /// Whether the last step's rows were long. Then those who want short ones come first, if there are any: a
        /// prompt that takes several steps to read, or a crowd of them, holds nobody up for more than one.
        after_long: bool,
    },
    /// By how long they waited. Each gets one row before any gets more.
    LongestWaiting,
}

impl Turn {
    /// Of the step with this number, counted from 0.
    pub fn of(forward: u64, after_long: bool) -> Self {
        if (forward + 1).is_multiple_of(LONGEST_WAITING_EVERY) {
            Self::LongestWaiting
        } else {
            Self::CheapFirst { after_long }
        }
    }

    /// Sorts jobs, the first to be planned first.
    pub fn sort<T>(self, jobs: &mut [T], standing: impl Fn(&T) -> Standing) {
        jobs.sort_by_cached_key(|job| {
            let job = standing(job);
            match self {
                Self::LongestWaiting => (false, false, 0, job.served, job.arrival),
                Self::CheapFirst { after_long } => {
                    let is_long = after_long && job.row_len > SHORT_ROW;
                    let left = if job.is_dear() { 0 } else { job.left };
                    (is_long, job.is_dear(), left, 0, job.arrival)
                }
            }
        });
    }
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
        assert_eq!(sorted(turn, &jobs), [7, 5, 6, 1, 4, 9], "a long row is dear, however little comes after it");
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
}
