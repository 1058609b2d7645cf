//! The fuzz targets' own functions on their checked-in corpus, and on seeded mutations of it: what a fuzzer would
//! find at once is found here, without one.

use std::fs;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::repository;

#[path = "../../fuzz/src/bodies.rs"]
mod bodies;

/// Begins the names of threads whose panics are not printed.
const QUIET: &str = "fuzz ";
/// Mutations of a target, of which `make test` tries a tenth.
const MUTATIONS: usize = 100_000;
/// What the formats are made of.
const WORDS: [&str; 16] = [
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "0",
    "4294967295",
    "1e99",
    "\\u0000",
    "\u{fffd}",
    "\u{1f600}",
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = repository("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// One to four changes, each as a fuzzer makes them.
fn mutate(rng: &mut StdRng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut input = corpus.choose(rng).unwrap().clone();
    for _ in 0..rng.random_range(1..=4) {
        let at = rng.random_range(0..=input.len());
        let end = rng.random_range(at..=input.len().min(at + 16));
        match rng.random_range(0..6) {
            0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            1 if at < input.len() => input[at] = rng.random(),
            2 => drop(input.drain(at..end)),
            3 => drop(input.splice(at..end, WORDS.choose(rng).unwrap().bytes())),
            4 => {
                let piece = input[at..end].to_vec();
                drop(input.splice(at..at, piece));
            }
            _ => {
                let other = corpus.choose(rng).unwrap();
                input.truncate(at);
                input.extend(&other[other.len().min(at)..]);
            }
        }
    }
    input
}

/// Runs a target; what makes it panic is named, so that it can be kept.
fn run(name: &str, body: fn(&[u8])) {
    let corpus = corpus(name);
    corpus.iter().for_each(|input| body(input));
    let mut rng = StdRng::seed_from_u64(1);
    let mutations = require::cases(MUTATIONS);
    for run in 0..mutations {
        let input = mutate(&mut rng, &corpus);
        if let Err(panic) = std::panic::catch_unwind(|| body(&input)) {
            let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            let (said, input) = (said.unwrap_or_default(), String::from_utf8_lossy(&input));
            panic!("{name} panics at run {run} with {said:?} on {input:?}");
        }
    }
    println!("{name}: {} inputs, {mutations} mutations", corpus.len());
}

#[test]
fn no_target_panics_on_its_corpus_or_near_it() {
    // Some targets catch panics that are refusals: those are not worth a line each, let alone a backtrace.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match std::thread::current().name() {
        Some(name) if name.starts_with(QUIET) => {}
        _ => told(panic),
    }));
    std::thread::scope(|scope| {
        let threads = bodies::TARGETS.map(|(name, body)| {
            let thread = std::thread::Builder::new().name(format!("{QUIET}{name}"));
            (name, thread.spawn_scoped(scope, move || run(name, body)).unwrap())
        });
        for (name, thread) in threads {
            if let Err(panic) = thread.join() {
                let message = panic.downcast_ref::<String>().map_or("no message", String::as_str);
                panic!("{name}: {message}");
            }
        }
    });
}
