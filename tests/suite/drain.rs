//! SIGTERM in the middle of everything that a server does: what was sent before is answered whole, and nothing of it is
//! refused.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::served_demo::ServedDemo;

/// Servers that are stopped one after the other.
const ROUNDS: u64 = 10;
/// Lines of the batch.
const LINES: usize = 3000;

/// What clients of one server saw.
#[derive(Default)]
struct Seen {
    /// Set before the server is asked to stop: what is sent later may be refused.
    stopped: AtomicBool,
    answered: AtomicUsize,
}

impl Seen {
    /// Sends what `request` makes, one after the other on one connection, until the server is stopped.
    fn again_and_again(&self, address: &str, request: impl Fn(usize) -> Sent) {
        let agent = agent();
        for count in 0.. {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let sent = request(count);
            let answer = post(&agent, address, sent.content_type, &sent.body);
            assert!((sent.is_whole)(&answer), "{}: {answer}", sent.body);
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A request, and how a whole answer to it looks.
struct Sent {
    content_type: &'static str,
    body: String,
    is_whole: fn(&str) -> bool,
}

impl Sent {
    fn json(body: &Value, is_whole: fn(&str) -> bool) -> Self {
        Self { content_type: "application/json", body: body.to_string(), is_whole }
    }

    fn lines(count: usize) -> Self {
        let line = |n| serde_json::json!({ "input": format!("solar {n}"), "suggestions": 2, "max_new_tokens": 3 });
        let body: Vec<String> = (0..count).map(|n| line(n).to_string()).collect();
        Self { content_type: "application/jsonlines", body: body.join("\n"), is_whole: is_whole_batch }
    }

    fn prompts(count: usize) -> Self {
        let inputs: Vec<String> = (0..32).map(|n| format!("wireless {count} {n}")).collect();
        let is_whole = |answer: &str| parsed(answer).as_array().is_some_and(|replies| replies.len() == 32);
        Self::json(&serde_json::json!({ "inputs": inputs, "parameters": { "max_new_tokens": 8 } }), is_whole)
    }

    fn stream(count: usize) -> Self {
        let body = serde_json::json!({ "inputs": format!("heat {count}"), "stream": true });
        Self::json(&body, |answer| {
            let last = answer.rsplit("data: ").next().unwrap_or_default();
            parsed(last)["generated_text"].is_string()
        })
    }

    fn keystroke(person: usize, count: usize) -> Self {
        let typed: String = "wireless charging".chars().take(1 + count % 17).collect();
        let body = serde_json::json!({ "input": typed, "session": format!("person-{person}") });
        Self::json(&body, |answer| parsed(answer)["suggestions"].is_array())
    }
}

fn parsed(answer: &str) -> Value {
    serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

fn is_whole_batch(answer: &str) -> bool {
    answer.lines().count() == LINES && answer.lines().all(|line| parsed(line)["suggestions"].is_array())
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

/// The body of the answer, with its status where that is no 200.
fn post(agent: &ureq::Agent, address: &str, content_type: &str, body: &str) -> String {
    let request = agent.post(format!("http://{address}/invocations")).content_type(content_type);
    let mut answer = request.send(body).unwrap_or_else(|error| panic!("{error}: {:.100}", body));
    let text = answer.body_mut().read_to_string().unwrap_or_else(|error| panic!("{error}: {:.100}", body));
    if answer.status() == 200 { text } else { format!("\"{}: {text:?}\"", answer.status()) }
}

#[test]
fn what_was_sent_before_sigterm_is_answered_whole() {
    let cache = tempfile::tempdir().unwrap();
    for round in 0..ROUNDS {
        let mut server = ServedDemo::start(cache.path());
        let address = server.address.clone();
        let seen = Seen::default();
        std::thread::scope(|scope| {
            let batch = scope.spawn(|| {
                let sent = Sent::lines(LINES);
                let answer = post(&agent(), &address, sent.content_type, &sent.body);
                (seen.stopped.load(Ordering::SeqCst), answer)
            });
            for person in 0..2 {
                let (seen, address) = (&seen, &address);
                scope.spawn(move || seen.again_and_again(address, |count| Sent::prompts(2 * count + person)));
                scope.spawn(move || seen.again_and_again(address, |count| Sent::stream(2 * count + person)));
                scope.spawn(move || seen.again_and_again(address, |count| Sent::keystroke(person, count)));
            }
            let started = Instant::now();
            while seen.answered.load(Ordering::SeqCst) < 30 {
                assert!(started.elapsed() < Duration::from_secs(60), "nobody is answered");
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(40 * round));
            seen.stopped.store(true, Ordering::SeqCst);
            let took = server.stop();
            assert!(took < Duration::from_secs(27), "round {round}: it took {took:?}");
            let (was_running, answer) = batch.join().unwrap();
            assert!(was_running, "round {round}: the batch was answered before the server was stopped");
            assert!(is_whole_batch(&answer), "round {round}: {} lines", answer.lines().count());
        });
    }
}
