//! What may go wrong with an engine, a client or a server, done to it: every request is answered, and what can recover
//! does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foretype::metrics::Metrics;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scheduler::RESTART_EVERY;
use scheduler::fake::{Fault, FaultFn};

use crate::support::{Answer, TestServer, faulty_engine, repository, request_options};

/// A server whose engine does as `fault` says at each forward, given the number of engines loaded before and of the
/// forward.
fn server(fault: impl Fn(usize, usize) -> Option<Fault> + Send + Sync + 'static) -> (TestServer, Arc<Metrics>) {
    server_restarting(RESTART_EVERY, fault)
}

/// The same, whose engine is restarted at most so often.
fn server_restarting(
    restart_every: Duration,
    fault: impl Fn(usize, usize) -> Option<Fault> + Send + Sync + 'static,
) -> (TestServer, Arc<Metrics>) {
    let (metrics, loads, fault) = (Metrics::new(), AtomicUsize::new(0), Arc::new(fault));
    let faults = move || -> FaultFn {
        let (load, mut forwards, fault) = (loads.fetch_add(1, Ordering::Relaxed), 0, Arc::clone(&fault));
        Box::new(move |_| {
            forwards += 1;
            // The first engine only shows its shape.
            fault(load.saturating_sub(1), forwards - 1)
        })
    };
    let mut options = request_options();
    // Long enough that a thread that waits for a busy core doesn't hang.
    options.pool.hang_after = Duration::from_secs(2);
    options.pool.lookahead = false;
    options.pool.restart_every = restart_every;
    (TestServer::with(faulty_engine(faults, options, &metrics)), metrics)
}

