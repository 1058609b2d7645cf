//! `load`: a closed loop. Each of N clients sends its next request when its last is answered.
//!
//! Two servers of one model take turns: requests sharing model steps, and one request at a time. They get the same
//! texts. While one is measured, the other is stopped, so that nothing it does while idle counts.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::{Invocation, Outcome, Pool};
use crate::latency::Latencies;
use crate::metrics::{Reading, growth, ratio};
use crate::model::{Model, Name, Setting};
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, decimals, maybe, percent};
use crate::server::{Program, Server};
use crate::tally::Tally;
use crate::workload::{Queries, Texts};

/// Longer than anything measured: answers are whole.
const DEADLINE: Duration = Duration::from_secs(60);
/// A failed request is not repeated at once: a client that only fails must not be a busy loop.
const PAUSE: Duration = Duration::from_millis(20);

/// Arguments of `load`.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    #[command(flatten)]
    setting: Setting,
    /// Models to measure.
    #[arg(long, value_delimiter = ',', default_value = "demo,gpt2")]
    models: Vec<Name>,
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    concurrency: Vec<usize>,
    /// Suggestions wanted, one series each.
    #[arg(long, value_delimiter = ',', default_value = "10,1")]
    suggestions: Vec<usize>,
    /// Tokens in all, typed and added, for the random GPT-2.
    #[arg(long, default_value_t = 42)]
    total_tokens: usize,
    /// Tokens added, for trained models.
    #[arg(long, default_value_t = 16)]
    new_tokens: usize,
    /// Seconds of a cell.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// A cell goes on until each client has this many answers ...
    #[arg(long, default_value_t = 3)]
    answers: usize,
    /// ... but no longer than these seconds, or until each has one.
    #[arg(long, default_value_t = 45.0)]
    cap: f64,
}

/// One cell of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: Name,
    suggestions: usize,
    concurrency: usize,
    /// `batched`, the default, or `single`, one request at a time.
    mode: &'static str,
    seconds: f64,
    /// Answers, whole or not.
    answers: u64,
    /// Whole answers a second: those that the deadline cut don't count.
    qps: f64,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
    outcomes: String,
    forwards_per_request: f64,
    positions_per_request: f64,
    /// Positions that were known, of all that were wanted.
    saved_share: f64,
    /// From the server's metrics, where it has them. Positions that the server computed, those of requests under way
    /// included: throughput without the edges of a short cell.
    positions_per_second: Option<f64>,
    rows_per_step: Option<f64>,
    /// QPS against one request at a time at the same concurrency.
    ratio: Option<f64>,
}

/// What the clients of a cell share.
struct Clients {
    pool: Pool,
    texts: Mutex<Texts>,
    model: Arc<Model>,
    suggestions: usize,
    total_tokens: usize,
    new_tokens: usize,
}

impl Clients {
    fn invocation(&self) -> Invocation {
        let input = self.texts.lock().unwrap_or_else(PoisonError::into_inner).typed(self.model.name);
        let max_new_tokens = match self.model.name {
            Name::Demo | Name::Smollm2 => self.new_tokens,
            Name::Gpt2 => self.total_tokens.saturating_sub(self.model.tokens(&input)).max(1),
        };
        Invocation {
            input,
            suggestions: Some(self.suggestions),
            max_new_tokens: Some(max_new_tokens),
            deadline_ms: Some(DEADLINE.as_millis() as u64),
            session: None,
        }
    }
}

/// One of the two servers, and the texts it has seen.
struct Side {
    mode: &'static str,
    server: Server,
    texts: Texts,
}

/// What a cell is: how many clients ask for how much, and for how long.
#[derive(Clone, Copy)]
struct Cell {
    suggestions: usize,
    concurrency: usize,
    time: Duration,
}

/// What a cell counted.
struct Counted {
    elapsed: Duration,
    latencies: Latencies,
    tally: Tally,
}

impl LoadArgs {
    /// Measures and writes `load-closed.*`.
    pub async fn run(self) -> Result<()> {
        let program = Program::find(&self.setting)?;
        let mut rows = Vec::new();
        for &name in &self.models {
            let model = Arc::new(Model::open(name, &self.setting)?);
            self.measure(&program, &model, &mut rows).await?;
        }
        for single in rows.clone().into_iter().filter(|row| row.mode == "single") {
            let same = |row: &&mut Row| {
                (row.model, row.suggestions, row.concurrency) == (single.model, single.suggestions, single.concurrency)
            };
            rows.iter_mut().filter(same).for_each(|row| row.ratio = ratio(Some(row.qps), Some(single.qps)));
        }
        rows.sort_by_key(|row| (row.model.text(), usize::MAX - row.suggestions, row.concurrency, row.mode));
        let folder = &self.setting.results;
        let title = "Closed loop: requests sharing model steps (batched) against one request at a time (single)";
        Report::new(title, &rows).write(folder, "load-closed", &table(&rows))?;
        report::write_csv(folder, "load-closed", &rows)?;
        self.models.iter().try_for_each(|&name| self.plot(name, &rows))
    }

