//! Beam search driven by made-up models: what it finds, when it ends, and what it needs.

use super::*;
use crate::distribution::{Distribution, Logits};
use crate::text::testing::tiny;
use crate::token_choice::TokenChoice;

const LISTED: usize = 9;

fn text() -> Arc<Text> {
    Arc::new(tiny("ab ", &[("a", "b"), (" ", "a")]))
}

/// Log-probabilities that depend on the path; the last token ends a text. `[vocab]`
fn model(path: &[u32], vocab: usize) -> Vec<f32> {
    let logits: Vec<f32> = (0..vocab as u32)
        .map(|next| {
            let hash = path.iter().chain([&next]).fold(17u32, |h, x| (h ^ x).wrapping_mul(16_777_619));
            (hash >> 16) as f32 / 65_536.0 * 3.0
        })
        .collect();
    let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
    logits.iter().map(|x| x - lse).collect()
}

/// What an engine gives for a path: `listed` tokens, or the row if it is wanted.
fn distribution(row: &[f32], listed: usize, full: bool) -> Distribution {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
    ids.truncate(listed);
    let best: Vec<f32> = ids.iter().map(|&id| row[id as usize]).collect();
    let row_if = full.then_some(row);
    Distribution::from_logits(Logits { best_ids: &ids, best: &best, row: row_if, logsumexp: 0.0, vocab: row.len() })
}

fn options() -> SamplingOptions {
    SamplingOptions {
        sequences: 1,
        max_new_tokens: 4,
        context: 32,
        choice: TokenChoice::default(),
        stop: Vec::new(),
        seed: 0,
        told: 0,
        listed: LISTED,
    }
}

fn beams(count: usize) -> Beams {
    Beams { count, length_penalty: 1.0, early_stopping: EarlyStopping::Unlikely }
}

/// Up to `rounds` rounds of a search behind "ab".
fn run(text: &Arc<Text>, options: SamplingOptions, beams: Beams, rounds: usize) -> BeamSearch {
    let listed = options.listed;
    let mut search = BeamSearch::new(Arc::clone(text), text.encode("ab"), options, beams).unwrap();
    for _ in 0..rounds {
        for wanted in search.paths().wanted().to_vec() {
            let path: Vec<u32> = search.paths().tokens(wanted.node).iter().map(|token| token.0).collect();
            let next = distribution(&model(&path, text.vocab()), listed, wanted.full);
            search.paths_mut().supply(wanted.node, Arc::new(next));
        }
        while !search.is_done() && !search.paths().is_waiting() {
            search.advance(2);
        }
        if search.is_done() {
            break;
        }
    }
    search
}

fn ids(sequence: &Sequence) -> Vec<u32> {
    sequence.tokens.iter().chain(&sequence.end).map(|token| token.id).collect()
}

/// All continuations of up to `most` tokens with their log-probabilities.
fn all(path: &[u32], vocab: usize, most: usize) -> Vec<(Vec<u32>, f32)> {
    let mut found = Vec::new();
    for (id, log_prob) in (0u32..).zip(model(path, vocab)) {
        if id as usize == vocab - 1 || most == 1 {
            found.push((vec![id], log_prob));
        } else {
            let longer = all(&[path, &[id]].concat(), vocab, most - 1);
            found.extend(longer.into_iter().map(|(rest, p)| ([&[id], &rest[..]].concat(), log_prob + p)));
        }
    }
    found
}

#[test]
fn with_beams_for_all_prefixes_the_best_texts_are_found() {
    let text = text();
    let path: Vec<u32> = text.encode("ab").iter().map(|token| token.0).collect();
    for (length_penalty, early_stopping) in [(0.0, EarlyStopping::Never), (2.0, EarlyStopping::Never)] {
        let wide = Beams { count: 64, length_penalty, early_stopping };
        let options = SamplingOptions { sequences: 3, max_new_tokens: 3, listed: text.vocab(), ..options() };
        let found = run(&text, options, wide, 99).generated().sequences;
        let by_length = |(ids, p): &(Vec<u32>, f32)| p / (ids.len() as f32).powf(length_penalty);
        let mut expected = all(&path, text.vocab(), 3);
        expected.sort_by(|a, b| by_length(b).total_cmp(&by_length(a)));
        for (sequence, (expected, p)) in found.iter().zip(&expected) {
            assert_eq!(&ids(sequence), expected);
            let sum: f32 = sequence.tokens.iter().chain(&sequence.end).map(|token| token.logprob).sum();
            assert!((sum - p).abs() < 1e-4, "{sum} {p}");
        }
    }
}

