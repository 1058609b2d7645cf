//! `kit`: what the kit of `make gpu-kit` measures on each engine of a machine, in one table with what it checked
//! before.
//!
//! Of each engine and model: steps by rows and by positions behind them, with copies of keys and values and without.
//! The start of a server and its first answer; ten suggestions of 42 tokens in all, for some numbers of clients; people
//! who type. What can't be measured is a row that says why.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, ValueEnum};
use foretype::cli::gpu::GpuArgs;
use serde::Serialize;

use crate::client::{Connection, Invocation, Outcome};
use crate::load;
use crate::metrics::{Reading, growth, ratio};
use crate::model::{Model, Name, Setting};
use crate::paper::{CANDIDATES, PAPER_SERVER, TOTAL_TOKENS};
use crate::people::{self, Trial, Wanted, schedule};
use crate::report::{self, Report, decimals};
use crate::server::{Program, Server};
use crate::steps::Steps;
use crate::workload::{Queries, Texts};

/// Seconds in which people start, before those that count.
const WARMUP: Duration = Duration::from_secs(1);

/// Arguments of `kit`.
#[derive(Clone, Debug, Args)]
pub struct KitArgs {
    #[command(flatten)]
    setting: Setting,
    /// Engines to measure.
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    engines: Vec<Engine>,
    /// Models to measure.
    #[arg(long, value_delimiter = ',', default_value = "demo")]
    models: Vec<Name>,
    /// Rows of a step.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,10,16,32,64")]
    rows: Vec<usize>,
    /// Positions behind each row.
    #[arg(long, value_delimiter = ',', default_value = "10,40,120")]
    past: Vec<usize>,
    /// Rounds of steps, of which the median counts.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
    /// Clients of the paper case.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4")]
    clients: Vec<usize>,
    /// People who type at the same time.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    people: Vec<usize>,
    /// Seconds of each measurement with clients or people.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The ONNX Runtime library. Default: looked for beside this binary.
    #[arg(long, value_name = "FILE", env = "FORETYPE_ONNXRUNTIME")]
    onnxruntime: Option<PathBuf>,
    /// File of what was checked before: lines of engine, name and outcome, with tabs between.
    #[arg(long, value_name = "FILE")]
    checks: Option<PathBuf>,
}

/// An engine and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// ONNX Runtime on the CPU.
    Cpu,
    /// ONNX Runtime on the first GPU.
    #[value(name = "onnxruntime")]
    OnnxRuntime,
    /// TensorRT on the first GPU.
    #[value(name = "tensorrt")]
    TensorRt,
    /// TensorRT-RTX on the first GPU.
    #[value(name = "tensorrt-rtx")]
    TensorRtRtx,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::OnnxRuntime => "onnxruntime",
            Self::TensorRt => "tensorrt",
            Self::TensorRtRtx => "tensorrt-rtx",
        }
    }

    fn arguments(self) -> [&'static str; 4] {
        let (backend, device) = match self {
            Self::Cpu => ("onnxruntime", "cpu"),
            gpu => (gpu.name(), "cuda"),
        };
        ["--backend", backend, "--device", device]
    }
}

/// The engine's arguments, as the server has them.
#[derive(Parser)]
struct EngineArgs {
    #[command(flatten)]
    gpu: GpuArgs,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    engine: String,
    model: Option<Name>,
    /// What was checked or measured.
    what: String,
    /// `passed`, `failed`, `not run: why`, or `measured`.
    outcome: String,
    /// Milliseconds, or answers per second, by name.
    figures: BTreeMap<&'static str, f64>,
}

impl KitArgs {
    /// Measures and writes `kit.*`.
    pub async fn run(self) -> Result<()> {
        let mut rows = self.checked()?;
        let program = Program::find(&self.setting)?;
        for &engine in &self.engines {
            for &name in &self.models {
                let measured = self.measure(&program, engine, name, &mut rows).await;
                if let Err(error) = measured {
                    rows.push(Row::new(engine, Some(name), "measurements", format!("failed: {error:#}")));
                }
            }
        }
        let title = "What this machine's engines do: checks, and times in milliseconds";
        Report::new(title, &rows).write(&self.setting.results, "kit", &table(&rows))?;
        let failed = rows.iter().filter(|row| row.outcome.starts_with("failed")).count();
        ensure!(failed == 0, "{failed} of {} failed", rows.len());
        Ok(())
    }

