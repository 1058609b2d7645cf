//! The scheduler over the fake engine: what it computes must equal what each request gets alone, from an empty prefix
//! cache, whatever shares the steps, whatever the prefix cache remembers or had to forget.

#[path = "bulk_tests.rs"]
mod bulk;
#[path = "source_tests.rs"]
mod sources;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::backend::Limits;
use crate::client::{Class, Client};
use crate::fake::{FakeBackend, Fault};
use crate::order::LONGEST_WAITING_EVERY;
use completion::TokenChoice;
use completion::text::Text;
use completion::text::testing::tiny;
use completion::{Completions, Sampling, SamplingOptions, Search, SearchOptions};

fn text() -> Arc<Text> {
    Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")]))
}

fn limits(text: &Text, lanes: usize, chunk: usize, pages: usize) -> Limits {
    let vocab = text.vocab();
    Limits {
        lanes,
        context: 16,
        chunk,
        selected: lanes.max(chunk),
        vocab,
        top_k: 6,
        pages,
        page_bytes: 64,
        source: None,
    }
}

fn search(text: &Arc<Text>, typed: &str, beams: usize, max_new_tokens: usize) -> Search {
    let options = SearchOptions { suggestions: 5, beams, max_new_tokens, context: 16, ..SearchOptions::default() };
    Search::new(Arc::clone(text), typed.to_owned(), options)
}

fn scheduler(text: &Text, lanes: usize, chunk: usize, pages: usize, prefix_cache_bytes: usize) -> Scheduler {
    Scheduler::new(Box::new(FakeBackend::hashed(limits(text, lanes, chunk, pages), 3, 4.0)), prefix_cache_bytes)
}

fn completions((output, usage): (TaskOutput, Usage)) -> (Completions, Usage) {
    match output {
        TaskOutput::Suggestions(completions) => (completions, usage),
        TaskOutput::Texts(texts) => panic!("{texts:?}"),
    }
}

/// Steps until a job is done; fails if that takes absurdly long.
fn finish(scheduler: &mut Scheduler, job: JobId) -> (Completions, Usage) {
    for _ in 0..10_000 {
        if scheduler.step().unwrap().done.contains(&job) {
            return completions(scheduler.remove(job).unwrap());
        }
    }
    panic!("the job starves");
}

fn alone(text: &Arc<Text>, typed: &str, beams: usize, new: usize) -> Completions {
    let mut scheduler = scheduler(text, 8, 16, 64, 1 << 20);
    let job = scheduler.add(search(text, typed, beams, new));
    finish(&mut scheduler, job).0
}

fn typed(rng: &mut StdRng) -> String {
    let length = rng.random_range(1..8);
    (0..length).map(|_| ['a', 'b', ' '][rng.random_range(0..3)]).collect()
}

#[test]
fn keystrokes_give_what_a_cold_run_gives_and_compute_less() {
    let text = text();
    let mut warm = scheduler(&text, 8, 16, 64, 1 << 20);
    let (mut computed, mut cold_computed) = (0, 0);
    for end in 1..=7 {
        let typed = &"ab aab b"[..end];
        let job = warm.add(search(&text, typed, 4, 4));
        let (completions, usage) = finish(&mut warm, job);
        assert_eq!(completions, alone(&text, typed, 4, 4), "{typed:?}");
        computed += usage.positions_computed;
        let mut cold = scheduler(&text, 8, 16, 64, 1 << 20);
        let job = cold.add(search(&text, typed, 4, 4));
        cold_computed += finish(&mut cold, job).1.positions_computed;
    }
    assert!(computed * 3 < cold_computed * 2, "{computed} of {cold_computed}");
}

