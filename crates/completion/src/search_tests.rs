//! The search against brute force: every text that a tiny vocabulary can spell, up to a length, with its exact
//! probability.

use rustc_hash::FxHashMap;

use super::*;
use crate::distribution::{Distribution, Logits};
use crate::text::TokenId;
use crate::text::testing::tiny;
use crate::typing::channel::Channel;

/// Log-probabilities of the next token behind a path, by a hash; a model small enough to enumerate.
pub(super) fn log_probs(seed: u64, path: &[u32], vocab: usize, scale: f32) -> Vec<f32> {
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

pub(super) fn distribution(log_probs: &[f32], top_k: usize) -> Arc<Distribution> {
    let mut ids: Vec<u32> = (0..log_probs.len() as u32).collect();
    ids.sort_by(|&a, &b| log_probs[b as usize].total_cmp(&log_probs[a as usize]));
    ids.truncate(top_k);
    let best: Vec<f32> = ids.iter().map(|&id| log_probs[id as usize]).collect();
    let (row, vocab) = (Some(log_probs), log_probs.len());
    Arc::new(Distribution::from_logits(Logits { best_ids: &ids, best: &best, row, logsumexp: 0.0, vocab }))
}

/// Runs a search to its end.
pub(super) fn run(search: Search, model: impl Fn(&[u32]) -> Arc<Distribution>) -> Search {
    run_speculating(search, 0, model)
}

/// Runs a search to its end with up to `count` speculative requests in each round. Distributions come a few at a time,
/// and what is requested depends on what is known by then.
pub(super) fn run_speculating(mut search: Search, count: usize, model: impl Fn(&[u32]) -> Arc<Distribution>) -> Search {
    let at_once = if count == 0 { usize::MAX } else { 1 + count % 3 };
    loop {
        search.speculate(count);
        supply(&mut search, at_once, &model);
        if search.is_done() {
            return search;
        }
        if !search.paths().is_waiting() {
            search.advance();
        }
    }
}

/// Supplies up to `count` of the distributions that a search wants.
pub(super) fn supply(search: &mut Search, count: usize, model: impl Fn(&[u32]) -> Arc<Distribution>) {
    for wanted in search.paths().wanted().iter().take(count).copied().collect::<Vec<_>>() {
        let path: Vec<u32> = search.paths().tokens(wanted.node).iter().map(|token| token.0).collect();
        search.paths_mut().supply(wanted.node, model(&path));
    }
}

/// Every text up to `length` characters, with the joint log-probability of its own encoding and the end behind it.
pub(super) fn enumerate(
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
    SearchOptions { suggestions, beams, max_new_tokens: 12, context: 32, ..SearchOptions::default() }
}

/// Probability that the tokens of some text up to `length` characters begin by spelling all of `typed`: the sum over
/// the distinct shortest token prefixes that do so. It is what [`Search`] calls the typed text's probability.
pub(super) fn typed_mass(
    text: &Text,
    typed: &str,
    all: &FxHashMap<String, f64>,
    model: &impl Fn(&[u32]) -> Vec<f32>,
) -> f64 {
    let mut prefixes = rustc_hash::FxHashSet::default();
    for whole in all.keys().filter(|whole| whole.starts_with(typed)) {
        let (mut path, mut spelled) = (Vec::new(), 0);
        for token in text.encode(whole) {
            if spelled >= typed.len() {
                break;
            }
            spelled += text.bytes(token).unwrap().len();
            path.push(token.0);
        }
        prefixes.insert(path);
    }
    let probability = |tokens: &Vec<u32>| {
        let mut path: Vec<u32> = text.prompt().iter().map(|token| token.0).collect();
        let step = |path: &mut Vec<u32>, token: u32| {
            let log_prob = f64::from(model(path)[token as usize]);
            path.push(token);
            log_prob
        };
        tokens.iter().map(|&token| step(&mut path, token)).sum::<f64>().exp()
    };
    prefixes.iter().map(probability).sum()
}

pub(super) const MERGES: [(&str, &str); 5] = [("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")];

#[test]
fn proven_answers_are_the_true_ones() {
    let alphabet = "ab ";
    let text = Arc::new(tiny(alphabet, &MERGES));
    let (length, mut proven, mut cases) = (9, 0, 0);
    for seed in 0..30 {
        let model = |path: &[u32]| log_probs(seed, path, text.vocab(), 4.0);
        let all = enumerate(&text, alphabet, length, &model);
        for typed in ["a", "b", "ab", "a ", "ab a", "b b"] {
            let search = run(Search::new(Arc::clone(&text), typed.into(), options(10, 60)), |path| {
                distribution(&model(path), 9)
            });
            let outcome = search.completions();
            let mass = typed_mass(&text, typed, &all, &model);
            assert!((search.typed_log_prob().unwrap().exp() / mass - 1.0).abs() < 1e-5, "{typed:?}");
            let mut truth: Vec<(&str, f64)> = all
                .iter()
                .filter(|(t, _)| t.starts_with(typed) && !t[typed.len()..].trim().is_empty())
                .filter(|(t, _)| !t.ends_with(' ') && !t[typed.trim_end().len()..].contains("  "))
                .map(|(t, joint)| (t.as_str(), joint.exp() / mass))
                .collect();
            truth.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
            cases += 1;
            for suggestion in outcome.suggestions.iter().filter(|s| s.text.len() <= length) {
                assert!(suggestion.text.starts_with(typed) && suggestion.complete);
                let exact = all[&suggestion.text].exp() / mass;
                assert!((suggestion.probability - exact).abs() < 1e-4, "{typed:?} {suggestion:?} {exact}");
            }
            if outcome.proven {
                proven += 1;
                let expected: Vec<&str> = truth.iter().take(10).map(|(t, _)| *t).collect();
                let found: Vec<&str> = outcome.suggestions.iter().map(|s| s.text.as_str()).collect();
                assert_eq!(found, expected, "seed {seed}, {typed:?}");
            }
        }
    }
    println!("search: {proven} of {cases} answers were proven");
    assert!(proven * 3 > cases, "only {proven} of {cases} were proven");
}

/// The next byte's distribution, from the probabilities of the typed text and of its continuations by a byte.
#[test]
fn the_next_byte_has_its_true_distribution() {
    let alphabet = "ab ";
    let text = Arc::new(tiny(alphabet, &MERGES));
    for seed in 100..110 {
        let model = |path: &[u32]| log_probs(seed, path, text.vocab(), 4.0);
        let all = enumerate(&text, alphabet, 8, &model);
        let typed_probability = |typed: &str| {
            let search = Search::new(Arc::clone(&text), typed.into(), options(1, 1));
            run(search, |path| distribution(&model(path), 9)).typed_log_prob().unwrap().exp()
        };
        for typed in ["a", "ab", "ab ", "b a", "aab"] {
            for next in alphabet.chars() {
                let longer = format!("{typed}{next}");
                let found = typed_probability(&longer) / typed_probability(typed);
                let exact = typed_mass(&text, &longer, &all, &model) / typed_mass(&text, typed, &all, &model);
                assert!((found - exact).abs() < 1e-5, "{typed:?} then {next:?}: {found} {exact}");
            }
        }
    }
}

/// A million random models, vocabularies and typed texts: suggestions start with what was typed or with what it may
/// mean, and nothing panics.
#[test]
fn suggestions_always_start_with_what_was_typed_or_meant() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand::rngs::StdRng::seed_from_u64(23);
    let pieces = ["a", "b", " ", "'", "s", "7", "é", "日", "\t", "(", "ab", " a", "'s", "  ", "lithium ", "😀"];
    let styled = ["A", "AB", " B", "Ab", "ａ", "Ａ", "É", "İ", "A:("];
    let pieces = [&pieces[..], &styled[..]].concat();
    let mut texts = vec![golden()];
    texts.push(Arc::new(tiny("ab '", &[("a", "b"), (" ", "a"), ("'", "a"), (" ", " ")])));
    texts.push(Arc::new(tiny("ab ", &MERGES)));
    texts.push(Arc::new(tiny("a ", &[("a", "a"), ("aa", "aa"), (" ", " "), ("  ", "  ")])));
    // GPT-2's own, where it is to be had: slow, because of its rows.
    let gpt2 = crate::text::testing::gpt2().map(Arc::new);
    if gpt2.is_none() {
        require::skip(
            "searches with GPT-2's vocabulary",
            "FORETYPE_GPT2_VOCAB isn't set: run tools/gpt2_vocabulary.sh",
        );
    }
    for case in 0..require::cases(1_000_000) {
        // The golden tokenizer spells everything, and costs more.
        let text = match &gpt2 {
            Some(gpt2) if case % 500 == 7 => gpt2,
            _ => &texts[if case % 20 == 0 { 0 } else { 1 + case % 3 }],
        };
        let typed: String = (0..rng.random_range(1..5)).map(|_| pieces[rng.random_range(0..pieces.len())]).collect();
        let (seed, vocab) = (rng.random::<u64>(), text.vocab());
        let limits = SearchOptions {
            suggestions: rng.random_range(1..4),
            beams: rng.random_range(1..4),
            max_new_tokens: rng.random_range(1..4),
            context: 24,
            method: [Method::Exact, Method::Healed, Method::Naive][rng.random_range(0..3)],
            tolerance: [Tolerance::Off, Tolerance::Case, Tolerance::Auto][rng.random_range(0..3)],
            min_probability: [0.0, 0.0, 0.1][rng.random_range(0..3)],
        };
        let search = Search::new(Arc::clone(text), typed.clone(), limits.clone());
        if search.typed_tokens() > 20 {
            continue;
        }
        let top_k = rng.random_range(1..=vocab.min(6));
        let model = |path: &[u32]| distribution(&cheap_log_probs(seed, path, vocab), top_k);
        let outcome = run(search, model).completions();
        if case % 50 == 0 {
            let again = Search::new(Arc::clone(text), typed.clone(), limits.clone());
            assert_eq!(
                run_speculating(again, 1 + case % 7, model).completions(),
                outcome,
                "speculation changed {typed:?}"
            );
        }
        let least = typed.chars().count() as f64 * limits.min_probability.ln();
        let is_unknown = outcome.typed_log_prob.is_some_and(|log_prob| log_prob < least);
        for suggestion in outcome.suggestions {
            assert!(!is_unknown || suggestion.meaning.edits > 0, "{typed:?} {suggestion:?}");
            assert_eq!(suggestion.text.starts_with(&typed), suggestion.meaning.edits == 0, "{typed:?} {suggestion:?}");
            if let Some(completion) = suggestion.completion() {
                assert_eq!(suggestion.text, format!("{typed}{completion}"));
            } else {
                let most = if limits.tolerance == Tolerance::Auto { 3 } else { 1 };
                assert!(limits.method == Method::Exact && limits.tolerance != Tolerance::Off, "{typed:?} {limits:?}");
                assert!(suggestion.meaning.edits <= most && !suggestion.meant().is_empty(), "{typed:?} {suggestion:?}");
            }
            assert!((0.0..=1.0).contains(&suggestion.probability), "{typed:?} {suggestion:?}");
        }
    }
}

