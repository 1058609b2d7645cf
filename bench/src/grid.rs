//! `grid`: latency of open-ended generation by the lengths of prompt and answer: one client, one sampled sequence,
//! through the live endpoint.
//!
//! foretype runs as in its container, with its entry point and nginx; transformers runs in gunicorn with nginx in
//! front.
//!
//! Rounds take turns: each sends every cell to every server once, with a prompt that was never sent before, while the
//! others are stopped. A machine that gets slower therefore slows all of them.

mod cells;
mod table;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;
use completion::text::Text;
use serde_json::{Value, json};

use self::cells::{Cell, Measured, rows};
use crate::client::Connection;
use crate::endpoints::{Endpoints, Precision, Side, checkpoint_name, is_turn, prompt};
use crate::paper::wanted;
use crate::wrapper::Service;

/// Tokens are drawn from this many of the best.
const TOP_K: usize = 50;
/// Runs of a cell that may fail before the rest of them are left out.
const MOST_FAILURES: usize = 2;
/// Times that an answer may be shorter than asked, because the model ended it, before a run counts as failed.
const SHORT_ANSWERS: usize = 5;

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
    #[arg(long, default_value_t = 4)]
    peer_runs: usize,
    /// How foretype stores weights.
    #[arg(long, value_delimiter = ',', default_value = "int8")]
    precisions: Vec<Precision>,
    /// Peers, by the variant of their engine.
    #[arg(long, value_delimiter = ',', default_value = "torch-fp32")]
    against: Vec<String>,
    /// Four small cells, two runs, one of the others.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

impl GridArgs {
    /// Measures one model after the other and writes `peers-grid.*`, again after each round.
    pub async fn run(mut self) -> Result<()> {
        if self.quick {
            (self.inputs, self.outputs, self.runs, self.peer_runs) = (vec![50, 200], vec![50, 100], 2, 1);
        }
        ensure!(self.inputs.iter().chain(&self.outputs).all(|&tokens| tokens > 0), "a length of 0 tokens");
        ensure!(self.outputs.is_sorted() && !self.inputs.is_empty(), "--outputs are lengths in rising order");
        let mut texts = self.endpoints.texts()?;
        let mut before = Vec::new();
        for checkpoint in &self.checkpoints {
            let text = self.text(checkpoint)?;
            let length = |words: &str| text.encode(words).len();
            let mut prompts = |tokens| prompt(&mut texts, length, tokens);
            let sides = self.sides(checkpoint).await?;
            let model = checkpoint_name(checkpoint)?;
            let mut measured = self.cells(&sides);
            // The first answer of a server pays for what is loaded when it is first used.
            self.round(0, &sides, &mut self.cells(&sides)[0], &mut prompts).await?;
            for round in 0..self.rounds() {
                for cell in &mut measured {
                    self.round(round, &sides, cell, &mut prompts).await?;
                }
                println!("{model}: round {} of {}", round + 1, self.rounds());
                let now = rows(&model, &measured);
                table::write(&self.endpoints.results, &[before.as_slice(), &now].concat())?;
            }
            before.extend(rows(&model, &measured));
        }
        println!("{}", table::text(&before));
        Ok(())
    }

    fn rounds(&self) -> usize {
        self.runs.max(self.peer_runs)
    }

    /// Positions of the longest cell.
    fn context(&self) -> usize {
        self.inputs.iter().max().unwrap_or(&0) + self.outputs.iter().max().unwrap_or(&0)
    }

    /// The checkpoint's tokenizer, to make prompts of a length.
    fn text(&self, checkpoint: &Path) -> Result<Text> {
        let precision = self.precisions.first().copied().unwrap_or(Precision::Int8);
        let (bundle, manifest) = self.endpoints.bundle(checkpoint, self.context(), precision)?;
        Ok(foretype::engine::read_text(&bundle, &manifest)?)
    }

    async fn sides(&self, checkpoint: &Path) -> Result<Vec<Side>> {
        let mut sides = Vec::new();
        for &precision in &self.precisions {
            let (bundle, _) = self.endpoints.bundle(checkpoint, self.context(), precision)?;
            sides.push(self.endpoints.own(&bundle, precision).await?);
        }
        for peer in wanted(&self.against)? {
            sides.push(self.endpoints.peer(peer, checkpoint).await?);
        }
        Ok(sides)
    }

    fn cells(&self, sides: &[Side]) -> Vec<Vec<Measured>> {
        let lengths = self.inputs.iter().flat_map(|&input| self.outputs.iter().map(move |&output| (input, output)));
        lengths
            .map(|(input, output)| sides.iter().map(|side| nothing_yet(side, Cell { input, output })).collect())
            .collect()
    }

    /// Sends one cell to each server.
    async fn round(
        &self,
        round: usize,
        sides: &[Side],
        measured: &mut [Measured],
        prompts: &mut impl FnMut(usize) -> String,
    ) -> Result<()> {
        for (side, measured) in sides.iter().zip(measured) {
            let runs = if side.is_own { self.runs } else { self.peer_runs };
            let is_turn = is_turn(round, runs, self.rounds()) && measured.failures.len() < MOST_FAILURES;
            let (Ok(service), true) = (&side.service, is_turn) else { continue };
            service.resume()?;
            let prompts = std::iter::repeat_with(|| prompts(measured.cell.input));
            match generate(side, service, measured.cell, prompts).await {
                Ok(seconds) => measured.seconds.push(seconds),
                Err(error) => measured.failures.push(format!("{error:#}")),
            }
            service.pause()?;
        }
        Ok(())
    }
}

fn nothing_yet(side: &Side, cell: Cell) -> Measured {
    Measured {
        cell,
        server: side.name.clone(),
        version: side.version.clone(),
        is_own: side.is_own,
        nginx: side.is_proxied(),
        seconds: Vec::new(),
        failures: side.service.as_ref().err().cloned().into_iter().collect(),
    }
}

/// Seconds until an answer of exactly the length asked for.
async fn generate(side: &Side, service: &Service, cell: Cell, prompts: impl Iterator<Item = String>) -> Result<f64> {
    service.settle().await?;
    let mut connection = Connection::open(service.address).await?;
    for prompt in prompts.take(SHORT_ANSWERS) {
        let body = body(side, &prompt, cell.output);
        let started = Instant::now();
        let (status, answer) = connection.post("/invocations", &body).await?;
        let seconds = started.elapsed().as_secs_f64();
        ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(&answer).replace('\n', " "));
        // The others are told to take no token for an end.
        if !side.is_own || generated(&serde_json::from_slice(&answer)?) == Some(cell.output) {
            return Ok(seconds);
        }
    }
    bail!("{SHORT_ANSWERS} answers in a row were shorter than {} tokens", cell.output)
}

fn body(side: &Side, prompt: &str, new_tokens: usize) -> Value {
    if side.is_own {
        let parameters = json!({"max_new_tokens": new_tokens, "do_sample": true, "top_k": TOP_K, "details": true});
        json!({"inputs": prompt, "parameters": parameters})
    } else {
        json!({"input": prompt, "suggestions": 1, "max_new_tokens": new_tokens})
    }
}

/// Tokens of foretype's answer, which is a list of one in the schema of text-generation servers.
fn generated(answer: &Value) -> Option<usize> {
    let sequence = answer.get(0).unwrap_or(answer);
    sequence.pointer("/details/generated_tokens")?.as_u64()?.try_into().ok()
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
