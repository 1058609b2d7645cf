//! Corrections against brute force: every text that a tiny vocabulary can spell, weighted by how it may have been
//! typed.

use rustc_hash::FxHashMap;

use super::tests::{MERGES, distribution, enumerate, log_probs, run, run_speculating, supply, typed_mass};
use super::*;
use crate::Completions;
use crate::distribution::log_sum;
use crate::text::TokenId;
use crate::text::testing::tiny;
use crate::typing::alignment::Alignment;
use crate::typing::channel::Channel;
use crate::typing::exact_reading::{ExactReading, UnknownWord, WordStart};
use crate::typing::fold::keep_first_of_each;

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

/// A vocabulary of all texts over few characters.
struct World {
    text: Arc<Text>,
    characters: &'static str,
    length: usize,
}

impl World {
    fn new(characters: &'static str, length: usize, channel: Channel) -> Self {
        // GPT-2 spells the two bytes of é with these two characters.
        let has_accent = characters.contains('é');
        let letters = characters.replace('é', "Ã©");
        let mut merges: Vec<(&str, &str)> =
            MERGES.into_iter().filter(|(a, b)| (a.to_string() + b).chars().all(|c| characters.contains(c))).collect();
        merges.extend(has_accent.then_some(("Ã", "©")));
        let text = tiny(&letters, &merges).with_channel(channel);
        Self { text: Arc::new(text), characters, length }
    }

    fn all(&self, model: &impl Fn(&[u32]) -> Vec<f32>) -> FxHashMap<String, f64> {
        enumerate(&self.text, self.characters, self.length, model)
    }

    /// The joint probability of each text and of its having been typed, by definition. For a text that begins with the
    /// typed text or its plain form it is the text's own, less the style. For others the probability of the cheapest
    /// edits to a prefix of the text comes in. Unknown words are raised in the typed text and its plain form alike, and
    /// in the text as it stands only where the model knows it better than its plain form.
    fn posterior(
        &self,
        typed: &str,
        tolerance: Tolerance,
        all: &FxHashMap<String, f64>,
        model: &impl Fn(&[u32]) -> Vec<f32>,
    ) -> Vec<(String, f64)> {
        let Self { text, .. } = self;
        let mut typing = Typed::new(typed, tolerance, text.costs());
        let plain = typing.plain_text().filter(|plain| text.is_encodable(plain));
        let mass = |reading: &str| typed_mass(text, reading, all, model).ln();
        let cost = f64::from(text.costs().style());
        typing.raw_has_edits = plain.as_ref().is_none_or(|plain| mass(typed) >= mass(plain) - cost);
        let mut readings = vec![(typed, 0.0, if typing.raw_has_edits { text.channel().unknown } else { 0.0 })];
        readings.extend(plain.as_deref().map(|plain| (plain, cost, text.channel().unknown)));
        let joints = |reading: &str| -> Vec<(usize, f64)> {
            let mut path: Vec<u32> = text.prompt().iter().map(|token| token.0).collect();
            let (mut at, mut joint) = (0, 0.0);
            let step = |token: &TokenId| {
                joint += f64::from(model(&path)[token.0 as usize]);
                path.push(token.0);
                at += text.bytes(*token).unwrap().len();
                (at, joint)
            };
            text.encode(reading).iter().map(step).collect()
        };
        let exact: Vec<ExactReading> = readings
            .iter()
            .map(|&(reading, _, unknown)| {
                let joints = joints(reading);
                let joint = |at: usize| joints.iter().find(|known| known.0 == at).map(|known| known.1);
                ExactReading::new(reading, unknown, text.unknown_words(), joint)
            })
            .collect();
        let masses: Vec<f64> = readings.iter().map(|reading| mass(reading.0)).collect();
        // How much a text is raised. Up to the last token at which it is the beginning of a reading, it is raised as
        // that is. Behind an edit, words are raised that have none.
        let typed_words = {
            let read = readings[readings.len() - 1].0;
            let sums = text.unknown_words().log_probs(read);
            let places = read.char_indices().map(|(at, _)| at).chain([read.len()]);
            UnknownWord::new(places.map(|at| sums[at]).collect(), text.channel().unknown)
        };
        let lift = |whole: &str| {
            let begun = |at: usize| {
                let begins = |index: usize| readings[index].0.as_bytes().starts_with(&whole.as_bytes()[..at]);
                (0..readings.len()).find(|&index| begins(index) && (index > 0 || typing.raw_has_edits))
            };
            let mut alignment = Alignment::start(&typing);
            let (mut lift, mut before, mut joint_before) = (0.0, 0, 0.0);
            let mut word = (WordStart::default(), alignment.cheapest(&typing).0);
            for (at, joint) in joints(whole) {
                if before > 0 && whole[before..].starts_with(' ') {
                    let mut spaced = alignment;
                    spaced.push(&typing, ' ', f32::INFINITY);
                    let (cost, level) = spaced.cheapest(&typing);
                    word = (WordStart::new(level, joint_before, lift), cost);
                }
                whole[before..at].chars().for_each(|c| alignment.push(&typing, c, f32::INFINITY));
                let (cost, level) = alignment.cheapest(&typing);
                let is_behind = level == typing.len() && alignment.finished().is_some_and(|end| end.meant < at);
                match begun(at) {
                    Some(index) => lift = exact[index].lift(at, joint),
                    None if cost == word.1 && !is_behind => lift = typed_words.lift(&word.0, level, joint),
                    None => {}
                }
                (before, joint_before) = (at, joint);
            }
            lift
        };
        let weigh = |whole: &str, joint: f64| {
            if let Some(index) = readings.iter().position(|reading| whole.starts_with(reading.0)) {
                let (reading, cost, _) = readings[index];
                return Some(joint + exact[index].lift(reading.len(), masses[index]) - cost);
            }
            let finished = Alignment::of_text(&typing, whole)?;
            Some(joint + lift(whole) - f64::from(finished.cost))
        };
        let weigh = |(whole, &joint): (&String, &f64)| Some((whole.clone(), weigh(whole, joint)?));
        let mut weighted: Vec<(String, f64)> = all.iter().filter_map(weigh).collect();
        weighted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        weighted
    }
}

