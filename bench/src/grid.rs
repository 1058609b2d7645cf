//! `grid`: latency of open-ended generation by the lengths of prompt and answer: one client, one sequence drawn at random, through the
//! live endpoint. foretype stands behind its container's own entry point and nginx, transformers behind gunicorn and nginx.
//!
//! Rounds take turns: each sends every cell to every server once, with a prompt that was never sent before, while the others are
//! stopped. So a machine that gets slower slows all of them.

mod cells;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use engine_build::manifest::TOKENIZER_FILE;
use engine_build::{Manifest, Quantization};
use foretype::text::Text;
use serde_json::{Value, json};

use self::cells::{Cell, Measured, rows};
use crate::client::Connection;
use crate::model::Name;
use crate::paper::wanted;
use crate::peers::own;
use crate::peers::worker::Installed;
use crate::server::Program;
use crate::workload::{Queries, Texts};
use crate::wrapper::Service;

/// Tokens are drawn from so many of the best.
const TOP_K: usize = 50;
/// Runs of a cell that may fail before the rest of them are left out.
const MOST_FAILURES: usize = 2;
/// Times that an answer may be shorter than asked, because the model ended it, before a run counts as failed.
const SHORT_ANSWERS: usize = 5;

/// How foretype stores weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Precision {
    /// As they are.
    Fp32,
    /// In 8 bits.
    Int8,
}

/// Arguments of `grid`.
#[derive(Clone, Debug, Args)]
pub struct GridArgs {
    /// Checkpoints, as `checkpoint` writes them, with positions for the longest cell.
    #[arg(long, value_name = "DIRS", value_delimiter = ',', required = true)]
    checkpoints: Vec<PathBuf>,
    /// Tokens of prompts.
    #[arg(long, value_delimiter = ',', default_value = "50,200,500,1000")]
    inputs: Vec<usize>,
    /// Tokens of answers, rising.
    #[arg(long, value_delimiter = ',', default_value = "50,100,150,200")]
    outputs: Vec<usize>,
    /// Runs of each cell on foretype.
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// Runs of each cell on the slower others; the table says how many there were.
    #[arg(long, default_value_t = 5)]
    peer_runs: usize,
    /// How foretype stores weights.
    #[arg(long, value_delimiter = ',', default_value = "int8")]
    precisions: Vec<Precision>,
    /// Peers, by the variant of their engine.
    #[arg(long, value_delimiter = ',', default_value = "torch-fp32")]
    against: Vec<String>,
    /// More environment variables for foretype's container, such as "FORETYPE_CHUNK=256".
    #[arg(long, value_delimiter = ',')]
    foretype_env: Vec<String>,
    /// Four small cells, two runs, one of the others.
    #[arg(long)]
    quick: bool,
    /// The container's entry point.
    #[arg(long, value_name = "FILE", default_value = "nginx/serve")]
    entry: PathBuf,
    /// The server. Default: `foretype` beside this program.
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// Where bundles built from the checkpoints are kept.
    #[arg(long, value_name = "DIR", default_value = "target/bench/bundles")]
    cache: PathBuf,
    /// What bench/peers/setup.sh installed.
    #[arg(long, value_name = "DIR", default_value = "target/bench/peers")]
    peers: PathBuf,
    /// The peers' scripts.
    #[arg(long, value_name = "DIR", default_value = "bench/peers")]
    peer_scripts: PathBuf,
    /// Queries whose words prompts are made of, one a line.
    #[arg(long, value_name = "FILE", default_value = "models/demo/queries/heldout_unseen.txt")]
    queries: PathBuf,
    /// Where results are written.
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
    /// Seed of the prompts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A server of the run, or why it isn't there.
struct Side {
    name: String,
    version: String,
    is_own: bool,
    service: Result<Service, String>,
}

impl GridArgs {
    /// Measures one model after the other and writes `peers-grid.*`, again after each round.
    pub async fn run(mut self) -> Result<()> {
        if self.quick {
            (self.inputs, self.outputs, self.runs, self.peer_runs) = (vec![50, 200], vec![50, 100], 2, 1);
        }
        ensure!(self.inputs.iter().chain(&self.outputs).all(|&tokens| tokens > 0), "a length of 0 tokens");
        ensure!(self.outputs.is_sorted() && !self.inputs.is_empty(), "--outputs are lengths in rising order");
        let logs = self.results.join("tmp");
        fs::create_dir_all(&logs)?;
        let mut texts = Texts::new(Queries::load(&self.queries)?, self.seed);
        let mut before = Vec::new();
        for checkpoint in &self.checkpoints {
            let text = self.text(checkpoint)?;
            let sides = self.sides(checkpoint, &logs).await?;
            let model = name(checkpoint)?;
            let mut measured = self.cells(&sides);
            // The first answer of a server pays for what is loaded when it is first used.
            self.round(0, &sides, &mut self.cells(&sides)[0], &text, &mut texts).await?;
            for round in 0..self.runs.max(self.peer_runs) {
                for cell in &mut measured {
                    self.round(round, &sides, cell, &text, &mut texts).await?;
                }
                println!("{model}: round {} of {}", round + 1, self.runs.max(self.peer_runs));
                let now = rows(&model, &measured);
                table::write(&self.results, &[before.as_slice(), &now].concat())?;
            }
            before.extend(rows(&model, &measured));
        }
        println!("{}", table::text(&before));
        Ok(())
    }

