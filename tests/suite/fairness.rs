//! Somebody types beside clients who send the largest bodies that are allowed, without pause: the typing stays quick,
//! and none of it is refused. `make fairness` measures longer than `make test` does, and holds the times to their
//! bound.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::served_demo::ServedDemo;
use crate::support::repository;

/// Clients who flood the server.
const CLIENTS: usize = 8;
/// The client who types.
const TYPIST: usize = 99;
/// Positions a second that the key of those who flood the server may have computed.
const FLOOD_POSITIONS: f64 = 50.0;
/// Between two requests of a client whose key is over its limits: no client asks thousands of times a second.
const REFUSED: Duration = Duration::from_millis(20);
/// Between two keys of somebody who types fast.
const KEY: Duration = Duration::from_nanos(1_000_000_000 / 6);
/// Keys in `make test`, alone and beside the flood.
const FEW_KEYS: usize = 40;
/// What a key may take where three times as long as alone is less.
const BOUND: Duration = Duration::from_millis(50);

/// The server of the demo model, and clients with addresses or keys of their own.
struct Server {
    process: ServedDemo,
    has_keys: bool,
}

impl Server {
    /// A server that tells clients by their addresses.
    fn start(cache: &Path) -> Self {
        Self { process: ServedDemo::of(program(), cache, &[]), has_keys: false }
    }

    /// A server that tells clients by their keys, of which those who flood it share one.
    fn with_keys(cache: &Path) -> Self {
        let file = cache.join("keys.json");
        let key = |name: &str| serde_json::json!({"name": name, "key": secret(name)});
        let mut flood = key("flood");
        flood["positions_per_second"] = FLOOD_POSITIONS.into();
        std::fs::write(&file, serde_json::json!({"keys": [key("typist"), flood]}).to_string()).unwrap();
        let arguments = ["--api-key-file".as_ref(), file.as_os_str()];
        Self { process: ServedDemo::of(program(), cache, &arguments), has_keys: true }
    }

    /// How a client is told from others.
    fn name(&self, client: usize) -> String {
        if self.has_keys {
            format!("X-Api-Key: {}", secret(if client == TYPIST { "typist" } else { "flood" }))
        } else {
            format!("X-Real-IP: 10.0.0.{client}")
        }
    }

    /// A request of a client, written and not yet answered.
    fn send(&self, client: usize, content_type: &str, body: &str) -> std::io::Result<TcpStream> {
        let mut connection = TcpStream::connect(&self.process.address)?;
        connection.set_nodelay(true)?;
        let head = format!(
            "POST /invocations HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n\
             Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
            self.name(client),
            body.len()
        );
        connection.write_all(head.as_bytes())?;
        connection.write_all(body.as_bytes())?;
        Ok(connection)
    }

    /// Sends the same again and again until the server ends.
    fn flood(&self, client: usize, content_type: &str, body: &str) {
        while let Ok(mut connection) = self.send(client, content_type, body) {
            let mut some = [0; 1 << 16];
            while connection.read(&mut some).is_ok_and(|read| read > 0) {}
            if self.has_keys {
                // Who is over the limits of a key gets an answer at once.
                std::thread::sleep(REFUSED);
            }
        }
    }
}

/// What is measured may be another build.
fn program() -> OsString {
    std::env::var_os("FORETYPE_FAIRNESS_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_foretype").into())
}

