//! One model's threads behind their queue, over the fake engine: sessions, streams, seeds, replicas, deadlines and who
//! goes first.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use completion::{SequenceFinish, TokenChoice};
use foretype::engine::{Accepted, Caller, Completion, Engine, Generation, Piece, Work};
use foretype::error::Kind;
use foretype::metrics::Metrics;
use scheduler::{Answer, Client, Event, Finish};

use crate::support::{fake_engine, faulty_engine, request_options, wait_for_rest};

/// An engine that computes nothing for so long is at rest.
const QUIET: Duration = Duration::from_millis(100);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn completion(input: &str) -> Completion {
    Completion { input: input.into(), ..Completion::default() }
}

/// A generation whose tokens are drawn.
fn drawn(prompt: &str) -> Generation {
    let choice = TokenChoice { temperature: 1.0, ..TokenChoice::default() };
    Generation { prompt: prompt.into(), choice, ..Generation::default() }
}

/// An engine that computes nothing until told so, and how many forwards it has made.
fn gated_engine(max_batch: usize, metrics: &Arc<Metrics>) -> (Engine, mpsc::Sender<()>, Arc<AtomicUsize>) {
    let (open, gate) = mpsc::channel::<()>();
    let (gate, forwards) = (Arc::new(std::sync::Mutex::new(gate)), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&forwards);
    let is_open = Arc::new(AtomicBool::new(true));
    let faults = move || -> scheduler::fake::FaultFn {
        let (gate, counter, is_open) = (Arc::clone(&gate), Arc::clone(&counter), Arc::clone(&is_open));
        Box::new(move |batch| {
            // The forwards of starting have one token a row, token 0 or the start; they pass.
            if batch.tokens.len() > batch.rows.len() || !is_open.load(Ordering::Relaxed) {
                is_open.store(false, Ordering::Relaxed);
                counter.fetch_add(1, Ordering::Relaxed);
                let _ = gate.lock().unwrap().recv();
            }
            None
        })
    };
    let mut options = request_options();
    options.pool.max_batch = max_batch;
    options.pool.lookahead = false;
    options.pool.hang_after = Duration::from_secs(60);
    options.pool.patience = Duration::from_millis(20);
    (faulty_engine(faults, options, metrics), open, forwards)
}

#[test]
fn a_newer_keystroke_of_a_session_ends_the_older_ones() {
    let metrics = Metrics::new();
    let (engine, open, forwards) = gated_engine(1, &metrics);
    let typed = |input: &str| Completion { session: Some("ann".into()), ..completion(input) };
    // The first is being worked on, the second waits, the third supersedes both; another session's is left alone.
    let first = engine.start_completion(&typed("heat")).unwrap();
    while forwards.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let second = engine.start_completion(&typed("heat e")).unwrap();
    let other = engine.start_completion(&Completion { session: Some("bob".into()), ..completion("water") }).unwrap();
    let third = engine.start_completion(&typed("heat ex")).unwrap();
    drop(open);
    block_on(async {
        let (first, second) = (first.finish().await.unwrap(), second.finish().await.unwrap());
        assert_eq!([first.finish, second.finish], [Finish::Superseded; 2]);
        assert_eq!(second.usage.positions_computed, 0, "what waits and is superseded never reaches the model");
        for whole in [other.finish().await.unwrap(), third.finish().await.unwrap()] {
            assert_eq!((whole.finish, whole.result.suggestions.len()), (Finish::Complete, 10));
        }
    });
    let text = metrics.render();
    assert!(text.contains("foretype_requests_total{model=\"fake\",outcome=\"superseded\"} 2"), "{text}");
}

#[test]
fn an_expired_request_never_reaches_the_model_and_the_newest_goes_first() {
    let metrics = Metrics::new();
    let (engine, open, forwards) = gated_engine(1, &metrics);
    let first = engine.start_completion(&completion("heat")).unwrap();
    while forwards.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let expired = engine.start_completion(&Completion { deadline_ms: Some(1), ..completion("heat e") }).unwrap();
    let older = engine.start_completion(&completion("water a")).unwrap();
    let newer = engine.start_completion(&completion("water b")).unwrap();
    // At least as long as the deadline and the queue's patience, however long the machine takes.
    std::thread::sleep(Duration::from_millis(40));
    drop(open);
    block_on(async {
        let expired = expired.finish().await.unwrap();
        assert_eq!((expired.finish, expired.usage.forwards), (Finish::Deadline, 0));
        assert_eq!(first.finish().await.unwrap().finish, Finish::Complete);
        let (older, newer) = (older.finish().await.unwrap(), newer.finish().await.unwrap());
        assert!(older.queued > newer.queued + newer.searched, "{:?} {:?}", older.queued, newer.queued);
    });
}

