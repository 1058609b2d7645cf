//! `steps`: the time of one model step against the rows in it and the positions behind them, without a server.
//!
//! Numbers of rows take turns, so that a machine that gets slower slows all of them; the median of the rounds counts.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use backends::onnxruntime::{CpuLevel, Options};
use backends::options;
use clap::Args;
use completion::text::TokenId;
use foretype::cli::gpu::GpuArgs;
use foretype::models::folder::ModelFolder;
use scheduler::backend::{Backend, Batch, KvCopy, Lane, Outputs, Page, Selected};
use serde::Serialize;

use crate::model::{Model, Name, Setting};
use crate::plot::{self, Line, Words};
use crate::report::{self, Report, decimals};

/// Arguments of `steps`.
#[derive(Clone, Debug, Args)]
pub struct StepsArgs {
    #[command(flatten)]
    setting: Setting,
    /// Models to measure.
    #[arg(long, value_delimiter = ',', default_value = "demo,gpt2")]
    models: Vec<Name>,
    /// Rows of a step.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,10,16,24,32,48,64")]
    rows: Vec<usize>,
    /// Positions that a row has behind it.
    #[arg(long, value_delimiter = ',', default_value = "10")]
    past: Vec<usize>,
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Threads of a step. Default: one per core.
    #[arg(long)]
    threads: Option<usize>,
    /// The ONNX Runtime library. Default: looked for beside this binary.
    #[arg(long, value_name = "FILE", env = "FORETYPE_ONNXRUNTIME")]
    onnxruntime: Option<PathBuf>,
    #[command(flatten)]
    engine: GpuArgs,
}

/// One number of rows behind one number of positions.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: Name,
    past: usize,
    rows: usize,
    median_ms: f64,
    fastest_ms: f64,
    with_copies_ms: f64,
    with_scattered_ms: f64,
    with_stores_ms: f64,
    with_logits_ms: f64,
    /// The median, divided by that of one row.
    times_one: f64,
    per_row_ms: f64,
}

/// Which steps are timed.
#[derive(Clone, Debug)]
pub struct Steps<'a> {
    /// Rows of a step.
    pub rows: &'a [usize],
    /// Positions behind each row.
    pub past: &'a [usize],
    /// Rounds, of which the median counts.
    pub rounds: usize,
}

/// Times of a step.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Rows of the step.
    pub rows: usize,
    /// Positions behind each of them.
    pub past: usize,
    /// The median of the rounds.
    pub median_ms: f64,
    /// The fastest round.
    pub fastest_ms: f64,
    /// The median of a step before which all its rows' positions are copied from pages, which lie side by side.
    pub with_copies_ms: f64,
    /// The same from pages of which no two lie side by side.
    pub with_scattered_ms: f64,
    /// The median of a step before which one position of each row is copied to a page.
    pub with_stores_ms: f64,
    /// The median of a step that returns all logits of each row.
    pub with_logits_ms: f64,
}

/// What a step has to do besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Besides {
    Nothing,
    Copies,
    Scattered,
    Stores,
    Logits,
}

impl Besides {
    const ALL: [Self; 5] = [Self::Nothing, Self::Copies, Self::Scattered, Self::Stores, Self::Logits];

    /// The copies from pages before a step.
    fn loads(self, rows: usize, past: usize) -> Vec<KvCopy> {
        // Coprime to the numbers of positions that are measured.
        const STRIDE: usize = 37;
        let page = move |position| match self {
            Self::Copies => Some(position),
            Self::Scattered => Some(position * STRIDE % past.max(1)),
            Self::Nothing | Self::Stores | Self::Logits => None,
        };
        let path = |lane| {
            (0..past).filter_map(move |position| {
                page(position).map(|page| KvCopy::Load { page: Page(page), lane: Lane(lane), position })
            })
        };
        (0..rows).flat_map(path).collect()
    }

    /// The copies to pages before a step.
    fn stores(self, rows: usize, past: usize, pages: usize) -> Vec<KvCopy> {
        let rows = if self == Self::Stores { rows } else { 0 };
        let page = |row| Page((past + row) % pages.max(1));
        (0..rows).map(|row| KvCopy::Store { lane: Lane(row), position: past, page: page(row) }).collect()
    }
}

impl StepsArgs {
    /// Measures and writes `load-steps.*`.
    pub fn run(self) -> Result<()> {
        let mut rows = Vec::new();
        for &name in &self.models {
            rows.extend(self.measure(name)?);
        }
        let folder = &self.setting.results;
        let title = "Time of one model step, one new token a row";
        Report::new(title, &rows).write(folder, "load-steps", &table(&rows))?;
        report::write_csv(folder, "load-steps", &rows)?;
        for &name in &self.models {
            let line = |&past: &usize| {
                let wanted = |row: &&Row| row.model == name && row.past == past;
                let points = rows.iter().filter(wanted).map(|row| (row.rows as f64, row.median_ms));
                Line { name: format!("behind {past} positions"), points: points.collect() }
            };
            let lines: Vec<_> = self.past.iter().map(line).collect();
            let caption = format!("Time of one model step, {}", name.text());
            let path = report::file(folder, &format!("load-steps-{}", name.text()), "svg");
            plot::lines(&path, &Words { caption: &caption, x: "rows", y: "milliseconds" }, &lines)?;
        }
        Ok(())
    }

