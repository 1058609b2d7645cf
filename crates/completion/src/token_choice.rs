//! Choosing one token from a distribution: greedy, or at random after the usual transformations.

use super::distribution::Distribution;

/// The rule by which a token is chosen from its distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenChoice {
    /// Above 1 flattens, below 1 sharpens; 0 takes the best token.
    pub temperature: f32,
    /// Only this many of the best; 0 for all.
    pub top_k: usize,
    /// Only the best whose probabilities together reach this, 0 exclusive to 1.
    pub top_p: f32,
    /// Above 1 makes tokens that were seen less probable: positive logits are divided by it, negative ones multiplied.
    pub repetition_penalty: f32,
}

impl Default for TokenChoice {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 }
    }
}

impl TokenChoice {
    /// Whether the `listed` best tokens are all that it looks at.
    pub fn is_decided_by(&self, listed: usize) -> bool {
        let few = self.temperature <= 0.0 || (1..=listed).contains(&self.top_k);
        // A penalty can make any token the best.
        few && self.repetition_penalty == 1.0
    }

    /// The token that `number`, from 0 to 1 exclusive, falls on, and its log-probability before any transformation.
    /// `None` if no token is `allowed`.
    pub fn choose(
        &self,
        next: &Distribution,
        seen: &[u32],
        number: f64,
        allowed: impl Fn(u32) -> bool,
    ) -> Option<(u32, f32)> {
        let scored = penalised(next, self.repetition_penalty, seen);
        let id = if self.temperature <= 0.0 {
            best(scored, &allowed)?
        } else {
            draw(nucleus(scored, self), number, &allowed)?
        };
        Some((id, next.log_prob(id)?))
    }
}