#[test]
fn a_full_queue_refuses_and_says_so() {
    let metrics = Metrics::new();
    let (engine, open, _) = gated_engine(1, &metrics);
    let mut running: Vec<_> = (0..80).map(|i| engine.start_completion(&completion(&format!("heat {i}")))).collect();
    drop(open);
    let results: Vec<_> = running
        .drain(..)
        .map(|accepted| accepted.map(|running| block_on(running.finish())).and_then(|answer| answer))
        .collect();
    let busy = results.iter().filter_map(|r| r.as_ref().err()).collect::<Vec<_>>();
    assert!(
        busy.iter().all(|error| error.kind == Kind::Overloaded && error.message.contains("64 requests")),
        "{busy:?}"
    );
    // One runs and 64 wait, or 64 wait before the first was taken.
    assert!((15..=16).contains(&busy.len()), "{}", busy.len());
    assert!(metrics.render().contains(&format!("outcome=\"refused\"}} {}", busy.len())));
}

fn parts_and_answer<T: std::fmt::Debug>(mut pieces: Vec<Piece<T>>) -> (Vec<Event>, Answer<T>) {
    let Some(Piece::Done(answer)) = pieces.pop() else { panic!("no answer came last") };
    let event = |piece| if let Piece::Event(event) = piece { event } else { panic!("{piece:?}") };
    (pieces.into_iter().map(event).collect(), answer)
}

#[test]
fn streams_bring_the_answer_in_parts() {
    let engine = fake_engine();
    block_on(async {
        for input in ["h", "heat ex", "water and", "2"] {
            let pieces: Vec<_> = engine.start_completion(&completion(input)).unwrap().pieces().collect().await;
            let (events, answer) = parts_and_answer(pieces);
            let suggestion =
                |event| if let Event::Suggestion(suggestion) = event { suggestion } else { panic!("{event:?}") };
            let parts: Vec<_> = events.into_iter().map(suggestion).collect();
            assert_eq!(parts, answer.result.suggestions, "{input:?}");
            assert_eq!(parts, engine.complete(&completion(input)).await.unwrap().result.suggestions);
        }
        let generation = Generation { seed: Some(3), sequences: 4, ..drawn("heat") };
        let (events, answer) = parts_and_answer(engine.start_generation(&generation).unwrap().pieces().collect().await);
        let mut texts = vec![String::new(); 4];
        for event in events {
            let Event::Token { sequence, token } = event else { panic!("{event:?}") };
            texts[sequence].push_str(&token.text);
        }
        assert_eq!(answer.result.sequences.iter().map(|s| s.text.clone()).collect::<Vec<_>>(), texts);
    });
}

fn engine_with_lookahead(lookahead: bool) -> (Engine, Arc<Metrics>) {
    let mut options = request_options();
    options.pool.lookahead = lookahead;
    let metrics = Metrics::new();
    (faulty_engine(|| Box::new(|_| None), options, &metrics), metrics)
}

#[test]
fn what_the_tree_has_is_answered_by_the_thread_that_asks() {
    let (engine, _) = engine_with_lookahead(false);
    let first = block_on(engine.complete(&completion("heat ex"))).unwrap();
    assert!(first.usage.forwards > 0);
    // The model thread may not be waiting again yet: then it answers.
    let mut at_once = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while at_once < 50 {
        assert!(Instant::now() < until, "{at_once} answers were there when the request had been handed in");
        std::thread::yield_now();
        let Some(again) = engine.start_completion(&completion("heat ex")).unwrap().finish().now_or_never() else {
            continue;
        };
        let again = again.unwrap();
        assert_eq!((again.result, again.finish, again.usage.forwards), (first.result.clone(), first.finish, 0));
        at_once += 1;
    }
    // What it doesn't have is computed as ever.
    assert!(block_on(engine.complete(&completion("zinc"))).unwrap().usage.forwards > 0);
}

/// Types the text and then three times what its first suggestion has next, with a pause behind each key. Returns the
/// forwards that those three needed.
fn agree(engine: &Engine, caller: &Caller, text: &str, pause: impl Fn()) -> usize {
    let mut typed = text.to_owned();
    let mut forwards = Vec::new();
    for _ in 0..4 {
        let key = Completion { caller: caller.clone(), ..completion(&typed) };
        let answer = block_on(engine.complete(&key)).unwrap();
        forwards.push(answer.usage.forwards);
        typed.extend(answer.result.suggestions[0].text[typed.len()..].chars().next());
        pause();
    }
    forwards[1..].iter().sum()
}

