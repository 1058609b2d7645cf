//! Corrections against brute force: every text that a tiny vocabulary can spell, weighted by how it may have been
//! typed.

use rustc_hash::FxHashMap;

use super::tests::{MERGES, distribution, enumerate, log_probs, run, run_speculating, typed_mass};
use super::*;
use crate::Completions;
use crate::text::testing::tiny;
use crate::typing::alignment::Alignment;
use crate::typing::channel::Channel;

const ALPHABET: &str = "ab ";
/// Characters of the longest text that is enumerated.
const LENGTH: usize = 9;

/// Follows everything, and knows no unknown words.
fn patient() -> Channel {
    let often = Channel { omitted: 0.05, extra: 0.03, doubled: 0.04, swapped: 0.06, ..Channel::default() };
    Channel {
        neighbour: 0.03,
        substituted: 0.02,
        unknown: 0.0,
        range_nats: 60.0,
        reading_nats: 60.0,
        beams: 64,
        ..often
    }
}

fn options(tolerance: Tolerance) -> SearchOptions {
    SearchOptions { suggestions: 10, beams: 80, max_new_tokens: 12, context: 32, tolerance, ..SearchOptions::default() }
}

/// The joint probability of each text and of its having been typed, by definition. For a text that begins with the
/// typed text it is the text's own. For others the probability of the cheapest edits to a prefix of the text comes in.
fn posterior(text: &Text, typed: &str, tolerance: Tolerance, all: &FxHashMap<String, f64>) -> Vec<(String, f64)> {
    let typing = Typed::new(typed, tolerance, text.costs());
    let mut weighted = Vec::new();
    for (whole, joint) in all {
        let cost = if whole.starts_with(typed) {
            0.0
        } else {
            let Some(finished) = Alignment::of_text(&typing, whole) else { continue };
            f64::from(finished.cost)
        };
        weighted.push((whole.clone(), joint - cost));
    }
    weighted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    weighted
}

fn is_shown(typed: &str, whole: &str) -> bool {
    let adds = whole.strip_prefix(typed).is_none_or(|rest| !rest.trim().is_empty());
    // Where the typed text ends in a space, one more makes two.
    let doubled = match whole.strip_prefix(typed) {
        Some(rest) => whole[typed.trim_end().len()..].contains("  ") || rest.contains("  "),
        None => whole.contains("  "),
    };
    let begins = !whole.starts_with(' ') || typed.starts_with(' ');
    begins && adds && !doubled && !whole.ends_with(' ') && !whole.is_empty()
}

#[test]
fn proven_corrections_are_the_true_ones() {
    let text = Arc::new(tiny(ALPHABET, &MERGES).with_channel(patient()));
    let (mut proven, mut cases, mut corrected) = (0, 0, 0);
    for seed in 0..12 {
        let model = |path: &[u32]| log_probs(seed, path, text.vocab(), 4.0);
        let all = enumerate(&text, ALPHABET, LENGTH, &model);
        for typed in ["a", "abb", "ab a", "A", "AB A", "baa", "ab ab", "b bab"] {
            for tolerance in [Tolerance::Case, Tolerance::Auto] {
                if !text.is_encodable(typed) {
                    continue;
                }
                let search = Search::new(Arc::clone(&text), typed.into(), options(tolerance));
                let search = run(search, |path| distribution(&model(path), 9));
                let found = search.completions();
                let truth = posterior(&text, typed, tolerance, &all);
                let joints: FxHashMap<&str, f64> = truth.iter().map(|(t, joint)| (t.as_str(), *joint)).collect();
                for suggestion in found.suggestions.iter().filter(|s| s.text.len() <= LENGTH) {
                    let joint = suggestion.logprob + search.readings_log_prob;
                    let expected = joints[suggestion.text.as_str()];
                    assert!((joint - expected).abs() < 1e-4, "{seed} {typed:?} {suggestion:?} {joint} {expected}");
                    corrected += usize::from(suggestion.meaning.edits > 0);
                }
                cases += 1;
                if found.proven {
                    proven += 1;
                    let shown = truth.iter().filter(|(whole, _)| is_shown(typed, whole));
                    let expected: Vec<&str> = shown.map(|(whole, _)| whole.as_str()).take(10).collect();
                    let found: Vec<&str> = found.suggestions.iter().map(|s| s.text.as_str()).collect();
                    assert_eq!(found, expected, "{seed} {typed:?} {tolerance:?}");
                }
            }
        }
    }
    assert!(proven * 3 > cases, "{proven} of {cases} were proven");
    assert!(corrected > cases, "{corrected} corrections");
}