    async fn measure(&self, program: &Program, model: &Arc<Model>, rows: &mut Vec<Row>) -> Result<()> {
        let queries = Queries::load(&self.setting.queries)?;
        let flag = program.batch_flag()?;
        let mut sides = Vec::new();
        for (mode, arguments) in [("batched", &[][..]), ("single", &[flag, "1"][..])] {
            let server = program.start(model, arguments).await?;
            let mut side = Side { mode, server, texts: Texts::new(queries.clone(), self.setting.seed) };
            // The first requests make bindings and touch memory.
            let warmup = Cell { suggestions: 4, concurrency: 1, time: Duration::from_secs(1) };
            self.count(model, &mut side, warmup).await?;
            side.server.pause()?;
            sides.push(side);
        }
        for &suggestions in &self.suggestions {
            for &concurrency in &self.concurrency {
                let cell = Cell { suggestions, concurrency, time: Duration::from_secs_f64(self.seconds) };
                // Who goes first alternates, so that a machine that gets slower doesn't favour one.
                sides.reverse();
                for side in &mut sides {
                    side.server.resume()?;
                    side.texts.reseed(self.setting.seed + 1000 * suggestions as u64 + concurrency as u64);
                    rows.push(self.row(model, side, cell).await?);
                    side.server.pause()?;
                }
            }
        }
        Ok(())
    }

    async fn row(&self, model: &Arc<Model>, side: &mut Side, cell: Cell) -> Result<Row> {
        let Cell { suggestions, concurrency, .. } = cell;
        let (before, began) = (Reading::take(side.server.address).await, Instant::now());
        let Counted { elapsed, latencies, tally } = self.count(model, side, cell).await?;
        let after = Reading::take(side.server.address).await;
        let grew = |name| growth(before.as_ref(), after.as_ref(), name);
        let all_seconds = began.elapsed().as_secs_f64();
        let row = Row {
            model: model.name,
            suggestions,
            concurrency,
            mode: side.mode,
            seconds: elapsed.as_secs_f64(),
            answers: tally.answered,
            qps: tally.whole() as f64 / elapsed.as_secs_f64(),
            mean_ms: latencies.mean_ms(),
            p50_ms: latencies.percentile_ms(50.0),
            p99_ms: latencies.percentile_ms(99.0),
            errors: tally.requests - tally.answered,
            outcomes: tally.line(),
            forwards_per_request: tally.per_answer(tally.forwards),
            positions_per_request: tally.per_answer(tally.computed),
            saved_share: tally.saved as f64 / (tally.saved + tally.computed).max(1) as f64,
            positions_per_second: grew("foretype_positions_computed_total").map(|positions| positions / all_seconds),
            rows_per_step: ratio(grew("foretype_step_rows_sum"), grew("foretype_step_rows_count")),
            ratio: None,
        };
        println!(
            "{} {:7} {suggestions:2} suggestions, {concurrency:2} clients: {:7.2} QPS, mean {:.1} ms, \
             p99 {:.1} ms ({})",
            model.name.text(),
            row.mode,
            row.qps,
            row.mean_ms,
            row.p99_ms,
            row.outcomes
        );
        Ok(row)
    }

    /// Runs the clients until the cell is over; what is under way then is left and doesn't count.
    async fn count(&self, model: &Arc<Model>, side: &mut Side, cell: Cell) -> Result<Counted> {
        let Cell { suggestions, concurrency, time } = cell;
        let clients = Arc::new(Clients {
            pool: Pool::new(side.server.address),
            texts: Mutex::new(side.texts.clone()),
            model: Arc::clone(model),
            suggestions,
            total_tokens: self.total_tokens,
            new_tokens: self.new_tokens,
        });
        let (sender, mut finished) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let started = Instant::now();
        for client in 0..concurrency {
            tasks.spawn(client_loop(Arc::clone(&clients), client, sender.clone()));
        }
        let mut counted = Counted { elapsed: Duration::ZERO, latencies: Latencies::default(), tally: Tally::default() };
        let mut done = vec![0; concurrency];
        while let Some(Finished { client, at, latency, outcome }) = finished.recv().await {
            counted.tally.add(&outcome);
            if matches!(outcome, Outcome::Answered(_)) {
                counted.latencies.record(latency);
            }
            done[client] += 1;
            counted.elapsed = at - started;
            let least = done.iter().copied().min().unwrap_or(0);
            let enough = if counted.elapsed.as_secs_f64() < self.cap { self.answers } else { 1 };
            if counted.elapsed >= time && least >= enough {
                break;
            }
        }
        tasks.shutdown().await;
        side.texts = clients.texts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Connections that closed take their requests with them.
        drop(clients);
        side.server.settle().await?;
        Ok(counted)
    }

