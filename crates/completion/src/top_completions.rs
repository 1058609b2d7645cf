//! The best complete queries found so far, each text once.

use rustc_hash::FxHashMap;

use super::distribution::log_add;

/// Completions with their joint probabilities, and the threshold that one must exceed to be among the best.
#[derive(Clone, Debug)]
pub struct TopCompletions {
    wanted: usize,
    /// Joint log-probability of each text.
    joints: FxHashMap<String, f64>,
    /// The joint of the `wanted`-th best, kept up to date; `None` while there are fewer.
    threshold: Option<f64>,
    highest: Option<f64>,
}

impl TopCompletions {
    /// Without completions; `wanted` are asked for.
    pub fn new(wanted: usize) -> Self {
        Self { wanted, joints: FxHashMap::default(), threshold: None, highest: None }
    }

    /// Adds a completion; the probabilities of equal texts add up.
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

    /// The joint log-probability that a completion must exceed to be among the wanted; `None` while any would be.
    pub fn threshold(&self) -> Option<f64> {
        self.threshold
    }

    /// The best completion's joint log-probability.
    pub fn highest(&self) -> Option<f64> {
        self.highest
    }

    /// Number of distinct texts.
    pub fn len(&self) -> usize {
        self.joints.len()
    }

    /// Whether a text is among them.
    pub fn contains(&self, text: &str) -> bool {
        self.joints.contains_key(text)
    }

    /// The wanted completions, best first; equally probable ones by their text.
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
        let mut completions = TopCompletions::new(2);
        completions.add("a".into(), 0.2f64.ln());
        assert_eq!(completions.threshold(), None);
        completions.add("b".into(), 0.1f64.ln());
        completions.add("c".into(), 0.05f64.ln());
        assert_eq!(completions.threshold(), Some(0.1f64.ln()));
        completions.add("c".into(), 0.25f64.ln());
        assert!((completions.threshold().unwrap() - 0.2f64.ln()).abs() < 1e-12);
        assert_eq!(completions.best().iter().map(|(t, _)| *t).collect::<Vec<_>>(), ["c", "a"]);
    }
}