#[test]
fn requests_that_share_everything_get_what_they_get_alone() {
    let text = text();
    let mut rng = StdRng::seed_from_u64(5);
    // Lanes, chunk, pages and prefix cache bytes from ample to far too small.
    for (lanes, chunk, pages, prefix_cache_bytes) in
        [(8, 16, 64, 1 << 20), (3, 4, 32, 4000), (1, 2, 16, 2000), (5, 1, 20, 0)]
    {
        let mut scheduler = scheduler(&text, lanes, chunk, pages, prefix_cache_bytes);
        let mut running = Vec::new();
        let (mut added, mut finished) = (0, 0);
        for step in 0.. {
            if added < 60 && running.len() < 6 && rng.random_bool(0.5) {
                let typed = typed(&mut rng);
                let (beams, new) = (rng.random_range(1..6), rng.random_range(1..5));
                running.push((scheduler.add(search(&text, &typed, beams, new)), typed, beams, new));
                added += 1;
            }
            if rng.random_bool(0.02) && !running.is_empty() {
                let (job, ..) = running.swap_remove(rng.random_range(0..running.len()));
                scheduler.remove(job).unwrap();
                finished += 1;
            }
            for job in scheduler.step().unwrap().done {
                let at = running.iter().position(|r| r.0 == job).unwrap();
                let (_, typed, beams, new) = running.swap_remove(at);
                let (completions, _) = completions(scheduler.remove(job).unwrap());
                assert_eq!(
                    completions,
                    alone(&text, &typed, beams, new),
                    "{typed:?} with {lanes} lanes, {pages} pages"
                );
                finished += 1;
            }
            if finished == 60 {
                break;
            }
            assert!(step < 100_000, "{finished} of {added} finished");
        }
        assert_eq!(scheduler.jobs(), 0);
    }
}

#[test]
fn two_requests_for_the_same_text_share_one_row() {
    let text = text();
    let mut scheduler = scheduler(&text, 8, 16, 64, 1 << 20);
    let jobs = [scheduler.add(search(&text, "ab a", 4, 4)), scheduler.add(search(&text, "ab a", 4, 4))];
    let mut answers = Vec::new();
    while answers.len() < 2 {
        for job in scheduler.step().unwrap().done {
            answers.push(completions(scheduler.remove(job).unwrap()));
        }
    }
    assert_eq!(jobs.len(), answers.len());
    assert_eq!(answers[0].0, answers[1].0);
    let positions: Vec<usize> = answers.iter().map(|(_, usage)| usage.positions_computed).collect();
    let once = {
        let mut alone = self::scheduler(&text, 8, 16, 64, 1 << 20);
        let job = alone.add(search(&text, "ab a", 4, 4));
        finish(&mut alone, job).1.positions_computed
    };
    // Two share the lanes, so each computes less ahead of what it waits for.
    assert!(positions.iter().sum::<usize>() <= once, "{positions:?} {once}");
}

#[test]
fn a_request_for_which_the_engine_computes_nonsense_fails_alone() {
    let text = text();
    let poison = text.encode("b").first().unwrap().0;
    let limits = limits(&text, 4, 16, 64);
    let vocab = limits.vocab as u32;
    // NaN behind a "b" at position 1, which only texts that begin with it have.
    let logit = move |path: &[u32], next: u32| match path.get(1) {
        Some(&first) if first == poison => f32::NAN,
        _ if next + 1 == vocab => 2.0,
        _ => next as f32 / 10.0,
    };
    let mut scheduler = Scheduler::new(Box::new(FakeBackend::with_logits(limits, Box::new(logit))), 1 << 20);
    let good = scheduler.add(search(&text, "a a", 2, 3));
    let bad = scheduler.add(search(&text, "b", 2, 3));
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for _ in 0..1000 {
        let stepped = scheduler.step().unwrap();
        for job in stepped.failed.iter().chain(&stepped.done) {
            scheduler.remove(*job).unwrap();
        }
        done.extend(stepped.done);
        failed.extend(stepped.failed);
        if scheduler.jobs() == 0 {
            break;
        }
    }
    assert_eq!((done, failed), (vec![good], vec![bad]));
}

#[test]
fn an_engine_error_ends_the_step_and_after_a_reset_all_is_well() {
    let text = text();
    let mut forwards = 0;
    let fault = move |_: &Batch| {
        forwards += 1;
        (forwards == 2).then_some(Fault::Error)
    };
    let fake = FakeBackend::hashed(limits(&text, 4, 16, 64), 3, 4.0).with_faults(Box::new(fault));
    let mut scheduler = Scheduler::new(Box::new(fake), 1 << 20);
    let job = scheduler.add(search(&text, "ab", 2, 4));
    let error = (0..100).find_map(|_| scheduler.step().err()).unwrap();
    assert!(error.to_string().contains("injected"), "{error}");
    scheduler.remove(job).unwrap();
    scheduler.reset();
    assert_eq!(scheduler.prefix_cache_stats(), PrefixCacheStats::default());
    let job = scheduler.add(search(&text, "ab", 2, 4));
    assert_eq!(finish(&mut scheduler, job).0, alone(&text, "ab", 2, 4));
}

