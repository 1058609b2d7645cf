//! Continuing prompts against transformers' `generate`: prompts' tokens, greedy tokens, the text that is made of them,
//! and beam searches, on checkpoints with tokenizers of many kinds; and the distributions that tokens are drawn from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use completion::{Beams, EarlyStopping, SampledToken, Sequence, SequenceFinish, TokenChoice};
use foretype::engine::{Engine, Generation, RequestOptions};
use foretype::metrics::Metrics;
use serde::Deserialize;

use crate::support::{build, engine_options, repository, request_options};

/// Greedy choices may differ where the two best scores are nearer than this.
const TIE: f32 = 1e-4;
/// New tokens of an answer.
const NEW: usize = 40;
/// Kinds of checkpoints.
const KINDS: usize = 12;

/// Draws from a distribution, and the sequences of a request that draws.
const DRAWS: usize = 10_000;
const AT_ONCE: usize = 100;
/// A sum of squares this many standard deviations above its mean has a probability of 2e-4. The seeds are fixed.
const FAR: f64 = 3.5;

/// A prompt and what transformers made of it.
#[derive(Deserialize)]
struct Expected {
    prompt: String,
    input: Vec<u32>,
    greedy: Vec<u32>,
    ended: bool,
    gaps: Vec<f32>,
    text: String,
    beams: Vec<Search>,
}

/// A beam search's parameters, in the names of transformers, and its sequences with their end tokens.
#[derive(Deserialize)]
struct Search {
    parameters: Parameters,
    sequences: Vec<Vec<u32>>,
    /// What transformers answers when each log-probability is moved by up to half of [`TIE`].
    also: Vec<Vec<Vec<u32>>>,
}

/// A distribution of the first token that is drawn.
#[derive(Deserialize)]
struct Drawn {
    prompt: String,
    parameters: Parameters,
    probabilities: HashMap<u32, f64>,
}

/// Parameters of a generation; those that are left out do nothing.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    num_beams: usize,
    num_return_sequences: usize,
    length_penalty: f32,
    early_stopping: serde_json::Value,
    repetition_penalty: f32,
    no_repeat_ngram_size: usize,
    min_new_tokens: usize,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    typical_p: f32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            num_beams: 1,
            num_return_sequences: 1,
            length_penalty: 1.0,
            early_stopping: false.into(),
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            min_new_tokens: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            typical_p: 1.0,
        }
    }
}

impl Parameters {
    fn generation(&self, prompt: &str) -> Generation {
        let early_stopping = match &self.early_stopping {
            serde_json::Value::Bool(true) => EarlyStopping::Full,
            serde_json::Value::Bool(false) => EarlyStopping::Unlikely,
            never => {
                assert_eq!(never, "never");
                EarlyStopping::Never
            }
        };
        let beams = Beams { count: self.num_beams, length_penalty: self.length_penalty, early_stopping };
        Generation {
            prompt: prompt.to_owned(),
            max_new_tokens: Some(NEW),
            sequences: self.num_return_sequences,
            beams: (self.num_beams > 1).then_some(beams),
            choice: TokenChoice {
                repetition_penalty: self.repetition_penalty,
                no_repeat_ngram: self.no_repeat_ngram_size,
                min_new_tokens: self.min_new_tokens,
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                typical_p: self.typical_p,
                ..TokenChoice::default()
            },
            ..Generation::default()
        }
    }
}

fn kinds() -> Vec<(String, PathBuf)> {
    let folders = std::fs::read_dir(repository("tests/goldens/generation")).unwrap().map(|entry| entry.unwrap().path());
    let mut kinds: Vec<_> =
        folders.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path)).collect();
    kinds.sort();
    assert_eq!(kinds.len(), KINDS, "{kinds:?}");
    kinds
}

fn expected(folder: &Path) -> Vec<Expected> {
    serde_json::from_str(&std::fs::read_to_string(folder.join("answers.json")).unwrap()).unwrap()
}

/// The engine of a checkpoint, with room for all of its positions.
fn engine(folder: &Path) -> Engine {
    let (_folder, bundle, manifest) = build(folder, Some(96));
    let mut options = engine_options();
    // However busy the machine is: no answer is one that a deadline cut.
    let default_deadline = Duration::from_secs(600);
    options.requests = RequestOptions { max_characters: 1000, default_deadline, ..request_options() };
    Engine::load(&bundle, &manifest, &options, &Metrics::new()).unwrap()
}

/// The first step at which answers differ; `None` if they are equal.
fn difference(found: &[SampledToken], ended: bool, expected: &Expected) -> Option<usize> {
    let ids = found.iter().map(|token| token.id);
    let step = ids.zip(&expected.greedy).position(|(id, &expected)| id != expected);
    step.or_else(|| {
        let same = (found.len(), ended) == (expected.greedy.len(), expected.ended);
        (!same).then(|| found.len().min(expected.greedy.len()))
    })
}

