//! `peers`: engines side by side.
//!
//! Each engine gets the same prompts and continues them greedily by the same number of tokens. All of them take turns
//! round by round in one run, so a machine that gets slower slows all of them. Engines that wait are stopped.
//!
//! `worker` runs the engines of others, `own` foretype's, `table` writes what was measured.

pub mod own;
mod table;
pub mod worker;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bundle::{Manifest, Quantization};
use clap::Args;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Serialize;

use self::own::{LANES, Own};
use self::worker::{Installed, PEERS, Peer, Worker};
use crate::bandwidth;
use crate::summary::Summary;

/// Positions of foretype's lanes: the longest cell has 250.
const CONTEXT: u32 = 256;

/// Where the peers are. Flags of every command that compares with them.
#[derive(Clone, Debug, Args)]
pub struct PeerSetting {
    /// What bench/peers/setup.sh installed.
    #[arg(long = "peers", value_name = "DIR", default_value = "target/bench/peers")]
    folder: PathBuf,
    /// The folder of the peers' Python scripts.
    #[arg(long = "peer-scripts", value_name = "DIR", default_value = "bench/peers")]
    scripts: PathBuf,
    /// The name that setup.sh was given for the checkpoint.
    #[arg(long = "peer-models", value_name = "NAME", default_value = "gpt2")]
    models: String,
}

impl PeerSetting {
    /// Environments, scripts and models.
    pub fn installed(&self) -> Installed {
        Installed::new(&self.folder, &self.scripts, &self.models)
    }
}

/// Arguments of `peers`.
#[derive(Clone, Debug, Args)]
pub struct PeersArgs {
    #[command(flatten)]
    peers: PeerSetting,
    /// The checkpoint, the same that setup.sh converted.
    #[arg(long, value_name = "DIR", default_value = "target/bench/gpt2-random")]
    checkpoint: PathBuf,
    /// Where bundles built from it are kept.
    #[arg(long, value_name = "DIR", default_value = "target/bench/bundles")]
    cache: PathBuf,
    /// Where results are written.
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// The ONNX Runtime library. Default: looked for beside this binary.
    #[arg(long, value_name = "FILE", env = "FORETYPE_ONNXRUNTIME")]
    onnxruntime: Option<PathBuf>,
    /// Cells, as `PROMPTxROWSxNEW`: tokens of a prompt, rows side by side, new tokens of each.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8x1x16,8x4x16,8x10x16,32x1x16,32x4x16,32x10x16,50x1x50,50x1x100,50x1x150,50x1x200"
    )]
    cells: Vec<Cell>,
    /// Three cells and three rounds only.
    #[arg(long)]
    quick: bool,
    /// Engines whose name has one of these in it. Default: all.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds, after one that isn't counted. Default: 10, or 3 with --quick.
    #[arg(long)]
    rounds: Option<usize>,
    /// Most seconds that an engine may take for a new token. One that takes longer at first is left out from there on,
    /// and named.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    patience: f64,
    /// Threads of each engine. Default: one per core.
    #[arg(long)]
    threads: Option<usize>,
    /// Seed of the prompts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A cell of the table: the lengths and the number of rows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Rows side by side.
    pub rows: usize,
    /// New tokens of each row.
    pub new: usize,
}

impl std::str::FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[prompt, rows, new]) if prompt > 0 && (1..=LANES).contains(&rows) && new > 1 => {
                Ok(Self { prompt, rows, new })
            }
            _ => Err(format!(
                "a cell is PROMPTxROWSxNEW, such as 8x10x16, with at most {LANES} rows and 2 or more new tokens"
            )),
        }
    }
}

/// Something that continues prompts.
enum Running {
    Own(Box<Own>),
    Peer(Box<Worker>),
}

/// One engine of the run, or why it isn't there.
struct Engine {
    name: String,
    version: String,
    full_precision: bool,
    is_own: bool,
    running: Result<Running, String>,
}

impl Engine {
    fn generate(&mut self, prompt: &[Vec<u32>], new: usize) -> Result<(Vec<Vec<u32>>, f64)> {
        match &mut self.running {
            Ok(Running::Own(own)) => own.generate(prompt, new),
            Ok(Running::Peer(worker)) => worker.generate(prompt, new),
            Err(reason) => anyhow::bail!("{reason}"),
        }
    }
}