    fn measure(&self, name: Name) -> Result<Vec<Row>> {
        let model = Model::open(name, &self.setting)?;
        let steps = Steps { rows: &self.rows, past: &self.past, rounds: self.rounds };
        let onnxruntime = steps.options(self.onnxruntime.clone(), self.threads);
        let times = steps.time(&model, &self.engine, &self.setting, onnxruntime)?;
        let one = |past| times.iter().find(|times| times.rows == 1 && times.past == past);
        let row = |times: &Times| Row {
            model: name,
            past: times.past,
            rows: times.rows,
            median_ms: times.median_ms,
            fastest_ms: times.fastest_ms,
            with_copies_ms: times.with_copies_ms,
            with_scattered_ms: times.with_scattered_ms,
            with_stores_ms: times.with_stores_ms,
            with_logits_ms: times.with_logits_ms,
            times_one: one(times.past).map_or(f64::NAN, |one| times.median_ms / one.median_ms),
            per_row_ms: times.median_ms / times.rows as f64,
        };
        Ok(times.iter().map(row).collect())
    }
}

impl Steps<'_> {
    /// Options of an engine that has room for the steps and for the pages of one row.
    pub fn options(&self, library: Option<PathBuf>, threads: Option<usize>) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            library,
            threads: threads.unwrap_or(cores),
            spin: false,
            cpu_level: CpuLevel::detect(),
            lanes: self.rows.iter().copied().max().unwrap_or(1),
            chunk: self.past.iter().copied().max().unwrap_or(1).max(1),
            pool_bytes: 0,
            huge_pages: true,
        }
    }

    /// Loads a model's engine and times its steps.
    pub fn time(&self, model: &Model, engine: &GpuArgs, setting: &Setting, options: Options) -> Result<Vec<Times>> {
        let source = ModelFolder::Bundle(model.bundle.clone());
        let engine = engine.choose(&source, &setting.cache, |_| options).map_err(anyhow::Error::msg)?;
        let mut backend = options::load(&model.bundle, &model.manifest, &engine.backend).map_err(anyhow::Error::msg)?;
        let mut all = Vec::new();
        for &past in self.past {
            all.extend(self.behind(&mut *backend, past)?);
        }
        Ok(all)
    }

    fn behind(&self, backend: &mut dyn Backend, past: usize) -> Result<Vec<Times>> {
        let lanes = self.rows.iter().copied().max().unwrap_or(1);
        let pages = backend.limits().pages;
        forward(backend, (lanes, 0, past), false)?;
        let mut times_ms = vec![[const { Vec::new() }; Besides::ALL.len()]; self.rows.len()];
        // The first round makes bindings and is not counted.
        for round in 0..=self.rounds {
            for (times_ms, &rows) in times_ms.iter_mut().zip(self.rows) {
                for (times_ms, besides) in times_ms.iter_mut().zip(Besides::ALL) {
                    let (loads, stores) = (besides.loads(rows, past), besides.stores(rows, past, pages));
                    let started = Instant::now();
                    backend.copy_kv(&stores)?;
                    backend.copy_kv(&loads)?;
                    // Waits for the copies too.
                    forward(backend, (rows, past, 1), besides == Besides::Logits)?;
                    if round > 0 {
                        times_ms.push(started.elapsed().as_secs_f64() * 1000.0);
                    }
                }
            }
        }
        times_ms.iter_mut().flatten().for_each(|times| times.sort_by(f64::total_cmp));
        let median = |times: &Vec<f64>| times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
        let times = |(&rows, all): (&usize, &[Vec<f64>; Besides::ALL.len()])| {
            let fastest_ms = all[0].first().copied().unwrap_or(f64::NAN);
            let [median_ms, with_copies_ms, with_scattered_ms, with_stores_ms, with_logits_ms] =
                all.each_ref().map(median);
            Times {
                rows,
                past,
                median_ms,
                fastest_ms,
                with_copies_ms,
                with_scattered_ms,
                with_stores_ms,
                with_logits_ms,
            }
        };
        Ok(self.rows.iter().zip(&times_ms).map(times).collect())
    }
}

/// One step of `rows` rows, each of `tokens` tokens behind `past` positions. `full` asks for all logits.
fn forward(backend: &mut dyn Backend, (rows, past, tokens): (usize, usize, usize), full: bool) -> Result<()> {
    let vocab = backend.limits().vocab;
    let mut batch = Batch::default();
    for row in 0..rows {
        // Any tokens, differing from row to row.
        batch.push_row(past, (0..tokens).map(|i| TokenId(((row * 31 + i * 7 + past) % vocab) as u32)));
        batch.selected.push(Selected { row, offset: tokens - 1, full });
    }
    Ok(backend.forward(&batch, &mut Outputs::default())?)
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("model", |row| row.model.text().to_owned()),
            ("past", |row| row.past.to_string()),
            ("rows", |row| row.rows.to_string()),
            ("median ms", |row| decimals(row.median_ms, 2)),
            ("fastest ms", |row| decimals(row.fastest_ms, 2)),
            ("with copies ms", |row| decimals(row.with_copies_ms, 2)),
            ("scattered ms", |row| decimals(row.with_scattered_ms, 2)),
            ("with stores ms", |row| decimals(row.with_stores_ms, 2)),
            ("with logits ms", |row| decimals(row.with_logits_ms, 2)),
            ("x one row", |row| decimals(row.times_one, 2)),
            ("ms per row", |row| decimals(row.per_row_ms, 3)),
        ],
    )
}
