//! Continuing prompts against transformers' `generate`: prompts' tokens, greedy tokens, and the text that is made of
//! them, on checkpoints with tokenizers of many kinds.

use std::path::PathBuf;

use completion::{SampledToken, SequenceFinish};
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

/// A prompt and what transformers made of it.
#[derive(Deserialize)]
struct Expected {
    prompt: String,
    input: Vec<u32>,
    greedy: Vec<u32>,
    ended: bool,
    gaps: Vec<f32>,
    text: String,
}

fn kinds() -> Vec<(String, PathBuf)> {
    let folders = std::fs::read_dir(repository("tests/goldens/generation")).unwrap().map(|entry| entry.unwrap().path());
    let mut kinds: Vec<_> =
        folders.map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path)).collect();
    kinds.sort();
    assert_eq!(kinds.len(), KINDS, "{kinds:?}");
    kinds
}

fn expected(folder: &std::path::Path) -> Vec<Expected> {
    serde_json::from_str(&std::fs::read_to_string(folder.join("answers.json")).unwrap()).unwrap()
}

/// The engine of a checkpoint, with room for all of its positions.
fn engine(folder: &std::path::Path) -> Engine {
    let (_folder, bundle, manifest) = build(folder, Some(96));
    let mut options = engine_options();
    options.requests = RequestOptions { max_characters: 1000, ..request_options() };
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
