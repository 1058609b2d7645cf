//! `tasks`: batches for an encoder-decoder as FLAN-T5 is asked them: a few inputs in one request, read whole and
//! answered greedily. foretype stands behind its container's own entry point and nginx, transformers behind gunicorn
//! and nginx, both in fp32.
//!
//! Rounds take turns as those of `grid` do: each sends every task to every server, while the others are stopped. Both
//! get the same inputs, which were never sent before, so that their answers can be compared.

mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::table::{Measured, rows};
use crate::client::Connection;
use crate::endpoints::{Endpoints, Precision, Side, checkpoint_name, is_turn, prompt};
use crate::peers::worker::SEQ2SEQ;

/// Requests of a task that may fail before the rest of them are left out.
const MOST_FAILURES: usize = 2;

/// Arguments of `tasks`.
#[derive(Clone, Debug, Args)]
pub struct TasksArgs {
    /// A T5, as `checkpoint` writes it.
    #[arg(long, value_name = "DIR", default_value = "target/bench/grid/flan-t5-base")]
    checkpoint: PathBuf,
    /// Tasks, as NAME:INPUTxOUTPUT: tokens of each input, and of its answer.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "summarise:200x50,translate:50x50,classify:100x4,answer:300x20"
    )]
    tasks: Vec<Task>,
    /// Inputs of a request.
    #[arg(long, default_value_t = 4)]
    batch: usize,
    /// Requests of each task to foretype.
    #[arg(long, default_value_t = 60)]
    runs: usize,
    /// Requests of each task to transformers; the table says how many there were.
    #[arg(long, default_value_t = 20)]
    peer_runs: usize,
    /// Five requests of each task, two of transformers'.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

/// A kind of work, with its lengths in tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Task {
    name: String,
    input: usize,
    output: usize,
}

impl std::str::FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(name, lengths)| Some((name, lengths.split_once('x')?)));
        let lengths = parts.and_then(|(name, (input, output))| {
            Some(Self { name: name.to_owned(), input: input.parse().ok()?, output: output.parse().ok()? })
        });
        lengths
            .filter(|task| task.input > 0 && task.output > 0)
            .ok_or_else(|| format!("{text} is not NAME:INPUTxOUTPUT"))
    }
}

/// An answered request.
struct Answered {
    took: Duration,
    texts: Vec<String>,
}

impl TasksArgs {
    /// Measures and writes `peers-grid-t5.*`, again after each round.
    pub async fn run(mut self) -> Result<()> {
        if self.quick {
            (self.runs, self.peer_runs) = (5, 2);
        }
        ensure!(self.batch > 0 && !self.tasks.is_empty(), "--batch and --tasks name some work");
        let model = checkpoint_name(&self.checkpoint)?;
        let longest = self.tasks.iter().map(|task| task.output).max().unwrap_or(1);
        let (bundle, manifest) = self.endpoints.bundle(&self.checkpoint, longest, Precision::Fp32)?;
        ensure!(manifest.model.source.is_some(), "{} has no encoder", self.checkpoint.display());
        let text = foretype::engine::read_text(&bundle, &manifest)?;
        let length = |words: &str| text.encode_with_special_tokens(words).len();
        let own = self.endpoints.own(&bundle, Precision::Fp32).await?;
        let peer = self.endpoints.peer(&SEQ2SEQ, &self.checkpoint).await?;
        let sides = [own, peer];
        let mut texts = self.endpoints.texts()?;
        let mut inputs =
            |task: &Task| -> Vec<String> { (0..self.batch).map(|_| prompt(&mut texts, length, task.input)).collect() };
        // The first answer of a server pays for what is loaded when it is first used.
        let first = &self.tasks[0];
        self.round(0, &sides, &inputs(first), &mut Measured::all(first, &sides)).await?;
        let mut measured: Vec<_> = self.tasks.iter().map(|task| Measured::all(task, &sides)).collect();
        let rounds = self.rounds();
        for round in 0..rounds {
            for (task, measured) in self.tasks.iter().zip(&mut measured) {
                self.round(round, &sides, &inputs(task), measured).await?;
            }
            println!("{model}: round {} of {rounds}", round + 1);
            table::write(&self.endpoints.results, &rows(&model, self.batch, &measured))?;
        }
        println!("{}", table::text(&rows(&model, self.batch, &measured)));
        Ok(())
    }

