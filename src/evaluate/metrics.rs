//! The arithmetic of evaluation: ranks, means, percentiles, the paired bootstrap. Pure.
//!
//! The measures come from the literature: MRR@10 and partial MRR over keystrokes (Park and Chiba 2017), and maximum
//! recoverable length (Kim 2019). Keystrokes saved are those of a person who accepts the query as soon as it is listed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One keystroke: the typed prefix of a query, and the rank of the query in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Keystroke {
    /// Index of the query.
    pub query: usize,
    /// Characters typed.
    pub typed: usize,
    /// Place of the query in the list, from 1.
    pub rank: Option<usize>,
    /// Place of the first suggestion that the query begins with, up to the end of a word.
    pub partial_rank: Option<usize>,
    /// Whether the last character typed was the one that the first suggestion before it had there.
    pub agreed: bool,
    /// Time for the answer, in milliseconds.
    pub latency_ms: f64,
    /// Forwards for the answer.
    pub forwards: usize,
    /// Positions computed.
    pub computed: usize,
    /// Positions computed before the search proper, for the typed text.
    pub typed_computed: usize,
    /// Distributions that were known already.
    pub saved: usize,
    /// Whether the answer was proven.
    pub proven: bool,
}

/// Ranks in a list of suggestions: that of the query, and that of the first prefix of it in whole words.
pub fn ranks<'a>(
    query: &str,
    typed: &str,
    suggestions: impl Iterator<Item = &'a str>,
) -> (Option<usize>, Option<usize>) {
    let (mut exact, mut partial) = (None, None);
    for (index, suggestion) in suggestions.enumerate() {
        let at_word_end = |rest: &str| !rest.starts_with(char::is_alphanumeric);
        if suggestion == query {
            exact = exact.or(Some(index + 1));
        }
        if suggestion.len() > typed.len() && query.strip_prefix(suggestion).is_some_and(at_word_end) {
            partial = partial.or(Some(index + 1));
        }
    }
    (exact, partial)
}

/// Means over some keystrokes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of keystrokes.
    pub keystrokes: usize,
    /// Mean reciprocal rank.
    pub mrr: f64,
    /// Mean reciprocal rank of the first prefix in whole words.
    pub partial_mrr: f64,
    /// Share of keystrokes with the query in first place.
    pub success_at_1: f64,
    /// Share of keystrokes with the query in the list.
    pub success_at_10: f64,
}

/// Summarises keystrokes.
pub fn summarise<'a>(keystrokes: impl Iterator<Item = &'a Keystroke>) -> Summary {
    let mut sum = Summary::default();
    for keystroke in keystrokes {
        sum.keystrokes += 1;
        sum.mrr += reciprocal(keystroke.rank);
        sum.partial_mrr += reciprocal(keystroke.partial_rank);
        sum.success_at_1 += f64::from(u8::from(keystroke.rank == Some(1)));
        sum.success_at_10 += f64::from(u8::from(keystroke.rank.is_some()));
    }
    let count = sum.keystrokes.max(1) as f64;
    for mean in [&mut sum.mrr, &mut sum.partial_mrr, &mut sum.success_at_1, &mut sum.success_at_10] {
        *mean /= count;
    }
    sum
}

/// Measures over the keystrokes of one query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueryScore {
    /// Mean reciprocal rank over its keystrokes.
    pub mrr: f64,
    /// Characters at its end that needn't have been typed.
    pub recoverable: f64,
    /// Share of its characters that a person saves who accepts it, with one key, as soon as it is listed.
    pub saved: f64,
}

