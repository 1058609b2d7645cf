//! What a reading of the typed text must reach to be followed, by level: a level is a number of typed characters.
//!
//! A reading is dropped if it is out of the channel's range of the best one at its level, or if as many better ones
//! are there as are followed.

/// The floors. See the module's documentation.
pub(super) struct Levels {
    /// By level: log-probability of the best reading, the text as it stands included. `[typed characters + 1]`
    best: Vec<f64>,
    /// By level: log-probabilities of the best other readings, at most `beams`, lowest first. Empty at the last level,
    /// where all readings within the range count for what the typed text may mean. `[typed characters + 1][<= beams]`
    kept: Vec<Vec<f64>>,
    /// By level: what a reading must reach. `[typed characters + 1]`
    floors: Vec<f64>,
    beams: usize,
    range_nats: f64,
}

impl Levels {
    /// `best` holds, by level, the log-probability of the text as it stands.
    pub(super) fn new(mut best: Vec<f64>, beams: usize, range_nats: f64) -> Self {
        // A text is at most as probable as its beginning.
        for level in (1..best.len()).rev() {
            best[level - 1] = best[level - 1].max(best[level]);
        }
        let kept = vec![Vec::with_capacity(beams); best.len()];
        let floors = best.iter().map(|best| best - range_nats).collect();
        Self { best, kept, floors, beams, range_nats }
    }

    /// The last level.
    pub(super) fn last(&self) -> usize {
        self.best.len() - 1
    }

    /// Log-probability of the best reading of the whole text.
    pub(super) fn best_of_all(&self) -> f64 {
        self.best[self.last()]
    }

    /// How far a reading is below the best one of its level, in nats.
    pub(super) fn below_best(&self, level: usize, score: f64) -> f64 {
        self.best[level] - score
    }

    /// What a reading must reach at a level.
    pub(super) fn floor(&self, level: usize) -> f64 {
        self.floors[level]
    }

    /// What a reading must reach, by level.
    pub(super) fn floors(&self) -> &[f64] {
        &self.floors
    }

    /// Adds a reading that reaches the floor of its level.
    pub(super) fn add(&mut self, level: usize, score: f64) {
        // What reaches a level has passed those before it.
        let before = self.best.iter_mut().zip(&mut self.floors).take(level + 1).rev();
        for (best, floor) in before.take_while(|(best, _)| **best < score) {
            *best = score;
            *floor = floor.max(score - self.range_nats);
        }
        if level == self.last() {
            return;
        }
        let kept = &mut self.kept[level];
        if kept.len() == self.beams {
            kept.remove(0);
        }
        let place = kept.partition_point(|&other| other < score);
        kept.insert(place, score);
        if kept.len() == self.beams {
            self.floors[level] = self.floors[level].max(kept[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_rises_with_the_best_reading_and_with_those_that_are_followed() {
        let mut levels = Levels::new(vec![-30.0, -9.0, -12.0, -20.0], 2, 7.0);
        let floors = |levels: &Levels| (0..4).map(|level| levels.floor(level)).collect::<Vec<_>>();
        assert_eq!(floors(&levels), [-16.0, -16.0, -19.0, -27.0]);
        levels.add(2, -8.0);
        assert_eq!(floors(&levels), [-15.0, -15.0, -15.0, -27.0]);
        levels.add(2, -11.0);
        assert_eq!(levels.floor(2), -11.0);
        levels.add(2, -10.0);
        assert_eq!(floors(&levels), [-15.0, -15.0, -10.0, -27.0]);
        for _ in 0..3 {
            levels.add(3, -21.0);
        }
        assert_eq!((levels.floor(3), levels.best_of_all()), (-27.0, -20.0), "all readings in range count");
    }
}
