use super::*;
use crate::suggestion::Readings;
use crate::typing::alignment::Alignment;
use crate::typing::channel::{Channel, Costs};
use crate::typing::{Tolerance, Typed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

fn queries<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> PopularQueries {
    let sorted: BTreeMap<&str, u64> = counts.into_iter().collect();
    let map = fst::Map::from_iter(sorted.keys().zip(0..)).unwrap().into_fst().into_inner();
    let bytes: Vec<u8> = sorted.values().flat_map(|count| count.to_le_bytes()).collect();
    PopularQueries::new(map, &bytes).unwrap()
}

fn costs() -> Arc<Costs> {
    Arc::new(Channel::default().costs())
}

fn find(queries: &PopularQueries, typed: &str, tolerance: Tolerance, count: usize) -> Found {
    let typing = Typed::tolerant(typed, tolerance, &costs());
    queries.find(Lookup::new(typed, typing.as_ref(), count))
}

fn texts(found: &Found) -> Vec<(&str, u8, usize)> {
    found.hits.iter().map(|hit| (hit.text.as_str(), hit.meaning.edits, hit.meaning.meant)).collect()
}

#[test]
fn without_a_tolerance_the_most_frequent_come_first_with_their_share() {
    let popular =
        queries([("heat", 5), ("heat pump", 4), ("heat sink", 6), ("heat exchanger", 1), ("lens", 9), ("Heat", 7)]);
    let found = find(&popular, "heat", Tolerance::Off, 2);
    assert_eq!(texts(&found), [("heat sink", 0, 4), ("heat pump", 0, 4)]);
    assert_eq!((found.as_typed * 32.0, found.corrected), (16.0, 0.0));
    assert_eq!(found.hits[0].joint * 32.0, 6.0);
    assert_eq!(find(&popular, "x", Tolerance::Off, 2), Found::default());
    let huge = queries([("a b", u64::MAX), ("a c", u64::MAX)]);
    assert_eq!(find(&huge, "a", Tolerance::Off, 1).hits[0].joint, 0.5);
    assert_eq!(find(&queries([]), "a", Tolerance::Auto, 1), Found::default());
}

#[test]
fn a_text_is_forgiven_its_style_and_its_errors() {
    let popular = queries([("wireless charger", 3), ("naïve bayes", 2), ("Straße", 1), ("IPC:H04L", 1), ("日本語", 2)]);
    for (typed, tolerance, expected) in [
        ("WIRELESS CH", Tolerance::Case, Some(("wireless charger", 1, 11))),
        ("ｗｉｒｅｌ", Tolerance::Case, Some(("wireless charger", 1, 5))),
        ("naive", Tolerance::Case, Some(("naïve bayes", 1, 6))),
        ("strasse", Tolerance::Case, Some(("Straße", 1, 7))),
        ("ipc:h0", Tolerance::Case, Some(("IPC:H04L", 1, 6))),
        ("日本", Tolerance::Auto, Some(("日本語", 0, 6))),
        ("wirless ch", Tolerance::Auto, Some(("wireless charger", 1, 11))),
        ("wirelses chagr", Tolerance::Auto, Some(("wireless charger", 2, 14))),
        ("WIRLESS CH", Tolerance::Auto, Some(("wireless charger", 2, 11))),
        ("wirless ch", Tolerance::Case, None),
        ("WIRELESS CH", Tolerance::Off, None),
        // One edit below five characters, none below three.
        ("wrie", Tolerance::Auto, Some(("wireless charger", 1, 4))),
        ("rwie", Tolerance::Auto, None),
        ("wr", Tolerance::Auto, None),
        // A code is typed as it is meant.
        ("ipc:h05", Tolerance::Auto, None),
    ] {
        let found = find(&popular, typed, tolerance, 3);
        assert_eq!(texts(&found).first().copied(), expected, "{typed}");
    }
}

#[test]
fn corrections_rank_below_what_was_typed() {
    let popular = queries([("heat pump", 5), ("hear pump", 5), ("HEAT PUMP", 5), ("lens", 1)]);
    let typing = Typed::tolerant("heat pu", Tolerance::Auto, &costs());
    let found = popular.find(Lookup { range_nats: 20.0, ..Lookup::new("heat pu", typing.as_ref(), 4) });
    assert_eq!(texts(&found), [("heat pump", 0, 7), ("HEAT PUMP", 1, 7), ("hear pump", 1, 7)]);
    let all = merge_popular(nothing(), found.clone(), 0.3, 4, false);
    let sum: f64 = all.suggestions.iter().map(|suggestion| suggestion.probability).sum();
    assert!((sum - 1.0).abs() < 1e-9 && all.suggestions[0].probability > 0.9, "{all:?}");
    let one_case = merge_popular(nothing(), found, 0.3, 4, true);
    let list: Vec<&str> = one_case.suggestions.iter().map(|s| s.text.as_str()).collect();
    assert_eq!(list, ["heat pump", "hear pump"]);
}

fn nothing() -> Completions {
    Completions { suggestions: Vec::new(), proven: true, typed_log_prob: None, readings: None }
}

/// A model that knows `typed` and the suggestions of the list, with edits.
fn model(list: &[(&str, u8, f64)], as_typed: f64, all: f64) -> Completions {
    let suggestion = |&(text, edits, probability): &(&str, u8, f64)| Suggestion {
        text: text.into(),
        meaning: Meaning { edits, meant: 4 },
        logprob: probability.ln(),
        probability,
        complete: true,
    };
    let readings = Some(Readings { as_typed: as_typed.ln(), all: all.ln() });
    let suggestions = list.iter().map(suggestion).collect();
    Completions { suggestions, proven: true, typed_log_prob: Some(as_typed.ln()), readings }
}

#[test]
fn texts_of_both_add_up_and_popular_ones_stand_in() {
    let popular = queries([("heat pump", 2), ("heat sink", 4), ("heat", 2), ("lens", 8)]);
    let found = || find(&popular, "heat", Tolerance::Off, 5);
    let both = model(&[("heat pump", 0, 0.5), ("heat lamp", 0, 0.125)], 0.01, 0.01);
    let mixed = merge_popular(both.clone(), found(), 0.5, 2, false);
    let list: Vec<(&str, f64)> = mixed.suggestions.iter().map(|s| (s.text.as_str(), s.probability)).collect();
    assert_eq!((list[0].0, list[1].0), ("heat pump", "heat sink"));
    assert!((list[0].1 - 0.375).abs() < 1e-12 && (list[1].1 - 0.25).abs() < 1e-12, "{list:?}");
    assert_eq!(mixed.suggestions[1].completion(), Some(" sink"));
    assert!(!mixed.proven && (mixed.suggestions[0].logprob - 0.375f64.ln()).abs() < 1e-12);
    assert_eq!(merge_popular(nothing(), found(), 0.1, 5, false).suggestions[0].probability, 0.5);
    assert_eq!(merge_popular(both.clone(), found(), 0.0, 5, false), both);
}

#[test]
fn a_word_that_the_model_knows_is_not_corrected_to_a_popular_one() {
    let popular = queries([("heat pump", 900), ("lens", 100)]);
    let corrected = |as_typed: f64| {
        let typing = Typed::tolerant("hezt pump", Tolerance::Auto, &costs());
        let completions = model(&[("hezt pump", 0, 1.0)], as_typed, as_typed);
        let lookup = Lookup::new("hezt pump", typing.as_ref(), 5).beside(&completions, 5.0);
        let merged = merge_popular(completions, popular.find(lookup), 0.3, 5, false);
        merged.suggestions.iter().find(|s| s.text == "heat pump").map_or(0.0, |s| s.probability)
    };
    assert!(corrected(1e-9) > 0.95 && corrected(0.1) < 1e-3, "{} {}", corrected(1e-9), corrected(0.1));
}

#[test]
fn in_another_style_the_merged_list_is_the_same() {
    let popular = queries([("heat pump", 900), ("heat sink", 100), ("lens", 1000)]);
    let list = |typed: &str, edits: u8, as_typed: f64, all: f64| -> Vec<(String, f64)> {
        let typing = Typed::tolerant(typed, Tolerance::Auto, &costs());
        let completions = model(&[("heat lamp", edits, 0.6), ("heat sink", edits, 0.4)], as_typed, all);
        let found = popular.find(Lookup::new(typed, typing.as_ref(), 5).beside(&completions, 5.0));
        let merged = merge_popular(completions, found, 0.3, 5, false);
        merged.suggestions.into_iter().map(|s| (s.text, s.probability)).collect()
    };
    let style = 1.0 / Channel::default().style;
    let (plain, capitals) = (list("heat", 0, 0.1, 0.1), list("HEAT", 1, 1e-9, 0.1 / style));
    assert_eq!(plain.len(), 3);
    for (a, b) in plain.iter().zip(&capitals) {
        assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-4, "{plain:?} {capitals:?}");
    }
}

