//! Choosing one token from a distribution: greedy, or at random after the usual transformations.

use rustc_hash::{FxHashMap, FxHashSet};

use super::distribution::Distribution;
use crate::text::TokenId;

/// The rule by which a token is chosen from its distribution: transformers' processors, in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenChoice {
    /// Above 1 makes tokens that were seen less probable: positive logits are divided by it, negative ones multiplied.
    pub repetition_penalty: f32,
    /// Subtracted from a generated token's logit as often as it was generated. Not transformers', but OpenAI's.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of a token that was generated.
    pub presence_penalty: f32,
    /// No sequence of so many tokens comes twice; 0 for any.
    pub no_repeat_ngram: usize,
    /// No end before so many new tokens.
    pub min_new_tokens: usize,
    /// Above 1 flattens, below 1 sharpens; 0 takes the best token.
    pub temperature: f32,
    /// Only this many of the best; 0 for all.
    pub top_k: usize,
    /// Only the best whose probabilities together reach this, 0 exclusive to 1.
    pub top_p: f32,
    /// Only those whose information is nearest to the entropy, until their probabilities together reach this; 1 for
    /// all.
    pub typical_p: f32,
}

impl Default for TokenChoice {
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            no_repeat_ngram: 0,
            min_new_tokens: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            typical_p: 1.0,
        }
    }
}

/// The tokens before the one that is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The prompt's.
    pub prompt: &'a [TokenId],
    /// Those that were generated.
    pub new: &'a [u32],
}

impl History<'_> {
    fn all(&self) -> Vec<u32> {
        self.prompt.iter().map(|token| token.0).chain(self.new.iter().copied()).collect()
    }
}

impl TokenChoice {
    /// Whether the `listed` best tokens are all that it looks at, where `ends` tokens end a text.
    pub fn is_decided_by(&self, listed: usize, ends: usize) -> bool {
        let wanted = if self.temperature <= 0.0 { 1 } else { self.top_k };
        wanted > 0 && self.best_are_listed(wanted, listed, ends)
    }

    /// Whether the `wanted` best tokens after the penalties are among the `listed` best before, where `ends` tokens end
    /// a text.
    pub fn best_are_listed(&self, wanted: usize, listed: usize, ends: usize) -> bool {
        let few = wanted + if self.min_new_tokens > 0 { ends } else { 0 } <= listed;
        // A penalty can make any token the best.
        let moves = self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        few && !moves && self.no_repeat_ngram == 0
    }

    /// The token that `number`, from 0 to 1 exclusive, falls on, and its log-probability before any transformation.
    /// Only tokens that are `offered` count; of those that are left in the end, one that isn't `allowed` is passed
    /// over. `None` if there is no other.
    pub fn choose(
        &self,
        next: &Distribution,
        history: History<'_>,
        number: f64,
        (offered, allowed): (impl Fn(u32) -> bool, impl Fn(u32) -> bool),
    ) -> Option<(u32, f32)> {
        let logit = |(id, log_prob): (u32, f32)| (id, log_prob + next.logsumexp());
        let mut scored: Vec<(u32, f32)> = next.known().map(logit).collect();
        scored.retain(|&(id, _)| offered(id));
        self.process(&mut scored, history);
        let id = if self.temperature <= 0.0 {
            best(scored, &allowed)?
        } else {
            Nucleus::new(scored, self).draw(number, &allowed)?
        };
        Some((id, next.log_prob(id)?))
    }

