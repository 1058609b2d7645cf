//! The distribution of the next token behind a path.

/// The logits that an engine computes for a position.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// The best next tokens, best first.
    pub best_ids: &'a [u32],
    /// Logits of `best_ids`, in the same order.
    pub best: &'a [f32],
    /// All logits, if the whole row was wanted. `[vocab]`
    pub row: Option<&'a [f32]>,
    /// Logarithm of the sum of the exponentials of all logits.
    pub logsumexp: f32,
    /// Tokens in the vocabulary.
    pub vocab: usize,
}

/// The best next tokens and, if it was wanted, the whole row.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Best next tokens, best first.
    ids: Box<[u32]>,
    /// Natural log-probabilities of the best tokens, descending.
    log_probs: Box<[f32]>,
    /// Log-probabilities of the whole vocabulary.
    row: Option<Box<[f32]>>,
    /// What was subtracted from the logits to get log-probabilities.
    logsumexp: f32,
    /// Tokens in the vocabulary.
    vocab: usize,
}

impl Distribution {
    /// From an engine's logits.
    pub fn from_logits(logits: Logits) -> Self {
        let Logits { best_ids, best, row, logsumexp, vocab } = logits;
        let normalised = |logits: &[f32]| logits.iter().map(|x| x - logsumexp).collect::<Box<[f32]>>();
        Self { ids: best_ids.into(), log_probs: normalised(best), row: row.map(normalised), logsumexp, vocab }
    }

    /// From the logits of the whole vocabulary, natural logarithms of unnormalised probabilities. `[vocab]`
    pub fn from_row(row: &[f32]) -> Self {
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        let best: Vec<f32> = ids.iter().map(|&id| row[id as usize]).collect();
        let logsumexp = log_sum(row.iter().map(|&x| f64::from(x))) as f32;
        Self::from_logits(Logits { best_ids: &ids, best: &best, row: Some(row), logsumexp, vocab: row.len() })
    }

    /// The best tokens with their log-probabilities, best first.
    pub fn best(&self) -> impl ExactSizeIterator<Item = (u32, f32)> {
        self.ids.iter().copied().zip(self.log_probs.iter().copied())
    }

    /// Whether a token is one of the best.
    pub fn lists(&self, token: u32) -> bool {
        self.ids.contains(&token)
    }

    /// Every token whose log-probability is known, in no particular order.
    pub fn known(&self) -> impl Iterator<Item = (u32, f32)> {
        let row = self.row.iter().flat_map(|row| (0u32..).zip(row.iter().copied()));
        row.chain(self.best().filter(|_| self.row.is_none()))
    }

    /// The log-probabilities of the whole vocabulary, if they are known. `[vocab]`
    pub fn row(&self) -> Option<&[f32]> {
        self.row.as_deref()
    }

    /// What was subtracted from the logits to get log-probabilities.
    pub fn logsumexp(&self) -> f32 {
        self.logsumexp
    }

    /// A bound on the log-probability of every token that [`Distribution::best`] doesn't list; `None` if it lists all.
    pub fn unlisted_bound(&self) -> Option<f32> {
        self.log_probs.last().copied().filter(|_| self.ids.len() < self.vocab)
    }

    /// The log-probability of a token, if known.
    pub fn log_prob(&self, token: u32) -> Option<f32> {
        match &self.row {
            Some(row) => row.get(token as usize).copied(),
            None => self.best().find(|&(id, _)| id == token).map(|(_, log_prob)| log_prob),
        }
    }

    /// Whether the whole row is known.
    pub fn is_full(&self) -> bool {
        self.row.is_some()
    }

    /// Memory of the best tokens, in bytes.
    pub fn best_bytes(top_k: usize) -> usize {
        size_of::<Self>() + top_k * (size_of::<u32>() + size_of::<f32>())
    }

    /// Memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        Self::best_bytes(self.ids.len()) + self.row_bytes()
    }

    /// Memory of the whole row, in bytes; 0 without one.
    pub fn row_bytes(&self) -> usize {
        self.row.as_ref().map_or(0, |row| row.len() * size_of::<f32>())
    }

    /// The best tokens alone.
    pub fn without_row(&self) -> Self {
        let Self { ids, log_probs, logsumexp, vocab, .. } = self;
        Self { ids: ids.clone(), log_probs: log_probs.clone(), row: None, logsumexp: *logsumexp, vocab: *vocab }
    }
}

/// `ln(exp(a) + exp(b))` without overflow.
pub fn log_add(a: f64, b: f64) -> f64 {
    let (high, low) = if a >= b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

/// The logarithm of the sum of the exponentials, without overflow.
pub fn log_sum(logs: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = logs.clone().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        largest
    } else {
        largest + logs.map(|log| (log - largest).exp()).sum::<f64>().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_log_probabilities() {
        let logits = [0.0f32, 3.0, 1.0, 2.0];
        let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
        let best = Logits { best_ids: &[1, 3], best: &[3.0, 2.0], row: None, logsumexp: lse, vocab: 4 };
        let partial = Distribution::from_logits(best);
        assert_eq!(partial.log_prob(3), Some(2.0 - lse));
        assert_eq!(partial.log_prob(0), None);
        assert_eq!(partial.unlisted_bound(), Some(2.0 - lse));
        let full = Distribution::from_logits(Logits { row: Some(&logits), ..best });
        let sum: f32 = (0..4).map(|t| full.log_prob(t).unwrap().exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert!(full.bytes() > partial.bytes() && full.is_full() && !partial.is_full());
        let all = Logits { best_ids: &[1, 3, 2, 0], best: &[3.0, 2.0, 1.0, 0.0], ..best };
        assert_eq!(Distribution::from_logits(all).unlisted_bound(), None);
    }

    #[test]
    fn sums_are_exact_at_the_edges() {
        assert_eq!(log_add(f64::NEG_INFINITY, -3.0), -3.0);
        assert_eq!(log_add(f64::NEG_INFINITY, f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert!((log_add(0.5f64.ln(), 0.25f64.ln()) - 0.75f64.ln()).abs() < 1e-12);
        assert_eq!(log_sum(std::iter::empty()), f64::NEG_INFINITY);
        assert!(
            (log_sum([-1000.0, -1001.0, -1002.0].into_iter()) - log_add(log_add(-1000.0, -1001.0), -1002.0)).abs()
                < 1e-9
        );
    }
}