/// What a random request is; equal ones have equal answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Ask {
    Complete { typed: String, beams: usize, new: usize },
    Generate { prompt: String, seed: u64, sequences: usize, new: usize },
}

impl Ask {
    fn random(rng: &mut StdRng) -> Self {
        let text = typed(rng);
        if rng.random_bool(0.7) {
            return Self::Complete { typed: text, beams: rng.random_range(1..5), new: rng.random_range(1..4) };
        }
        let (seed, sequences, new) = (rng.random_range(0..3), rng.random_range(1..4), rng.random_range(1..6));
        Self::Generate { prompt: text, seed, sequences, new }
    }

    fn task(&self, text: &Arc<Text>) -> Task {
        match self {
            Self::Complete { typed, beams, new } => search(text, typed, *beams, *new).into(),
            Self::Generate { prompt, seed, sequences, new } => {
                let choice = TokenChoice { temperature: 0.8, top_p: 0.9, ..TokenChoice::default() };
                let options = SamplingOptions {
                    sequences: *sequences,
                    max_new_tokens: *new,
                    context: 16,
                    choice,
                    stop: Vec::new(),
                    seed: *seed,
                    told: 0,
                    listed: 6,
                };
                Sampling::new(Arc::clone(text), text.encode(prompt), options).unwrap().into()
            }
        }
    }
}

#[test]
fn random_use_starves_nobody_loses_nothing_and_changes_no_answer() {
    let text = text();
    let mut rng = StdRng::seed_from_u64(23);
    let mut known: FxHashMap<Ask, TaskOutput> = FxHashMap::default();
    let mut served_alone = |ask: &Ask| -> TaskOutput {
        let alone = || {
            let mut scheduler = scheduler(&text, 8, 16, 64, 1 << 20);
            let job = scheduler.add(ask.task(&text));
            while !scheduler.step().unwrap().done.contains(&job) {}
            scheduler.remove(job).unwrap().0
        };
        known.entry(ask.clone()).or_insert_with(alone).clone()
    };
    let (operations, mut answered, mut cancelled) = (100_000, 0, 0);
    // Lanes, chunk, pages, prefix cache bytes, positions of a step: from ample to far too small.
    let shapes = [(8, 16, 64, 1 << 20, 64), (3, 4, 32, 4000, 8), (2, 2, 16, 2000, 2), (16, 8, 48, 30_000, 24)];
    for (lanes, chunk, pages, prefix_cache_bytes, step_tokens) in shapes {
        let mut scheduler = scheduler(&text, lanes, chunk, pages, prefix_cache_bytes);
        scheduler.set_step_tokens(step_tokens);
        scheduler.set_forward_cost(3.0);
        let mut running: Vec<(JobId, Ask)> = Vec::new();
        for _ in 0..operations / shapes.len() {
            match rng.random_range(0..10) {
                0..3 if running.len() < 12 => {
                    let ask = Ask::random(&mut rng);
                    let class = if rng.random_bool(0.3) { Class::Bulk } else { Class::Interactive };
                    let flow = Flow { client: Client::session(&rng.random_range(0..3).to_string()), class };
                    running.push((scheduler.add_of(flow, ask.task(&text)), ask));
                }
                3 if rng.random_bool(0.2) && !running.is_empty() => {
                    let (job, _) = running.swap_remove(rng.random_range(0..running.len()));
                    scheduler.remove(job).unwrap();
                    cancelled += 1;
                }
                _ => {
                    for job in scheduler.step().unwrap().done {
                        let (_, ask) = running.swap_remove(running.iter().position(|r| r.0 == job).unwrap());
                        let (product, usage) = scheduler.remove(job).unwrap();
                        assert_eq!(product, served_alone(&ask), "{ask:?} with {lanes} lanes, {pages} pages");
                        assert!(usage.typed_positions_computed <= usage.positions_computed);
                        answered += 1;
                    }
                    // Whoever came before has had the turn of who waited longest.
                    let longest = scheduler.jobs.iter().map(|job| scheduler.forwards - job.served).max();
                    assert!(longest.unwrap_or(0) <= LONGEST_WAITING_EVERY * 24, "a job waits for {longest:?} forwards");
                }
            }
            scheduler.cache.check();
        }
        for (job, _) in running {
            scheduler.remove(job).unwrap();
            cancelled += 1;
        }
        scheduler.cache.check();
        assert_eq!(scheduler.prefix_cache_stats().holds, 0, "a job that is gone still holds places");
        assert_eq!(scheduler.jobs(), 0);
    }
    assert!(answered > 5_000 && cancelled > 500, "{answered} answered, {cancelled} cancelled");
}