    /// Applies the penalties to logits, or to log-probabilities, and takes out what would repeat.
    pub fn process(&self, scored: &mut Vec<(u32, f32)>, history: History<'_>) {
        if self.repetition_penalty != 1.0 {
            let mut seen = history.all();
            seen.sort_unstable();
            for (_, score) in scored.iter_mut().filter(|(id, _)| seen.binary_search(id).is_ok()) {
                *score = if *score < 0.0 { *score * self.repetition_penalty } else { *score / self.repetition_penalty };
            }
        }
        if self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 {
            let mut counts = FxHashMap::<u32, f32>::default();
            history.new.iter().for_each(|&id| *counts.entry(id).or_default() += 1.0);
            for (id, score) in scored.iter_mut() {
                if let Some(count) = counts.get(id) {
                    *score -= self.frequency_penalty * count + self.presence_penalty;
                }
            }
        }
        if self.no_repeat_ngram > 0 {
            let repeats = would_repeat(&history.all(), self.no_repeat_ngram);
            scored.retain(|(id, _)| !repeats.contains(id));
        }
    }
}

/// The tokens that would end a sequence of `length` that is there already.
fn would_repeat(tokens: &[u32], length: usize) -> FxHashSet<u32> {
    let Some(at) = (tokens.len() + 1).checked_sub(length) else { return FxHashSet::default() };
    let last = &tokens[at..];
    tokens.windows(length).filter(|window| window[..length - 1] == *last).map(|window| window[length - 1]).collect()
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

/// Tokens that are sorted at first: most draws fall on one of them.
const SORTED_AT_FIRST: usize = 32;

/// The tokens that top-k and top-p leave, best first. Of a large vocabulary only as many are sorted as a draw looks at.
struct Nucleus {
    /// Tokens with their logits.
    scored: Vec<(u32, f32)>,
    /// So many are the best of all, in order.
    sorted: usize,
    /// So many of the best are left.
    count: usize,
    highest: f32,
    temperature: f64,
    /// The unnormalised probability of all that are left.
    total: f64,
}

impl Nucleus {
    fn new(scored: Vec<(u32, f32)>, choice: &TokenChoice) -> Self {
        let count = if choice.top_k > 0 { choice.top_k.min(scored.len()) } else { scored.len() };
        let temperature = f64::from(choice.temperature);
        let mut nucleus = Self { scored, sorted: 0, count, highest: 0.0, temperature, total: 0.0 };
        if count == 0 {
            return nucleus;
        }
        nucleus.highest = nucleus.at(0).1;
        if choice.top_k > 0 {
            nucleus.at(count - 1);
        }
        nucleus.total = (0..count).map(|index| nucleus.weight(nucleus.scored[index].1)).sum();
        if choice.top_p < 1.0 {
            nucleus.keep(f64::from(choice.top_p) * nucleus.total);
        }
        if choice.typical_p < 1.0 {
            nucleus.keep_typical(f64::from(choice.typical_p));
        }
        nucleus
    }

    /// Keeps the best that reach this probability together. The token that reaches it belongs to those that stay.
    fn keep(&mut self, enough: f64) {
        let (mut sum, mut kept) = (0.0, 0);
        while kept == 0 || (kept < self.count && sum < enough) {
            let (_, logit) = self.at(kept);
            sum += self.weight(logit);
            kept += 1;
        }
        (self.count, self.total) = (kept, sum);
    }

    /// Keeps those whose information is nearest to the entropy, until they have a probability of `mass`.
    fn keep_typical(&mut self, mass: f64) {
        self.at(self.count - 1);
        self.scored.truncate(self.count);
        let log_total = self.total.ln();
        let log_prob = |logit: f32| f64::from(logit - self.highest) / self.temperature - log_total;
        let entropy: f64 = self.scored.iter().map(|&(_, logit)| -log_prob(logit) * log_prob(logit).exp()).sum();
        let distance = |&(_, logit): &(u32, f32)| (-log_prob(logit) - entropy).abs();
        let mut nearest = self.scored.clone();
        nearest.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        let sums = nearest.iter().scan(0.0, |sum, &(_, logit)| {
            *sum += log_prob(logit).exp();
            Some(*sum)
        });
        let last = sums.take_while(|&sum| sum < mass).count().min(nearest.len() - 1);
        let farthest = distance(&nearest[last]);
        let kept: Vec<(u32, f32)> = self.scored.iter().filter(|token| distance(token) <= farthest).copied().collect();
        self.scored = kept;
        (self.sorted, self.count) = (self.scored.len(), self.scored.len());
        self.total = self.scored.iter().map(|&(_, logit)| self.weight(logit)).sum();
    }

    /// The token that a number falls on, among the allowed.
    fn draw(mut self, number: f64, allowed: &impl Fn(u32) -> bool) -> Option<u32> {
        let mut refused = Vec::new();
        while refused.len() < self.count {
            let (mut left, mut found) = (number * self.total, None);
            for index in (0..self.count).filter(|index| !refused.contains(index)) {
                found = Some(index);
                let (_, logit) = self.at(index);
                left -= self.weight(logit);
                if left < 0.0 {
                    break;
                }
            }
            let index = found?;
            let (token, logit) = self.at(index);
            if allowed(token) {
                return Some(token);
            }
            refused.push(index);
            self.total -= self.weight(logit);
        }
        None
    }

    fn weight(&self, logit: f32) -> f64 {
        (f64::from(logit - self.highest) / self.temperature).exp()
    }

    /// The token at a place, counted from the best; there is one.
    fn at(&mut self, index: usize) -> (u32, f32) {
        while index >= self.sorted {
            let rest = &mut self.scored[self.sorted..];
            let count = SORTED_AT_FIRST.max(7 * self.sorted).min(rest.len());
            // Equal logits in the order of their ids, so that the choice doesn't depend on the sort.
            let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
            if count < rest.len() {
                rest.select_nth_unstable_by(count, order);
            }
            rest[..count].sort_unstable_by(order);
            self.sorted += count;
        }
        self.scored[index]
    }
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

    fn behind(new: &[u32]) -> History<'_> {
        History { prompt: &[], new }
    }

    /// How often each token is drawn, over an even grid of numbers.
    fn shares(choice: TokenChoice, new: &[u32]) -> [f64; 4] {
        let mut shares = [0.0; 4];
        for step in 0..10_000 {
            let (id, _) = choice.choose(&distribution(), behind(new), f64::from(step) / 10_000.0, (any, any)).unwrap();
            shares[id as usize] += 1.0 / 10_000.0;
        }
        shares
    }

    fn near(found: [f64; 4], expected: [f64; 4]) {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-4), "{found:?} {expected:?}");
    }

    /// A large vocabulary, whose logits have few values.
    fn large() -> Distribution {
        let logits: Vec<f32> = (0..5000u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 26) as f32 / 8.0).collect();
        let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
        let top = (0..5000).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let best =
            Logits { best_ids: &[top as u32], best: &[logits[top]], row: Some(&logits), logsumexp: lse, vocab: 5000 };
        Distribution::from_logits(best)
    }

    #[test]
    fn what_is_sorted_in_parts_is_chosen_as_if_all_were_sorted() {
        let next = large();
        for (temperature, top_k, top_p) in [
            (1.0, 0, 1.0),
            (3.0, 0, 1.0),
            (0.3, 0, 1.0),
            (1.0, 700, 1.0),
            (2.0, 0, 0.9),
            (1.0, 40, 0.5),
            (9.0, 9999, 0.99),
        ] {
            let choice = TokenChoice { temperature, top_k, top_p, ..TokenChoice::default() };
            let mut sorted: Vec<(u32, f32)> =
                next.known().map(|(id, log_prob)| (id, log_prob + next.logsumexp())).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(if top_k > 0 { top_k } else { 5000 });
            let weight = |logit: f32| (f64::from(logit - sorted[0].1) / f64::from(temperature)).exp();
            let sums = sorted.iter().scan(0.0, |sum, &(_, logit)| {
                *sum += weight(logit);
                Some(*sum)
            });
            let sums: Vec<f64> = sums.collect();
            let enough = f64::from(top_p) * sums[sums.len() - 1];
            let kept = if top_p < 1.0 { sums.iter().take_while(|&&sum| sum < enough).count() + 1 } else { sums.len() };
            for step in 0..500 {
                // Not on a boundary, where the order of a sum decides.
                let number = (f64::from(step) + 0.4142) / 500.0;
                let expected = sums[..kept].iter().position(|&sum| number * sums[kept - 1] < sum).unwrap();
                let (id, _) = choice.choose(&next, behind(&[]), number, (any, any)).unwrap();
                assert_eq!(id, sorted[expected].0, "{choice:?} at {number}");
            }
        }
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
    fn typical_tokens_are_those_near_the_entropy() {
        // Entropy 0.948 nats. Informations are 0.440, 1.440, 2.440 and 3.440: the second is nearest, the first next.
        let softmax = |logits: [f64; 4]| {
            let sum: f64 = logits.iter().map(|x| x.exp()).sum();
            logits.map(|x| x.exp() / sum)
        };
        let choice = TokenChoice { temperature: 1.0, ..TokenChoice::default() };
        near(shares(TokenChoice { typical_p: 0.2, ..choice }, &[]), [0.0, 1.0, 0.0, 0.0]);
        let none = f64::NEG_INFINITY;
        near(shares(TokenChoice { typical_p: 0.7, ..choice }, &[]), softmax([none, 1.0, none, 2.0]));
        near(shares(TokenChoice { typical_p: 0.2, top_k: 1, ..choice }, &[]), [0.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn what_was_generated_is_penalised_and_does_not_repeat() {
        let choose = |choice: TokenChoice, new: &[u32]| {
            choice.choose(&distribution(), behind(new), 0.0, (any, any)).map(|(id, _)| id)
        };
        let greedy = TokenChoice::default();
        assert_eq!(choose(TokenChoice { frequency_penalty: 0.6, ..greedy }, &[3]), Some(3), "2 - 0.6 is above 1");
        assert_eq!(choose(TokenChoice { frequency_penalty: 0.6, ..greedy }, &[3, 3]), Some(1), "2 - 1.2 is not");
        assert_eq!(choose(TokenChoice { presence_penalty: 0.6, ..greedy }, &[3, 3]), Some(3), "it counts once");
        let repeats = TokenChoice { no_repeat_ngram: 2, ..greedy };
        assert_eq!(choose(repeats, &[0, 3, 0]), Some(1), "0 3 was there");
        assert_eq!((choose(repeats, &[3, 0]), choose(repeats, &[])), (Some(3), Some(3)));
        assert_eq!(choose(TokenChoice { no_repeat_ngram: 1, ..greedy }, &[3, 1, 0, 2]), None);
        let offered = greedy.choose(&distribution(), behind(&[]), 0.0, (|id| id != 3, any));
        assert_eq!(offered.map(|(id, _)| id), Some(1), "what isn't offered doesn't count");
    }

    #[test]
    fn greedy_takes_the_best_allowed_and_reports_the_models_own_log_probability() {
        let greedy = TokenChoice::default();
        let next = distribution();
        assert_eq!(greedy.choose(&next, behind(&[]), 0.9, (any, any)), Some((3, next.log_prob(3).unwrap())));
        assert_eq!(greedy.choose(&next, behind(&[]), 0.9, (any, |id| id != 3)).unwrap().0, 1);
        let penalty = TokenChoice { repetition_penalty: 4.0, ..greedy };
        assert_eq!(penalty.choose(&next, behind(&[3]), 0.0, (any, any)), Some((1, next.log_prob(1).unwrap())));
        assert_eq!(penalty.choose(&next, behind(&[3]), 0.0, (any, |_| false)), None);
        let random = TokenChoice { temperature: 1.0, ..greedy };
        assert_eq!(random.choose(&next, behind(&[]), 0.0, (any, |id| id == 2)).unwrap().0, 2);
        assert_eq!(random.choose(&next, behind(&[]), 0.5, (any, |_| false)), None);
    }
}