fn post(server: &TestServer) -> Answer {
    server.post(r#"{"input": "heat ex"}"#)
}

fn ping(server: &TestServer) -> u16 {
    server.send("GET", "/ping", None, b"").status
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the metrics say that no request runs, waits or holds anything.
fn is_idle(metrics: &Metrics) -> bool {
    let text = metrics.render();
    ["foretype_active_requests{", "foretype_queue_length{", "foretype_prefix_cache_holds{"]
        .iter()
        .all(|name| text.lines().filter(|line| line.starts_with(name)).all(|line| line.ends_with(" 0")))
}

fn is_restarted(metrics: &Metrics) -> bool {
    has_restarts(metrics, 1)
}

fn has_restarts(metrics: &Metrics, count: usize) -> bool {
    metrics.render().contains(&format!("foretype_engine_restarts_total{{model=\"fake\"}} {count}\n"))
}

/// Forwards of loading and calibrating; at most so many come before the first request.
const CALIBRATION: usize = 32;

#[test]
fn a_panic_is_told_the_engine_is_loaded_again_and_a_second_panic_soon_after_is_final() {
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = Arc::clone(&armed);
    let (server, metrics) = server(move |_, _| trigger.swap(false, Ordering::Relaxed).then_some(Fault::Panic));
    assert_eq!(post(&server).status, 200);
    for time in 1..=2 {
        armed.store(true, Ordering::Relaxed);
        let failed = server.post(&format!(r#"{{"input": "water {time}"}}"#));
        assert_eq!((failed.status, failed.json()["error"]["kind"].as_str()), (503, Some("not_ready")), "{failed:?}");
        assert!(!failed.text.contains("injected"), "internals are logged, not sent: {failed:?}");
        if time == 1 {
            wait_for("the restart", || is_restarted(&metrics) && ping(&server) == 200);
            assert_eq!(post(&server).status, 200);
        }
    }
    wait_for("the end", || ping(&server) == 503);
    // It stays so: a third load would come within this time.
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        let refused = post(&server);
        assert_eq!((ping(&server), refused.status), (503, 503), "{refused:?}");
    }
    assert!(metrics.render().contains("foretype_engine_healthy{model=\"fake\"} 0"));
}

#[test]
fn an_engine_that_fails_now_and_then_is_loaded_again_each_time() {
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = Arc::clone(&armed);
    let panics = move |_, _| trigger.swap(false, Ordering::Relaxed).then_some(Fault::Panic);
    // However soon it fails, that is long enough after the restart before.
    let (server, metrics) = server_restarting(Duration::ZERO, panics);
    for time in 1..=4 {
        armed.store(true, Ordering::Relaxed);
        assert_eq!(server.post(&format!(r#"{{"input": "water {time}"}}"#)).status, 503);
        wait_for("the restart", || has_restarts(&metrics, time) && ping(&server) == 200);
        assert_eq!(post(&server).status, 200);
    }
}

#[test]
fn a_step_that_hangs_ten_seconds_is_told_before_it_ends_and_survived() {
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = Arc::clone(&armed);
    let hang = Duration::from_secs(10);
    let (server, metrics) = server(move |_, _| trigger.swap(false, Ordering::Relaxed).then_some(Fault::Hang(hang)));
    assert_eq!(post(&server).status, 200);
    armed.store(true, Ordering::Relaxed);
    let started = Instant::now();
    let failed = server.post(r#"{"input": "water"}"#);
    assert_eq!(failed.status, 503, "{failed:?}");
    assert!(failed.text.contains("doesn't come back"), "{failed:?}");
    assert!(started.elapsed() < hang, "{:?}", started.elapsed());
    assert_eq!((ping(&server), post(&server).status), (503, 503), "unhealthy while it hangs");
    wait_for("the recovery", || ping(&server) == 200);
    assert!(started.elapsed() >= hang);
    assert_eq!(post(&server).status, 200);
    wait_for("idleness", || is_idle(&metrics));
}

#[test]
fn nan_for_one_request_fails_it_alone_and_nan_for_all_restarts_the_engine() {
    let broken = Arc::new(AtomicBool::new(false));
    let trigger = Arc::clone(&broken);
    // Only the first engine breaks.
    let (server, metrics) =
        server(move |load, _| (load == 0 && trigger.load(Ordering::Relaxed)).then_some(Fault::NotANumber));
    assert_eq!(server.post(r#"{"input": "50 %"}"#).status, 500);
    assert_eq!((ping(&server), post(&server).status), (200, 200));
    broken.store(true, Ordering::Relaxed);
    let failed = server.post(r#"{"input": "water"}"#);
    assert!([500, 503].contains(&failed.status), "{failed:?}");
    wait_for("the restart", || is_restarted(&metrics) && ping(&server) == 200);
    assert_eq!(post(&server).status, 200);
}

#[test]
fn an_engine_that_errors_now_and_then_goes_on() {
    let (server, metrics) = server(|_, forward| (forward > CALIBRATION && forward % 61 == 0).then_some(Fault::Error));
    let mut statuses = [0, 0];
    for i in 0..100 {
        let answer = server.post(&format!(r#"{{"input": "heat {i}"}}"#));
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        statuses[usize::from(answer.status == 503)] += 1;
    }
    assert!(statuses.iter().all(|&count| count > 5), "{statuses:?}");
    wait_for("health", || ping(&server) == 200);
    wait_for("idleness", || is_idle(&metrics));
}

/// A request as it goes over a connection, with one more header.
fn invocation(header: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /invocations HTTP/1.1\r\nHost: x\r\n{header}\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[test]
fn a_thousand_clients_that_disconnect_at_random_leave_nothing_behind() {
    let (server, metrics) = server(|_, _| None);
    let mut rng = StdRng::seed_from_u64(5);
    let body =
        |i: usize| format!(r#"{{"input": "heat {i}", "suggestions": 20, "max_new_tokens": 20, "session": null}}"#);
    let body = |i: usize| body(i).replace(r#", "session": null"#, "");
    let mut open = Vec::new();
    for i in 0..1000 {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let request = invocation("Content-Type: application/json", &body(i));
        // Some break off in the middle of the request, some while it runs, some while the answer comes.
        let cut = if rng.random_bool(0.2) { rng.random_range(1..request.len()) } else { request.len() };
        stream.write_all(&request.as_bytes()[..cut]).unwrap();
        open.push(stream);
        if rng.random_bool(0.3) {
            std::thread::sleep(Duration::from_micros(rng.random_range(0..3000)));
        }
        while open.len() > rng.random_range(0..40) {
            let mut gone = open.swap_remove(rng.random_range(0..open.len()));
            if rng.random_bool(0.2) && cut == request.len() {
                gone.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
                let _ = gone.read(&mut [0; 16]);
            }
            drop(gone);
        }
    }
    drop(open);
    wait_for("idleness", || is_idle(&metrics));
    let text = metrics.render();
    let cancelled = text.lines().find(|line| line.contains("outcome=\"cancelled\"")).unwrap();
    let count: u64 = cancelled.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(count > 100, "{count} requests lost their client");
    let (alone, _) = self::server(|_, _| None);
    assert_eq!(post(&server).json()["suggestions"], post(&alone).json()["suggestions"]);
}

#[test]
fn sigterm_under_load_loses_no_accepted_request() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foretype"))
        .args(["serve", "--port", "0", "--model"])
        .arg(repository("models/demo"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.find_map(|line| line.unwrap().split_once("http://").map(|(_, rest)| rest.to_owned())).unwrap();
    let address = ready.split(". Try").next().unwrap().to_owned();
    let mut log = child.stderr.take().unwrap();
    let (answered, cut_off, stopped) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (address, answered, cut_off, stopped) = (&address, &answered, &cut_off, &stopped);
            scope.spawn(move || {
                // A connection that the server doesn't take any more is no accepted request.
                for i in 0.. {
                    let Ok(mut stream) = TcpStream::connect(address) else { return };
                    let body = format!(r#"{{"input": "wireless {client} {i}"}}"#);
                    let request = invocation("Connection: close", &body);
                    let mut answer = String::new();
                    let whole =
                        stream.write_all(request.as_bytes()).is_ok() && stream.read_to_string(&mut answer).is_ok();
                    match answer.split(' ').nth(1) {
                        Some("200" | "503") if whole && answer.ends_with('}') => {
                            answered.fetch_add(1, Ordering::Relaxed)
                        }
                        None if stopped.load(Ordering::SeqCst) => return,
                        _ => cut_off.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        wait_for("load", || answered.load(Ordering::Relaxed) > 50);
        stopped.store(true, Ordering::SeqCst);
        let killed = Instant::now();
        let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
        let exit = child.wait().unwrap();
        assert!(exit.success(), "{exit:?}");
        assert!(killed.elapsed() < Duration::from_secs(25), "{:?}", killed.elapsed());
    });
    assert_eq!(cut_off.load(Ordering::Relaxed), 0, "beside {answered:?}");
    let mut said = String::new();
    log.read_to_string(&mut said).unwrap();
    // Every client waited for its answer: one that the server gave up would be counted here.
    assert!(said.lines().last().unwrap().contains("stopped cancelled=0"), "{said}");
    assert!(!said.contains('\u{1b}'), "no colour codes where nobody looks at a terminal");
}
