//! How many people a server sustains: more and more until a number isn't, then the gap halved. Pure: it names the next
//! number, and who tries it keeps what came of it.

/// Which numbers are tried.
#[derive(Clone, Copy, Debug)]
pub struct Ladder {
    /// The first number of people.
    pub from: usize,
    /// The largest number of people.
    pub to: usize,
    /// From one number to the next, until one isn't sustained.
    pub factor: f64,
    /// The gap between sustained and not at which it ends, as a share of what is not; at least one. 1 never halves.
    pub precision: f64,
}

impl Ladder {
    /// The next number, from the largest that was `sustained` (0 if none was) and the smallest that `failed`. `None` at
    /// the end.
    pub fn next(&self, sustained: usize, failed: Option<usize>) -> Option<usize> {
        match failed {
            None if sustained == 0 => Some(self.from.clamp(1, self.to.max(1))),
            None if sustained >= self.to => None,
            None => Some(((sustained as f64 * self.factor) as usize).max(sustained + 1).min(self.to)),
            Some(failed) if (failed - sustained) as f64 <= (self.precision * failed as f64).max(1.0) => None,
            Some(failed) => Some(sustained.midpoint(failed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers that are tried where `most` are sustained.
    fn tried(ladder: Ladder, most: usize) -> Vec<usize> {
        let (mut sustained, mut failed, mut tried) = (0, None, Vec::new());
        while let Some(number) = ladder.next(sustained, failed) {
            tried.push(number);
            if number <= most {
                sustained = number;
            } else {
                failed = Some(number);
            }
        }
        tried
    }

    #[test]
    fn it_climbs_and_then_halves_the_gap() {
        let ladder = Ladder { from: 8, to: 1024, factor: 2.0, precision: 0.07 };
        assert_eq!(tried(ladder, 99), [8, 16, 32, 64, 128, 96, 112, 104, 100]);
        assert_eq!(tried(ladder, 5), [8, 4, 6, 5]);
        assert_eq!(tried(ladder, 0), [8, 4, 2, 1]);
        assert_eq!(tried(ladder, 2000).last(), Some(&1024));
        let steps = Ladder { from: 1, factor: 1.5, ..ladder };
        assert_eq!(tried(steps, 3), [1, 2, 3, 4]);
        assert_eq!(tried(Ladder { to: 0, ..steps }, 9), [1]);
    }

    #[test]
    fn what_it_ends_with_is_within_the_precision() {
        for most in 0..600 {
            let ladder = Ladder { from: 1, to: 512, factor: 1.5, precision: 0.07 };
            let tried = tried(ladder, most);
            let sustained = tried.iter().copied().filter(|&number| number <= most).max().unwrap_or(0);
            let failed = tried.iter().copied().filter(|&number| number > most).min();
            let gap = failed.map_or(0.0, |failed| ((failed - sustained) as f64 - 1.0).max(0.0) / failed as f64);
            assert!(gap <= 0.07 && (failed.is_some() || sustained == 512), "{most}: {tried:?}");
            let mut once = tried.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), tried.len(), "no number is tried twice");
        }
    }

    #[test]
    fn a_coarse_search_ends_where_it_fails() {
        assert_eq!(tried(Ladder { from: 1, to: 32, factor: 2.0, precision: 1.0 }, 5), [1, 2, 4, 8]);
    }
}
