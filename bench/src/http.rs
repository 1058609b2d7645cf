//! `http`: what HTTP, JSON, queue and search cost beside the model: foretype's own server over the fake engine, whose
//! answers are in memory after the first. One client for the latency, many for the throughput; client and server share
//! the machine. A search is answered by the HTTP thread, from memory; a generation always goes through the queue to the
//! model thread and back. What passing bytes to and fro takes by itself stands beside them.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::client::Invocation;
use crate::echo;
use crate::fake_server::FakeServer;
use crate::latency::Latencies;
use crate::load::capacity;
use crate::load_tools::{Load, Tool};
use crate::report::{self, Report, decimals, maybe};

const NAME: &str = "peers-http";

/// Arguments of `http`.
#[derive(Clone, Debug, Args)]
pub struct HttpArgs {
    /// The tokenizer of the fake model.
    #[arg(long, value_name = "FILE", default_value = "tests/goldens/plain/tokenizer.json")]
    tokenizer: PathBuf,
    /// Where results are written.
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// The folder that holds `wrk/bodies.lua`.
    #[arg(long, value_name = "DIR", default_value = "bench")]
    bench: PathBuf,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Clients of the throughput.
    #[arg(long, default_value_t = 64)]
    clients: usize,
}

/// A row of the table: one kind of request under one number of connections.
#[derive(Clone, Debug, Serialize)]
struct Row {
    request: &'static str,
    clients: usize,
    client: &'static str,
    per_second: f64,
    p50_us: f64,
    p99_us: Option<f64>,
    failed: u64,
}

/// What the one client asks for.
#[derive(Clone, Copy)]
enum Asked {
    Ping,
    Search,
    Generation,
}

impl Asked {
    /// The bytes of the HTTP request.
    fn request(self) -> Vec<u8> {
        let invocation = invocation();
        let (line, body) = match self {
            Self::Ping => ("GET /ping", String::new()),
            Self::Search => ("POST /invocations", json!(invocation).to_string()),
            Self::Generation => {
                let body = json!({"inputs": invocation.input, "parameters": {"max_new_tokens": 1}});
                ("POST /invocations", body.to_string())
            }
        };
        let headers = format!("host: localhost\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
        format!("{line} HTTP/1.1\r\n{headers}\r\n\r\n{body}").into_bytes()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ping => "GET /ping",
            Self::Search => SEARCH,
            Self::Generation => "POST /invocations, by the model thread",
        }
    }
}

const SEARCH: &str = "POST /invocations";
/// Not a request: what any would take.
const ECHO: &str = "256 bytes, to and fro";

/// A request, small: one suggestion of one token. All else is the way there and back.
fn invocation() -> Invocation {
    Invocation { input: "wire".into(), suggestions: Some(1), max_new_tokens: Some(1), ..Invocation::default() }
}

impl HttpArgs {
    /// Measures and writes `peers-http.*`.
    pub async fn run(self) -> Result<()> {
        let server = FakeServer::start(&self.tokenizer)?;
        let mut rows = vec![row_of_one(ECHO, &echo::round_trips(self.time())?)];
        for asked in [Asked::Ping, Asked::Search, Asked::Generation] {
            rows.push(self.one(&server, asked)?);
        }
        rows.push(self.many(&server).await);
        if Tool::Wrk.is_installed() {
            for clients in [1, self.clients] {
                rows.push(self.wrk(&server, clients)?);
            }
        } else {
            require::skip("wrk", "it is not installed; bench/setup.sh installs it");
        }
        let title = "HTTP, JSON, queue and search without a model (fake engine, answers in memory)";
        Report::new(title, &rows).write(&self.results, NAME, &table(&rows))?;
        report::write_csv(&self.results, NAME, &rows)
    }

    /// One client, one request after the other, as [`echo`] passes its bytes: with nothing between the system and what
    /// is measured.
    fn one(&self, server: &FakeServer, asked: Asked) -> Result<Row> {
        let (bytes, time) = (asked.request(), self.time());
        let client = || echo::requests(server.address, &bytes, time);
        let latencies = tokio::task::block_in_place(client)?;
        Ok(row_of_one(asked.name(), &latencies))
    }

    /// Of each measurement.
    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    async fn many(&self, server: &FakeServer) -> Row {
        let measured = capacity(server.address, self.clients, self.time(), invocation).await;
        Row {
            request: SEARCH,
            clients: self.clients,
            client: "in process",
            per_second: measured.qps,
            p50_us: measured.latencies.percentile_ms(50.0) * 1000.0,
            p99_us: Some(measured.latencies.percentile_ms(99.0) * 1000.0),
            failed: 0,
        }
    }

    fn wrk(&self, server: &FakeServer, clients: usize) -> Result<Row> {
        let scratch = self.results.join("tmp");
        std::fs::create_dir_all(&scratch)?;
        let bodies = scratch.join("bodies-http.jsonl");
        writeln!(std::fs::File::create(&bodies)?, "{}", serde_json::to_string(&invocation())?)?;
        let load = Load { address: server.address, clients, seconds: self.seconds, bodies: &bodies };
        let counted = tokio::task::block_in_place(|| Tool::Wrk.run(&load, &self.bench, &scratch))?;
        Ok(Row {
            request: SEARCH,
            clients,
            client: "wrk",
            per_second: counted.qps(),
            p50_us: counted.p50_ms * 1000.0,
            p99_us: Some(counted.p99_ms * 1000.0),
            failed: counted.refused + counted.failed,
        })
    }
}

/// The row of one client's latencies.
fn row_of_one(request: &'static str, latencies: &[Duration]) -> Row {
    // The first ones find nothing in memory and connections cold.
    let counted = &latencies[latencies.len() / 10..];
    let mut histogram = Latencies::default();
    counted.iter().for_each(|latency| histogram.record(*latency));
    Row {
        request,
        clients: 1,
        client: "in process",
        per_second: counted.len() as f64 / counted.iter().sum::<Duration>().as_secs_f64(),
        p50_us: histogram.percentile_ms(50.0) * 1000.0,
        p99_us: Some(histogram.percentile_ms(99.0) * 1000.0),
        failed: 0,
    }
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("request", |row| row.request.to_owned()),
            ("clients", |row| row.clients.to_string()),
            ("client", |row| row.client.to_owned()),
            ("requests/s", |row| decimals(row.per_second, 0)),
            ("p50 us", |row| decimals(row.p50_us, 0)),
            ("p99 us", |row| maybe(row.p99_us, |us| decimals(us, 0))),
            ("failed", |row| row.failed.to_string()),
        ],
    )
}