fn is_shown(readings: &[Reading], whole: &str) -> bool {
    let rest = readings.iter().find_map(|reading| whole.strip_prefix(&reading.text));
    let adds = rest.is_none_or(|rest| !rest.trim().is_empty());
    // Where a reading ends in a space, one more makes two.
    let doubled = match rest {
        Some(rest) => {
            let read = &whole[..whole.len() - rest.len()];
            whole[read.trim_end().len()..].contains("  ") || rest.contains("  ")
        }
        None => whole.contains("  "),
    };
    let begins = !whole.starts_with(' ') || readings[0].text.starts_with(' ');
    begins && adds && !doubled && !whole.ends_with(' ') && !whole.is_empty()
}

#[test]
fn proven_corrections_are_the_true_ones() {
    for (unknown, seeds) in [(0.0, 8), (0.02, 4)] {
        let channel = Channel { unknown, ..patient() };
        let check = |characters: &'static str, length: usize, words: &[&str]| {
            let world = World::new(characters, length, channel.clone());
            let Checked { cases, proven, corrected } = check_corrections(&world, words, seeds, 10);
            assert!(proven * 3 > cases, "{proven} of {cases} were proven");
            assert!(corrected > cases, "{corrected} corrections");
        };
        let words = ["a", "abb", "ab a", "A", "AB A", "Abb", "baa", "ab ab", "b bab", "BBAB", "ｂa"];
        check("ab ", 9, &words);
        check("abA ", 7, &["A", "AB", "Ab a", "aAb", "AA ", "Aba"]);
        // Accents that were left out, too.
        check("ebé ", 7, &["ebe", "é b", "e be", "EBE", "Éb"]);
    }
}

/// What the range leaves out is never as probable as the last suggestion of a proven list.
#[test]
fn a_narrow_range_proves_nothing_that_is_not_so() {
    let (mut all, mut proven) = (0, 0);
    for (range_nats, seeds) in [(0.5, 3), (1.0, 3), (2.0, 3), (3.0, 3)] {
        for (suggestions, beams) in [(1, 64), (2, 64), (4, 3)] {
            let channel = Channel { range_nats, reading_nats: range_nats, beams, ..patient() };
            let words = ["abb", "ab a", "baa", "ab ab", "b bab", "bbaab", "aabba"];
            let found = check_corrections(&World::new("ab ", 9, channel), &words, seeds, suggestions);
            (all, proven) = (all + found.cases, proven + found.proven);
        }
    }
    assert!(proven * 20 > all, "{proven} of {all} were proven");
}