/// A correction that ends with the typed space and that a limit cuts there is shown without the space.
#[test]
fn what_was_meant_ends_with_the_text_that_is_shown() {
    let typed = " Bb ";
    let options = SearchOptions {
        suggestions: 2,
        beams: 2,
        max_new_tokens: 1,
        context: 24,
        tolerance: Tolerance::Case,
        min_probability: 0.1,
        ..SearchOptions::default()
    };
    // Found by the test above, with the range that the default channel had.
    let channel = Channel { range_nats: 7.0, ..Channel::default() };
    let (text, seed) = (Arc::into_inner(golden()).unwrap(), 5_290_021_313_759_989_948);
    let vocab = text.vocab();
    let text = Arc::new(text.with_channel(channel));
    let search = Search::new(text, typed.to_owned(), options);
    let outcome = run(search, |path| distribution(&cheap_log_probs(seed, path, vocab), 6)).completions();
    let shown: Vec<_> =
        outcome.suggestions.iter().map(|found| (&*found.text, found.meant(), found.completion())).collect();
    assert!(shown.contains(&(" bB", " bB", None)), "{shown:?}");
}

/// A tokenizer that spells every text.
fn golden() -> Arc<Text> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/plain/tokenizer.json");
    let json = std::fs::read_to_string(path).unwrap();
    Arc::new(Text::from_json(&json, TokenId(280), &[TokenId(280)], "").unwrap())
}

