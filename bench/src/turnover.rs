//! `turnover`: what the prefix cache still knows when many people type, by the memory that it has.
//!
//! People's keys are sent in the order in which they would be typed, each as soon as the one before it is answered. So
//! a key's time is its cost, without waiting for others. Every server gets the same keys.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

use crate::client::{Connection, Invocation, Outcome};
use crate::latency::Latencies;
use crate::model::Setting;
use crate::people::{Keystroke, schedule};
use crate::plot::{self, Line, Words};
use crate::report::{self, Column, Report, decimals, percent};
use crate::server::{self, Program};
use crate::workload::{Queries, Texts};

const NAME: &str = "turnover";
/// Everyone has begun to type after this time.
const BEGINNING: Duration = Duration::from_secs(5);

/// Arguments of `turnover`.
#[derive(Clone, Debug, Args)]
pub struct TurnoverArgs {
    #[command(flatten)]
    setting: Setting,
    /// The bundle or checkpoint that is served.
    #[arg(long, value_name = "DIR", default_value = "models/demo")]
    folder: PathBuf,
    /// People who type at once.
    #[arg(long, default_value_t = 20)]
    people: usize,
    /// Keys of all of them together.
    #[arg(long, default_value_t = 3000)]
    keys: usize,
    /// Suggestions wanted.
    #[arg(long, default_value_t = 10)]
    suggestions: usize,
    /// Tokens that may reach beyond the typed text.
    #[arg(long, default_value_t = 6)]
    max_new_tokens: usize,
    /// Memory in MiB: two thirds for keys and values, the rest for distributions, as by default.
    #[arg(long, value_delimiter = ',', default_value = "48,96,192,384,768,1536")]
    mib: Vec<usize>,
    /// Another server to compare with, measured in turns.
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
}

/// One server with one amount of memory.
#[derive(Clone, Debug, Serialize)]
struct Row {
    server: &'static str,
    mib: usize,
    keys: u64,
    /// Of the distributions that keys needed, the share that was remembered.
    remembered: f64,
    positions_a_key: f64,
    p50_ms: f64,
    p99_ms: f64,
}

const COLUMNS: &[Column<Row>] = &[
    ("server", |row| row.server.to_owned()),
    ("MiB", |row| row.mib.to_string()),
    ("keys", |row| row.keys.to_string()),
    ("remembered", |row| percent(row.remembered)),
    ("positions a key", |row| decimals(row.positions_a_key, 1)),
    ("p50 ms", |row| decimals(row.p50_ms, 1)),
    ("p99 ms", |row| decimals(row.p99_ms, 1)),
];

impl TurnoverArgs {
    /// Measures and writes `turnover.*`, again after each server.
    pub async fn run(self) -> Result<()> {
        let mut texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed);
        let keys = schedule(|| texts.query(), self.people, BEGINNING, self.duration());
        let keys: Vec<Keystroke> = keys.into_iter().take(self.keys).collect();
        let mut programs = vec![("now", Program::find(&self.setting)?)];
        if let Some(before) = &self.before {
            programs.insert(0, ("before", Program::at(Some(before), &self.setting.results.join("tmp"))?));
        }
        let mut rows = Vec::new();
        for &mib in &self.mib {
            for (name, program) in &programs {
                rows.push(self.measure(name, program, mib, &keys).await?);
                self.write(&rows)?;
            }
        }
        Ok(())
    }

    /// Time in which these people type more than the keys.
    fn duration(&self) -> Duration {
        Duration::from_secs_f64(BEGINNING.as_secs_f64() + self.keys as f64 / self.people.max(1) as f64)
    }

    async fn measure(&self, server: &'static str, program: &Program, mib: usize, keys: &[Keystroke]) -> Result<Row> {
        let log = self.setting.results.join("tmp").join(format!("turnover-{server}-{mib}.log"));
        let (pool, lists) = ((mib * 2 / 3).to_string(), (mib / 3).to_string());
        let folder = self.folder.to_str().context("a folder's name in UTF-8")?;
        let arguments = ["--model", folder, "--no-lookahead", "--kv-pool-mib", &pool, "--prefix-cache-mib", &lists];
        let running = program.serve(server::free_port()?, &arguments.map(AsRef::as_ref), &log).await?;
        let mut connection = Connection::open(running.address).await?;
        let (mut latencies, mut computed, mut saved) = (Latencies::default(), 0, 0);
        for key in keys {
            let invocation = Invocation {
                input: key.text.clone(),
                suggestions: Some(self.suggestions),
                max_new_tokens: Some(self.max_new_tokens),
                ..Invocation::default()
            };
            let started = Instant::now();
            let Outcome::Answered(answer) = connection.complete(&invocation).await? else {
                bail!("{:?} was not answered; see {}", key.text, log.display())
            };
            latencies.record(started.elapsed());
            computed += answer.usage.positions_computed;
            saved += answer.usage.positions_saved;
        }
        Ok(Row {
            server,
            mib,
            keys: latencies.len(),
            remembered: saved as f64 / (computed + saved).max(1) as f64,
            positions_a_key: computed as f64 / keys.len().max(1) as f64,
            p50_ms: latencies.percentile_ms(50.0),
            p99_ms: latencies.percentile_ms(99.0),
        })
    }

    fn write(&self, rows: &[Row]) -> Result<()> {
        let title = format!(
            "{} people type {} keys in turn at {}: what the prefix cache remembers, by its memory",
            self.people,
            self.keys,
            self.folder.display()
        );
        let folder = &self.setting.results;
        Report::new(title, rows).write(folder, NAME, &report::table(rows, COLUMNS))?;
        let plot = |name: &str, y: &str, value: fn(&Row) -> f64| {
            let servers = ["before", "now"].map(|server| Line {
                name: server.to_owned(),
                points: rows
                    .iter()
                    .filter(|row| row.server == server)
                    .map(|row| (row.mib as f64, value(row)))
                    .collect(),
            });
            let lines: Vec<Line> = servers.into_iter().filter(|line| !line.points.is_empty()).collect();
            let words = Words { caption: "The prefix cache by its memory", x: "MiB", y };
            plot::lines(&report::file(folder, &format!("{NAME}-{name}"), "svg"), &words, &lines)
        };
        plot("remembered", "remembered, %", |row| 100.0 * row.remembered)?;
        plot("p99", "p99 of a key, ms", |row| row.p99_ms)
    }
}