#[test]
fn prompts_are_read_and_continued_as_transformers_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (kind, folder) in kinds() {
        let (engine, mut equal, mut tied) = (engine(&folder), 0, 0);
        for expected in expected(&folder) {
            let generation =
                Generation { prompt: expected.prompt.clone(), max_new_tokens: Some(NEW), ..Generation::default() };
            let read: Vec<u32> = engine.prompt_tokens(&generation).unwrap().into_iter().map(|(id, _)| id).collect();
            assert_eq!(read, expected.input, "{kind}: tokens of {:?}", expected.prompt);
            let answer = runtime.block_on(engine.generate(&generation)).unwrap().result;
            let sequence = &answer.sequences[0];
            let ended = sequence.finish == Some(SequenceFinish::EndOfText);
            if let Some(step) = difference(&sequence.tokens, ended, &expected) {
                let gap = expected.gaps[step];
                assert!(gap < TIE, "{kind}: {:?}: step {step} differs, and was decided by {gap}", expected.prompt);
                tied += 1;
                continue;
            }
            assert_eq!(sequence.text, expected.text, "{kind}: text behind {:?}", expected.prompt);
            equal += 1;
        }
        println!("generation: {kind}: {equal} of 20 equal, {tied} tied");
        assert!(equal + tied == 20 && tied <= 2, "{kind}");
    }
}

#[test]
fn beams_find_what_transformers_finds() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (kind, folder) in kinds() {
        let (engine, mut equal, mut tied) = (engine(&folder), 0, 0);
        for expected in expected(&folder) {
            for search in &expected.beams {
                let generation = search.parameters.generation(&expected.prompt);
                let answer = runtime.block_on(engine.generate(&generation)).unwrap().result;
                let found: Vec<Vec<u32>> = answer.sequences.iter().map(ids).collect();
                if found == search.sequences {
                    equal += 1;
                } else {
                    let good = search.also.contains(&found);
                    assert!(good, "{kind}: {:?}: {found:?}, not {:?}", generation, search.sequences);
                    tied += 1;
                }
            }
        }
        println!("generation: {kind}: beam searches: {equal} of 60 equal, {tied} tied");
        assert!(equal + tied == 60 && tied <= 3, "{kind}");
    }
}

/// All tokens of a sequence.
fn ids(sequence: &Sequence) -> Vec<u32> {
    sequence.tokens.iter().chain(&sequence.end).map(|token| token.id).collect()
}

#[test]
fn tokens_are_drawn_as_often_as_transformers_distribution_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folders = kinds().into_iter().filter(|(_, folder)| folder.join("sampling.json").exists());
    let mut tried = 0;
    for (kind, folder) in folders {
        let engine = engine(&folder);
        let file = std::fs::read_to_string(folder.join("sampling.json")).unwrap();
        for drawn in serde_json::from_str::<Vec<Drawn>>(&file).unwrap() {
            let generation = drawn.parameters.generation(&drawn.prompt);
            let far = |choice| {
                let counts = runtime.block_on(counts(&engine, &Generation { choice, ..generation.clone() }));
                deviation(&counts, &drawn.probabilities)
            };
            let found = far(generation.choice);
            assert!(found < FAR, "{kind}: {found} standard deviations: {generation:?}");
            tried += 1;
            if generation.choice == (TokenChoice { temperature: 1.0, ..TokenChoice::default() }) {
                // What is a little different is told.
                for temperature in [0.9, 1.1] {
                    let other = far(TokenChoice { temperature, ..generation.choice });
                    assert!(other > FAR, "{kind}: {other} standard deviations at temperature {temperature}");
                }
            }
        }
    }
    assert_eq!(tried, 30);
}

/// How often each token is drawn first.
async fn counts(engine: &Engine, generation: &Generation) -> HashMap<u32, usize> {
    let mut counts = HashMap::<u32, usize>::new();
    for seed in 0..(DRAWS / AT_ONCE) as u64 {
        let some = Generation { max_new_tokens: Some(1), sequences: AT_ONCE, seed: Some(seed), ..generation.clone() };
        let answer = engine.generate(&some).await.unwrap().result;
        answer.sequences.iter().flat_map(ids).for_each(|id| *counts.entry(id).or_default() += 1);
    }
    assert_eq!(counts.values().sum::<usize>(), DRAWS);
    counts
}

/// By how many standard deviations the chi-square of counts is above its mean: its cube root is nearly normal. Tokens
/// that are expected fewer than five times count together.
fn deviation(counts: &HashMap<u32, usize>, probabilities: &HashMap<u32, f64>) -> f64 {
    let never = counts.keys().find(|id| !probabilities.contains_key(id));
    assert_eq!(never, None, "transformers never draws it");
    let of = |id| counts.get(id).map_or(0.0, |&count| count as f64);
    let (mut bins, mut rare) = (Vec::<(f64, f64)>::new(), (0.0, 0.0));
    for (id, p) in probabilities {
        match DRAWS as f64 * p {
            expected if expected < 5.0 => rare = (rare.0 + of(id), rare.1 + expected),
            expected => bins.push((of(id), expected)),
        }
    }
    bins.sort_by(|a, b| b.1.total_cmp(&a.1));
    // Too few together are counted with the rarest of the others.
    match bins.last_mut() {
        Some(last) if rare.1 < 5.0 => *last = (last.0 + rare.0, last.1 + rare.1),
        _ => bins.push(rare),
    }
    if bins.len() == 1 {
        return 0.0;
    }
    let sum: f64 = bins.iter().map(|(found, expected)| (found - expected).powi(2) / expected).sum();
    let freedom = (bins.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((sum / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}