#[test]
fn an_idle_engine_prepares_for_the_key_that_agrees() {
    let texts = ["heat e", "water a", "zinc c", "a me"];
    let forwards = |lookahead| {
        let (engine, metrics) = engine_with_lookahead(lookahead);
        texts.map(|text| agree(&engine, &Caller::default(), text, || wait_for_rest(|| metrics.render(), QUIET)))
    };
    let (plain, until) = (forwards(false), Instant::now() + Duration::from_secs(60));
    // The second and third key are answered by this thread; the model thread has to prepare for the key after them too.
    // A busy machine may not get to it in time, so one text of all tries is enough.
    loop {
        let prepared = forwards(true);
        if (0..texts.len()).any(|text| prepared[text] == 0 && plain[text] > 0) {
            return;
        }
        assert!(Instant::now() < until, "{prepared:?} {plain:?}");
    }
}

#[test]
fn a_key_that_was_foreseen_is_answered_while_the_engine_works_for_another() {
    let (is_held, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let gates = (Arc::clone(&is_held), Arc::clone(&held));
    let faults = move || -> scheduler::fake::FaultFn {
        let (is_held, held) = gates.clone();
        Box::new(move |_| {
            while is_held.load(Ordering::Relaxed) {
                held.store(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
            None
        })
    };
    let metrics = Metrics::new();
    let mut options = request_options();
    options.pool.hang_after = Duration::from_secs(60);
    let engine = faulty_engine(faults, options, &metrics);
    // The model thread may not get to the next key in time, so one try is enough.
    let until = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        assert!(Instant::now() < until, "{number} keys had to wait");
        let salt = Some(number.to_string());
        let salted = |input: &str| Completion {
            caller: Caller { salt: salt.clone(), ..Caller::default() },
            ..completion(input)
        };
        let answer = block_on(engine.complete(&salted("heat e"))).unwrap();
        let next = answer.result.suggestions[0].next_character().unwrap();
        wait_for_rest(|| metrics.render(), QUIET);
        held.store(0, Ordering::Relaxed);
        is_held.store(true, Ordering::Relaxed);
        let other = engine.start_completion(&salted("zinc c")).unwrap();
        while held.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let foreseen = engine.start_completion(&salted(&format!("heat e{next}"))).unwrap().finish().now_or_never();
        is_held.store(false, Ordering::Relaxed);
        assert!(block_on(other.finish()).unwrap().usage.forwards > 0);
        if let Some(foreseen) = foreseen {
            assert_eq!(foreseen.unwrap().usage.forwards, 0);
            return;
        }
    }
}

#[test]
fn an_engine_that_is_never_without_bulk_work_prepares_for_the_key_that_agrees() {
    let texts = ["heat e", "water a", "zinc c", "a me"];
    let (plain, _) = engine_with_lookahead(false);
    let needs_forwards = |text: &&str| agree(&plain, &Caller::default(), text, || {}) > 0;
    let texts: Vec<&str> = texts.into_iter().filter(needs_forwards).collect();
    let engine = Arc::new(engine_with_lookahead(true).0);
    let is_over = &AtomicBool::new(false);
    let is_prepared = std::thread::scope(|scope| {
        for client in 0..4 {
            let batch = Accepted::new(Arc::clone(&engine), Client::session("batch"), Work::batch()).unwrap();
            scope.spawn(move || {
                let generation = Generation { sequences: 64, seed: Some(client), ..drawn("he") };
                while !is_over.load(Ordering::Relaxed) {
                    block_on(batch.generate(&generation)).unwrap();
                }
            });
        }
        // The model thread may not get to it in time, so one text of all tries is enough.
        let until = Instant::now() + Duration::from_secs(60);
        let is_prepared = (0..).take_while(|_| Instant::now() < until).any(|number| {
            // What was computed for an earlier try is another's.
            let caller = Caller { salt: Some(number.to_string()), ..Caller::default() };
            let pause = || std::thread::sleep(Duration::from_millis(50));
            texts.iter().any(|text| agree(&engine, &caller, text, pause) == 0)
        });
        is_over.store(true, Ordering::Relaxed);
        is_prepared
    });
    assert!(is_prepared);
}

#[test]
fn many_threads_that_type_get_the_answers_that_one_gets() {
    // A small prefix cache forgets, and each thread finds the engine parked, at work, or being visited.
    let mut options = request_options();
    options.pool.prefix_cache_bytes = 1 << 16;
    let (alone, crowd) = (fake_engine(), faulty_engine(|| Box::new(|_| None), options, &Metrics::new()));
    let texts = ["heat exchanger", "water and", "2 hea", "wire", "zinc cell"];
    let keys: Vec<&str> = texts.iter().flat_map(|text| (1..=text.len()).map(|end| &text[..end])).collect();
    let expected: Vec<_> = keys.iter().map(|key| block_on(alone.complete(&completion(key))).unwrap().result).collect();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (crowd, keys, expected) = (&crowd, &keys, &expected);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(thread);
                for _ in 0..50 {
                    // Mostly the key after the last one.
                    let key = rng.random_range(0..keys.len());
                    for key in key..(key + rng.random_range(1..6)).min(keys.len()) {
                        let answer = block_on(crowd.complete(&completion(keys[key]))).unwrap();
                        assert_eq!(answer.result, expected[key], "{:?}", keys[key]);
                    }
                }
            });
        }
    });
}