/// Every known token with its logit, which the penalty has moved for those that were seen.
fn penalised(next: &Distribution, penalty: f32, seen: &[u32]) -> Vec<(u32, f32)> {
    let mut scored: Vec<(u32, f32)> = next.known().map(|(id, log_prob)| (id, log_prob + next.logsumexp())).collect();
    if penalty != 1.0 {
        let mut seen = seen.to_vec();
        seen.sort_unstable();
        for (id, logit) in &mut scored {
            if seen.binary_search(id).is_ok() {
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }
    scored
}

/// The best allowed token; of equal ones the first.
fn best(scored: Vec<(u32, f32)>, allowed: &impl Fn(u32) -> bool) -> Option<u32> {
    let highest = |scored: &[(u32, f32)]| {
        let better = |best: Option<(u32, f32)>, &(id, logit): &(u32, f32)| match best {
            Some((_, score)) if score >= logit => best,
            _ => Some((id, logit)),
        };
        scored.iter().fold(None, better)
    };
    let mut scored = scored;
    loop {
        // Most of the time the first try is allowed; asking for all of a large vocabulary would cost more than the
        // forward.
        let (id, _) = highest(&scored)?;
        if allowed(id) {
            return Some(id);
        }
        scored.retain(|&(other, _)| other != id);
    }
}

/// The tokens that top-k and top-p leave, best first, with their unnormalised probabilities.
fn nucleus(mut scored: Vec<(u32, f32)>, choice: &TokenChoice) -> Vec<(u32, f64)> {
    // Equal logits in the order of their ids, so that the choice doesn't depend on the sort.
    scored.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if choice.top_k > 0 {
        scored.truncate(choice.top_k);
    }
    let highest = scored.first().map_or(0.0, |&(_, logit)| logit);
    let weight = |logit: f32| (f64::from(logit - highest) / f64::from(choice.temperature)).exp();
    let mut weighed: Vec<(u32, f64)> = scored.into_iter().map(|(id, logit)| (id, weight(logit))).collect();
    if choice.top_p < 1.0 {
        let enough = f64::from(choice.top_p) * weighed.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut sum = 0.0;
        // The token that reaches the bound belongs to those that stay.
        let count = weighed
            .iter()
            .take_while(|(_, weight)| {
                let before = sum;
                sum += weight;
                before < enough
            })
            .count();
        weighed.truncate(count.max(1));
    }
    weighed
}

/// The token that a number falls on, among the allowed.
fn draw(mut weighed: Vec<(u32, f64)>, number: f64, allowed: &impl Fn(u32) -> bool) -> Option<u32> {
    while !weighed.is_empty() {
        let mut left = number * weighed.iter().map(|(_, weight)| weight).sum::<f64>();
        let at = weighed
            .iter()
            .position(|(_, weight)| {
                left -= weight;
                left < 0.0
            })
            .unwrap_or(weighed.len() - 1);
        if allowed(weighed[at].0) {
            return Some(weighed[at].0);
        }
        weighed.remove(at);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::Logits;

    /// Logits 2, 1, 0, -1 for the tokens 3, 1, 0, 2.
    fn distribution() -> Distribution {
        let logits = [0.0f32, 1.0, -1.0, 2.0];
        let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
        let best = Logits { best_ids: &[3, 1], best: &[2.0, 1.0], row: Some(&logits), logsumexp: lse, vocab: 4 };
        Distribution::from_logits(best)
    }

    fn any(_: u32) -> bool {
        true
    }

    /// How often each token is drawn, over an even grid of numbers.
    fn shares(choice: TokenChoice, seen: &[u32]) -> [f64; 4] {
        let mut shares = [0.0; 4];
        for step in 0..10_000 {
            let (id, _) = choice.choose(&distribution(), seen, f64::from(step) / 10_000.0, any).unwrap();
            shares[id as usize] += 1.0 / 10_000.0;
        }
        shares
    }

    fn near(found: [f64; 4], expected: [f64; 4]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-4), "{found:?} {expected:?}");
    }

    #[test]
    fn sampling_follows_the_transformed_distribution() {
        let softmax = |logits: [f64; 4]| {
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            logits.map(|x| x.exp() / sum)
        };
        let none = f64::NEG_INFINITY;
        let choice = TokenChoice { temperature: 1.0, ..TokenChoice::default() };
        near(shares(choice, &[]), softmax([0.0, 1.0, -1.0, 2.0]));
        near(shares(TokenChoice { temperature: 0.5, ..choice }, &[]), softmax([0.0, 2.0, -2.0, 4.0]));
        near(shares(TokenChoice { top_k: 2, ..choice }, &[]), softmax([none, 1.0, none, 2.0]));
        // Probabilities 0.644, 0.237, 0.087, 0.032: the second reaches 0.8, the first alone 0.6.
        near(shares(TokenChoice { top_p: 0.8, ..choice }, &[]), softmax([none, 1.0, none, 2.0]));
        near(shares(TokenChoice { top_p: 0.6, ..choice }, &[]), [0.0, 0.0, 0.0, 1.0]);
        // 2 / 2 = 1, -1 * 2 = -2.
        near(shares(TokenChoice { repetition_penalty: 2.0, ..choice }, &[2, 3]), softmax([0.0, 1.0, -2.0, 1.0]));
    }

    #[test]
    fn greedy_takes_the_best_allowed_and_reports_the_models_own_log_probability() {
        let greedy = TokenChoice::default();
        let next = distribution();
        assert_eq!(greedy.choose(&next, &[], 0.9, any), Some((3, next.log_prob(3).unwrap())));
        assert_eq!(greedy.choose(&next, &[], 0.9, |id| id != 3).unwrap().0, 1);
        let penalty = TokenChoice { repetition_penalty: 4.0, ..greedy };
        assert_eq!(penalty.choose(&next, &[3], 0.0, any), Some((1, next.log_prob(1).unwrap())));
        assert_eq!(penalty.choose(&next, &[3], 0.0, |_| false), None);
        let random = TokenChoice { temperature: 1.0, ..greedy };
        assert_eq!(random.choose(&next, &[], 0.0, |id| id == 2).unwrap().0, 2);
        assert_eq!(random.choose(&next, &[], 0.5, |_| false), None);
    }
}