/// What one engine did in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Rows side by side.
    pub rows: usize,
    /// New tokens of each.
    pub new: usize,
    /// The engine's name.
    pub engine: String,
    /// The engine's version.
    pub version: String,
    /// `fp32`, or `reduced`.
    pub precision: &'static str,
    /// Whether it is foretype's.
    pub own: bool,
    /// Rounds that counted.
    pub rounds: usize,
    /// Median of a round.
    pub total_ms: Option<f64>,
    /// Distance of the quartiles of that, as a share.
    pub total_spread: Option<f64>,
    /// Median of (the whole - a run of one new token) / the other tokens.
    pub step_ms: Option<f64>,
    /// Distance of the quartiles of that, as a share.
    pub step_spread: Option<f64>,
    /// Total against foretype's of the same precision: above 1, foretype is ahead.
    pub total_ratio: Option<f64>,
    /// Step against foretype's of the same precision.
    pub step_ratio: Option<f64>,
    /// For foretype: the time of a step, divided by the time in which memory delivers the weights once.
    pub times_floor: Option<f64>,
    /// Share of the new tokens that equal those of transformers in fp32, up to the first that differs in each row.
    pub tokens_equal: Option<f64>,
    /// Memory of the process afterwards.
    pub resident_mib: Option<f64>,
    /// Why there are no figures.
    pub absent: Option<String>,
}

/// What is measured against.
struct Floor {
    bytes_per_second: f64,
    manifest: Manifest,
}

impl Floor {
    /// Milliseconds to read the weights of a step once.
    fn step_ms(&self, weight_bytes: u64) -> f64 {
        let model = &self.manifest.model;
        let hidden = u64::from(model.hidden);
        let maps = u64::from(model.layers) * 12 * hidden * hidden + u64::from(model.vocab) * hidden;
        (maps * weight_bytes) as f64 / self.bytes_per_second * 1000.0
    }
}

impl PeersArgs {
    /// Measures and writes `peers-engine.*`, again after each cell.
    pub fn run(mut self) -> Result<()> {
        if self.quick {
            self.cells = ["8x1x16", "8x10x16", "50x1x50"].iter().filter_map(|cell| cell.parse().ok()).collect();
        }
        let rounds = self.rounds.unwrap_or(if self.quick { 3 } else { 10 });
        ensure!(rounds > 0, "--rounds is at least 1");
        let threads = self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let positions = positions(&self.checkpoint)?;
        self.cells.retain(|cell| cell.prompt + cell.new <= positions as usize);
        let (mut engines, manifest) = self.engines(threads, positions.min(CONTEXT))?;
        let mut floor = Floor { bytes_per_second: bandwidth::read_bytes_per_second(threads), manifest };
        let mut rows = Vec::new();
        for cell in self.cells.clone() {
            rows.extend(self.cell(cell, rounds, &mut engines, &floor)?);
            table::write(&self.results, &rows, floor.bytes_per_second)?;
        }
        // The machine may have changed meanwhile; the report has both.
        let before = floor.bytes_per_second;
        floor.bytes_per_second = bandwidth::read_bytes_per_second(threads);
        println!("memory read at {:.1} GB/s before, {:.1} GB/s after", before / 1e9, floor.bytes_per_second / 1e9);
        Ok(())
    }