    /// What was checked before.
    fn checked(&self) -> Result<Vec<Row>> {
        let Some(path) = &self.checks else { return Ok(Vec::new()) };
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let row = |line: &str| {
            let mut cells = line.splitn(3, '\t').map(str::to_owned);
            let mut cell = || cells.next().unwrap_or_default();
            Row { engine: cell(), model: None, what: cell(), outcome: cell(), figures: BTreeMap::new() }
        };
        Ok(text.lines().map(row).collect())
    }

    async fn measure(&self, program: &Program, engine: Engine, name: Name, rows: &mut Vec<Row>) -> Result<()> {
        println!("kit: {} on {}", name.text(), engine.name());
        let model = Arc::new(Model::open(name, &self.setting)?);
        self.steps(&model, Measured { engine, name, rows })?;
        let texts = Texts::new(Queries::load(&self.setting.queries)?, self.setting.seed);
        self.answers(program, &model, texts, Measured { engine, name, rows }).await
    }

    fn steps(&self, model: &Model, mut measured: Measured<'_>) -> Result<()> {
        let context = model.manifest.model.context as usize;
        let past: Vec<usize> = self.past.iter().copied().filter(|&past| past < context).collect();
        let steps = Steps { rows: &self.rows, past: &past, rounds: self.rounds };
        let EngineArgs { gpu } = EngineArgs::try_parse_from(["kit"].iter().chain(&measured.engine.arguments()))?;
        for times in steps.time(model, &gpu, &self.setting, steps.options(self.onnxruntime.clone(), None))? {
            measured.add(
                format!("step of {} rows behind {} positions", times.rows, times.past),
                &[
                    ("median", times.median_ms),
                    ("fastest", times.fastest_ms),
                    ("with copies", times.with_copies_ms),
                    ("with scattered copies", times.with_scattered_ms),
                    ("with stores", times.with_stores_ms),
                    ("with logits", times.with_logits_ms),
                ],
            );
        }
        Ok(())
    }

    /// What clients of a server see.
    async fn answers(
        &self,
        program: &Program,
        model: &Arc<Model>,
        texts: Texts,
        mut measured: Measured<'_>,
    ) -> Result<()> {
        let texts = Arc::new(Mutex::new(texts));
        let arguments = measured.engine.arguments();
        let started = Instant::now();
        let server = program.start(model, &arguments).await?;
        let start_ms = started.elapsed().as_secs_f64() * 1000.0;
        let first_ms = first_answer_ms(&server, paper_case(model, &texts)).await?;
        measured.add("start of a server, and its first answer", &[("start", start_ms), ("first", first_ms)]);
        self.typed(&server, &texts, &mut measured).await;
        drop(server);
        for tolerance in ["off", "auto"] {
            let paper = PAPER_SERVER.split(' ').chain(["--tolerance", tolerance]);
            let arguments: Vec<_> = arguments.into_iter().chain(paper).collect();
            let server = program.start(model, &arguments).await?;
            self.paper(&server, tolerance, (model, &texts), &mut measured).await;
        }
        Ok(())
    }

    /// People who type.
    async fn typed(&self, server: &Server, texts: &Mutex<Texts>, measured: &mut Measured<'_>) {
        let seconds = Duration::from_secs_f64(self.seconds);
        for &people in &self.people {
            let query = || texts.lock().unwrap_or_else(PoisonError::into_inner).query();
            let keystrokes = schedule(query, people, WARMUP, WARMUP + seconds);
            let keys = keystrokes.len() as f64 / (WARMUP + seconds).as_secs_f64();
            let wanted = Wanted { suggestions: CANDIDATES, from: WARMUP };
            let make = |typed: &str| Invocation { max_new_tokens: Some(16), ..ten(typed.to_owned()) };
            let Trial { p99_ms, superseded_share, fewer_share } =
                people::trial(server.address, keystrokes, wanted, make).await;
            measured.add(
                format!("{people} people who type"),
                &[("p99", p99_ms), ("keys/s", keys), ("superseded", superseded_share), ("shorter", fewer_share)],
            );
        }
    }

