//! The scheduler over the fake engine: what it computes must equal what each request gets alone, from an empty tree, whatever
//! shares the forwards, whatever the tree remembers or had to forget.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::complete::SearchOptions;
use crate::model::Limits;
use crate::model::fake::FakeBackend;
use crate::text::testing::tiny;
use crate::text::{Method, Text};

fn text() -> Arc<Text> {
    Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("a", "a"), (" a", "b"), ("b", "b")]))
}

fn limits(text: &Text, lanes: usize, chunk: usize, pages: usize) -> Limits {
    let vocab = text.vocab();
    Limits { lanes, context: 16, chunk, selected: lanes.max(chunk), vocab, top_k: 6, pages, page_bytes: 64 }
}

fn search(text: &Arc<Text>, typed: &str, beams: usize, max_new_tokens: usize) -> Search {
    let options = SearchOptions { suggestions: 5, beams, max_new_tokens, context: 16, method: Method::Exact };
    Search::new(Arc::clone(text), typed.to_owned(), options)
}

fn scheduler(text: &Text, lanes: usize, chunk: usize, pages: usize, tree_bytes: usize) -> Scheduler {
    Scheduler::new(Box::new(FakeBackend::hashed(limits(text, lanes, chunk, pages), 3, 4.0)), tree_bytes)
}

/// Steps until a job is done; fails if that takes absurdly long.
fn finish(scheduler: &mut Scheduler, job: JobId) -> (Outcome, Usage) {
    for _ in 0..10_000 {
        if scheduler.step().unwrap().contains(&job) {
            return scheduler.remove(job).unwrap();
        }
    }
    panic!("the job starves");
}

fn alone(text: &Arc<Text>, typed: &str, beams: usize, new: usize) -> Outcome {
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
        let (outcome, usage) = finish(&mut warm, job);
        assert_eq!(outcome, alone(&text, typed, 4, 4), "{typed:?}");
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
    // Lanes, chunk, pages and tree bytes from ample to far too small.
    for (lanes, chunk, pages, tree_bytes) in [(8, 16, 64, 1 << 20), (3, 4, 32, 4000), (1, 2, 16, 2000), (5, 1, 20, 0)] {
        let mut scheduler = scheduler(&text, lanes, chunk, pages, tree_bytes);
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
            for job in scheduler.step().unwrap() {
                let at = running.iter().position(|r| r.0 == job).unwrap();
                let (_, typed, beams, new) = running.swap_remove(at);
                let (outcome, _) = scheduler.remove(job).unwrap();
                assert_eq!(outcome, alone(&text, &typed, beams, new), "{typed:?} with {lanes} lanes, {pages} pages");
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
        for job in scheduler.step().unwrap() {
            answers.push(scheduler.remove(job).unwrap());
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
    assert_eq!(positions.iter().sum::<usize>(), once);
}

#[test]
fn an_engine_error_ends_the_step_and_after_a_reset_all_is_well() {
    let text = text();
    let mut broken = limits(&text, 4, 16, 64);
    broken.page_bytes = 1;
    let nan = FakeBackend::with_logits(broken, Box::new(|path, _| if path.len() == 3 { f32::NAN } else { 0.0 }));
    let mut scheduler = Scheduler::new(Box::new(nan), 1 << 20);
    let job = scheduler.add(search(&text, "ab", 2, 4));
    let error = (0..100).find_map(|_| scheduler.step().err()).unwrap();
    assert!(error.to_string().contains("NaN"), "{error}");
    scheduler.remove(job).unwrap();
    scheduler.reset();
    assert_eq!(scheduler.tree_stats(), TreeStats::default());
}
