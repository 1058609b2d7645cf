//! The names of a request, in its answer and in the log.

use std::io::Read;
use std::process::Stdio;

use crate::connections::Process;
use crate::http_client::{JSON, send};
use crate::support::{TestServer, fake_engine};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

#[test]
fn answers_have_the_names_of_their_requests() {
    let server = TestServer::with(fake_engine());
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [JSON, ("X-Request-Id", "order-7"), ("traceparent", &parent)];
    for (path, body, status) in
        [("/invocations", r#"{"input": "heat"}"#, 200), ("/invocations", "{", 400), ("/nowhere", "", 404)]
    {
        let answer = send(server.address, "POST", path, &headers, body);
        assert_eq!((answer.status, &answer.headers["x-request-id"]), (status, &"order-7".parse().unwrap()));
        let ours = answer.headers["traceparent"].to_str().unwrap();
        assert!(ours.starts_with(&format!("00-{TRACE}-")) && ours.ends_with("-01") && ours != parent, "{ours}");
    }
    let first = send(server.address, "GET", "/ping", &[("X-Request-Id", "a b"), ("traceparent", "00-0-0-0")], "");
    let second = send(server.address, "GET", "/ping", &[], "");
    let id = |answer: &crate::support::Answer| answer.headers["x-request-id"].to_str().unwrap().to_owned();
    assert!(id(&first).len() == 36 && id(&first) != id(&second));
    assert_ne!(first.headers["traceparent"], second.headers["traceparent"]);
}

#[test]
fn the_log_has_the_names_and_as_many_lines_as_asked_for() {
    for (which, fine) in [("all", 20), ("errors", 0), ("sampled:5", 4)] {
        let arguments = format!("--multi-model --log-format json --log-requests {which}");
        let mut server = Process::start_logging(1024, &arguments, Stdio::piped());
        let headers = [("X-Request-Id", "order-7"), ("traceparent", &*format!("00-{TRACE}-00f067aa0ba902b7-01"))];
        // The errors last: they are counted too.
        for path in std::iter::repeat_n("/v1/models", 20).chain(["/nowhere", "/nowhere"]) {
            send(server.address, "GET", path, &headers, "");
        }
        let mut log = server.child.stderr.take().unwrap();
        drop(server);
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |path: &str| lines.iter().filter(|line| line["path"] == path).collect::<Vec<_>>();
        assert_eq!((of("/v1/models").len(), of("/nowhere").len()), (fine, 2), "{which}: {text}");
        let line = of("/nowhere")[0];
        assert_eq!((&line["request_id"], &line["trace_id"]), (&"order-7".into(), &TRACE.into()), "{line}");
        assert_eq!((&line["kind"], &line["status"]), (&"not_found".into(), &404.into()), "{line}");
    }
}