    /// Positions of the longest cell.
    fn context(&self) -> usize {
        self.inputs.iter().max().unwrap_or(&0) + self.outputs.iter().max().unwrap_or(&0)
    }

    fn bundle(&self, checkpoint: &Path, precision: Precision) -> Result<(PathBuf, Manifest)> {
        let quantization = match precision {
            Precision::Fp32 => Quantization::None,
            Precision::Int8 => Quantization::Int8,
        };
        own::bundle(checkpoint, &self.cache, self.context() as u32, quantization)
            .with_context(|| format!("{} with {} positions", checkpoint.display(), self.context()))
    }

    /// The checkpoint's tokenizer, to make prompts of a length.
    fn text(&self, checkpoint: &Path) -> Result<Text> {
        let precision = self.precisions.first().copied().unwrap_or(Precision::Int8);
        let (bundle, manifest) = self.bundle(checkpoint, precision)?;
        Ok(Text::of_bundle(&fs::read_to_string(bundle.join(TOKENIZER_FILE))?, &manifest)?)
    }

    async fn sides(&self, checkpoint: &Path, logs: &Path) -> Result<Vec<Side>> {
        let program = Program::at(self.server.as_deref(), logs)?;
        let mut sides = Vec::new();
        for &precision in &self.precisions {
            let (bundle, _) = self.bundle(checkpoint, precision)?;
            let service = Service::container(&program, &self.entry, &self.environment(&bundle)?, logs).await;
            let kind = if precision == Precision::Int8 { "int8" } else { "fp32" };
            sides.push(Side {
                name: format!("foretype {kind}"),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                is_own: true,
                service: service.map_err(|error| format!("{error:#}")),
            });
        }
        let installed = Installed::new(&self.peers, &self.peer_scripts, &format!("grid-{}", name(checkpoint)?));
        fs::create_dir_all(&installed.models)?;
        fs::write(installed.models.join("checkpoint.txt"), format!("{}\n", checkpoint.canonicalize()?.display()))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for peer in wanted(&self.against)? {
            println!("starting {} behind gunicorn", peer.name);
            let service = Service::peer(peer, &installed, threads, logs).await;
            sides.push(Side {
                name: peer.name.to_owned(),
                version: installed.versions(peer),
                is_own: false,
                service: service.map_err(|error| format!("{error:#}")),
            });
        }
        sides.iter().flat_map(|side| &side.service).try_for_each(Service::pause)?;
        Ok(sides)
    }

    fn environment(&self, bundle: &Path) -> Result<Vec<(String, String)>> {
        let mut variables = vec![
            ("FORETYPE_MODEL".to_owned(), bundle.canonicalize()?.display().to_string()),
            ("FORETYPE_DEADLINE_MS".to_owned(), "60000".to_owned()),
            ("FORETYPE_MAX_CHARACTERS".to_owned(), "100000".to_owned()),
        ];
        for variable in &self.foretype_env {
            let (name, value) = variable.split_once('=').context("--foretype-env takes NAME=VALUE")?;
            variables.push((name.to_owned(), value.to_owned()));
        }
        Ok(variables)
    }

