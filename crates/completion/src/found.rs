//! The best complete queries found so far, each text once.

use rustc_hash::FxHashMap;

use super::distribution::log_add;

/// A bounded question, "what is the k-th best?", over an unbounded number of finds.
#[derive(Clone, Debug)]
pub struct Found {
    wanted: usize,
    /// Joint log-probability of each text.
    joints: FxHashMap<String, f64>,
    /// The joint of the `wanted`-th best, kept up to date; `None` while there are fewer.
    threshold: Option<f64>,
    highest: Option<f64>,
}

impl Found {
    /// Nothing found, `wanted` asked for.
    pub fn new(wanted: usize) -> Self {
        Self { wanted, joints: FxHashMap::default(), threshold: None, highest: None }
    }

    /// Adds a find; a text that was found before has the probabilities of both.
    pub fn add(&mut self, text: String, joint: f64) {
        let total = self.joints.entry(text).or_insert(f64::NEG_INFINITY);
        *total = log_add(*total, joint);
        self.highest = Some(self.highest.map_or(*total, |highest| highest.max(*total)));
        if self.joints.len() >= self.wanted {
            let mut joints: Vec<f64> = self.joints.values().copied().collect();
            let (_, kth, _) = joints.select_nth_unstable_by(self.wanted - 1, |a, b| b.total_cmp(a));
            self.threshold = Some(*kth);
        }
    }

    /// The joint log-probability that a find must exceed to be among the wanted; `None` while any find would be.
    pub fn threshold(&self) -> Option<f64> {
        self.threshold
    }

    /// The best find's joint log-probability.
    pub fn highest(&self) -> Option<f64> {
        self.highest
    }

    /// Texts found.
    pub fn len(&self) -> usize {
        self.joints.len()
    }

    /// Whether a text was found.
    pub fn contains(&self, text: &str) -> bool {
        self.joints.contains_key(text)
    }

    /// The wanted finds, best first; equally probable ones by their text.
    pub fn best(&self) -> Vec<(&str, f64)> {
        let mut best: Vec<_> = self.joints.iter().map(|(text, &joint)| (text.as_str(), joint)).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        best.truncate(self.wanted);
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_add_up_and_move_the_threshold() {
        let mut found = Found::new(2);
        found.add("a".into(), 0.2f64.ln());
        assert_eq!(found.threshold(), None);
        found.add("b".into(), 0.1f64.ln());
        found.add("c".into(), 0.05f64.ln());
        assert_eq!(found.threshold(), Some(0.1f64.ln()));
        found.add("c".into(), 0.25f64.ln());
        assert!((found.threshold().unwrap() - 0.2f64.ln()).abs() < 1e-12);
        assert_eq!(found.best().iter().map(|(t, _)| *t).collect::<Vec<_>>(), ["c", "a"]);
    }
}
