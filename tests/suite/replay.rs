//! Replays of people typing: what the prefix cache holds must never change an answer, only its cost.

use std::sync::Arc;

use completion::text::{Text, TokenId};
use completion::typing::Tolerance;
use completion::{Completions, Search, SearchOptions, TaskOutput};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scheduler::backend::{Backend, Limits};
use scheduler::fake::FakeBackend;
use scheduler::scheduler::Scheduler;

use crate::support::{build, load, repository};

/// People typing at the same time.
const USERS: usize = 4;
/// Answers may differ where two suggestions are nearer than this, in log-probability.
const TIE: f64 = 1e-5;

/// Within which two engines agree about a suggestion, in log-probability.
#[derive(Clone, Copy, Debug)]
pub struct Nearness {
    /// Equal suggestions are nearer than this to each other.
    pub equal: f64,
    /// Suggestions that change places are this near to each other at most.
    pub tie: f64,
}

impl Nearness {
    /// Of one engine, which may group its sums in another way.
    pub const ONE_ENGINE: Self = Self { equal: 1e-3, tie: TIE };
}

/// The keystrokes of one person: typing, backspace, paste, also of a text in capitals, edits in the middle.
struct Typist {
    queries: Arc<Vec<String>>,
    target: Vec<char>,
    typed: Vec<char>,
}

impl Typist {
    fn new(queries: &Arc<Vec<String>>, rng: &mut StdRng) -> Self {
        let target = queries[rng.random_range(0..queries.len())].chars().collect();
        Self { queries: Arc::clone(queries), target, typed: Vec::new() }
    }

    fn next(&mut self, rng: &mut StdRng) -> String {
        let at = |rng: &mut StdRng, typed: &[char]| rng.random_range(0..typed.len());
        match rng.random_range(0..100) {
            0..8 if !self.typed.is_empty() => {
                self.typed.truncate(self.typed.len().saturating_sub(rng.random_range(1..4)))
            }
            8..11 => {
                let query: Vec<char> = self.queries[rng.random_range(0..self.queries.len())].chars().collect();
                self.typed = query[..rng.random_range(1..=query.len())].to_vec();
                if rng.random_range(0..3) == 0 {
                    self.typed.iter_mut().for_each(char::make_ascii_uppercase);
                }
                self.target = query;
            }
            11..14 if !self.typed.is_empty() => {
                let place = at(rng, &self.typed);
                self.typed.remove(place);
            }
            14..17 if !self.typed.is_empty() => {
                let place = at(rng, &self.typed);
                self.typed.insert(place, ['a', ' ', '(', 'é', '7'][rng.random_range(0..5)]);
            }
            _ => match self.target.get(self.typed.len()) {
                Some(&next) => self.typed.push(next),
                None => *self = Self::new(&self.queries, rng),
            },
        }
        // Something must be there to complete.
        if self.typed.iter().all(|c| c.is_whitespace()) {
            self.typed = vec![self.target[0]];
        }
        self.typed.truncate(40);
        self.typed.iter().collect()
    }
}

fn search(text: &Arc<Text>, typed: &str, context: usize) -> Search {
    let tolerance = Tolerance::Auto;
    let options =
        SearchOptions { suggestions: 10, beams: 12, max_new_tokens: 8, context, tolerance, ..SearchOptions::default() };
    Search::new(Arc::clone(text), typed.to_owned(), options)
}

/// Runs searches together and returns their answers in order.
fn run(scheduler: &mut Scheduler, searches: Vec<Search>) -> Vec<Completions> {
    let jobs: Vec<_> = searches.into_iter().map(|search| scheduler.add(search)).collect();
    let mut answers = vec![None; jobs.len()];
    while answers.iter().any(Option::is_none) {
        for done in scheduler.step().unwrap().done {
            let index = jobs.iter().position(|job| *job == done).unwrap();
            answers[index] = match scheduler.remove(done) {
                Some((TaskOutput::Suggestions(completions), _)) => Some(completions),
                other => panic!("{other:?}"),
            };
        }
    }
    answers.into_iter().flatten().collect()
}

/// Whether two answers are the same, and if not, whether near ties explain it.
fn compare(warm: &Completions, cold: &Completions, near: Nearness) -> (bool, bool) {
    let texts = |completions: &Completions| completions.suggestions.iter().map(|s| s.text.clone()).collect::<Vec<_>>();
    if texts(warm) == texts(cold) {
        let close =
            warm.suggestions.iter().zip(&cold.suggestions).all(|(a, b)| (a.logprob - b.logprob).abs() < near.equal);
        return (close, close);
    }
    let pairs = warm.suggestions.iter().zip(&cold.suggestions).filter(|(a, b)| a.text != b.text);
    let explained = pairs.map(|(a, b)| (a.logprob - b.logprob).abs()).all(|difference| difference <= near.tie);
    (false, explained && warm.suggestions.len() == cold.suggestions.len())
}