    fn cells(&self, sides: &[Side]) -> Vec<Vec<Measured>> {
        let lengths = self.inputs.iter().flat_map(|&input| self.outputs.iter().map(move |&output| (input, output)));
        lengths
            .map(|(input, output)| sides.iter().map(|side| side.measured(Cell { input, output })).collect())
            .collect()
    }

    /// Sends one cell to each server.
    async fn round(
        &self,
        round: usize,
        sides: &[Side],
        measured: &mut [Measured],
        text: &Text,
        texts: &mut Texts,
    ) -> Result<()> {
        for (side, measured) in sides.iter().zip(measured) {
            let runs = if side.is_own { self.runs } else { self.peer_runs };
            let (Ok(service), true) = (&side.service, round < runs && measured.failures.len() < MOST_FAILURES) else {
                continue;
            };
            service.resume()?;
            let prompts = std::iter::repeat_with(|| prompt(texts, text, measured.cell.input));
            match side.generate(service, measured.cell, prompts).await {
                Ok(seconds) => measured.seconds.push(seconds),
                Err(error) => measured.failures.push(format!("{error:#}")),
            }
            service.pause()?;
        }
        Ok(())
    }
}

impl Side {
    fn measured(&self, cell: Cell) -> Measured {
        Measured {
            cell,
            server: self.name.clone(),
            version: self.version.clone(),
            is_own: self.is_own,
            nginx: self.service.as_ref().is_ok_and(Service::is_proxied),
            seconds: Vec::new(),
            failures: self.service.as_ref().err().cloned().into_iter().collect(),
        }
    }

    /// Seconds until an answer of exactly the length asked for.
    async fn generate(&self, service: &Service, cell: Cell, prompts: impl Iterator<Item = String>) -> Result<f64> {
        let mut connection = Connection::open(service.address).await?;
        for prompt in prompts.take(SHORT_ANSWERS) {
            let body = self.body(&prompt, cell.output);
            let started = Instant::now();
            let (status, answer) = connection.post("/invocations", &body).await?;
            let seconds = started.elapsed().as_secs_f64();
            ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(&answer).replace('\n', " "));
            // The others are told to take no token for an end.
            if !self.is_own || generated(&serde_json::from_slice(&answer)?) == Some(cell.output) {
                return Ok(seconds);
            }
        }
        bail!("{SHORT_ANSWERS} answers in a row were shorter than {} tokens", cell.output)
    }

    fn body(&self, prompt: &str, new_tokens: usize) -> Value {
        if self.is_own {
            let parameters = json!({"max_new_tokens": new_tokens, "do_sample": true, "top_k": TOP_K, "details": true});
            json!({"inputs": prompt, "parameters": parameters})
        } else {
            json!({"input": prompt, "suggestions": 1, "max_new_tokens": new_tokens})
        }
    }
}

/// Tokens of foretype's answer, which is a list of one in the schema of text-generation servers.
fn generated(answer: &Value) -> Option<usize> {
    let sequence = answer.get(0).unwrap_or(answer);
    sequence.pointer("/details/generated_tokens")?.as_u64()?.try_into().ok()
}

fn name(checkpoint: &Path) -> Result<String> {
    Ok(checkpoint.file_name().context("a checkpoint folder has a name")?.to_string_lossy().into_owned())
}

/// Words of exactly so many tokens.
fn prompt(texts: &mut Texts, text: &Text, tokens: usize) -> String {
    loop {
        let mut words = texts.typed(Name::Gpt2);
        let mut length = text.encode(&words).len();
        while length < tokens {
            words.push(' ');
            words.push_str(&texts.typed(Name::Gpt2));
            length = text.encode(&words).len();
        }
        // Characters off the end until the length is met; it may be jumped over.
        while length > tokens && words.pop().is_some() {
            length = text.encode(&words).len();
        }
        if length == tokens {
            return words;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_length_is_read_from_both_of_its_forms() {
        assert_eq!(generated(&json!([{"generated_text": "a", "details": {"generated_tokens": 7}}])), Some(7));
        assert_eq!(generated(&json!({"generated_text": "a", "details": {"generated_tokens": 8}})), Some(8));
        assert_eq!(generated(&json!({"generated_text": "a"})), None);
    }
}
