//! Whether what people type can be finished: from the covering set always, from the typed text's own tokens seldom.

use std::time::{Duration, Instant};

use super::super::bytes::TokenId;
use super::Oracle;
use super::samples::{self, Random};

/// Keystroke positions, and from how many of them the text's encoding can be reached.
#[derive(Default)]
struct Reached {
    positions: usize,
    /// From the encoding of what was typed.
    naive: usize,
    /// From that without its last token, where the next one must begin with the dropped bytes ("token healing").
    healed: usize,
    /// From the covering set.
    covered: usize,
    /// Members of the covering sets' contexts, in all and at most.
    contexts: usize,
    most_contexts: usize,
}

impl Reached {
    /// Adds every keystroke of a text.
    fn add(&mut self, oracle: &Oracle, text: &str) {
        let target = oracle.encode(text);
        let ends: Vec<usize> = target
            .iter()
            .scan(0, |end, &token| {
                *end += oracle.spell(&[token]).len();
                Some(*end)
            })
            .collect();
        for typed in
            text.char_indices().skip(1).map(|(at, _)| &text[..at]).chain([text]).filter(|typed| !typed.is_empty())
        {
            let tokens = oracle.encode(typed);
            let cover = oracle.canon.cover(typed);
            assert_eq!(cover.canonical, tokens, "{typed:?}");
            let count = ends.partition_point(|&end| end < typed.len()) + 1;
            self.positions += 1;
            self.naive += usize::from(target.starts_with(&tokens));
            self.healed += usize::from(is_healed(oracle, &tokens, &target));
            self.covered += usize::from(is_covered(oracle, typed, &target[..count]));
            self.contexts += cover.contexts.len();
            self.most_contexts = self.most_contexts.max(cover.contexts.len());
        }
    }

    fn print(&self, name: &str) {
        let share = |count: usize| 100.0 * count as f64 / self.positions as f64;
        println!(
            "{name:28} {:6} positions: naive {:5.1} %, healed {:5.1} %, covered {:5.1} %; contexts {:.2}, at most {}",
            self.positions,
            share(self.naive),
            share(self.healed),
            share(self.covered),
            self.contexts as f64 / self.positions as f64,
            self.most_contexts,
        );
    }
}

fn is_healed(oracle: &Oracle, tokens: &[TokenId], target: &[TokenId]) -> bool {
    let Some((dropped, before)) = tokens.split_last() else { return true };
    let next = target.strip_prefix(before).and_then(|rest| rest.first());
    next.is_some_and(|next| oracle.spell(&[*next]).starts_with(&oracle.spell(&[*dropped])))
}

/// Whether `path`, the shortest beginning of the target that spells what was typed, is in the covering set.
fn is_covered(oracle: &Oracle, typed: &str, path: &[TokenId]) -> bool {
    let cover = oracle.canon.cover(typed);
    let Some((last, before)) = path.split_last() else { return cover.canonical.is_empty() };
    let extends = |context| oracle.canon.extensions(typed, context).any(|token| token == *last);
    cover.canonical == path || cover.contexts.iter().any(|context| context.tokens == before && extends(context))
}

fn texts(count: usize, mut make: impl FnMut() -> String) -> Vec<String> {
    (0..count).map(|_| make()).collect()
}

#[test]
fn every_keystroke_can_be_finished() {
    let Some(oracle) = Oracle::gpt2() else { return };
    let mut random = Random::new(7);
    let multilingual = samples::MULTILINGUAL.iter().chain(samples::TEXTS).map(|text| (*text).to_owned()).collect();
    let corpora = [
        ("technical phrases", texts(250, || random.phrase())),
        ("boolean expressions", texts(120, || random.expression())),
        ("multilingual, awkward", multilingual),
        ("random Unicode", texts(250, || random.text(12))),
    ];
    let mut positions = 0;
    for (name, texts) in corpora {
        let mut reached = Reached::default();
        for text in texts {
            oracle.check(&text);
            reached.add(&oracle, &text);
        }
        reached.print(name);
        positions += reached.positions;
        assert_eq!(reached.covered, reached.positions, "{name}");
    }
    assert!(positions >= 10_000, "{positions}");
}

/// The mean time of each of `calls` calls.
fn mean(calls: usize, mut call: impl FnMut(usize)) -> Duration {
    let start = Instant::now();
    (0..calls).for_each(&mut call);
    start.elapsed() / calls as u32
}

/// Prints timings; `cargo test --release -- --ignored --nocapture timings`.
#[test]
#[ignore = "measures and asserts nothing"]
fn timings() {
    let Some((vocab, merges)) = super::gpt2_files() else { return };
    let start = Instant::now();
    let read = || super::from_vocab_and_merges(&vocab, &merges, &["<|endoftext|>"]).expect("GPT-2's files");
    let (vocabulary, merges) = read();
    println!("reading the files  {:?}", start.elapsed());
    let vocabulary = std::sync::Arc::new(vocabulary);
    let start = Instant::now();
    let canon = super::Canon::new(vocabulary, merges).expect("GPT-2's merges");
    println!("Canon::new         {:?}", start.elapsed());

    let mut random = Random::new(3);
    let phrases: Vec<String> = texts(1000, || random.phrase() + " " + &random.phrase())
        .into_iter()
        .map(|text| text.chars().take(40).collect())
        .collect();
    let longest = (0..phrases.len())
        .map(|i| {
            let start = Instant::now();
            std::hint::black_box(canon.cover(&phrases[i]));
            start.elapsed()
        })
        .max();
    println!("cover, <= 40 bytes {:?}, at most {longest:?}", mean(1000, |i| drop(canon.cover(&phrases[i]))));
    println!("encode             {:?}", mean(1000, |i| drop(canon.encode(&phrases[i]))));
    let long = phrases.concat();
    println!("encode, {} bytes {:?}", long.len(), mean(1, |_| drop(canon.encode(&long))));
    let run = "a".repeat(2000);
    println!("cover, 2000 a's    {:?}", mean(1, |_| drop(canon.cover(&run))));
    println!("cover, 2000 spaces {:?}", mean(1, |_| drop(canon.cover(&" ".repeat(2000)))));

    let states: Vec<_> = phrases
        .iter()
        .map(|text| {
            canon.encode(text).iter().fold(canon.start(), |state, &t| canon.may_follow(&state, t).expect("canonical"))
        })
        .collect();
    let tokens: Vec<TokenId> = (0..4096).map(|_| TokenId(random.below(50256) as u32)).collect();
    let mut accepted = 0;
    let any = mean(1_000_000, |i| {
        accepted += usize::from(canon.may_follow(&states[i % 1000], tokens[i % 4096]).is_some());
    });
    println!("may_follow         {any:?} ({} % accepted)", accepted / 10_000);
    let typed = ["fuel ", "fuel c", "fuel cel"];
    for typed in typed {
        let cover = canon.cover(typed);
        let mut count = 0;
        let time = mean(1, |_| {
            count = cover.contexts.iter().map(|context| canon.extensions(typed, context).count()).sum();
        });
        println!("extensions of {typed:?}: {count} in {time:?}");
    }
}
