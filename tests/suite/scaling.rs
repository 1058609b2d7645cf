//! Replicas follow the load: they come when requests wait, and go when nobody needs them. The last one, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foretype::engine::{Completion, Engine, Memory, RequestOptions};
use foretype::error::Kind;
use foretype::metrics::Metrics;
use foretype::models::Intake;
use scheduler::fake::Fault;
use scheduler::{Health, Replicas};

use crate::support::{faulty_engine, request_options};

/// Time that a fake replica takes to load.
const LOAD: Duration = Duration::from_millis(100);

fn options(least: usize, most: usize) -> RequestOptions {
    let mut options = request_options();
    options.pool.replicas = Replicas { least, most, max_idle: Duration::from_millis(400) };
    // One request finds a place, others wait. Lookahead would keep a replica from resting.
    options.pool.max_batch = 1;
    options.pool.lookahead = false;
    options.default_deadline = Duration::from_secs(60);
    options
}

/// A model whose replicas take a while to load and to compute. Those after the first `sound` can't be loaded.
fn engine(least: usize, most: usize, metrics: &Arc<Metrics>, sound: usize) -> (Arc<Engine>, Arc<AtomicUsize>) {
    let loads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&loads);
    let faults = move || -> scheduler::fake::FaultFn {
        // One more is loaded for its limits.
        let load = count.fetch_add(1, Ordering::SeqCst);
        if load > 0 {
            std::thread::sleep(LOAD);
        }
        let broken = load > sound;
        Box::new(move |_| {
            std::thread::sleep(Duration::from_millis(3));
            broken.then_some(Fault::Error)
        })
    };
    (Arc::new(faulty_engine(faults, options(least, most), metrics)), loads)
}

/// The value of a metric of the fake model.
fn metric(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.render();
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{model=\"fake\""))).unwrap_or("0");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn wait_for(metrics: &Metrics, replicas: u64) {
    wait_for_metric(metrics, "foretype_replicas", replicas);
}

fn wait_for_metric(metrics: &Metrics, name: &str, value: u64) {
    let started = Instant::now();
    while metric(metrics, name) != value {
        assert!(started.elapsed() < Duration::from_secs(60), "{name} is never {value}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn ask(engine: &Engine, text: &str, session: usize) {
    let completion =
        Completion { input: text.into(), session: Some(format!("person-{session}")), ..Completion::default() };
    block_on(engine.complete(&completion)).unwrap();
}

/// Many people type at once while something is done.
fn under_load(engine: &Engine, what: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for person in 0..8 {
            let stop = &stop;
            scope.spawn(move || {
                for key in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    ask(engine, &format!("a method of {person} {key}"), person);
                }
            });
        }
        what();
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn replicas_come_and_go_with_the_load_and_no_request_fails() {
    let metrics = Metrics::new();
    let (engine, _) = engine(1, 2, &metrics, usize::MAX);
    for _ in 0..3 {
        assert_eq!(metric(&metrics, "foretype_replicas"), 1);
        under_load(&engine, || wait_for(&metrics, 2));
        ask(&engine, "heat", 1);
        wait_for(&metrics, 1);
    }
    ask(&engine, "heat", 2);
}

#[test]
fn a_model_sleeps_when_nobody_asks_and_wakes_for_all_who_do() {
    let metrics = Metrics::new();
    let (engine, loads) = engine(0, 1, &metrics, usize::MAX);
    ask(&engine, "heat", 0);
    for round in 0..3 {
        wait_for(&metrics, 0);
        assert_eq!(engine.health(), Health::Ready, "a model that sleeps is healthy");
        // Its thread ends after it was told to.
        wait_for_metric(&metrics, "foretype_prefix_cache_bytes", 0);
        let before = loads.load(Ordering::SeqCst);
        let asked = Instant::now();
        std::thread::scope(|scope| {
            for person in 0..8 {
                let engine = &engine;
                scope.spawn(move || ask(engine, &format!("heat {round}"), person));
            }
        });
        assert!(asked.elapsed() >= LOAD);
        // Whoever comes late on a busy machine may find it asleep again.
        assert!((1..4).contains(&(loads.load(Ordering::SeqCst) - before)), "not a load for each");
    }
}

#[test]
fn requests_to_a_model_that_wakes_keep_their_deadlines() {
    let (metrics, loads, open) = (Metrics::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (gate, count) = (Arc::clone(&open), Arc::clone(&loads));
    let faults = move || -> scheduler::fake::FaultFn {
        // The first is loaded for its limits, and the second proves that the model works.
        let waits = count.fetch_add(1, Ordering::SeqCst) > 1;
        while waits && !gate.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Box::new(|_| None)
    };
    let engine = faulty_engine(faults, options(0, 1), &metrics);
    wait_for(&metrics, 0);
    let completion = Completion { input: "heat".into(), deadline_ms: Some(1), ..Completion::default() };
    let at_last = Arc::clone(&open);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60));
        at_last.store(true, Ordering::SeqCst);
    });
    // The replica that is leaving may answer once more.
    let mut answer = block_on(engine.complete(&completion)).unwrap();
    while loads.load(Ordering::SeqCst) <= 2 {
        answer = block_on(engine.complete(&completion)).unwrap();
    }
    assert!(!open.swap(true, Ordering::SeqCst), "the answer waited for the load");
    assert_eq!((answer.finish, answer.result.suggestions.len()), (scheduler::Finish::Deadline, 0));
    ask(&engine, "heat", 0);
}

