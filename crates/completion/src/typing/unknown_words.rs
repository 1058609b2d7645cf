//! How probable the characters of a word are that the language model doesn't know.
//!
//! Trigrams of characters, counted in the tokens of the model's vocabulary: whatever the vocabulary was made from, its
//! tokens show how words of that kind are spelled.

use rustc_hash::FxHashMap;

use crate::text::Vocabulary;

/// Stands for what is before a word's first character.
const START: char = ' ';
/// Weights of a trigram's, a bigram's and a single character's share; the rest is spread over all characters.
const WEIGHTS: [f64; 3] = [0.5, 0.25, 0.1];
/// Number of characters that share the rest of the probability equally.
const CHARACTERS: f64 = 100.0;

/// Counts of the characters of a vocabulary. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct UnknownWords {
    /// How often each character follows two others: the key has the two and the character.
    trigrams: FxHashMap<[char; 3], f64>,
    /// How often each pair of characters stands before another one.
    pairs: FxHashMap<[char; 2], f64>,
    bigrams: FxHashMap<[char; 2], f64>,
    before: FxHashMap<char, f64>,
    singles: FxHashMap<char, f64>,
    total: f64,
}

impl UnknownWords {
    /// Counts the characters of all tokens that are text.
    pub fn new(vocabulary: &Vocabulary) -> Self {
        let mut counts = Self::default();
        for (_, bytes) in vocabulary.in_order() {
            let Ok(token) = std::str::from_utf8(bytes) else { continue };
            // A token that begins with a space begins a word; of another one the characters before it aren't known.
            let characters: Vec<char> = token.chars().collect();
            let padded: Vec<char> =
                if characters[0] == START { [&[START], &characters[..]].concat() } else { characters };
            padded.windows(3).for_each(|three| counts.add([three[0], three[1], three[2]]));
        }
        counts
    }

    fn add(&mut self, [first, second, third]: [char; 3]) {
        *self.trigrams.entry([first, second, third]).or_default() += 1.0;
        *self.pairs.entry([first, second]).or_default() += 1.0;
        *self.bigrams.entry([second, third]).or_default() += 1.0;
        *self.before.entry(second).or_default() += 1.0;
        *self.singles.entry(third).or_default() += 1.0;
        self.total += 1.0;
    }

    /// The log-probability of a character behind two others.
    fn log_prob(&self, [first, second, third]: [char; 3]) -> f64 {
        let share = |count: Option<&f64>, of: Option<&f64>| match (count, of) {
            (Some(count), Some(of)) => count / of,
            _ => 0.0,
        };
        let trigram = share(self.trigrams.get(&[first, second, third]), self.pairs.get(&[first, second]));
        let bigram = share(self.bigrams.get(&[second, third]), self.before.get(&second));
        let single = share(self.singles.get(&third), Some(&self.total));
        let rest = 1.0 - WEIGHTS.iter().sum::<f64>();
        (WEIGHTS[0] * trigram + WEIGHTS[1] * bigram + WEIGHTS[2] * single + rest / CHARACTERS).ln()
    }

    /// By bytes of a text: the log-probability of its characters up to there, as characters of unknown words. A space
    /// costs nothing: it ends a word. `[text + 1]`
    pub fn log_probs(&self, text: &str) -> Vec<f64> {
        let mut sums = vec![0.0];
        let (mut sum, mut before) = (0.0, [START, START]);
        for character in text.chars() {
            if character == START {
                before = [START, START];
            } else {
                sum += self.log_prob([before[0], before[1], character]);
                before = [before[1], character];
            }
            sums.extend(std::iter::repeat_n(sum, character.len_utf8()));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::TokenId;

    #[test]
    fn words_that_look_like_words_are_more_probable() {
        let tokens = [" heat", " heater", "ther", " the", "ing", " h", "eat", " cheating"];
        let tokens = tokens.map(|token| Some(token.as_bytes().to_vec()));
        let words = UnknownWords::new(&Vocabulary::from_tokens((0..).map(TokenId).zip(tokens)));
        let of = |text: &str| *words.log_probs(text).last().unwrap();
        assert!(of("heating") > of("hetaing") + 3.0, "{} {}", of("heating"), of("hetaing"));
        assert!(of("heat heat") == 2.0 * of("heat") && of("日") < -5.0);
        assert_eq!(words.log_probs("hé").len(), "hé".len() + 1);
    }
}
