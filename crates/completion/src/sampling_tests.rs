//! Sampling driven by a made-up model: seeds, stops, limits, and text that comes in the right pieces.

use super::*;
use crate::distribution::{Distribution, Logits};
use crate::text::testing::tiny;

const LISTED: usize = 3;

/// A distribution that depends on the path and prefers nothing much.
fn model(path: &[u32], vocab: usize, end: f32) -> Arc<Distribution> {
    let mut logits: Vec<f32> = (0..vocab as u32)
        .map(|next| {
            let hash = path.iter().chain([&next]).fold(17u32, |h, x| (h ^ x).wrapping_mul(16_777_619));
            (hash >> 16) as f32 / 65_536.0 * 2.0
        })
        .collect();
    logits[vocab - 1] = end;
    let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
    let mut ids: Vec<u32> = (0..vocab as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    ids.truncate(LISTED);
    let best: Vec<f32> = ids.iter().map(|&id| logits[id as usize]).collect();
    Arc::new(Distribution::from_logits(Logits {
        best_ids: &ids,
        best: &best,
        row: Some(&logits),
        logsumexp: lse,
        vocab,
    }))
}

fn options() -> SamplingOptions {
    let choice = TokenChoice { temperature: 1.0, ..TokenChoice::default() };
    SamplingOptions {
        sequences: 1,
        max_new_tokens: 8,
        context: 32,
        choice,
        stop: Vec::new(),
        seed: 1,
        told: 0,
        listed: LISTED,
    }
}

/// Runs sampling behind "ab" to its end and returns it with the pieces that could be streamed.
fn run(text: &Arc<Text>, options: SamplingOptions, end: f32) -> (Generated, Vec<String>) {
    let sequences = options.sequences;
    let mut sampling = Sampling::new(Arc::clone(text), text.encode("ab"), options).unwrap();
    let mut streamed = vec![String::new(); sequences];
    let mut sent = vec![0; sequences];
    loop {
        for wanted in sampling.paths().wanted().to_vec() {
            let path: Vec<u32> = sampling.paths().tokens(wanted.node).iter().map(|token| token.0).collect();
            sampling.paths_mut().supply(wanted.node, model(&path, text.vocab(), end));
        }
        sampling.advance(3);
        for sequence in 0..sequences {
            for token in sampling.tokens(sequence, sent[sequence]) {
                streamed[sequence].push_str(&token.text);
                sent[sequence] += 1;
            }
        }
        if sampling.is_done() {
            return (sampling.generated(), streamed);
        }
    }
}

fn text() -> Arc<Text> {
    Arc::new(tiny("ab ", &[("a", "b"), (" ", "a")]))
}

#[test]
fn a_seed_fixes_every_sequence_whatever_else_is_sampled() {
    let text = text();
    let texts = |seed: u64, sequences: usize| -> Vec<String> {
        let options = SamplingOptions { seed, sequences, ..options() };
        run(&text, options, 0.5).0.sequences.into_iter().map(|s| s.text).collect()
    };
    let five = texts(7, 5);
    assert_eq!(texts(7, 5), five);
    assert_eq!(texts(7, 2), five[..2], "a sequence doesn't depend on how many there are");
    assert_ne!(texts(8, 5), five);
    assert!(five.iter().any(|text| *text != five[0]), "sequences differ from each other: {five:?}");
}

#[test]
fn what_is_streamed_is_the_text_and_tokens_have_the_models_log_probabilities() {
    let text = text();
    for seed in 0..200 {
        let stop = vec!["bb".to_owned(), "a a".to_owned()];
        let options = SamplingOptions { seed, sequences: 3, stop: stop.clone(), ..options() };
        let (generated, streamed) = run(&text, options, 0.2);
        assert_eq!(generated.prompt_tokens, text.encode("ab").len());
        for (sequence, streamed) in generated.sequences.iter().zip(streamed) {
            assert_eq!(sequence.text, streamed);
            assert_eq!(sequence.tokens.iter().map(|t| t.text.as_str()).collect::<String>(), sequence.text);
            assert!(stop.iter().all(|stop| !sequence.text.contains(stop.as_str())), "{sequence:?}");
            let mut path: Vec<u32> = text.encode("ab").iter().map(|token| token.0).collect();
            for token in &sequence.tokens {
                assert_eq!(model(&path, text.vocab(), 0.2).log_prob(token.id), Some(token.logprob));
                path.push(token.id);
            }
        }
    }
}

#[test]
fn sequences_end_where_they_must() {
    let text = text();
    let finish = |options: SamplingOptions, end: f32| {
        let sequence = run(&text, options, end).0.sequences.remove(0);
        (sequence.finish.unwrap(), sequence.tokens.len())
    };
    assert_eq!(finish(options(), -20.0), (SequenceFinish::Length, 8));
    assert_eq!(finish(options(), 20.0), (SequenceFinish::EndOfText, 0));
    let prompt = text.encode("ab").len();
    // The last token needs no position of its own: nothing is computed behind it.
    let short = SamplingOptions { context: prompt + 2, ..options() };
    assert_eq!(finish(short, -20.0), (SequenceFinish::Length, 3));
    let stopped = SamplingOptions { stop: vec!["a".into(), "b".into(), " ".into()], ..options() };
    assert_eq!(finish(stopped, -20.0), (SequenceFinish::Stop, 1));
}

#[test]
fn only_the_end_token_ends_a_text_and_not_before_its_time() {
    // Line breaks and runs of spaces are texts like any other; only queries have none.
    let text = Arc::new(tiny("a \n", &[(" ", " ")]));
    let choice = TokenChoice { min_new_tokens: 3, ..TokenChoice::default() };
    let at_once = SamplingOptions { choice, told: 2, ..options() };
    let sequence = run(&text, at_once, 20.0).0.sequences.remove(0);
    assert_eq!((sequence.finish, sequence.tokens.len()), (Some(SequenceFinish::EndOfText), 3));
    assert_eq!(sequence.end.as_ref().map(|end| (end.id as usize, end.special)), Some((text.vocab() - 1, true)));
    for token in &sequence.tokens {
        assert_eq!(token.best.len(), 2);
        assert!(token.best[0].id as usize == text.vocab() - 1 && token.best[0].text.is_empty(), "{token:?}");
    }
    let mut seen = String::new();
    for seed in 0..50 {
        seen += &run(&text, SamplingOptions { seed, ..options() }, -20.0).0.sequences[0].text;
    }
    assert!(seen.contains("\n") && seen.contains("  "), "{seen:?}");
}

#[test]
fn greedy_and_small_top_k_need_no_whole_rows() {
    let text = text();
    let full = |choice: TokenChoice| {
        let sampling = Sampling::new(Arc::clone(&text), text.encode("ab"), SamplingOptions { choice, ..options() });
        let sampling = sampling.unwrap();
        sampling.paths().wanted()[0].full
    };
    let random = TokenChoice { temperature: 1.0, ..TokenChoice::default() };
    assert!(!full(TokenChoice::default()) && !full(TokenChoice { top_k: 3, ..random }));
    assert!(full(random) && full(TokenChoice { top_k: 4, ..random }));
    assert!(full(TokenChoice { repetition_penalty: 1.1, ..TokenChoice::default() }));
}