/// Every query, aligned by itself.
fn brute_force(counts: &BTreeMap<String, u64>, typed: &str, typing: &Typed) -> Vec<(String, f64)> {
    let total: u64 = counts.values().sum();
    let joint = |text: &str, count: u64| {
        let finished = Alignment::of_text(typing, text)?;
        Some(count as f64 / total as f64 * f64::from(-finished.cost).exp())
    };
    let longer = counts.iter().filter(|(text, _)| text.as_str() != typed);
    let mut all: Vec<_> = longer.filter_map(|(text, &count)| Some((text.clone(), joint(text, count)?))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

#[test]
fn a_lookup_finds_what_brute_force_finds() {
    let mut rng = StdRng::seed_from_u64(8);
    for case in 0..300 {
        let letters: Vec<char> = "aabbcd eÉ日".chars().collect();
        let word = |rng: &mut StdRng, least: usize| -> String {
            let length = rng.random_range(least..9);
            let text: String = (0..length).map(|_| letters.choose(rng).copied().unwrap_or('a')).collect();
            text.trim().replace("  ", " ")
        };
        let counts: BTreeMap<String, u64> = (0..200)
            .map(|_| (word(&mut rng, 4), rng.random_range(1..500)))
            .filter(|(text, _)| !text.is_empty())
            .collect();
        let popular = queries(counts.iter().map(|(text, &count)| (text.as_str(), count)));
        let typed = word(&mut rng, 2);
        let Some(typing) = Typed::tolerant(&typed, Tolerance::Auto, &costs()) else { continue };
        let lookup = Lookup { range_nats: 1e3, ..Lookup::new(&typed, Some(&typing), 10) };
        let (found, expected) = (popular.find(lookup), brute_force(&counts, &typed, &typing));
        assert_eq!(found.hits.len(), expected.len().min(10), "{case}: {typed:?} {found:?} {expected:?}");
        for (hit, (text, joint)) in found.hits.iter().zip(&expected) {
            assert!((hit.joint / joint - 1.0).abs() < 1e-4, "{case}: {typed:?} {hit:?} {text:?} {joint}");
            let own = expected.iter().find(|(text, _)| *text == hit.text).map(|known| known.1);
            assert!(own.is_some_and(|own| (hit.joint / own - 1.0).abs() < 1e-4), "{case}: {hit:?}");
        }
        let every = popular.find(Lookup { count: usize::MAX, ..lookup });
        let sum = |as_typed: bool| -> f64 {
            let of = counts.iter().filter(|(text, _)| text.starts_with(&typed) == as_typed);
            let total = counts.values().sum::<u64>() as f64;
            let joint = |text: &str| Alignment::of_text(&typing, text).map_or(0.0, |way| f64::from(-way.cost).exp());
            of.map(|(text, &count)| count as f64 / total * joint(text)).sum()
        };
        assert!((every.as_typed - sum(true)).abs() < 1e-6, "{case}: {typed:?}");
        assert!((every.corrected - sum(false)).abs() < 1e-6, "{case}: {typed:?} {} {}", every.corrected, sum(false));
    }
}

#[test]
fn broken_files_are_refused() {
    let map = |pairs: &[(&str, u64)]| fst::Map::from_iter(pairs.iter().copied()).unwrap().into_fst().into_inner();
    let error = |map: Vec<u8>, counts: &[u8]| PopularQueries::new(map, counts).unwrap_err().to_string();
    assert!(error(b"nonsense".to_vec(), &[]).contains("can't be read"));
    assert!(error(map(&[("a", 0), ("b", 1)]), &[0; 15]).contains("found 15"));
    for wrong in [[("a", 7), ("b", 4)], [("a", 1), ("b", 2)], [("a", 0), ("b", 5)]] {
        assert!(error(map(&wrong), &[0; 16]).contains("its place in the alphabet"), "{wrong:?}");
    }
}