/// A character that was left out before a text that the model finds all but certain: the range leaves that text out
/// before its probability shows. So the list of the typed text, which is far less probable, isn't proven.
#[test]
fn a_list_is_not_proven_where_the_range_left_out_something_better() {
    let found = |range_nats: f64| {
        let channel = Channel { unknown: 0.0, range_nats, ..Channel::default() };
        let text = Arc::new(tiny("abc", &[]).with_channel(channel));
        let end = text.vocab() as u32 - 1;
        let model = |path: &[u32]| {
            let spelled: String = path
                .iter()
                .filter(|&&token| token != end)
                .map(|&token| "abc".as_bytes()[token as usize] as char)
                .collect();
            let (next, probability, or) = match spelled.as_str() {
                "" => ('a', 0.9, 'c'),
                "a" => ('b', 0.99, '.'),
                "ab" => ('a', 5e-5, '.'),
                "aba" => ('b', 0.99, '.'),
                "abab" | "cabab" => ('b', 0.99, '.'),
                "c" | "cab" => ('a', 0.99, '.'),
                "ca" | "caba" => ('b', 0.99, '.'),
                _ => ('.', 0.99, '.'),
            };
            let probability = |token: u32| match "abc.".as_bytes()[token as usize] as char {
                letter if letter == next => probability,
                letter if letter == or => 1.0 - probability,
                _ => 1e-9f32,
            };
            let row: Vec<f32> = (0..=end).map(|token| probability(token).ln()).collect();
            distribution(&row, text.vocab())
        };
        let options = SearchOptions { suggestions: 1, ..options(Tolerance::Auto) };
        run(Search::new(Arc::clone(&text), "abab".into(), options), model).completions()
    };
    let (narrow, wide) = (found(4.0), found(60.0));
    assert_eq!((wide.suggestions[0].text.as_str(), wide.proven), ("cababb", true));
    assert_eq!((narrow.suggestions[0].text.as_str(), narrow.proven), ("ababb", false));
}

/// What was compared with brute force.
struct Checked {
    cases: usize,
    proven: usize,
    /// Suggestions with an edit.
    corrected: usize,
}

fn check_corrections(world: &World, words: &[&str], seeds: u64, suggestions: usize) -> Checked {
    let (mut proven, mut cases, mut corrected) = (0, 0, 0);
    let World { text, length, .. } = world;
    for seed in 0..seeds {
        let model = |path: &[u32]| log_probs(seed, path, text.vocab(), 4.0);
        let all = world.all(&model);
        for &typed in words {
            for tolerance in [Tolerance::Case, Tolerance::Auto] {
                let options = SearchOptions { suggestions, ..options(tolerance) };
                let search = Search::new(Arc::clone(text), typed.into(), options);
                if !search.is_spelled() {
                    continue;
                }
                let search = run(search, |path| distribution(&model(path), text.vocab()));
                let found = search.completions();
                let truth = world.posterior(typed, tolerance, &all, &model);
                let joints: FxHashMap<&str, f64> = truth.iter().map(|(t, joint)| (t.as_str(), *joint)).collect();
                for suggestion in found.suggestions.iter().filter(|s| s.text.chars().count() <= *length) {
                    let joint = suggestion.logprob + search.readings_log_prob;
                    let expected = joints[suggestion.text.as_str()];
                    let is_exact = (joint - expected).abs() < 1e-4;
                    // A range may leave the cheapest way of a text out.
                    let is_within = joint < expected && !found.proven && text.channel().range_nats < 10.0;
                    assert!(is_exact || is_within, "{seed} {typed:?} {suggestion:?} {joint} {expected}");
                    corrected += usize::from(suggestion.meaning.edits > 0);
                }
                cases += 1;
                if found.proven {
                    proven += 1;
                    let shown = truth.iter().filter(|(whole, _)| is_shown(&search.readings, whole));
                    // Of those that differ only in case and width, the most probable one.
                    let mut shown: Vec<_> = shown.collect();
                    keep_first_of_each(&mut shown, |(whole, _)| whole);
                    // Longer texts were not enumerated.
                    let found = found.suggestions.iter().filter(|s| s.text.chars().count() <= *length);
                    let found: Vec<&str> = found.map(|s| s.text.as_str()).collect();
                    let expected: Vec<&str> = shown.iter().map(|(whole, _)| whole.as_str()).take(found.len()).collect();
                    assert_eq!(found, expected, "{seed} {typed:?} {tolerance:?}");
                }
            }
        }
    }
    Checked { cases, proven, corrected }
}

/// A text in capitals has the list of the text in small letters, with the same probabilities, if the model knows no
/// capitals.
#[test]
fn another_style_of_the_same_text_has_the_same_list() {
    for channel in [Channel::default(), Channel { beams: 2, range_nats: 3.0, ..patient() }] {
        let text = Arc::new(tiny(ALPHABET, &MERGES).with_channel(channel));
        for seed in 0..200 {
            let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 4.0), 5);
            let plain = ["a", "ab ", "ab ab", "b bab", "aabab"][seed as usize % 5];
            let list = |typed: &str, tolerance| {
                let limits = SearchOptions { suggestions: 6, beams: 8, ..options(tolerance) };
                run(Search::new(Arc::clone(&text), typed.into(), limits), model).completions()
            };
            let wide = plain.chars().map(|c| if c == ' ' { c } else { char::from_u32(c as u32 + 0xfee0).unwrap() });
            for typed in [plain.to_uppercase(), wide.collect()] {
                for tolerance in [Tolerance::Case, Tolerance::Auto] {
                    let (found, expected) = (list(&typed, tolerance), list(plain, tolerance));
                    assert_eq!(found.proven, expected.proven, "{seed} {typed:?}");
                    assert_eq!(found.suggestions.len(), expected.suggestions.len(), "{seed} {typed:?}");
                    for (found, expected) in found.suggestions.iter().zip(&expected.suggestions) {
                        let is_near = (found.logprob - expected.logprob).abs() < 1e-5;
                        assert!(found.text == expected.text && is_near, "{seed} {typed:?} {found:?} {expected:?}");
                    }
                }
            }
        }
    }
}