/// Peaked on a few tokens, normalised well enough: quick to make.
pub(super) fn cheap_log_probs(seed: u64, path: &[u32], vocab: usize) -> Vec<f32> {
    let mut h = path.iter().fold(seed, |h, &x| (h ^ u64::from(x)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
    let mut row = vec![-(vocab as f32).ln() - 4.0; vocab];
    for log_prob in [-0.7f32, -1.6, -2.3, -3.0] {
        h = h.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(23);
        row[(h % vocab as u64) as usize] = log_prob;
    }
    row
}

#[test]
fn a_truncated_search_says_so_and_shows_truncated_texts() {
    let text = Arc::new(tiny("ab ", &[("a", "b")]));
    // Nothing ever ends.
    let model = |path: &[u32]| {
        let mut row = log_probs(1, path, text.vocab(), 2.0);
        *row.last_mut().unwrap() = -1e9;
        distribution(&row, 3)
    };
    let mut limits = options(3, 4);
    limits.max_new_tokens = 2;
    let search = run(Search::new(Arc::clone(&text), "a".into(), limits), model);
    let outcome = search.completions();
    assert!(!outcome.proven && !outcome.suggestions.is_empty());
    let next = search.lookahead(search.next_characters()[0]).unwrap();
    assert_eq!(next.typed().len(), 2);
    assert!(outcome.suggestions[0].text.starts_with(next.typed()));
    for suggestion in &outcome.suggestions {
        assert!(
            !suggestion.complete && suggestion.text.starts_with('a') && suggestion.completion().unwrap().trim() != ""
        );
    }
}

#[test]
fn a_token_that_finishes_a_half_typed_word_is_a_new_one() {
    let text = Arc::new(tiny("ab ", &[("a", "b")]));
    let mut found = 0;
    for (seed, max_new_tokens) in (0..20).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        // Nothing ever ends.
        let model = |path: &[u32]| {
            let mut row = log_probs(seed, path, text.vocab(), 2.0);
            *row.last_mut().unwrap() = -1e9;
            distribution(&row, 4)
        };
        let mut limits = options(6, 6);
        limits.max_new_tokens = max_new_tokens;
        for suggestion in run(Search::new(Arc::clone(&text), "a".into(), limits), model).completions().suggestions {
            // "ab" takes the place of the typed "a"; everything else goes on behind it.
            let kept = usize::from(!suggestion.completion().unwrap().starts_with('b'));
            let added = text.encode(&suggestion.text).len() - kept;
            assert!(added <= max_new_tokens, "{suggestion:?} has {added} new tokens of {max_new_tokens}");
            found += usize::from(kept == 0 && added == max_new_tokens);
        }
    }
    assert!(found > 20, "{found}");
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

/// The plain golden's tokenizer with another setting in place of one that it has.
fn altered(setting: &str, other: &str) -> Arc<Text> {
    let golden =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/plain/tokenizer.json"))
            .unwrap();
    let altered = golden.replace(setting, other);
    assert_ne!(golden, altered);
    Arc::new(Text::from_json(&altered, TokenId(280), &[TokenId(280)], "").unwrap())
}

/// Completes texts by random models. Every suggestion begins with what was typed.
fn suggestions_of(text: &Arc<Text>, typed: &[&str]) -> usize {
    let mut found = 0;
    for (seed, typed) in typed.iter().cycle().take(300).enumerate() {
        let model = |path: &[u32]| distribution(&cheap_log_probs(seed as u64, path, text.vocab()), 6);
        let search = Search::new(Arc::clone(text), (*typed).to_owned(), options(3, 4));
        for suggestion in run(search, model).completions().suggestions {
            assert!(suggestion.text.starts_with(&*text.normalized(typed)), "{typed:?} {suggestion:?}");
            found += 1;
        }
    }
    found
}

/// A tokenizer that can't be exact, because its normalizer isn't followed, is healed, and says so.
#[test]
fn inexact_tokenizers_still_suggest_what_starts_with_the_typed_text() {
    let text = altered("\"normalizer\": null", r#""normalizer": { "type": "NFKC" }"#);
    assert!(text.inexact_because().unwrap().contains("NFKC"), "{:?}", text.inexact_because());
    assert_eq!(text.method(Method::Exact), Method::Healed);
    let found = suggestions_of(&text, &["t", "the", "heat ex", "a b", "in the the", "é", " the"]);
    assert!(found > 100, "{found}");
}

#[test]
fn a_space_before_the_text_is_shown_only_if_it_was_typed() {
    let text = altered("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    assert_eq!((text.inexact_because(), text.method(Method::Exact)), (None, Method::Exact));
    let found = suggestions_of(&text, &["t", " t", " the", "heat ex", " heat ex", "  a", "é"]);
    assert!(found > 100, "{found}");
    assert!(suggestions_of(&text, &[" s"]) > 100);
}

#[test]
fn what_is_typed_decomposed_is_completed_composed() {
    let text = altered("\"normalizer\": null", r#""normalizer": { "type": "NFC" }"#);
    assert_eq!(text.inexact_because(), None);
    assert!(text.is_encodable("cafe\u{301}"));
    assert_eq!(text.normalized("cafe\u{301}"), "café");
    assert!(suggestions_of(&text, &["cafe\u{301}", "e\u{301}", "café"]) > 100);
}

#[test]
fn both_orders_and_any_change_between_them_give_the_same_answer() {
    let text = Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("b", "a"), ("ab", "a")]));
    let (mut differing, mut by_level) = (0, 0);
    for seed in 0..600u64 {
        // From models that end soon to models that never do.
        let ending = [-12.0, -4.0, 0.0, 2.0][seed as usize % 4];
        let model = |path: &[u32]| {
            let mut logits = log_probs(seed, path, text.vocab(), 3.0);
            let last = logits.len() - 1;
            logits[last] += ending - path.len() as f32;
            let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
            distribution(&logits.iter().map(|x| x - lse).collect::<Vec<_>>(), 5)
        };
        let typed = ["a", "ab", "b a", "aab"][seed as usize / 4 % 4];
        let mut limits = options(4, [6, 3, 2][seed as usize / 16 % 3]);
        limits.max_new_tokens = 5;
        let answer = |order: Option<Order>, speculation: usize| {
            let mut search = Search::new(Arc::clone(&text), typed.into(), limits.clone());
            search.fixed_order = order;
            let search = run_speculating(search, speculation, model);
            (search.completions(), search.paths().len(), search.order())
        };
        let (reference, nodes, _) = answer(Some(Order::BestFirst), 0);
        let (whole_levels, more_nodes, _) = answer(Some(Order::LevelByLevel), 0);
        assert_eq!(reference.suggestions, whole_levels.suggestions, "seed {seed}, {typed:?}");
        for speculation in [0, 3, 16] {
            let (adaptive, _, order) = answer(None, speculation);
            assert_eq!(reference.suggestions, adaptive.suggestions, "seed {seed}, {typed:?}");
            by_level += usize::from(order == Order::LevelByLevel);
        }
        let mut expecting = Search::new(Arc::clone(&text), typed.into(), limits.clone());
        expecting.expect_no_ends();
        let expecting = run_speculating(expecting, 3, model).completions();
        assert_eq!(reference.suggestions, expecting.suggestions, "seed {seed}, {typed:?}");
        differing += usize::from(more_nodes != nodes);
    }
    assert!(differing > 50 && by_level > 50, "{differing} {by_level}");
}

/// A model that ends no query, and whose tokens differ in probability.
fn endless(path: &[u32], vocab: usize) -> Arc<Distribution> {
    let mut row = log_probs(7, path, vocab, 3.0);
    row[vocab - 1] = -60.0;
    distribution(&row, vocab - 1)
}

#[test]
fn fewer_beams_than_suggestions_still_fill_the_list_with_truncated_ones() {
    let text = Arc::new(tiny("ab ", &MERGES));
    let limits = SearchOptions { max_new_tokens: 3, ..options(6, 2) };
    let search = run(Search::new(Arc::clone(&text), "a".into(), limits), |path| endless(path, text.vocab()));
    let suggestions = search.completions().suggestions;
    assert_eq!(suggestions.len(), 6, "{suggestions:?}");
    assert!(suggestions.iter().all(|suggestion| !suggestion.complete));
    assert!(suggestions.is_sorted_by(|a, b| a.logprob >= b.logprob));
}

#[test]
fn likely_ends_of_a_half_typed_word_are_requested_while_it_is_read() {
    let text = Arc::new(tiny("ab ", &MERGES));
    let mut search = Search::new(Arc::clone(&text), "a".into(), options(3, 4));
    search.speculate(3);
    assert!(search.paths().wanted().iter().all(|wanted| !wanted.speculative), "nothing is known yet");
    let before = text.prompt().iter().map(|token| token.0).collect::<Vec<_>>();
    search.paths_mut().supply(Paths::ROOT, endless(&before, text.vocab()));
    search.speculate(3);
    let wanted = search.paths().wanted().iter().filter(|wanted| wanted.speculative);
    let requested: Vec<_> = wanted.map(|wanted| wanted.node).collect();
    assert!(!requested.is_empty() && requested.len() <= 3, "{requested:?}");
    for &node in &requested {
        let (parent, token) = search.paths().step_to(node).unwrap();
        assert_eq!(parent, Paths::ROOT);
        let bytes = text.first_bytes(token, false).unwrap();
        assert!(bytes.starts_with(b"a") && bytes.len() > 1, "{bytes:?} finishes nothing");
    }
    let done = run(search, |path| endless(path, text.vocab()));
    let is_wanted = |node| done.beams.iter().any(|beam| beam.node == node);
    assert!(requested.into_iter().all(is_wanted), "what was requested was wanted");
}