    fn rounds(&self) -> usize {
        self.runs.max(self.peer_runs)
    }

    /// Sends one task to each server whose turn it is, and compares what they say.
    async fn round(&self, round: usize, sides: &[Side], inputs: &[String], measured: &mut [Measured]) -> Result<()> {
        let mut said: Vec<Option<Vec<String>>> = Vec::new();
        for (side, measured) in sides.iter().zip(&mut *measured) {
            let runs = if side.is_own { self.runs } else { self.peer_runs };
            let is_turn = is_turn(round, runs, self.rounds()) && measured.failures.len() < MOST_FAILURES;
            let (Ok(service), true) = (&side.service, is_turn) else {
                said.push(None);
                continue;
            };
            service.resume()?;
            let answered = match service.settle().await {
                Ok(()) => ask(side.is_own, service.address, inputs, measured.task.output).await,
                Err(error) => Err(error),
            };
            service.pause()?;
            said.push(answered.map(|answered| measured.record(answered)).map_err(|error| measured.fail(&error)).ok());
        }
        if let [Some(own), Some(peer)] = said.as_slice() {
            measured[0].compare(own, peer);
        }
        Ok(())
    }
}

/// One request with all inputs, answered at their full length.
async fn ask(is_own: bool, address: std::net::SocketAddr, inputs: &[String], new_tokens: usize) -> Result<Answered> {
    let body = if is_own {
        json!({"inputs": inputs, "parameters": {"max_new_tokens": new_tokens, "details": true}})
    } else {
        json!({"inputs": inputs, "max_new_tokens": new_tokens})
    };
    let mut connection = Connection::open(address).await?;
    let started = Instant::now();
    let (status, answer) = connection.post("/invocations", &body).await?;
    let took = started.elapsed();
    ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(&answer).replace('\n', " "));
    let texts = answers(serde_json::from_slice(&answer)?, new_tokens)?;
    ensure!(texts.len() == inputs.len(), "{} answers to {} inputs", texts.len(), inputs.len());
    Ok(Answered { took, texts })
}

/// The texts of a server's answers, which must have so many tokens each.
fn answers(answer: Value, new_tokens: usize) -> Result<Vec<String>> {
    /// In the schema of text-generation servers, which the wrapper speaks too.
    #[derive(Deserialize)]
    struct One {
        generated_text: String,
        details: Details,
    }
    #[derive(Deserialize)]
    struct Details {
        generated_tokens: usize,
    }
    let all: Vec<One> = serde_json::from_value(answer).context("not a list of answers")?;
    for one in &all {
        let tokens = one.details.generated_tokens;
        ensure!(tokens == new_tokens, "an answer has {tokens} tokens and not {new_tokens}");
    }
    Ok(all.into_iter().map(|one| one.generated_text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read() {
        let task = Task { name: "summarise".to_owned(), input: 200, output: 50 };
        assert_eq!("summarise:200x50".parse(), Ok(task));
        for wrong in ["summarise", "a:200", "a:0x5", "a:5x0", "a:5x5x5"] {
            assert!(wrong.parse::<Task>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_of_another_length_are_refused() {
        let answer = json!([{"generated_text": "a", "details": {"generated_tokens": 7}}]);
        assert_eq!(answers(answer.clone(), 7).unwrap(), ["a"]);
        assert!(answers(answer, 8).is_err());
        assert!(answers(json!({"error": {}}), 8).is_err());
    }
}