/// A text without its accents has the list of the text with them if the model knows nothing without. However few
/// readings are followed, there are as many completions.
#[test]
fn a_text_without_its_accents_has_the_list_of_the_text_with_them() {
    let merges = [("Ã", "©"), ("a", "a"), ("a", "b"), ("a", "c"), ("a", "d"), ("ab", "c"), ("ac", "a")];
    let channel = Channel { beams: 2, ..patient() };
    let text = Arc::new(tiny("eabcdÃ©", &merges).with_channel(channel));
    let unaccented = text.encode("e")[0].0 as usize;
    for seed in 0..100 {
        let model = |path: &[u32]| {
            let mut row = log_probs(seed, path, text.vocab(), 2.0);
            row[unaccented] = -60.0;
            distribution(&row, 8)
        };
        let list = |typed: &str| -> Vec<String> {
            let limits = SearchOptions { suggestions: 10, beams: 10, ..options(Tolerance::Case) };
            let found = run(Search::new(Arc::clone(&text), typed.into(), limits), model).completions();
            let others = found.suggestions.into_iter().map(|suggestion| suggestion.text).filter(|text| text != "éa");
            others.take(9).collect()
        };
        let found = list("ea");
        assert!(found.len() == 9 && found == list("éa"), "{seed} {found:?} {:?}", list("éa"));
    }
}

/// The probabilities of all readings add up to that of having typed the text: of every text that may be meant.
#[test]
fn probabilities_are_relative_to_all_readings() {
    let world = World::new(ALPHABET, LENGTH, patient());
    let text = Arc::clone(&world.text);
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
            let others = world.posterior(typed, Tolerance::Auto, &all, &model);
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
            supply(&mut search, usize::MAX, model);
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

/// What later levels wait for is computed with an earlier one, and the answer stays the same.
#[test]
fn levels_dont_wait_for_steps_of_their_own() {
    let text = Arc::new(tiny(ALPHABET, &MERGES).with_channel(Channel { beams: 6, ..patient() }));
    let mut rounds = [0, 0];
    for seed in 0..100u64 {
        let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 4.0), 5);
        let typed = ["ab a", "baaab", "b bab a", "ab ab", "abab"][seed as usize % 5];
        // In the shorter one there is room for the typed text and one more token; corrections may have more.
        let typed_tokens = Search::new(Arc::clone(&text), typed.into(), options(Tolerance::Auto)).typed_tokens();
        let context = [32, text.prompt().len() + typed_tokens + 1][seed as usize % 2];
        let lists = [0, 8].map(|speculative| {
            let limits = SearchOptions { suggestions: 6, beams: 6, context, ..options(Tolerance::Auto) };
            let mut search = Search::new(Arc::clone(&text), typed.into(), limits);
            while !search.is_done() {
                search.speculate(speculative);
                let fits = |wanted: &Wanted| search.paths().depth(wanted.node) <= context;
                assert!(search.paths().wanted().iter().all(fits), "{seed} {typed:?}: a path is too long");
                supply(&mut search, usize::MAX, model);
                search.advance();
                rounds[usize::from(speculative > 0)] += usize::from(search.corrections.is_some());
            }
            search.completions().suggestions
        });
        assert_eq!(lists[0], lists[1], "{seed} {typed:?}");
    }
    assert!(rounds[1] * 10 < rounds[0] * 9, "{rounds:?}");
}

/// Tokens of other characters' bytes don't go on with an unfinished character of the typed text.
#[test]
fn bytes_that_make_no_character_are_no_reading() {
    // The bytes of é and è, and the first three of an emoji.
    let text = tiny("abÃ©¨ðŁĺ ", &[("Ã", "©"), ("ð", "Ł"), ("ðŁ", "ĺ")]);
    let text = Arc::new(text.with_channel(Channel { unknown: 0.02, ..patient() }));
    let mut exact = 0;
    for seed in 0..40 {
        let model = |path: &[u32]| distribution(&log_probs(seed, path, text.vocab(), 1.0), 13);
        let search = Search::new(Arc::clone(&text), "abé".into(), options(Tolerance::Auto));
        let found = run(search, model).completions();
        exact += found.suggestions.iter().filter(|suggestion| suggestion.text.starts_with("abé")).count();
    }
    assert!(exact > 10, "{exact}");
}
