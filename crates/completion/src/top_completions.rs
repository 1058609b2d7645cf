//! The best complete queries found so far: each text once, and with a tolerance one of those that differ only in letter
//! case and width.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::distribution::log_add;
use super::typing::fold::{keep_first_of_each, without_case};

/// Completions with their joint probabilities, and the threshold that one must exceed to be among the best.
#[derive(Clone, Debug)]
pub struct TopCompletions {
    wanted: usize,
    /// Joint log-probability of each text.
    joints: FxHashMap<String, f64>,
    /// By the text without its case and width: joint log-probability of the most probable one. `None` if each counts by
    /// itself.
    forms: Option<FxHashMap<String, f64>>,
    /// The joint of the `wanted`-th best, kept up to date; `None` while there are fewer.
    threshold: Option<f64>,
    highest: Option<f64>,
}

impl TopCompletions {
    /// Without completions; `wanted` are asked for. With `one_case` one is shown of those that differ only in case and
    /// width.
    pub fn new(wanted: usize, one_case: bool) -> Self {
        let forms = one_case.then(FxHashMap::default);
        Self { wanted, joints: FxHashMap::default(), forms, threshold: None, highest: None }
    }

    /// Adds a completion; the probabilities of equal texts add up.
    pub fn add(&mut self, text: String, joint: f64) {
        let form = self.forms.is_some().then(|| without_case(&text));
        let total = self.joints.entry(text).or_insert(f64::NEG_INFINITY);
        *total = log_add(*total, joint);
        self.highest = Some(self.highest.map_or(*total, |highest| highest.max(*total)));
        if let (Some(forms), Some(form)) = (&mut self.forms, form) {
            let most = forms.entry(form).or_insert(f64::NEG_INFINITY);
            *most = most.max(*total);
        }
        let shown = self.forms.as_ref().unwrap_or(&self.joints);
        if shown.len() >= self.wanted {
            let mut joints: Vec<f64> = shown.values().copied().collect();
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

    /// Whether a text is among them, or one that isn't shown beside it.
    pub fn contains(&self, text: &str) -> bool {
        self.forms.as_ref().unwrap_or(&self.joints).contains_key(&*self.form(text))
    }

    /// What a text has in common with those of which a list has one.
    pub fn form<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.forms.is_some() { without_case(text).into() } else { text.into() }
    }

    /// The wanted completions, best first; equally probable ones by their text.
    pub fn best(&self) -> Vec<(&str, f64)> {
        let mut best: Vec<_> = self.joints.iter().map(|(text, &joint)| (text.as_str(), joint)).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        if self.forms.is_some() {
            keep_first_of_each(&mut best, |&(text, _)| text);
        }
        best.truncate(self.wanted);
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_add_up_and_move_the_threshold() {
        let mut completions = TopCompletions::new(2, false);
        completions.add("a".into(), 0.2f64.ln());
        assert_eq!(completions.threshold(), None);
        completions.add("b".into(), 0.1f64.ln());
        completions.add("c".into(), 0.05f64.ln());
        assert_eq!(completions.threshold(), Some(0.1f64.ln()));
        completions.add("c".into(), 0.25f64.ln());
        assert!((completions.threshold().unwrap() - 0.2f64.ln()).abs() < 1e-12);
        assert_eq!(completions.best().iter().map(|(t, _)| *t).collect::<Vec<_>>(), ["c", "a"]);
    }

    #[test]
    fn of_texts_that_differ_in_case_and_width_the_most_probable_one_is_shown() {
        let mut completions = TopCompletions::new(2, true);
        for (text, probability) in [("Cafe", 0.1f64), ("cafe", 0.2), ("ＣＡＦＥ", 0.3), ("caf\u{e9}", 0.01)] {
            assert_eq!(completions.threshold(), None);
            completions.add(text.into(), probability.ln());
        }
        assert_eq!(completions.threshold(), Some(0.01f64.ln()));
        assert_eq!(completions.best(), [("ＣＡＦＥ", 0.3f64.ln()), ("caf\u{e9}", 0.01f64.ln())]);
        let form = |text| completions.form(text);
        assert!(completions.contains("Cafe") && form("a") == form("A") && form("a") != form("b"));
    }
}