    fn wanted(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.to_lowercase().contains(&part.to_lowercase()))
    }

    fn engines(&self, threads: usize, context: u32) -> Result<(Vec<Engine>, Manifest)> {
        let installed = self.peers.installed();
        let logs = self.results.join("tmp");
        std::fs::create_dir_all(&logs)?;
        let mut engines = Vec::new();
        for peer in PEERS.iter().filter(|peer| self.wanted(peer.name)) {
            println!("starting {}", peer.name);
            engines.push(start(peer, &installed, threads, &logs));
        }
        let mut found = None;
        for (quantization, name) in [(Quantization::None, "foretype fp32"), (Quantization::Int8, "foretype int8")] {
            let (bundle, manifest) = own::bundle(&self.checkpoint, &self.cache, context, quantization)?;
            let full_precision = quantization == Quantization::None;
            if self.wanted(name) {
                let running = Own::load(&bundle, &manifest, self.onnxruntime.clone(), threads);
                let running = running.map(|own| Running::Own(Box::new(own))).map_err(|error| format!("{error:#}"));
                let version = env!("CARGO_PKG_VERSION").to_owned();
                engines.push(Engine { name: name.to_owned(), version, full_precision, is_own: true, running });
            }
            found = Some(manifest);
        }
        Ok((engines, found.context("a bundle")?))
    }

    fn cell(&self, cell: Cell, rounds: usize, engines: &mut [Engine], floor: &Floor) -> Result<Vec<Row>> {
        let vocab = floor.manifest.model.vocab;
        let mut rng = StdRng::seed_from_u64(self.seed + (cell.prompt * 1000 + cell.rows) as u64);
        let mut measured: Vec<Measured> = engines.iter().map(|_| Measured::default()).collect();
        // The first round touches memory and makes buffers.
        for round in 0..=rounds {
            let prompt: Vec<Vec<u32>> =
                (0..cell.rows).map(|_| (0..cell.prompt).map(|_| rng.random_range(0..vocab)).collect()).collect();
            // Who goes first moves on.
            for turn in 0..engines.len() {
                let at = (turn + round) % engines.len();
                let took = measured[at].turn(&mut engines[at], &prompt, cell.new, round > 0);
                if let (0, Some(total)) = (round, took) {
                    measured[at].leave_out(&mut engines[at], total, cell.new, self.patience);
                }
            }
        }
        let reference = engines.iter().position(|engine| engine.name == PEERS[0].name);
        let reference = reference.map(|at| measured[at].tokens.clone()).filter(|tokens| !tokens.is_empty());
        let mut rows: Vec<Row> = engines
            .iter()
            .zip(&measured)
            .map(|(engine, measured)| measured.row(cell, engine, reference.as_deref()))
            .collect();
        relate(&mut rows, floor);
        Ok(rows)
    }
}

fn positions(checkpoint: &Path) -> Result<u32> {
    let path = checkpoint.join("config.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{}; the random GPT-2 is made by `foretype-bench checkpoint`", path.display()))?;
    let config: serde_json::Value = serde_json::from_str(&text)?;
    Ok(config["n_positions"].as_u64().context("n_positions in config.json")? as u32)
}

fn start(peer: &Peer, installed: &Installed, threads: usize, logs: &Path) -> Engine {
    let log = logs.join(format!("peer-{}-{}.log", peer.family, peer.variant));
    let running = Worker::start(peer, installed, threads, &log).map_err(|error| format!("{error:#}"));
    if let Err(reason) = &running {
        println!("  {} is not there: {reason}", peer.name);
    }
    let version = running.as_ref().map(|worker| worker.version.clone()).unwrap_or_default();
    let running = running.map(|worker| Running::Peer(Box::new(worker)));
    Engine { name: peer.name.to_owned(), version, full_precision: peer.is_full_precision(), is_own: false, running }
}

/// What an engine did in the rounds of a cell.
#[derive(Default)]
struct Measured {
    total_ms: Vec<f64>,
    step_ms: Vec<f64>,
    /// The new tokens of each row, of all rounds.
    tokens: Vec<Vec<u32>>,
    error: Option<String>,
}

