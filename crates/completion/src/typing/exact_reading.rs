//! How probable the typed text is as it stands: the model's probability mixed, word by word, with that of a word that
//! the model doesn't know.
//!
//! A language model gives rare words, names and codes next to no probability. Without this every one of them would be
//! taken for a mistyped common word.

use super::unknown_words::UnknownWords;
use crate::distribution::log_add;

/// The beginning of a word, in a text that was read so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct WordStart {
    /// What was typed before the word: see [`UnknownWord`].
    pub at: usize,
    /// How much the mixture raises the model's log-probability of the text before the word, in nats.
    pub lift: f64,
    /// The mixture's log-probability of that text.
    pub mixed: f64,
}

impl WordStart {
    /// Behind a text whose log-probability `joint` is raised by `lift`.
    pub fn new(at: usize, joint: f64, lift: f64) -> Self {
        Self { at, lift, mixed: joint + lift }
    }
}

/// The probability that a word is one that the model doesn't know, and is spelled as it was typed.
#[derive(Clone, Debug)]
pub struct UnknownWord {
    /// By place in the typed text: log-probability of the characters up to there if the model doesn't know them.
    spelled: Vec<f64>,
    /// Log-probability that a word is unknown.
    log_prob: f64,
}

impl UnknownWord {
    /// `spelled` are the log-probabilities that [`UnknownWords`] gives the typed text, and `probability` that of a word
    /// to be unknown.
    pub fn new(spelled: Vec<f64>, probability: f64) -> Self {
        Self { spelled, log_prob: probability.ln() }
    }

    /// Log-probability of the text up to `at` if the word that begins at `word` is unknown.
    pub fn log_prob(&self, word: &WordStart, at: usize) -> f64 {
        word.mixed + self.log_prob + self.spelled[at] - self.spelled[word.at]
    }

    /// How much the mixture raises the model's log-probability `joint` of the text up to `at`, in nats. `word` is the
    /// last word that begins before `at`.
    pub fn lift(&self, word: &WordStart, at: usize, joint: f64) -> f64 {
        if joint == f64::NEG_INFINITY { 0.0 } else { log_add(joint + word.lift, self.log_prob(word, at)) - joint }
    }
}

/// The typed text, read as it stands. Its places are numbers of bytes.
#[derive(Clone, Debug)]
pub struct ExactReading {
    words: Vec<WordStart>,
    unknown: UnknownWord,
}

impl ExactReading {
    /// Prepares the words of a typed text. `unknown_word` is the probability that a word is one that the model doesn't
    /// know, and `words` how such words are spelled. `joint` gives the model's log-probability of the text's first
    /// bytes, where a token ends there.
    pub fn new(typed: &str, unknown_word: f64, words: &UnknownWords, joint: impl Fn(usize) -> Option<f64>) -> Self {
        let unknown = UnknownWord::new(words.log_probs(typed), unknown_word);
        let mut reading = Self { words: vec![WordStart::default()], unknown };
        for (at, _) in typed.match_indices(' ').filter(|&(at, _)| at > 0) {
            if let Some(joint) = joint(at) {
                reading.words.push(WordStart::new(at, joint, reading.lift(at, joint)));
            }
        }
        reading
    }

    /// How much the mixture raises the model's log-probability `joint` of the text's first `at` bytes, in nats.
    pub fn lift(&self, at: usize, joint: f64) -> f64 {
        let words = self.words.partition_point(|word| word.at < at);
        let word = words.checked_sub(1).map(|last| self.words[last]);
        word.map_or(0.0, |word| self.unknown.lift(&word, at, joint))
    }

    /// Its unknown words, by other places than bytes. `bytes` gives the bytes before each place.
    pub fn unknown_word(&self, bytes: &[usize]) -> UnknownWord {
        let UnknownWord { spelled, log_prob } = &self.unknown;
        UnknownWord { spelled: bytes.iter().map(|&at| spelled[at]).collect(), log_prob: *log_prob }
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