/// Expensive: several texts, each long, of a few tokens more in every forward.
fn generation(text: &Arc<Text>, seed: u64) -> Task {
    // Each of another prompt: what two have in common costs the second nothing.
    let prompt = (0..4).map(|bit| if seed >> bit & 1 == 0 { 'a' } else { 'b' }).collect();
    Ask::Generate { prompt, seed, sequences: 8, new: 10 }.task(text)
}

/// The order in which jobs are done, with the number of steps until then.
fn finish_all(scheduler: &mut Scheduler) -> Vec<(JobId, u64)> {
    let mut done = Vec::new();
    while scheduler.jobs() > 0 {
        for job in scheduler.step().unwrap().done {
            done.push((job, scheduler.forwards));
            scheduler.remove(job).unwrap();
        }
        assert!(scheduler.forwards < 10_000, "{} jobs starve", scheduler.jobs());
    }
    done
}

/// A scheduler whose model ends no text early.
fn endless(text: &Text, lanes: usize) -> Scheduler {
    let limits = limits(text, lanes, 16, 256);
    let end = limits.vocab as u32 - 1;
    let logit = move |path: &[u32], next: u32| {
        let mixed = path.iter().fold(next.wrapping_mul(2_654_435_761), |h, &x| (h ^ x).wrapping_mul(16_777_619));
        if next == end { -20.0 } else { (mixed >> 24) as f32 / 128.0 }
    };
    Scheduler::new(Box::new(FakeBackend::with_logits(limits, Box::new(logit))), 1 << 20)
}

#[test]
fn a_cheap_request_is_answered_soon_beside_a_dozen_dear_ones() {
    let text = text();
    let mut scheduler = endless(&text, 8);
    for seed in 0..12 {
        scheduler.add(generation(&text, seed));
    }
    // They are in the middle of their work when it comes.
    for _ in 0..30 {
        scheduler.step().unwrap();
    }
    let cheap = scheduler.add(Ask::Generate { prompt: "a b".into(), seed: 1, sequences: 1, new: 4 }.task(&text));
    let before = scheduler.forwards;
    let done = finish_all(&mut scheduler);
    let (_, forwards) = done.iter().find(|(job, _)| *job == cheap).unwrap();
    assert!(forwards - before <= 8, "{} forwards", forwards - before);
}

#[test]
fn dear_requests_end_in_the_order_in_which_they_came() {
    let text = text();
    let mut scheduler = endless(&text, 8);
    let jobs: Vec<JobId> = (0..12).map(|seed| scheduler.add(generation(&text, seed))).collect();
    let done = finish_all(&mut scheduler);
    assert_eq!(done.iter().map(|(job, _)| *job).collect::<Vec<_>>(), jobs);
    let last = done[done.len() - 1].1;
    let mean = done.iter().map(|(_, forwards)| forwards).sum::<u64>() / done.len() as u64;
    // Shared evenly, the first of them would end when nearly all is done.
    assert!(done[0].1 * 3 < last && mean * 3 < last * 2, "first {}, mean {mean}, last {last}", done[0].1);
}

#[test]
fn expensive_forwards_fill_more_rows() {
    assert_eq!(sharing::rows_worth_filling(0.0), 1);
    assert_eq!(sharing::rows_worth_filling(0.3), 1, "a tiny model on a CPU: every row costs the same");
    assert_eq!(sharing::rows_worth_filling(10.0), 24);
}