/// What became of a replay's keystrokes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    /// Answers that were equal.
    pub equal: usize,
    /// Answers that were equal, or differ in suggestions that are as near to each other as a tie only.
    pub explained: usize,
}

/// Types `keystrokes` characters at a scheduler that remembers and at one that forgets.
pub fn replay(
    text: &Arc<Text>,
    (mut warm, mut cold): (Scheduler, Scheduler),
    near: Nearness,
    context: usize,
    bound: usize,
    keystrokes: usize,
) -> Replayed {
    let queries: Arc<Vec<String>> = Arc::new(
        std::fs::read_to_string(repository("models/demo/queries/heldout_unseen.txt"))
            .unwrap()
            .lines()
            .map(String::from)
            .collect(),
    );
    let mut rng = StdRng::seed_from_u64(11);
    let mut typists: Vec<Typist> = (0..USERS).map(|_| Typist::new(&queries, &mut rng)).collect();
    let mut replayed = Replayed::default();
    for _ in 0..keystrokes / USERS {
        let typed: Vec<String> = typists.iter_mut().map(|typist| typist.next(&mut rng)).collect();
        let answers = run(&mut warm, typed.iter().map(|typed| search(text, typed, context)).collect());
        let bytes = warm.prefix_cache_stats().bytes;
        assert!(bytes <= bound, "{bytes} bytes in the prefix cache, bound {bound}");
        for (typed, answer) in typed.iter().zip(answers) {
            cold.reset();
            let reference = run(&mut cold, vec![search(text, typed, context)]).remove(0);
            for suggestion in &answer.suggestions {
                let is_exact = suggestion.text.starts_with(typed.as_str());
                assert_eq!(is_exact, suggestion.meaning.edits == 0, "{typed:?} {suggestion:?}");
            }
            let (same, explained) = compare(&answer, &reference, near);
            if !explained {
                println!("replay: {typed:?}\n{answer:#?}\n{reference:#?}");
            }
            replayed.equal += usize::from(same);
            replayed.explained += usize::from(explained);
        }
    }
    replayed
}

#[test]
fn answers_from_memory_equal_cold_ones_on_the_fake_engine() {
    let (keystrokes, context, tree_bytes, pages) = (10_000, 64, 2 << 20, 2000);
    let json = std::fs::read_to_string(repository("tests/goldens/plain/tokenizer.json")).unwrap();
    let text = Arc::new(Text::from_json(&json, TokenId(280), &[TokenId(280)], "").unwrap());
    let limits = Limits {
        lanes: 48,
        context,
        chunk: 64,
        selected: 64,
        vocab: text.vocab(),
        top_k: 24,
        pages,
        page_bytes: 64,
        source: None,
    };
    let scheduler = || Scheduler::new(Box::new(FakeBackend::hashed(limits.clone(), 1, 5.0)), tree_bytes);
    let replayed =
        replay(&text, (scheduler(), scheduler()), Nearness::ONE_ENGINE, context, pages * 64 + tree_bytes, keystrokes);
    assert_eq!(replayed.equal, keystrokes);
}

#[test]
fn answers_from_memory_equal_cold_ones_on_onnxruntime() {
    let keystrokes = std::env::var("FORETYPE_REPLAY_KEYSTROKES").map_or(1000, |n| n.parse().unwrap());
    let tree_bytes = 8 << 20;
    let (_folder, bundle, manifest) = build(&repository("models/demo"), None);
    let text = Arc::new(foretype::engine::read_text(&bundle, &manifest).unwrap());
    let backend = || -> Box<dyn Backend> { load(&bundle, &manifest) };
    let limits = backend().limits().clone();
    let bound = limits.pages * limits.page_bytes + tree_bytes;
    let (warm, cold) = (Scheduler::new(backend(), tree_bytes), Scheduler::new(backend(), tree_bytes));
    let Replayed { equal, explained } =
        replay(&text, (warm, cold), Nearness::ONE_ENGINE, limits.context, bound, keystrokes);
    assert_eq!(explained, keystrokes);
    println!("replay: {equal} of {keystrokes} answers equal a cold run's, the others but for ties within {TIE}");
    assert!(equal * 1000 >= keystrokes * 999, "{equal} of {keystrokes}");
}
