//! The divergence between the next-token distributions of two models. Pure.

use bundle::manifest::Quality;

use completion::text::TokenId;

/// Sums over all positions so far.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    positions: u64,
    /// Positions at which both models give the same token the highest logit.
    agreeing: u64,
    /// Sum of the divergences, in nats.
    divergence: f64,
    /// Tokens that were predicted.
    predicted: u64,
    /// Sum of their negative log-probabilities: the reference's and the candidate's.
    surprise: [f64; 2],
}

impl Comparison {
    /// Compares a position's logits, `[vocab]` of the reference and of the candidate; `next` is the token that follows.
    pub(super) fn add(&mut self, reference: &[f32], candidate: &[f32], next: Option<TokenId>) {
        let normalizers = [log_sum_exp(reference), log_sum_exp(candidate)];
        self.positions += 1;
        self.agreeing += u64::from(first(reference) == first(candidate));
        let term = |(reference, candidate): (&f32, &f32)| {
            let [p, q] = [f64::from(*reference) - normalizers[0], f64::from(*candidate) - normalizers[1]];
            p.exp() * (p - q)
        };
        self.divergence += reference.iter().zip(candidate).map(term).sum::<f64>();
        if let Some(next) = next {
            self.predicted += 1;
            for ((sum, logits), normalizer) in self.surprise.iter_mut().zip([reference, candidate]).zip(normalizers) {
                *sum += normalizer - f64::from(logits[next.0 as usize]);
            }
        }
    }

    /// The figures over `texts` texts; `None` if there were no tokens.
    pub(super) fn quality(&self, texts: u64) -> Option<Quality> {
        let [reference, candidate] = self.surprise.map(|sum| (sum / self.predicted as f64).exp());
        (self.predicted > 0).then(|| Quality {
            texts,
            positions: self.positions,
            top1_agreement: self.agreeing as f64 / self.positions as f64,
            // The sum of a distribution that is compared with itself may be a rounding below zero.
            kl_nats: (self.divergence / self.positions as f64).max(0.0),
            perplexity: candidate,
            reference_perplexity: reference,
        })
    }
}

/// The token with the highest logit; the first of equal ones.
fn first(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, token| if logits[token] > logits[best] { token } else { best })
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_agrees_with_itself_whatever_its_offset() {
        let mut comparison = Comparison::default();
        assert_eq!(comparison.quality(0), None);
        comparison.add(&[1.0, 3.0, -2.0], &[-99.0, -97.0, -102.0], Some(TokenId(0)));
        comparison.add(&[0.0, 0.0, 0.0], &[0.0, 0.0, 0.0], None);
        let quality = comparison.quality(1).unwrap();
        assert_eq!((quality.positions, quality.top1_agreement), (2, 1.0));
        assert!(quality.kl_nats < 1e-12 && (quality.perplexity - quality.reference_perplexity).abs() < 1e-9);
    }

    #[test]
    fn figures_are_those_of_the_distributions() {
        // The reference says 3/4 and 1/4, the candidate 1/4 and 3/4; token 0 follows.
        let mut comparison = Comparison::default();
        comparison.add(&[3f32.ln(), 0.0], &[0.0, 3f32.ln()], Some(TokenId(0)));
        let quality = comparison.quality(1).unwrap();
        assert_eq!(quality.top1_agreement, 0.0);
        assert!((quality.kl_nats - 0.5 * 3f64.ln()).abs() < 1e-6, "{quality:?}");
        assert!((quality.perplexity - 4.0).abs() < 1e-5 && (quality.reference_perplexity - 4.0 / 3.0).abs() < 1e-5);
    }
}
