//! The scheduler over a fake encoder-decoder: every answer is what its own source gives, whoever else's is read beside
//! it, with slots for all and with far too few.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHashMap;

use super::*;
use crate::backend::{Limits, SourceLimits};
use crate::fake::{FakeBackend, Fault};
use completion::TokenChoice;
use completion::text::testing::tiny;
use completion::text::{Text, TokenId};
use completion::{Prompt, Sampling, SamplingOptions};

/// Lanes, slots for requests, pages, bytes of the prefix cache.
type Shape = (usize, usize, usize, usize);

const AMPLE: Shape = (8, 8, 64, 1 << 20);

fn limits(text: &Text, (lanes, slots, pages, _): Shape) -> Limits {
    let source = Some(SourceLimits { slots: slots + 1, tokens: 6, slot_bytes: 64 });
    let vocab = text.vocab();
    Limits { lanes, context: 12, chunk: 4, selected: lanes.max(4), vocab, top_k: 6, pages, page_bytes: 64, source }
}

fn scheduler(text: &Text, shape: Shape) -> Scheduler {
    Scheduler::new(Box::new(FakeBackend::hashed(limits(text, shape), 9, 4.0)), shape.3)
}

/// A request; equal ones have equal answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ask {
    source: Vec<u32>,
    sequences: usize,
    new: usize,
    seed: u64,
}

impl Ask {
    fn random(rng: &mut StdRng) -> Self {
        let source = (0..rng.random_range(1..4)).map(|_| rng.random_range(0..2)).collect();
        let (sequences, new, seed) = (rng.random_range(1..4), rng.random_range(1..7), rng.random_range(0..2));
        Self { source, sequences, new, seed }
    }

    fn task(&self, text: &Arc<Text>) -> Task {
        let options = SamplingOptions {
            sequences: self.sequences,
            max_new_tokens: self.new,
            context: 12,
            choice: TokenChoice { temperature: 0.8, ..TokenChoice::default() },
            stop: Vec::new(),
            seed: self.seed,
            told: 0,
            listed: 6,
        };
        let source = Some(self.source.iter().copied().map(TokenId).collect());
        Sampling::new(Arc::clone(text), Prompt { tokens: vec![TokenId(0)], source }, options).unwrap().into()
    }
}

/// Steps until a job is done.
fn finish(scheduler: &mut Scheduler, job: JobId) -> (TaskOutput, Usage) {
    for _ in 0..10_000 {
        if scheduler.step().unwrap().done.contains(&job) {
            return scheduler.remove(job).unwrap();
        }
    }
    panic!("the job starves");
}

fn text() -> Arc<Text> {
    Arc::new(tiny("ab ", &[("a", "b"), (" ", "a"), ("a", "a")]))
}

#[test]
fn random_use_loses_no_slot_and_mixes_up_no_sources() {
    let text = text();
    let mut rng = StdRng::seed_from_u64(31);
    let mut known: FxHashMap<Ask, TaskOutput> = FxHashMap::default();
    let (mut answered, mut cancelled) = (0, 0);
    for shape in [AMPLE, (3, 1, 20, 4000), (2, 2, 12, 0), (8, 3, 30, 20_000)] {
        let mut scheduler = scheduler(&text, shape);
        let mut running: Vec<(JobId, Ask)> = Vec::new();
        for _ in 0..10_000 {
            match rng.random_range(0..10) {
                0..3 if running.len() < 10 => {
                    let ask = Ask::random(&mut rng);
                    running.push((scheduler.add(ask.task(&text)), ask));
                }
                3 if rng.random_bool(0.3) && !running.is_empty() => {
                    let (job, _) = running.swap_remove(rng.random_range(0..running.len()));
                    scheduler.remove(job).unwrap();
                    cancelled += 1;
                }
                4 if rng.random_bool(0.1) => scheduler.warm_up(TokenId(1), 2).unwrap(),
                _ => {
                    for job in scheduler.step().unwrap().done {
                        let (_, ask) = running.swap_remove(running.iter().position(|r| r.0 == job).unwrap());
                        let alone = || {
                            let mut alone = self::scheduler(&text, AMPLE);
                            let job = alone.add(ask.task(&text));
                            finish(&mut alone, job).0
                        };
                        let expected = known.entry(ask.clone()).or_insert_with(alone);
                        assert_eq!(scheduler.remove(job).unwrap().0, *expected, "{ask:?} in {shape:?}");
                        answered += 1;
                    }
                }
            }
            scheduler.cache.check();
            let holding = scheduler.jobs.iter().filter(|job| job.source.is_some()).count();
            assert_eq!(scheduler.sources.holds(), holding);
        }
        for (job, _) in running {
            scheduler.remove(job).unwrap();
        }
        assert_eq!(
            (scheduler.sources.holds(), scheduler.prefix_cache_stats().holds),
            (0, 0),
            "a job that is gone holds something"
        );
    }
    assert!(answered > 3_000 && cancelled > 300, "{answered} answered, {cancelled} cancelled");
}

#[test]
fn who_asks_of_the_same_source_shares_what_was_computed_and_who_does_not_shares_nothing() {
    let text = text();
    let mut scheduler = scheduler(&text, AMPLE);
    let ask = |source: &[u32]| Ask { source: source.to_vec(), sequences: 1, new: 6, seed: 1 };
    let mut run = |ask: &Ask| {
        let job = scheduler.add(ask.task(&text));
        finish(&mut scheduler, job)
    };
    let (first, cost) = run(&ask(&[1, 0]));
    assert_eq!(cost.positions_saved, 0);
    assert_eq!(cost.typed_tokens, 2, "what the client sent is the source");
    let (again, cost) = run(&ask(&[1, 0]));
    assert_eq!((again, cost.positions_computed), (first.clone(), 0));
    let (other, cost) = run(&ask(&[0, 1]));
    assert_ne!(other, first);
    assert_eq!(cost.positions_saved, 0);
}

#[test]
fn after_an_engine_error_sources_are_read_again() {
    let text = text();
    let mut forwards = 0;
    let fault = move |_: &Batch| {
        forwards += 1;
        (forwards == 2).then_some(Fault::Error)
    };
    let fake = FakeBackend::hashed(limits(&text, AMPLE), 9, 4.0).with_faults(Box::new(fault));
    let mut scheduler = Scheduler::new(Box::new(fake), 1 << 20);
    let ask = Ask { source: vec![1, 1], sequences: 2, new: 6, seed: 0 };
    let job = scheduler.add(ask.task(&text));
    (0..100).find_map(|_| scheduler.step().err()).unwrap();
    scheduler.remove(job).unwrap();
    scheduler.reset();
    assert_eq!(scheduler.sources.holds(), 0);
    let job = scheduler.add(ask.task(&text));
    let mut alone = self::scheduler(&text, AMPLE);
    let expected = alone.add(ask.task(&text));
    assert_eq!(finish(&mut scheduler, job).0, finish(&mut alone, expected).0);
}