    fn plot(&self, name: Name, rows: &[Row]) -> Result<()> {
        let mut lines = Vec::new();
        for &suggestions in &self.suggestions {
            for mode in ["batched", "single"] {
                let of = |row: &&Row| row.model == name && row.suggestions == suggestions && row.mode == mode;
                let points = rows.iter().filter(of).map(|row| (row.concurrency as f64, row.qps)).collect();
                lines.push(Line { name: format!("{mode}, {suggestions} suggestions"), points });
            }
        }
        let caption = format!("Throughput, {}", name.text());
        let path = report::file(&self.setting.results, &format!("load-closed-{}", name.text()), "svg");
        plot::lines(&path, &Words { caption: &caption, x: "clients", y: "answers per second" }, &lines)
    }
}

/// A request that is over.
struct Finished {
    client: usize,
    at: Instant,
    latency: Duration,
    outcome: Outcome,
}

async fn client_loop(clients: Arc<Clients>, client: usize, finished: mpsc::UnboundedSender<Finished>) {
    loop {
        let invocation = clients.invocation();
        let sent = Instant::now();
        let outcome = clients.pool.complete(&invocation).await;
        let at = Instant::now();
        let failed = !matches!(outcome, Outcome::Answered(_));
        if finished.send(Finished { client, at, latency: at - sent, outcome }).is_err() {
            return;
        }
        if failed {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Answers per second of a server under a number of clients, for other measurements' use.
pub struct Capacity {
    /// Answers per second.
    pub qps: f64,
    /// Latencies of the answers.
    pub latencies: Latencies,
}

/// A short closed loop against a server, with requests that `make` makes.
pub async fn capacity(
    address: SocketAddr,
    concurrency: usize,
    time: Duration,
    make: impl Fn() -> Invocation + Send + Sync + 'static,
) -> Capacity {
    let (pool, make, started) = (Arc::new(Pool::new(address)), Arc::new(make), Instant::now());
    let mut tasks = JoinSet::new();
    for _ in 0..concurrency {
        let (pool, make) = (Arc::clone(&pool), Arc::clone(&make));
        tasks.spawn(async move {
            let mut answered = Vec::new();
            while started.elapsed() < time {
                let sent = Instant::now();
                match pool.complete(&make()).await {
                    Outcome::Answered(_) => answered.push((started.elapsed(), sent.elapsed())),
                    _ => tokio::time::sleep(PAUSE).await,
                }
            }
            answered
        });
    }
    let answered: Vec<(Duration, Duration)> = tasks.join_all().await.into_iter().flatten().collect();
    let mut latencies = Latencies::default();
    answered.iter().for_each(|(_, latency)| latencies.record(*latency));
    let within = answered.iter().filter(|(at, _)| *at <= time).count();
    Capacity { qps: within as f64 / time.as_secs_f64(), latencies }
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("model", |row| row.model.text().to_owned()),
            ("suggestions", |row| row.suggestions.to_string()),
            ("clients", |row| row.concurrency.to_string()),
            ("mode", |row| row.mode.to_owned()),
            ("QPS", |row| decimals(row.qps, 2)),
            ("x single", |row| maybe(row.ratio, |ratio| decimals(ratio, 2))),
            ("mean ms", |row| decimals(row.mean_ms, 1)),
            ("p50 ms", |row| decimals(row.p50_ms, 1)),
            ("p99 ms", |row| decimals(row.p99_ms, 1)),
            ("answers", |row| row.answers.to_string()),
            ("errors", |row| row.errors.to_string()),
            ("forwards", |row| decimals(row.forwards_per_request, 1)),
            ("positions", |row| decimals(row.positions_per_request, 1)),
            ("known", |row| percent(row.saved_share)),
            ("positions/s", |row| maybe(row.positions_per_second, |positions| decimals(positions, 0))),
            ("rows/step", |row| maybe(row.rows_per_step, |rows| decimals(rows, 1))),
            ("outcomes", |row| row.outcomes.clone()),
        ],
    )
}
