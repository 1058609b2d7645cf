//! The search against brute force: every text that a tiny vocabulary can spell, up to a length, with its exact probability.

use rustc_hash::FxHashMap;

use super::*;
use crate::text::testing::tiny;

/// Log-probabilities of the next token behind a path, by a hash; a model small enough to enumerate.
fn log_probs(seed: u64, path: &[u32], vocab: usize, scale: f32) -> Vec<f32> {
    let logit = |next: u32| {
        let mut h = 0xcbf2_9ce4_8422_2325 ^ seed;
        for &x in path.iter().chain([&next]) {
            h = (h ^ u64::from(x)).wrapping_mul(0x0100_0000_01b3);
            h ^= h >> 31;
        }
        (h.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1 << 24) as f32 * scale
    };
    // The last token ends the text; a thumb on the scale keeps texts short enough to enumerate.
    let bonus = |next: usize| if next + 1 == vocab { path.len() as f32 } else { 0.0 };
    let logits: Vec<f32> = (0..vocab).map(|next| logit(next as u32) + bonus(next)).collect();
    let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
    logits.iter().map(|x| x - lse).collect()
}

fn distribution(log_probs: &[f32], top_k: usize) -> Arc<Distribution> {
    let mut ids: Vec<u32> = (0..log_probs.len() as u32).collect();
    ids.sort_by(|&a, &b| log_probs[b as usize].total_cmp(&log_probs[a as usize]));
    ids.truncate(top_k);
    let best: Vec<f32> = ids.iter().map(|&id| log_probs[id as usize]).collect();
    Arc::new(Distribution::from_logits(&ids, &best, 0.0, Some(log_probs), log_probs.len()))
}

/// Runs a search to its end.
fn run(mut search: Search, model: impl Fn(&[u32]) -> Arc<Distribution>) -> Search {
    loop {
        for wanted in search.wanted().to_vec() {
            let mut path = Vec::new();
            let mut node = wanted.node;
            while let Some((parent, token)) = search.step_to(node) {
                path.push(token.0);
                node = parent;
            }
            path.extend(search.prompt().iter().rev().map(|token| token.0));
            path.reverse();
            search.supply(wanted.node, model(&path));
        }
        if search.is_done() {
            return search;
        }
        search.advance();
    }
}

/// Every text up to `length` characters, with the joint log-probability of its own encoding and the end behind it.
fn enumerate(
    text: &Text,
    alphabet: &str,
    length: usize,
    model: &impl Fn(&[u32]) -> Vec<f32>,
) -> FxHashMap<String, f64> {
    let mut texts = vec![String::new()];
    let mut all = FxHashMap::default();
    while let Some(current) = texts.pop() {
        if current.chars().count() < length {
            texts.extend(alphabet.chars().map(|c| format!("{current}{c}")));
        }
        let mut path: Vec<u32> = text.prompt().iter().map(|token| token.0).collect();
        let mut joint = 0.0;
        let end = text.prompt()[0];
        for token in text.encode(&current).into_iter().chain([end]) {
            joint += f64::from(model(&path)[token.0 as usize]);
            path.push(token.0);
        }
        all.insert(current, joint);
    }
    all
}

fn options(suggestions: usize, beams: usize) -> SearchOptions {
    SearchOptions { suggestions, beams, max_new_tokens: 12, context: 32, method: Method::Exact }
}

#[test]
fn proven_answers_are_the_true_ones() {
    let alphabet = "ab ";
    let text = Arc::new(tiny(alphabet, &[("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")]));
    let (length, mut proven, mut cases) = (9, 0, 0);
    for seed in 0..40 {
        let model = |path: &[u32]| log_probs(seed, path, text.vocab(), 4.0);
        let all = enumerate(&text, alphabet, length, &model);
        for typed in ["a", "b", "ab", "a ", "ab a", "b b"] {
            let search =
                run(Search::new(Arc::clone(&text), typed.into(), options(5, 40)), |path| distribution(&model(path), 9));
            let outcome = search.outcome();
            // The mass of the typed text, enumerated: texts that the search leaves out count too.
            let mass: f64 = all.iter().filter(|(t, _)| t.starts_with(typed)).map(|(_, joint)| joint.exp()).sum();
            let mut truth: Vec<(&str, f64)> = all
                .iter()
                .filter(|(t, _)| t.starts_with(typed) && !t[typed.len()..].trim().is_empty())
                .filter(|(t, _)| !t.ends_with(' ') && !t[typed.trim_end().len()..].contains("  "))
                .map(|(t, joint)| (t.as_str(), *joint))
                .collect();
            truth.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
            cases += 1;
            for suggestion in &outcome.suggestions {
                assert!(suggestion.text.starts_with(typed) && suggestion.complete);
                let joint = all[&suggestion.text];
                let found = suggestion.logprob + search.typed_log_prob().unwrap();
                assert!((joint - found).abs() < 1e-4, "{typed:?} {suggestion:?} {joint}");
                // Texts longer than the enumeration and spellings that are no encoding have the rest of the mass.
                assert!(suggestion.probability <= joint.exp() / mass + 1e-4);
            }
            if outcome.proven {
                proven += 1;
                let expected: Vec<&str> = truth.iter().take(5).map(|(t, _)| *t).collect();
                let found: Vec<&str> = outcome.suggestions.iter().map(|s| s.text.as_str()).collect();
                assert_eq!(found, expected, "seed {seed}, {typed:?}");
            }
        }
    }
    assert!(proven * 2 > cases, "only {proven} of {cases} were proven");
}

#[test]
fn a_cut_search_says_so_and_fills_up_with_what_it_has() {
    let text = Arc::new(tiny("ab ", &[("a", "b")]));
    // Nothing ever ends.
    let model = |path: &[u32]| {
        let mut row = log_probs(1, path, text.vocab(), 2.0);
        *row.last_mut().unwrap() = -1e9;
        distribution(&row, 3)
    };
    let mut limits = options(3, 4);
    limits.max_new_tokens = 2;
    let outcome = run(Search::new(Arc::clone(&text), "a".into(), limits), model).outcome();
    assert!(!outcome.proven && !outcome.suggestions.is_empty());
    for suggestion in &outcome.suggestions {
        assert!(!suggestion.complete && suggestion.text.starts_with('a') && suggestion.completion.trim() != "");
    }
}

#[test]
fn the_context_is_never_exceeded() {
    let text = Arc::new(tiny("ab ", &[]));
    let deepest = std::cell::Cell::new(0);
    let model = |path: &[u32]| {
        deepest.set(deepest.get().max(path.len()));
        distribution(&log_probs(2, path, text.vocab(), 1.0), 4)
    };
    let mut limits = options(3, 4);
    limits.context = 6;
    run(Search::new(Arc::clone(&text), "aba".into(), limits), model);
    assert_eq!(deepest.get(), 6);
}