/// The key of a client.
fn secret(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

/// How long keys took to be answered, counted from the instant at which they were due.
struct Typing {
    times: Vec<Duration>,
    refused: usize,
}

impl Typing {
    /// Somebody types held-out queries, whose texts nobody has typed before.
    fn measure(server: &Server, queries: &[String], keys: usize) -> Self {
        let texts = queries.iter().flat_map(|query| (1..=query.chars().count()).map(move |end| (query, end)));
        let (mut times, mut refused, start) = (Vec::new(), 0, Instant::now());
        for (number, (query, end)) in texts.cycle().take(keys).enumerate() {
            let due = start + KEY * number as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let typed: String = query.chars().take(end).collect();
            let body = serde_json::json!({ "input": typed, "session": "somebody" }).to_string();
            let mut answer = String::new();
            server.send(TYPIST, "application/json", &body).unwrap().read_to_string(&mut answer).unwrap();
            times.push(due.elapsed());
            refused += usize::from(!answer.starts_with("HTTP/1.1 200"));
        }
        times.sort_unstable();
        Self { times, refused }
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.times[(self.times.len() * percent / 100).min(self.times.len() - 1)]
    }

    fn report(&self, name: &str) {
        let [p50, p95, p99] = [50, 95, 99].map(|percent| self.percentile(percent).as_secs_f64() * 1e3);
        let (keys, refused) = (self.times.len(), self.refused);
        println!("{name}: p50 {p50:.1} ms, p95 {p95:.1} ms, p99 {p99:.1} ms, {refused} of {keys} keys refused");
    }
}

/// The largest batch: as many bytes and as many tokens as are allowed.
fn largest_batch() -> String {
    let prompt = "wireless charging of electric vehicles ".repeat(2);
    let inputs: Vec<String> = (0..32).map(|n| format!("{n} {prompt}")).collect();
    let parameters = serde_json::json!({ "n": 100, "do_sample": true, "max_new_tokens": 60 });
    let line = serde_json::json!({ "inputs": inputs, "parameters": parameters }).to_string();
    // 32 prompts x 100 sequences x 60 tokens of the 67,108,864 that are allowed, and less than a mebibyte.
    let lines = 349.min((1 << 20) / (line.len() + 1));
    vec![line; lines].join("\n")
}

fn queries() -> Vec<String> {
    let file = std::fs::read_to_string(repository("models/demo/queries/heldout_unseen.txt")).unwrap();
    file.lines().filter(|line| line.len() > 8).map(str::to_owned).collect()
}

/// What clients flood the server with, each over so many connections.
struct Flood {
    body: String,
    content_type: &'static str,
    connections: usize,
}

impl Flood {
    const BATCH: Self = Self { body: String::new(), content_type: "application/jsonlines", connections: 1 };
}

/// Types alone, and then the same beside a flood of a fresh server.
fn typing_beside(start: fn(&Path) -> Server, flood: &Flood, keys: usize) -> [Typing; 2] {
    let (cache, queries) = (tempfile::tempdir().unwrap(), queries());
    let alone = Typing::measure(&start(cache.path()), &queries, keys);
    let server = &start(cache.path());
    let beside = std::thread::scope(|scope| {
        for connection in 0..CLIENTS * flood.connections {
            scope.spawn(move || server.flood(connection % CLIENTS, flood.content_type, &flood.body));
        }
        std::thread::sleep(Duration::from_secs(1));
        let beside = Typing::measure(server, &queries, keys);
        // Ends the flood.
        server.process.signal("-KILL");
        beside
    });
    alone.report("alone");
    beside.report("beside");
    [alone, beside]
}

/// How long somebody types, and what is expected of the times.
struct Extent {
    keys: usize,
    percent: usize,
    bound: Duration,
    /// How many times what it takes alone a key may take beside a flood.
    times: u32,
}

impl Extent {
    /// In `make test` other tests use the cores too: there a key may take longer, but not the seconds that it took when
    /// clients didn't take turns.
    fn new() -> Self {
        let keys = std::env::var("FORETYPE_FAIRNESS_KEYS").ok().and_then(|keys| keys.parse().ok());
        match keys {
            Some(keys) => Self { keys, percent: 99, bound: BOUND, times: 3 },
            None => Self { keys: FEW_KEYS, percent: 50, bound: 20 * BOUND, times: 10 },
        }
    }

    fn check(&self, [alone, beside]: &[Typing; 2]) {
        assert_eq!((alone.refused, beside.refused), (0, 0));
        let (percent, took) = (self.percent, beside.percentile(self.percent));
        let bound = self.bound.max(self.times * alone.percentile(percent));
        assert!(took <= bound, "p{percent}: {took:?} of {bound:?}");
    }
}

#[test]
fn typing_is_quick_beside_the_largest_batches() {
    let (extent, flood) = (Extent::new(), Flood { body: largest_batch(), ..Flood::BATCH });
    extent.check(&typing_beside(Server::start, &flood, extent.keys));
}

#[test]
fn a_key_over_its_limits_costs_others_next_to_nothing() {
    let (extent, flood) = (Extent::new(), Flood { body: largest_batch(), ..Flood::BATCH });
    let [alone, beside] = typing_beside(Server::with_keys, &flood, extent.keys);
    let moved = beside.percentile(extent.percent).as_secs_f64() / alone.percentile(extent.percent).as_secs_f64();
    println!("the key that floods moves p{} of the others to {moved:.3} of what it is alone", extent.percent);
    extent.check(&[alone, beside]);
}

#[test]
fn typing_is_not_refused_beside_single_requests_without_pause() {
    let parameters = serde_json::json!({ "n": 16, "do_sample": true, "max_new_tokens": 40 });
    let body = serde_json::json!({ "inputs": "heat", "parameters": parameters }).to_string();
    // 320 at once: more than the queue has places for.
    let flood = Flood { body, content_type: "application/json", connections: 40 };
    let [alone, beside] = typing_beside(Server::start, &flood, Extent::new().keys);
    assert_eq!((alone.refused, beside.refused), (0, 0));
}
