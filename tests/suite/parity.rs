//! Models of real size against transformers: a random GPT-2 (`make parity`), and prompts that SmolLM2 continues (`make
//! parity-prompts`). The make targets make checkpoint and reference.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use backends::onnxruntime;
use bundle::Manifest;
use foretype::engine::{Engine, Generation, RequestOptions};
use foretype::metrics::Metrics;
use futures_util::{StreamExt, stream};
use serde::Deserialize;

use crate::goldens::{check_greedy, max_difference, read_expected};
use crate::support::{all_logits, backend_options, engine_options, request_options};

/// Largest difference of a logit from transformers' fp32 one.
const TOLERANCE: f32 = 2e-3;

/// New tokens of a prompt.
const NEW: usize = 60;
/// Two tokens whose log-probabilities are nearer than this may be in another order.
const TIE: f32 = 1e-3;
/// Prompts that are continued at once: what shares a step must not matter.
const AT_ONCE: usize = 4;

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("FORETYPE_PARITY_DIR").expect("FORETYPE_PARITY_DIR names the reference"))
}

#[test]
#[ignore = "needs the reference that `make parity` makes"]
fn transformers_124m() {
    let folder = folder();
    let bundle = folder.join("bundle");
    let manifest = Manifest::load(&bundle).unwrap();
    let mut options = backend_options();
    options.threads = std::thread::available_parallelism().unwrap().get();
    let started = Instant::now();
    let mut backend = onnxruntime::load(&bundle, &manifest, &options).unwrap();
    println!("parity: load, seconds = {:.2}", started.elapsed().as_secs_f64());
    let goldens = read_expected(&folder.join("expected.safetensors"));
    let (mut worst, mut equal, mut all) = (0f32, 0, 0);
    for (i, golden) in goldens.iter().enumerate() {
        let rows = all_logits(&mut *backend, 0, &golden.prompt);
        let expected = golden.logits.last().unwrap();
        worst = worst.max(max_difference(rows.last().unwrap(), expected));
        equal += check_greedy(&mut *backend, golden, &format!("prompt {i}"));
        all += golden.greedy.len();
    }
    println!("parity: prompts = {}", goldens.len());
    println!("parity: max |logit difference| (at most {TOLERANCE}) = {worst:.2e}");
    println!("parity: greedy tokens equal (ties within 1e-4 aside) = {equal} of {all}");
    assert!(worst <= TOLERANCE);
}

/// What transformers made of a prompt, and by how much each token was better than the second best.
#[derive(Deserialize)]
struct Reference {
    input: Vec<u32>,
    tokens: Vec<u32>,
    seconds: Vec<u32>,
    gaps: Vec<f32>,
    versions: [String; 2],
}

#[test]
#[ignore = "needs the reference that `make parity-prompts` makes"]
fn transformers_prompts() {
    let folder = folder();
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let prompts: Vec<String> = serde_json::from_str(&read("prompts.json")).unwrap();
    let references = read("reference.jsonl");
    let references: Vec<Reference> = references.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((prompts.len(), references.len()), (200, 200));
    let engine = patient_engine(&folder.join("bundle"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let continued = stream::iter(prompts.iter().zip(&references))
        .map(|(prompt, reference)| ties(&engine, prompt, reference))
        .buffered(AT_ONCE);
    let ties: Vec<usize> = runtime.block_on(continued.collect());
    let tokens: usize = references.iter().map(|reference| reference.tokens.len()).sum();
    let [torch, transformers] = &references[0].versions;
    println!("parity: transformers, PyTorch = {transformers}, {torch}");
    println!("parity: prompts of 3 to 8 lines = {}", prompts.len());
    println!("parity: tokens of the prompts = {}", references.iter().map(|r| r.input.len()).sum::<usize>());
    println!("parity: prompts with all tokens equal = {}", ties.iter().filter(|&&ties| ties == 0).count());
    println!("parity: tokens equal = {} of {tokens}", tokens - ties.iter().sum::<usize>());
    println!("parity: tokens that are the second of a tie within {TIE} = {}", ties.iter().sum::<usize>());
}

/// The engine of a bundle on all cores, however long it takes: no answer is one that a deadline cut.
fn patient_engine(bundle: &std::path::Path) -> Engine {
    let mut options = engine_options();
    let mut backend = backend_options();
    backend.threads = std::thread::available_parallelism().unwrap().get();
    backend.pool_bytes = 256 << 20;
    options.backend = backend.into();
    let mut pool = request_options().pool;
    pool.hang_after = Duration::from_secs(600);
    pool.prefix_cache_bytes = 512 << 20;
    let default_deadline = Duration::from_secs(3600);
    options.requests = RequestOptions { max_characters: 1000, default_deadline, pool, ..request_options() };
    Engine::load(bundle, &Manifest::load(bundle).unwrap(), &options, &Metrics::new()).unwrap()
}

/// Continues a prompt, and behind a tie continues with the reference's token, so that every token is compared. Returns
/// the number of ties; any other difference is an error.
async fn ties(engine: &Engine, prompt: &str, reference: &Reference) -> usize {
    let whole = Generation { prompt: prompt.to_owned(), max_new_tokens: Some(NEW), ..Generation::default() };
    let read: Vec<u32> = engine.prompt_tokens(&whole).unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(read, reference.input, "tokens of {prompt:?}");
    let (mut at, mut ties) = (0, 0);
    while at < reference.tokens.len() {
        let behind = [&reference.input[..], &reference.tokens[..at]].concat();
        let rest = Generation { prompt_tokens: Some(behind), max_new_tokens: Some(NEW - at), ..Generation::default() };
        let sequence = engine.generate(&rest).await.unwrap().result.sequences.remove(0);
        let found: Vec<u32> = sequence.tokens.iter().chain(&sequence.end).map(|token| token.id).collect();
        let expected = &reference.tokens[at..];
        if found == expected {
            break;
        }
        let step = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
        at += step;
        let second = reference.seconds.get(at).copied();
        let gap = reference.gaps.get(at).copied().unwrap_or(f32::INFINITY);
        assert!(
            found.get(step).copied() == second && gap < TIE,
            "{prompt:?}: step {at}: {:?} and not {:?}, which was better by {gap}",
            found.get(step),
            reference.tokens.get(at)
        );
        (at, ties) = (at + 1, ties + 1);
    }
    ties
}