#[test]
fn a_replica_that_cannot_be_loaded_leaves_those_that_work() {
    let metrics = Metrics::new();
    let (engine, loads) = engine(1, 2, &metrics, 1);
    under_load(&engine, || {
        let started = Instant::now();
        while loads.load(Ordering::SeqCst) < 3 {
            assert!(started.elapsed() < Duration::from_secs(60), "no load is tried");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(3 * LOAD);
    });
    ask(&engine, "heat", 0);
    assert_eq!((engine.health(), metric(&metrics, "foretype_replicas")), (Health::Ready, 1));
}

#[test]
fn a_model_that_cannot_wake_says_why() {
    let metrics = Metrics::new();
    let (engine, _) = engine(0, 1, &metrics, 1);
    wait_for(&metrics, 0);
    let completion = Completion { input: "heat".into(), ..Completion::default() };
    // The replica that is leaving may answer once more.
    let error = (0..10).find_map(|_| block_on(engine.complete(&completion)).err()).expect("nothing is loaded");
    assert!(error.kind == Kind::NotReady && error.message.contains("it can't be loaded"), "{error:?}");
    assert!(matches!(engine.health(), Health::Failed(_)), "the platform may start another server");
}

/// An engine of 10 bytes and 100 for each replica, in a budget.
fn held(intake: &Intake, metrics: &Arc<Metrics>, (least, most): (usize, usize)) -> Arc<Engine> {
    let (engine, _) = engine(least, most, metrics, usize::MAX);
    let mut engine = Arc::into_inner(engine).unwrap();
    intake.adopt(&mut engine, "/fake", Memory { shared: 10, replica: 100, replicas: 1 });
    Arc::new(engine)
}

fn wait_for_bytes(intake: &Intake, bytes: u64) {
    let started = Instant::now();
    while intake.reserved_bytes() != bytes {
        assert!(started.elapsed() < Duration::from_secs(60), "{} bytes are reserved", intake.reserved_bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_replica_reserves_its_memory_before_it_is_loaded_and_gives_it_back() {
    let intake = |bytes| Intake::new(Box::new(|_, _| unreachable!()), bytes);
    let (wide, metrics) = (intake(210), Metrics::new());
    let engine = held(&wide, &metrics, (0, 2));
    assert_eq!(wide.reserved_bytes(), 110);
    under_load(&engine, || wait_for(&metrics, 2));
    assert_eq!(wide.reserved_bytes(), 210);
    wait_for(&metrics, 0);
    wait_for_bytes(&wide, 10);
    ask(&engine, "heat", 0);
    assert_eq!(wide.reserved_bytes(), 110);
    drop(engine);
    assert_eq!(wide.reserved_bytes(), 0);

    let (narrow, metrics) = (intake(209), Metrics::new());
    let engine = held(&narrow, &metrics, (1, 2));
    under_load(&engine, || std::thread::sleep(Duration::from_secs(1)));
    assert_eq!((metric(&metrics, "foretype_replicas"), narrow.reserved_bytes()), (1, 110));
}

#[test]
fn a_model_whose_memory_is_taken_while_it_sleeps_says_so_until_there_is_room() {
    let intake = Intake::new(Box::new(|_, _| unreachable!()), 150);
    let (metrics, others) = (Metrics::new(), Metrics::new());
    let engine = held(&intake, &metrics, (0, 1));
    wait_for(&metrics, 0);
    wait_for_bytes(&intake, 10);
    let other = held(&intake, &others, (1, 1));
    let completion = Completion { input: "heat".into(), ..Completion::default() };
    let error = block_on(engine.complete(&completion)).unwrap_err();
    assert!(error.kind == Kind::OutOfMemory && error.message.contains("the model sleeps and can't wake"), "{error:?}");
    assert_eq!(engine.health(), Health::Ready);
    drop(other);
    ask(&engine, "heat", 0);
}

#[test]
fn a_replica_that_was_loaded_in_the_background_gives_way_until_it_is_released() {
    let nice = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&nice);
    let faults = move || -> scheduler::fake::FaultFn {
        let seen = Arc::clone(&seen);
        Box::new(move |_| {
            seen.store(rustix::process::getpriority_process(None).unwrap(), Ordering::SeqCst);
            None
        })
    };
    let usual = rustix::process::getpriority_process(None).unwrap();
    let mut options = options(1, 1);
    options.pool.in_background = true;
    let engine = faulty_engine(faults, options, &Metrics::new());
    ask(&engine, "heat", 0);
    assert_eq!(nice.load(Ordering::SeqCst), (usual + 10).min(19));
    engine.release();
    let started = Instant::now();
    for key in 0.. {
        ask(&engine, &format!("a method of {key}"), 0);
        if nice.load(Ordering::SeqCst) == usual {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "it gives way forever");
    }
}