/// The probabilities of all readings add up to that of having typed the text: of every text that may be meant.
#[test]
fn probabilities_are_relative_to_all_readings() {
    let text = Arc::new(tiny(ALPHABET, &MERGES).with_channel(patient()));
    let mut worst = 0.0f64;
    for seed in 0..12 {
        // Texts end soon, so that the enumeration holds nearly all of the probability.
        let model = |path: &[u32]| {
            let mut row = log_probs(seed, path, text.vocab(), 2.0);
            *row.last_mut().unwrap() += 2.0;
            let sum = row.iter().map(|x| x.exp()).sum::<f32>().ln();
            row.into_iter().map(|x| x - sum).collect::<Vec<f32>>()
        };
        let all = enumerate(&text, ALPHABET, LENGTH, &model);
        for typed in ["a", "abb", "ab a", "ab ab"] {
            let search = Search::new(Arc::clone(&text), typed.into(), options(Tolerance::Auto));
            let search = run(search, |path| distribution(&model(path), 9));
            // The covering set's probability has texts that are longer than those of the enumeration.
            let exact = typed_mass(&text, typed, &all, &model).ln();
            let others = posterior(&text, typed, Tolerance::Auto, &all);
            let others = others.iter().filter(|(whole, _)| !whole.starts_with(typed));
            let others =
                others.filter(|(whole, _)| !whole.starts_with(' ') && !whole.contains("  ")).map(|(_, joint)| *joint);
            let expected = crate::distribution::log_add(exact, log_sum(others.collect::<Vec<_>>().into_iter()));
            worst = worst.max((search.readings_log_prob - expected).abs());
        }
    }
    // The search counts beginnings of texts, also where the model goes on to tokens that no text has.
    assert!(worst < 6e-2, "{worst}");
}

#[test]
fn what_is_typed_right_keeps_its_completions_and_their_order() {
    let channel = Channel { beams: 4, ..Channel::default() };
    let text = Arc::new(tiny(ALPHABET, &MERGES).with_channel(channel));
    for seed in 0..200 {
        let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 4.0), 5);
        let typed = ["a", "ab ", "ab ab", "b bab"][seed as usize % 4];
        let found = |tolerance| {
            let limits = SearchOptions { suggestions: 6, beams: 8, ..options(tolerance) };
            run(Search::new(Arc::clone(&text), typed.into(), limits), model).completions()
        };
        let (off, auto) = (found(Tolerance::Off), found(Tolerance::Auto));
        assert_eq!(off.typed_log_prob, auto.typed_log_prob);
        let exact = |completions: &Completions| -> Vec<String> {
            let suggestions = completions.suggestions.iter().filter(|s| s.meaning.edits == 0 && s.complete);
            suggestions.map(|s| s.text.clone()).collect()
        };
        let (off, auto) = (exact(&off), exact(&auto));
        assert_eq!(off[..auto.len().min(off.len())], auto[..auto.len().min(off.len())], "{seed} {typed:?}");
    }
}

#[test]
fn the_order_in_which_distributions_arrive_changes_nothing() {
    let text = Arc::new(tiny(ALPHABET, &MERGES));
    for seed in 0..300u64 {
        let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 4.0), 5);
        let typed = ["abb", "ab a", "baaab", "b bab a"][seed as usize % 4];
        let search = || {
            let limits = SearchOptions { suggestions: 6, beams: 6, ..options(Tolerance::Auto) };
            Search::new(Arc::clone(&text), typed.into(), limits)
        };
        let expected = run(search(), model).completions();
        for speculation in [1, 4, 11] {
            let found = run_speculating(search(), speculation, model).completions();
            assert_eq!(found, expected, "{seed} {typed:?} {speculation}");
        }
    }
}

/// What a stream sends before the end is what the answer begins with.
#[test]
fn what_is_settled_stays() {
    let text = Arc::new(tiny(ALPHABET, &MERGES));
    let mut early = 0;
    for seed in 0..300u64 {
        let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 4.0), 5);
        let typed = ["abb", "ab a", "baaab", "b bab a"][seed as usize % 4];
        let limits = SearchOptions { suggestions: 6, beams: 6, ..options(Tolerance::Auto) };
        let mut search = Search::new(Arc::clone(&text), typed.into(), limits);
        let mut settled = Vec::new();
        while !search.is_done() {
            for wanted in search.paths().wanted().to_vec() {
                let path: Vec<u32> = search.paths().tokens(wanted.node).iter().map(|token| token.0).collect();
                search.paths_mut().supply(wanted.node, model(&path));
            }
            search.advance();
            if !search.is_done() {
                settled.push(search.settled());
                assert_eq!(search.has_settled(), !settled.last().unwrap().is_empty(), "{seed} {typed:?}");
            }
        }
        let found = search.completions().suggestions;
        for part in &settled {
            assert_eq!(part[..], found[..part.len()], "{seed} {typed:?}");
            early += part.len();
        }
    }
    assert!(early > 100, "{early}");
}
