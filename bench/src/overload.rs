//! `overload`: several times the load that the server can answer, as an open loop, while another client asks for its
//! health.
//!
//! What must hold: every request gets an answer, 200 or 429; `/ping` stays fast; memory stays within a bound; and
//! afterwards the server is what it was before. A bound that is broken makes the command fail.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rand_distr::Exp1;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Connection, Invocation, Outcome, Pool};
use crate::latency::Latencies;
use crate::load::{self, Capacity};
use crate::model::{Model, Name, Setting};
use crate::report::{self, Report};
use crate::server::{Program, Server};
use crate::tally::Tally;
use crate::workload::{Queries, Texts};

/// Clients of the closed loop that finds the capacity.
const CLIENTS: usize = 16;
/// Between two looks at the server's memory.
const LOOK: Duration = Duration::from_millis(100);
/// Between two pings.
const PING: Duration = Duration::from_millis(20);
/// Between the load's end and the measurement after it.
const RECOVERY: Duration = Duration::from_secs(2);

/// Arguments of `overload`.
#[derive(Clone, Debug, Args)]
pub struct OverloadArgs {
    #[command(flatten)]
    setting: Setting,
    /// The model.
    #[arg(long, default_value = "demo")]
    model: Name,
    /// Suggestions that each request asks for.
    #[arg(long, default_value_t = 10)]
    suggestions: usize,
    /// Tokens that may reach beyond the typed text.
    #[arg(long, default_value_t = 16)]
    max_new_tokens: usize,
    /// Deadline of a request in milliseconds.
    #[arg(long, default_value_t = 1000)]
    deadline_ms: u64,
    /// Load, as a multiple of the capacity.
    #[arg(long, default_value_t = 4.0)]
    times: f64,
    /// Seconds of overload.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Seconds of each closed loop, before and after.
    #[arg(long, default_value_t = 5.0)]
    calibration: f64,
    /// Requests under way at most; the loop is open only below it, and reaching it is a failure.
    #[arg(long, default_value_t = 8000)]
    in_flight: usize,
    /// Most milliseconds of the 99th percentile of /ping.
    #[arg(long, default_value_t = 100.0)]
    ping_p99_ms: f64,
    /// Most MiB that memory may grow by from just after loading: the caches, which fill up, and what requests need.
    #[arg(long, default_value_t = 768.0)]
    memory_growth_mib: f64,
    /// Least throughput after the load, as a share of that before.
    #[arg(long, default_value_t = 0.8)]
    recovery: f64,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    capacity_qps: f64,
    offered_qps: f64,
    seconds: f64,
    requests: u64,
    answered: u64,
    refused: u64,
    errors: u64,
    outcomes: String,
    first_loss: String,
    useful_qps: f64,
    p50_ms: f64,
    p99_ms: f64,
    most_in_flight: usize,
    not_sent: u64,
    pings: u64,
    ping_errors: u64,
    ping_p50_ms: f64,
    ping_p99_ms: f64,
    memory_loaded_mib: f64,
    memory_before_mib: f64,
    memory_most_mib: f64,
    memory_end_mib: f64,
    before_p50_ms: f64,
    before_p99_ms: f64,
    after_qps: f64,
    after_p50_ms: f64,
    after_p99_ms: f64,
}

impl OverloadArgs {
    /// Measures, writes `load-overload-MODEL.*` and fails if a bound is broken.
    pub async fn run(self) -> Result<()> {
        let program = Program::find(&self.setting)?;
        let model = Model::open(self.model, &self.setting)?;
        let server = program.start(&model, &[]).await?;
        let loaded = server.resident_mib().unwrap_or(f64::NAN);
        let texts = Arc::new(Mutex::new(Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed)));
        let before = self.closed_loop(&server, &texts).await;
        ensure!(before.qps > 0.0, "the server answered nothing before the overload");
        println!("capacity {:.1} QPS; sending {:.1} times that for {} s", before.qps, self.times, self.seconds);
        let mut row = Row { memory_loaded_mib: loaded, ..Row::default() };
        row.memory_before_mib = server.resident_mib().unwrap_or(f64::NAN);
        row.memory_most_mib = row.memory_before_mib;