    /// The paper case.
    async fn paper(
        &self,
        server: &Server,
        tolerance: &str,
        (model, texts): (&Arc<Model>, &Arc<Mutex<Texts>>),
        measured: &mut Measured<'_>,
    ) {
        let seconds = Duration::from_secs_f64(self.seconds);
        for &clients in &self.clients {
            let (texts, model) = (Arc::clone(texts), Arc::clone(model));
            let make = move || paper_case(&model, &texts);
            let before = Reading::take(server.address).await;
            let load::Capacity { qps, latencies } = load::capacity(server.address, clients, seconds, make).await;
            let after = Reading::take(server.address).await;
            let grown = |name| growth(before.as_ref(), after.as_ref(), name);
            let (steps, in_steps) = (grown("foretype_step_seconds_count"), grown("foretype_step_seconds_sum"));
            let rows = ratio(grown("foretype_step_rows_sum"), steps).unwrap_or(f64::NAN);
            let step_ms = ratio(in_steps, steps).map_or(f64::NAN, |seconds| seconds * 1000.0);
            let (median, p99) = (latencies.percentile_ms(50.0), latencies.percentile_ms(99.0));
            let what = format!("ten suggestions of 42 tokens, tolerance {tolerance}, {clients} clients");
            let figures =
                [("median", median), ("p99", p99), ("answers/s", qps), ("a step", step_ms), ("rows of a step", rows)];
            measured.add(what, &figures);
        }
    }
}

/// Where what is measured of an engine and a model goes.
struct Measured<'a> {
    engine: Engine,
    name: Name,
    rows: &'a mut Vec<Row>,
}

impl Measured<'_> {
    fn add(&mut self, what: impl Into<String>, figures: &[(&'static str, f64)]) {
        let row = Row::new(self.engine, Some(self.name), what, "measured".to_owned());
        self.rows.push(Row { figures: figures.iter().copied().collect(), ..row });
    }
}

impl Row {
    fn new(engine: Engine, model: Option<Name>, what: impl Into<String>, outcome: String) -> Self {
        Self { engine: engine.name().to_owned(), model, what: what.into(), outcome, figures: BTreeMap::new() }
    }
}

fn ten(input: String) -> Invocation {
    Invocation { input, suggestions: Some(CANDIDATES), ..Invocation::default() }
}

/// Ten suggestions of 42 tokens, the typed ones included.
fn paper_case(model: &Model, texts: &Mutex<Texts>) -> Invocation {
    let input = texts.lock().unwrap_or_else(PoisonError::into_inner).typed(model.name);
    let new = TOTAL_TOKENS.saturating_sub(model.tokens(&input)).max(1);
    Invocation { max_new_tokens: Some(new), ..ten(input) }
}

async fn first_answer_ms(server: &Server, invocation: Invocation) -> Result<f64> {
    let mut connection = Connection::open(server.address).await?;
    let sent = Instant::now();
    match connection.complete(&invocation).await? {
        Outcome::Answered(_) => Ok(sent.elapsed().as_secs_f64() * 1000.0),
        other => anyhow::bail!("the first request was not answered: {other:?}"),
    }
}

fn table(rows: &[Row]) -> String {
    report::table(
        rows,
        &[
            ("engine", |row| row.engine.clone()),
            ("model", |row| row.model.map_or("", Name::text).to_owned()),
            ("what", |row| row.what.clone()),
            ("outcome", |row| {
                let figure = |(name, value): (&&str, &f64)| format!("{name} {}", decimals(*value, 2));
                let figures: Vec<_> = row.figures.iter().map(figure).collect();
                if figures.is_empty() { row.outcome.clone() } else { figures.join(", ") }
            }),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_the_arguments_of_the_server() {
        for engine in Engine::value_variants() {
            EngineArgs::try_parse_from(["kit"].iter().chain(&engine.arguments())).unwrap();
        }
        assert_eq!(Engine::Cpu.arguments(), ["--backend", "onnxruntime", "--device", "cpu"]);
        assert_eq!(Engine::OnnxRuntime.arguments(), ["--backend", "onnxruntime", "--device", "cuda"]);
    }
}
