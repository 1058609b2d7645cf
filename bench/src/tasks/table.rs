//! What was measured of a task, and the files that it is written to.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::task::{Answered, Task};
use crate::endpoints::Side;
use crate::latency::Latencies;
use crate::report::{self, Report, decimals, maybe, percent, yes_no};

const NAME: &str = "peers-grid-t5";

/// A task on one server.
pub(super) struct Measured {
    pub(super) task: Task,
    server: String,
    version: String,
    is_own: bool,
    nginx: bool,
    latencies: Latencies,
    /// Answers that the other gave too, and those of them with the same text.
    compared: usize,
    equal: usize,
    /// Why requests failed, or why there are none.
    pub(super) failures: Vec<String>,
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    model: String,
    task: String,
    input: usize,
    output: usize,
    /// Inputs of a request.
    batch: usize,
    server: String,
    version: String,
    nginx: bool,
    runs: u64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    /// New tokens of all inputs over the mean time, inputs read.
    tokens_per_second: f64,
    /// Tokens per second against the peer's.
    times_peer: Option<f64>,
    /// The peer's median latency against this one.
    p50_ratio: Option<f64>,
    /// Answers with the peer's text, of those to the same inputs.
    equal: Option<f64>,
    /// Requests that failed, with the last reason; empty if none did.
    failed: String,
}

impl Measured {
    /// One for each server.
    pub(super) fn all(task: &Task, sides: &[Side]) -> Vec<Self> {
        let nothing_yet = |side: &Side| Self {
            task: task.clone(),
            server: side.name.clone(),
            version: side.version.clone(),
            is_own: side.is_own,
            nginx: side.is_proxied(),
            latencies: Latencies::default(),
            compared: 0,
            equal: 0,
            failures: side.service.as_ref().err().cloned().into_iter().collect(),
        };
        sides.iter().map(nothing_yet).collect()
    }

    /// Counts an answer and hands back what it says.
    pub(super) fn record(&mut self, answered: Answered) -> Vec<String> {
        self.latencies.record(answered.took);
        answered.texts
    }

    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.failures.push(format!("{error:#}"));
    }

    pub(super) fn compare(&mut self, own: &[String], peer: &[String]) {
        self.compared += own.len();
        self.equal += own.iter().zip(peer).filter(|(own, peer)| own == peer).count();
    }

    fn tokens_per_second(&self, batch: usize) -> Option<f64> {
        let tokens = (batch * self.task.output) as f64;
        (self.latencies.len() > 0).then(|| tokens * 1000.0 / self.latencies.mean_ms())
    }

    fn p50_ms(&self) -> Option<f64> {
        (self.latencies.len() > 0).then(|| self.latencies.percentile_ms(50.0))
    }
}

/// The lines of all tasks, each with all servers.
pub(super) fn rows(model: &str, batch: usize, tasks: &[Vec<Measured>]) -> Vec<Row> {
    let of_task = |servers: &Vec<Measured>| {
        let peer = servers.iter().find(|other| !other.is_own);
        servers.iter().map(|measured| row(model, batch, measured, peer)).collect::<Vec<_>>()
    };
    tasks.iter().flat_map(of_task).collect()
}

fn row(model: &str, batch: usize, measured: &Measured, peer: Option<&Measured>) -> Row {
    let Task { name, input, output } = measured.task.clone();
    let latencies = &measured.latencies;
    let speed = measured.tokens_per_second(batch);
    let peer_speed = peer.and_then(|peer| peer.tokens_per_second(batch));
    let peer_p50 = peer.and_then(Measured::p50_ms);
    Row {
        model: model.to_owned(),
        task: name,
        input,
        output,
        batch,
        server: measured.server.clone(),
        version: measured.version.clone(),
        nginx: measured.nginx,
        runs: latencies.len(),
        p50_ms: latencies.percentile_ms(50.0),
        p90_ms: latencies.percentile_ms(90.0),
        p99_ms: latencies.percentile_ms(99.0),
        tokens_per_second: speed.unwrap_or(f64::NAN),
        times_peer: speed.zip(peer_speed).map(|(own, peer)| own / peer),
        p50_ratio: measured.p50_ms().zip(peer_p50).map(|(own, peer)| peer / own),
        equal: (measured.compared > 0).then(|| measured.equal as f64 / measured.compared as f64),
        failed: match measured.failures.as_slice() {
            [] => String::new(),
            failures @ [.., last] => format!("{}: {last}", failures.len()),
        },
    }
}

/// Writes `peers-grid-t5.*`.
pub(super) fn write(folder: &Path, rows: &[Row]) -> Result<()> {
    let title = "Tasks for an encoder-decoder: one client, a batch in each request, greedily, through the endpoint";
    Report::new(title, rows).save(folder, NAME, &text(rows))?;
    report::write_csv(folder, NAME, rows)
}

/// The table for people.
pub(super) fn text(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("model", |row| row.model.clone()),
            ("task", |row| row.task.clone()),
            ("input", |row| row.input.to_string()),
            ("output", |row| row.output.to_string()),
            ("batch", |row| row.batch.to_string()),
            ("server", |row| row.server.clone()),
            ("version", |row| row.version.clone()),
            ("nginx", |row| yes_no(row.nginx)),
            ("runs", |row| row.runs.to_string()),
            ("p50 ms", |row| decimals(row.p50_ms, 0)),
            ("p90 ms", |row| decimals(row.p90_ms, 0)),
            ("p99 ms", |row| decimals(row.p99_ms, 0)),
            ("tokens/s", |row| decimals(row.tokens_per_second, 1)),
            ("x peer", |row| maybe(row.times_peer, |x| decimals(x, 2))),
            ("p50 x", |row| maybe(row.p50_ratio, |x| decimals(x, 2))),
            ("equal", |row| maybe(row.equal, percent)),
            ("failed", |row| row.failed.clone()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn measured(server: &str, ms: &[u64]) -> Measured {
        let mut measured = Measured {
            task: Task { name: "translate".to_owned(), input: 50, output: 25 },
            server: server.to_owned(),
            version: String::new(),
            is_own: server == "own",
            nginx: true,
            latencies: Latencies::default(),
            compared: 0,
            equal: 0,
            failures: Vec::new(),
        };
        for &ms in ms {
            measured.record(Answered { took: Duration::from_millis(ms), texts: Vec::new() });
        }
        measured
    }

    #[test]
    fn a_row_has_percentiles_speed_and_ratios() {
        let mut own = measured("own", &[100, 100, 100, 500]);
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        own.compare(&words(&["a", "b"]), &words(&["a", "c"]));
        let rows = rows("m", 4, &[vec![own, measured("peer", &[400])]]);
        let near = |value: f64, expected: f64| assert!((value / expected - 1.0).abs() < 2e-3, "{value}");
        near(rows[0].p50_ms, 100.0);
        near(rows[0].p99_ms, 500.0);
        // Four inputs of 25 new tokens each in 200 ms.
        near(rows[0].tokens_per_second, 500.0);
        near(rows[0].times_peer.unwrap(), 2.0);
        near(rows[0].p50_ratio.unwrap(), 4.0);
        assert_eq!((rows[0].equal, rows[1].equal), (Some(0.5), None));
    }

    #[test]
    fn a_server_without_answers_has_its_reason() {
        let mut peer = measured("peer", &[]);
        peer.fail(&anyhow::anyhow!("not installed"));
        let rows = rows("m", 4, &[vec![measured("own", &[100]), peer]]);
        assert_eq!((rows[0].times_peer, rows[0].failed.as_str()), (None, ""));
        assert_eq!(rows[1].failed, "1: not installed");
    }
}