        self.flood(&server, &texts, before.qps * self.times, &mut row).await?;
        tokio::time::sleep(RECOVERY).await;
        let after = self.closed_loop(&server, &texts).await;
        row.memory_end_mib = server.resident_mib().unwrap_or(f64::NAN);
        row.capacity_qps = before.qps;
        (row.before_p50_ms, row.before_p99_ms) = percentiles(&before.latencies);
        row.after_qps = after.qps;
        (row.after_p50_ms, row.after_p99_ms) = percentiles(&after.latencies);
        self.finish(row)
    }

    async fn closed_loop(&self, server: &Server, texts: &Arc<Mutex<Texts>>) -> Capacity {
        let (args, texts) = (self.clone(), Arc::clone(texts));
        let time = Duration::from_secs_f64(self.calibration);
        load::capacity(server.address, CLIENTS, time, move || args.invocation(&texts)).await
    }

    fn invocation(&self, texts: &Mutex<Texts>) -> Invocation {
        Invocation {
            input: texts.lock().unwrap_or_else(PoisonError::into_inner).typed(self.model),
            suggestions: Some(self.suggestions),
            max_new_tokens: Some(self.max_new_tokens),
            deadline_ms: Some(self.deadline_ms),
            session: None,
        }
    }

    /// The open loop. Requests come as from many people who know nothing of each other: the gaps are exponential.
    async fn flood(&self, server: &Server, texts: &Mutex<Texts>, rate: f64, row: &mut Row) -> Result<()> {
        let mut rng = StdRng::seed_from_u64(self.setting.seed);
        // Made beforehand: the loop only sends.
        let requests: Vec<Invocation> =
            (0..(rate * self.seconds).ceil() as usize).map(|_| self.invocation(texts)).collect();
        let pool = Arc::new(Pool::new(server.address));
        let under_way = Arc::new(AtomicUsize::new(0));
        let counted = Arc::new(Mutex::new((Latencies::default(), Tally::default())));
        let prober = Prober::start(server.address);
        let (mut tasks, mut looked, mut due) = (JoinSet::new(), Instant::now(), 0.0);
        let started = Instant::now();
        for invocation in requests {
            due += rng.sample::<f64, _>(Exp1) / rate;
            let due = started + Duration::from_secs_f64(due);
            tokio::time::sleep_until(due).await;
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                row.memory_most_mib = row.memory_most_mib.max(server.resident_mib().unwrap_or(0.0));
                while tasks.try_join_next().is_some() {}
            }
            let now = under_way.fetch_add(1, Ordering::Relaxed) + 1;
            row.most_in_flight = row.most_in_flight.max(now);
            if now > self.in_flight {
                under_way.fetch_sub(1, Ordering::Relaxed);
                row.not_sent += 1;
                continue;
            }
            let (pool, under_way, counted) = (Arc::clone(&pool), Arc::clone(&under_way), Arc::clone(&counted));
            tasks.spawn(async move {
                let outcome = pool.complete(&invocation).await;
                under_way.fetch_sub(1, Ordering::Relaxed);
                let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
                counted.1.add(&outcome);
                if matches!(outcome, Outcome::Answered(_)) {
                    counted.0.record(due.elapsed());
                }
            });
        }
        row.seconds = started.elapsed().as_secs_f64();
        while tasks.join_next().await.is_some() {}
        let pings = prober.stop();
        let (latencies, tally) = &*counted.lock().unwrap_or_else(PoisonError::into_inner);
        row.offered_qps = (tally.requests + row.not_sent) as f64 / row.seconds;
        row.requests = tally.requests;
        (row.answered, row.refused, row.errors) = (tally.answered, tally.count("status 429"), tally.errors());
        row.useful_qps = (tally.answered - tally.empty) as f64 / row.seconds;
        (row.outcomes, row.first_loss) = (tally.line(), tally.first_loss.clone().unwrap_or_default());
        (row.p50_ms, row.p99_ms) = percentiles(latencies);
        (row.pings, row.ping_errors) = (pings.latencies.len(), pings.errors);
        (row.ping_p50_ms, row.ping_p99_ms) = percentiles(&pings.latencies);
        Ok(())
    }

    fn finish(&self, row: Row) -> Result<()> {
        let growth = row.memory_most_mib.max(row.memory_end_mib) - row.memory_loaded_mib;
        let bounds = [
            (row.errors == 0, "every request is answered, 200 or 429"),
            (row.not_sent == 0, "the loop stays open"),
            (row.ping_errors == 0 && row.ping_p99_ms <= self.ping_p99_ms, "/ping stays healthy and quick"),
            (growth <= self.memory_growth_mib, "memory stays within its bound"),
            (row.after_qps >= self.recovery * row.capacity_qps, "afterwards the server is as quick as before"),
        ];
        let lines = bounds.map(|(holds, what)| format!("{}  {what}", if holds { "holds " } else { "BROKEN" }));
        let title =
            format!("Overload, {}: {} times the capacity for {} s", self.model.text(), self.times, self.seconds);
        let (folder, name) = (&self.setting.results, format!("load-overload-{}", self.model.text()));
        let rows = [row];
        Report::new(title, &rows).write(folder, &name, &format!("{}\n\n{}", table(&rows[0])?, lines.join("\n")))?;
        report::write_csv(folder, &name, &rows)?;
        ensure!(bounds.iter().all(|(holds, _)| *holds), "a bound is broken");
        Ok(())
    }
}