#[test]
fn a_seed_gives_the_same_text_alone_and_in_a_crowd_and_on_any_replica() {
    let mut options = request_options();
    options.pool.replicas = scheduler::Replicas::fixed(3);
    let (alone, crowd) = (fake_engine(), faulty_engine(|| Box::new(|_| None), options, &Metrics::new()));
    let generation = |i: u64| Generation {
        prompt: ["heat", "water and", "a"][i as usize % 3].into(),
        choice: TokenChoice {
            temperature: 0.9,
            top_p: 0.95,
            top_k: [0, 10][i as usize % 2],
            repetition_penalty: 1.2,
            ..TokenChoice::default()
        },
        seed: Some(i / 2),
        sequences: 1 + i as usize % 3,
        max_new_tokens: Some(12),
        ..Generation::default()
    };
    block_on(async {
        // More than the queue takes at once would be refused.
        let running: Vec<_> = (0..48).map(|i| crowd.start_generation(&generation(i)).unwrap()).collect();
        let mut texts = std::collections::HashSet::new();
        for (i, running) in running.into_iter().enumerate() {
            let (crowd, alone) =
                (running.finish().await.unwrap(), alone.generate(&generation(i as u64)).await.unwrap());
            assert_eq!(crowd.result, alone.result);
            texts.extend(crowd.result.sequences.into_iter().map(|s| s.text));
        }
        assert!(texts.len() > 40, "seeds and prompts make a difference: {}", texts.len());
    });
}

#[test]
fn what_can_be_wrong_with_a_generation_is_named() {
    let engine = fake_engine();
    let wrong = |change: fn(&mut Generation), words: &str| {
        let mut generation = Generation { prompt: "heat".into(), ..Generation::default() };
        change(&mut generation);
        let error = block_on(engine.generate(&generation)).unwrap_err();
        assert!(error.message.contains(words), "{error:?} lacks {words:?}");
    };
    wrong(|g| g.choice.temperature = -1.0, "temperature is -1; it must be from 0 to 100");
    wrong(|g| g.choice.temperature = f32::NAN, "temperature is NaN");
    wrong(|g| g.choice.top_p = 0.0, "top_p is 0; it must be above 0");
    wrong(|g| g.choice.repetition_penalty = f32::INFINITY, "repetition_penalty is inf");
    wrong(|g| g.choice.typical_p = 0.0, "typical_p is 0; it must be above 0");
    wrong(|g| g.choice.frequency_penalty = 3.0, "frequency_penalty is 3; it must be from -2 to 2");
    wrong(|g| g.choice.min_new_tokens = 17, "min_new_tokens is 17; it must be at most 16");
    wrong(|g| g.max_length = Some(1), "max_length is 1; it must be above the prompt's");
    wrong(|g| g.prompt_tokens = Some(vec![5, 100_000]), "prompt has the token 100000; the model's tokens are 0 to");
    wrong(|g| g.sequences = 0, "n is 0; it must be from 1 to 100");
    wrong(|g| g.max_new_tokens = Some(0), "max_new_tokens is 0");
    wrong(|g| g.stop = vec![String::new()], "a stop string has 0 bytes");
    wrong(|g| g.stop = vec!["x".into(); 17], "17 stop strings");
    wrong(|g| g.prompt = "x".repeat(201), "201 characters");
    wrong(|g| g.prompt = "zq".repeat(60), "this model has room for 47");
    wrong(|g| g.session = Some(String::new()), "session has 0 bytes");
    wrong(|g| g.deadline_ms = Some(0), "deadline_ms is 0");
    let greedy = block_on(engine.generate(&Generation { stop: vec!["e".into()], ..Generation::default() })).unwrap();
    let sequence = &greedy.result.sequences[0];
    assert_eq!(greedy.result.prompt_tokens, 1, "an empty prompt is the start token");
    assert!(sequence.finish != Some(SequenceFinish::Stop) || !sequence.text.contains('e'));
}