#[test]
fn one_beam_takes_the_best_token_each_time_and_more_find_better_texts() {
    let text = text();
    let log_prob = |count| -> f32 {
        let sequence = run(&text, options(), beams(count), 99).generated().sequences.remove(0);
        sequence.tokens.iter().chain(&sequence.end).map(|token| token.logprob).sum()
    };
    let mut path: Vec<u32> = text.encode("ab").iter().map(|token| token.0).collect();
    let mut greedy = 0.0;
    for _ in 0..4 {
        let row = model(&path, text.vocab());
        let best = (0..row.len() - 1).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        greedy += row[best];
        path.push(best as u32);
    }
    let penalty = SamplingOptions { choice: TokenChoice { min_new_tokens: 4, ..TokenChoice::default() }, ..options() };
    let one = run(&text, penalty, beams(1), 99).generated().sequences.remove(0);
    assert_eq!(ids(&one), path[path.len() - 4..]);
    assert!((one.tokens.iter().map(|token| token.logprob).sum::<f32>() - greedy).abs() < 1e-5);
    assert!(log_prob(6) >= log_prob(1));
}

#[test]
fn how_early_it_ends_is_said() {
    let text = text();
    let supplied = |early_stopping| {
        let long = SamplingOptions { max_new_tokens: 20, ..options() };
        let search = run(&text, long, Beams { early_stopping, length_penalty: 0.5, ..beams(2) }, 99);
        assert!(search.is_done() && search.remaining() == 0);
        search.paths().supplied()
    };
    // As a program that keeps whole token lists finds it for this model.
    assert_eq!([EarlyStopping::Full, EarlyStopping::Unlikely, EarlyStopping::Never].map(supplied), [5, 7, 15]);
}

#[test]
fn what_is_found_until_then_is_the_answer() {
    let text = text();
    let some = SamplingOptions { sequences: 2, max_new_tokens: 20, ..options() };
    let search = run(&text, some, beams(3), 2);
    assert!(!search.is_done());
    let found = search.generated().sequences;
    assert_eq!(found.len(), 2);
    assert!(found.iter().any(|sequence| sequence.finish.is_none() && sequence.tokens.len() == 2), "{found:?}");
    let nothing = run(&text, options(), beams(3), 0).generated().sequences;
    assert_eq!((nothing.len(), nothing[0].text.as_str(), nothing[0].finish), (1, "", None));
}

#[test]
fn stops_limits_and_taken_out_tokens_hold_for_every_beam() {
    let text = text();
    let choice = TokenChoice { no_repeat_ngram: 1, min_new_tokens: 2, ..TokenChoice::default() };
    let several = SamplingOptions { sequences: 4, choice, stop: vec!["b".into()], ..options() };
    let found = run(&text, several, beams(4), 99).generated().sequences;
    assert_eq!(found.len(), 4);
    for sequence in &found {
        let mut ids = ids(sequence);
        assert!(!sequence.text.contains('b') && ids.len() >= 2 || sequence.finish == Some(SequenceFinish::Stop));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "a token comes twice: {sequence:?}");
        assert_eq!(sequence.tokens.iter().map(|t| t.text.as_str()).collect::<String>(), sequence.text);
    }
    // The last token needs no position of its own: nothing is computed behind it.
    let short = SamplingOptions { context: text.encode("ab").len() + 1, max_new_tokens: 20, ..options() };
    let choice = TokenChoice { min_new_tokens: 20, ..TokenChoice::default() };
    let sequence = run(&text, SamplingOptions { choice, ..short }, beams(3), 99).generated().sequences.remove(0);
    assert_eq!((sequence.finish, sequence.tokens.len()), (Some(SequenceFinish::Length), 2));
}

#[test]
fn whole_rows_are_wanted_where_a_list_is_too_short() {
    let text = text();
    let full = |search: &BeamSearch| search.paths().wanted()[0].full;
    let new = |listed, count| run(&text, SamplingOptions { listed, ..options() }, beams(count), 0);
    assert!(!full(&new(4, 2)) && full(&new(3, 2)));
    let penalty = TokenChoice { repetition_penalty: 1.1, ..TokenChoice::default() };
    assert!(full(&run(&text, SamplingOptions { choice: penalty, ..options() }, beams(2), 0)));
    // The list has tokens that the tokenizer lacks, so that too few are left.
    let mut search = new(4, 2);
    let vocab = text.vocab() + 3;
    let mut row = model(&[1], vocab);
    row[vocab - 2] = 9.0;
    let node = search.paths().wanted()[0].node;
    search.paths_mut().supply(node, Arc::new(distribution(&row, 4, false)));
    search.advance(2);
    assert!(full(&search) && search.paths().wanted()[0].node == node);
    search.paths_mut().supply(node, Arc::new(distribution(&row, 4, true)));
    search.advance(2);
    assert_eq!(search.paths().wanted().len(), 2);
}
