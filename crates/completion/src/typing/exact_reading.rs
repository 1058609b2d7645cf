//! How probable the typed text is as it stands: the model's probability mixed, word by word, with that of a word that
//! the model doesn't know.
//!
//! A language model gives rare words, names and codes next to no probability. Without this every one of them would be
//! taken for a mistyped common word.

use super::unknown_words::UnknownWords;
use crate::distribution::log_add;

/// The beginning of a word of the typed text.
#[derive(Clone, Copy, Debug)]
struct WordStart {
    /// Bytes of the typed text before the word.
    at: usize,
    /// How much the mixture raises the model's log-probability of these bytes, in nats.
    lift: f64,
    /// The mixture's log-probability of these bytes.
    mixed: f64,
}

/// The typed text, read as it stands.
#[derive(Clone, Debug)]
pub struct ExactReading {
    words: Vec<WordStart>,
    /// By bytes of the typed text: log-probability of its characters if the model doesn't know them. `[typed + 1]`
    unknown: Vec<f64>,
    /// Log-probability that a word is unknown.
    unknown_word: f64,
}

impl ExactReading {
    /// Prepares the words of a typed text. `unknown_word` is the probability that a word is one that the model doesn't
    /// know, and `words` how such words are spelled. `joint` gives the model's log-probability of the text's first
    /// bytes, where a token ends there.
    pub fn new(typed: &str, unknown_word: f64, words: &UnknownWords, joint: impl Fn(usize) -> Option<f64>) -> Self {
        let first = WordStart { at: 0, lift: 0.0, mixed: 0.0 };
        let unknown = words.log_probs(typed);
        let mut reading = Self { words: vec![first], unknown, unknown_word: unknown_word.ln() };
        for (at, _) in typed.match_indices(' ').filter(|&(at, _)| at > 0) {
            if let Some(joint) = joint(at) {
                let lift = reading.lift(at, joint);
                reading.words.push(WordStart { at, lift, mixed: joint + lift });
            }
        }
        reading
    }

    /// How much the mixture raises the model's log-probability `joint` of the text's first `at` bytes, in nats.
    pub fn lift(&self, at: usize, joint: f64) -> f64 {
        let words = self.words.partition_point(|word| word.at < at);
        let Some(word) = words.checked_sub(1).map(|last| self.words[last]) else { return 0.0 };
        let unknown = word.mixed + self.unknown_word + self.unknown[at] - self.unknown[word.at];
        if joint == f64::NEG_INFINITY { 0.0 } else { log_add(joint + word.lift, unknown) - joint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_are_raised_and_known_ones_are_not() {
        // The model knows "a b" and thinks nothing of "xyz".
        let joints = [(1, -1.0), (5, -61.0), (7, -62.0)];
        let joint = |at: usize| joints.iter().find(|known| known.0 == at).map(|known| known.1);
        let words = UnknownWords::default();
        let reading = ExactReading::new("a xyz b", 0.001, &words, joint);
        assert!(reading.lift(1, -1.0) < 0.001);
        let unknown = 0.001f64.ln() + words.log_probs("xyz")[3];
        let lift = reading.lift(5, -61.0);
        assert!((lift - (60.0 + unknown)).abs() < 0.01, "{lift}");
        assert!((reading.lift(7, -62.0) - lift).abs() < 0.01, "a known word behind it keeps the lift");
        assert_eq!(ExactReading::new("a xyz b", 0.0, &words, joint).lift(7, -62.0), 0.0);
    }
}