fn percentiles(latencies: &Latencies) -> (f64, f64) {
    (latencies.percentile_ms(50.0), latencies.percentile_ms(99.0))
}

/// One line a figure, in the order of the fields.
fn table(row: &Row) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize(row)?;
    let text = writer.into_inner()?;
    let mut reader = csv::Reader::from_reader(text.as_slice());
    let names = reader.headers()?.clone();
    let mut figures = Vec::new();
    for values in reader.records() {
        for (name, value) in names.iter().zip(&values?) {
            let number = value.parse::<f64>().ok().filter(|_| value.contains('.'));
            let value = number.map_or_else(|| value.to_owned(), |number| format!("{number:.1}"));
            figures.push((name.replace('_', " "), value));
        }
    }
    Ok(report::table(&figures, &[("figure", |figure| figure.0.clone()), ("value", |figure| figure.1.clone())]))
}

/// Asks for the server's health all the time, from a thread and a connection of its own.
struct Prober {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Pings>,
}

/// Times of the pings that were answered, and the number of those that failed.
#[derive(Default)]
struct Pings {
    latencies: Latencies,
    errors: u64,
}

impl Prober {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut pings = Pings::default();
            match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(probe(address, &stopped, &mut pings)),
                Err(_) => pings.errors += 1,
            }
            pings
        });
        Self { stop, thread }
    }

    fn stop(self) -> Pings {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(Pings { errors: 1, ..Pings::default() })
    }
}

/// Latency counts from when a ping was due, so that one that takes long is not one sample of many that should have
/// been.
async fn probe(address: SocketAddr, stop: &AtomicBool, pings: &mut Pings) {
    let mut connection = None;
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        due += PING;
        tokio::time::sleep_until(due).await;
        if connection.is_none() {
            connection = Connection::open(address).await.ok();
        }
        let healthy = match &mut connection {
            Some(open) => matches!(open.get("/ping").await, Ok((200, _))),
            None => false,
        };
        pings.latencies.record(due.elapsed());
        if !healthy {
            pings.errors += 1;
            connection = None;
        }
    }
}