impl Measured {
    /// Milliseconds of the whole, if it succeeded.
    fn turn(&mut self, engine: &mut Engine, prompt: &[Vec<u32>], new: usize, counts: bool) -> Option<f64> {
        if self.error.is_some() {
            return None;
        }
        let both = engine.generate(prompt, 1).and_then(|(_, first)| Ok((first, engine.generate(prompt, new)?)));
        match both {
            Ok((_, (tokens, _))) if tokens.len() != prompt.len() || tokens.iter().any(|row| row.len() != new) => {
                self.error = Some(format!("it did not make {new} tokens in each of {} rows", prompt.len()));
            }
            Ok((first, (tokens, total))) => {
                self.tokens.extend(tokens);
                if counts {
                    self.total_ms.push(total);
                    self.step_ms.push((total - first) / (new - 1) as f64);
                }
                return Some(total);
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
        None
    }

    /// Ends an engine that took longer for each token than `patience` seconds: it would keep all others waiting.
    fn leave_out(&mut self, engine: &mut Engine, total_ms: f64, new: usize, patience: f64) {
        if let Some(reason) = too_slow(total_ms, new, patience) {
            println!("{} is {reason}", engine.name);
            engine.running = Err(reason.clone());
            self.error = Some(reason);
        }
    }

    fn row(&self, cell: Cell, engine: &Engine, reference: Option<&[Vec<u32>]>) -> Row {
        let total = Summary::of(self.total_ms.iter().copied()).filter(|_| self.error.is_none());
        let step = Summary::of(self.step_ms.iter().copied()).filter(|_| self.error.is_none());
        let resident_mib = match &engine.running {
            Ok(Running::Peer(worker)) => worker.resident_mib(),
            _ => None,
        };
        Row {
            prompt: cell.prompt,
            rows: cell.rows,
            new: cell.new,
            engine: engine.name.clone(),
            version: engine.version.clone(),
            precision: if engine.full_precision { "fp32" } else { "reduced" },
            own: engine.is_own,
            rounds: self.total_ms.len(),
            total_ms: total.map(|total| total.median),
            total_spread: total.map(|total| total.spread()),
            step_ms: step.map(|step| step.median),
            step_spread: step.map(|step| step.spread()),
            total_ratio: None,
            step_ratio: None,
            times_floor: None,
            tokens_equal: reference.filter(|_| self.error.is_none()).map(|other| agreement(&self.tokens, other)),
            resident_mib,
            absent: self.error.clone(),
        }
    }
}

/// Why an engine that took `total_ms` for `new` tokens of each row is left out, if it is.
fn too_slow(total_ms: f64, new: usize, patience: f64) -> Option<String> {
    let seconds = total_ms / 1000.0 / new as f64;
    (seconds > patience).then(|| format!("left out: {seconds:.1} s for a token, more than --patience {patience}"))
}

/// Share of tokens before the first difference of each row.
fn agreement(ours: &[Vec<u32>], theirs: &[Vec<u32>]) -> f64 {
    let same = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let all: usize = theirs.iter().map(Vec::len).sum();
    ours.iter().zip(theirs).map(same).sum::<usize>() as f64 / all.max(1) as f64
}

/// Puts each engine beside foretype's of the same precision, and foretype's beside the floor.
fn relate(rows: &mut [Row], floor: &Floor) {
    let own: Vec<Row> = rows.iter().filter(|row| row.own).cloned().collect();
    for row in rows {
        if row.own {
            let bytes = if row.precision == "fp32" { 4 } else { 1 };
            row.times_floor = row.step_ms.map(|step| step / floor.step_ms(bytes));
        } else if let Some(own) = own.iter().find(|own| own.precision == row.precision) {
            row.total_ratio = row.total_ms.zip(own.total_ms).map(|(theirs, ours)| theirs / ours);
            row.step_ratio = row.step_ms.zip(own.step_ms).map(|(theirs, ours)| theirs / ours);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_read_and_bounded() {
        assert_eq!("8x10x16".parse(), Ok(Cell { prompt: 8, rows: 10, new: 16 }));
        for wrong in ["8x10", "8x11x16", "0x1x16", "8x1x1", "axbxc"] {
            assert!(wrong.parse::<Cell>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_is_too_slow_is_left_out() {
        assert_eq!(too_slow(16_000.0, 16, 1.0), None);
        let reason = too_slow(32_000.0, 16, 1.0).expect("two seconds for each token");
        assert_eq!(reason, "left out: 2.0 s for a token, more than --patience 1");
    }

    #[test]
    fn tokens_agree_up_to_the_first_difference() {
        let theirs = [vec![1, 2, 3, 4], vec![5, 6, 7, 8]];
        assert_eq!(agreement(&theirs, &theirs), 1.0);
        assert_eq!(agreement(&[vec![1, 2, 9, 4], vec![5, 6, 7, 8]], &theirs), 0.75);
    }
}
