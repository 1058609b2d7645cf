//! `steps`: the time of one model step against the rows in it, without a server.
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
use scheduler::backend::{Backend, Batch, Outputs, Selected};
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
    #[arg(long, default_value_t = 10)]
    past: usize,
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

/// One number of rows.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: Name,
    rows: usize,
    median_ms: f64,
    fastest_ms: f64,
    /// The median, divided by that of one row.
    times_one: f64,
    per_row_ms: f64,
}

impl StepsArgs {
    /// Measures and writes `load-steps.*`.
    pub fn run(self) -> Result<()> {
        let mut rows = Vec::new();
        for &name in &self.models {
            rows.extend(self.measure(name)?);
        }
        let folder = &self.setting.results;
        let title = format!("Time of one model step, one new token a row behind {} positions", self.past);
        Report::new(title, &rows).write(folder, "load-steps", &table(&rows))?;
        report::write_csv(folder, "load-steps", &rows)?;
        for &name in &self.models {
            let of_model = rows.iter().filter(|row| row.model == name);
            let points = of_model.map(|row| (row.rows as f64, row.median_ms)).collect();
            let caption = format!("Time of one model step, {}", name.text());
            let path = report::file(folder, &format!("load-steps-{}", name.text()), "svg");
            let line = Line { name: "median".into(), points };
            plot::lines(&path, &Words { caption: &caption, x: "rows", y: "milliseconds" }, &[line])?;
        }
        Ok(())
    }

    fn measure(&self, name: Name) -> Result<Vec<Row>> {
        let model = Model::open(name, &self.setting)?;
        let lanes = self.rows.iter().copied().max().unwrap_or(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let onnxruntime = Options {
            library: self.onnxruntime.clone(),
            threads: self.threads.unwrap_or(cores),
            spin: false,
            cpu_level: CpuLevel::detect(),
            lanes,
            chunk: self.past.max(1),
            pool_bytes: 0,
        };
        let source = ModelFolder::Bundle(model.bundle.clone());
        let engine = self.engine.choose(&source, &self.setting.cache, |_| onnxruntime).map_err(anyhow::Error::msg)?;
        let mut backend = options::load(&model.bundle, &model.manifest, &engine.backend).map_err(anyhow::Error::msg)?;
        forward(&mut *backend, lanes, 0, self.past)?;
        let mut times_ms = vec![Vec::new(); self.rows.len()];
        // The first round makes bindings and is not counted.
        for round in 0..=self.rounds {
            for (times_ms, &rows) in times_ms.iter_mut().zip(&self.rows) {
                let started = Instant::now();
                forward(&mut *backend, rows, self.past, 1)?;
                if round > 0 {
                    times_ms.push(started.elapsed().as_secs_f64() * 1000.0);
                }
            }
        }
        times_ms.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let median = |times: &[f64]| times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
        let one = self.rows.iter().position(|&rows| rows == 1).map_or(f64::NAN, |at| median(&times_ms[at]));
        let row = |(&rows, times): (&usize, &Vec<f64>)| Row {
            model: name,
            rows,
            median_ms: median(times),
            fastest_ms: times.first().copied().unwrap_or(f64::NAN),
            times_one: median(times) / one,
            per_row_ms: median(times) / rows as f64,
        };
        Ok(self.rows.iter().zip(&times_ms).map(row).collect())
    }
}

/// One step of `rows` rows, each of `tokens` tokens behind `past` positions.
fn forward(backend: &mut dyn Backend, rows: usize, past: usize, tokens: usize) -> Result<()> {
    let vocab = backend.limits().vocab;
    let mut batch = Batch::default();
    for row in 0..rows {
        // Any tokens, differing from row to row.
        batch.push_row(past, (0..tokens).map(|i| TokenId(((row * 31 + i * 7 + past) % vocab) as u32)));
        batch.selected.push(Selected { row, offset: tokens - 1, full: false });
    }
    Ok(backend.forward(&batch, &mut Outputs::default())?)
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("model", |row| row.model.text().to_owned()),
            ("rows", |row| row.rows.to_string()),
            ("median ms", |row| decimals(row.median_ms, 2)),
            ("fastest ms", |row| decimals(row.fastest_ms, 2)),
            ("x one row", |row| decimals(row.times_one, 2)),
            ("ms per row", |row| decimals(row.per_row_ms, 3)),
        ],
    )
}