/// Scores each query of `lengths` (in characters) from its keystrokes.
pub fn score_queries(keystrokes: &[Keystroke], lengths: &[usize]) -> Vec<QueryScore> {
    let mut scores = vec![QueryScore::default(); lengths.len()];
    let mut counts = vec![0usize; lengths.len()];
    for keystroke in keystrokes {
        let (score, length) = (&mut scores[keystroke.query], lengths[keystroke.query]);
        counts[keystroke.query] += 1;
        score.mrr += reciprocal(keystroke.rank);
        if keystroke.rank.is_some() {
            score.recoverable = score.recoverable.max((length - keystroke.typed) as f64);
        }
    }
    for ((score, count), &length) in scores.iter_mut().zip(counts).zip(lengths) {
        score.mrr /= count.max(1) as f64;
        score.saved = (score.recoverable - 1.0).max(0.0) / length.max(1) as f64;
    }
    scores
}

/// Mean of a list; 0 of none.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

/// A percentile (0 to 100) by nearest rank; 0 of none.
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

/// Mean of the paired differences `a - b`, with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Mean of the paired differences.
    pub mean: f64,
    /// 2.5th percentile of resampled means.
    pub low: f64,
    /// 97.5th percentile of resampled means.
    pub high: f64,
}

/// Resamples pairs with replacement, seeded.
pub fn paired_bootstrap(a: &[f64], b: &[f64], resamples: usize) -> Difference {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let mut rng = StdRng::seed_from_u64(1);
    let count = differences.len().max(1);
    let resample = |rng: &mut StdRng| {
        mean((0..count).map(|_| differences.get(rng.random_range(0..count)).copied().unwrap_or(0.0)))
    };
    let means: Vec<f64> = (0..resamples).map(|_| resample(&mut rng)).collect();
    Difference { mean: mean(differences.iter().copied()), low: percentile(&means, 2.5), high: percentile(&means, 97.5) }
}

fn reciprocal(rank: Option<usize>) -> f64 {
    rank.map_or(0.0, |rank| 1.0 / rank as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keystroke(query: usize, typed: usize, rank: Option<usize>) -> Keystroke {
        Keystroke {
            query,
            typed,
            rank,
            partial_rank: rank,
            agreed: false,
            latency_ms: 1.0,
            forwards: 1,
            computed: 1,
            typed_computed: 1,
            saved: 0,
            proven: true,
        }
    }

    #[test]
    fn ranks_tell_whole_and_partial_hits_apart() {
        let list = ["heat pump", "heat exchange", "heat exchanger", "heat", "heat exchanger tube"];
        assert_eq!(ranks("heat exchanger tube", "he", list.into_iter()), (Some(5), Some(3)));
        assert_eq!(ranks("heat sink", "he", list.into_iter()), (None, Some(4)));
        assert_eq!(ranks("heat sink", "heat", list.into_iter()), (None, None), "a partial hit must add something");
    }

    #[test]
    fn summaries_and_scores_are_what_the_definitions_say() {
        let keystrokes =
            [keystroke(0, 1, None), keystroke(0, 2, Some(4)), keystroke(0, 3, Some(1)), keystroke(1, 1, None)];
        let summary = summarise(keystrokes.iter());
        assert_eq!((summary.mrr, summary.success_at_1, summary.success_at_10), (1.25 / 4.0, 0.25, 0.5));
        let scores = score_queries(&keystrokes, &[10, 2]);
        assert_eq!(scores[0], QueryScore { mrr: 1.25 / 3.0, recoverable: 8.0, saved: 0.7 });
        assert_eq!(scores[1], QueryScore::default());
    }

    #[test]
    fn percentiles_and_bootstrap() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 50.0), percentile(&values, 99.0), percentile(&[], 50.0)), (50.0, 99.0, 0.0));
        let a: Vec<f64> = (0..200).map(|i| f64::from(i % 7) + 1.0).collect();
        let b: Vec<f64> = (0..200).map(|i| f64::from(i % 7) + f64::from(i % 2)).collect();
        let difference = paired_bootstrap(&a, &b, 500);
        assert!(
            (difference.mean - 0.5).abs() < 1e-12 && difference.low > 0.4 && difference.high < 0.6,
            "{difference:?}"
        );
    }
}
