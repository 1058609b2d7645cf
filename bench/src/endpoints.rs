//! Servers as they are deployed, for one model: foretype behind its container's own entry point and nginx, others
//! behind gunicorn and nginx. A run measures one of them at a time, while the rest are stopped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bundle::{Manifest, Quantization};
use clap::{Args, ValueEnum};

use crate::model::Name;
use crate::peers::own;
use crate::peers::worker::{Installed, Peer};
use crate::server::Program;
use crate::workload::{Queries, Texts};
use crate::wrapper::Service;

/// How foretype stores weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// Weights in 32 bits.
    Fp32,
    /// Weights in 8 bits.
    Int8,
}

/// Flags of every command that compares servers as they are deployed.
#[derive(Clone, Debug, Args)]
pub struct Endpoints {
    /// More environment variables for foretype's container, such as "FORETYPE_CHUNK=256".
    #[arg(long, value_delimiter = ',')]
    foretype_env: Vec<String>,
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
    pub results: PathBuf,
    /// Seed of the prompts.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A server of the run, or why it isn't there.
pub struct Side {
    /// The name that tables show.
    pub name: String,
    /// Versions of the server's parts.
    pub version: String,
    /// Whether it is foretype.
    pub is_own: bool,
    /// Stopped, until its turn comes.
    pub service: Result<Service, String>,
}

impl Side {
    /// Whether nginx is in front.
    pub fn is_proxied(&self) -> bool {
        self.service.as_ref().is_ok_and(Service::is_proxied)
    }

    fn new(name: String, version: String, is_own: bool, service: Result<Service>) -> Result<Self> {
        service.iter().try_for_each(Service::pause)?;
        Ok(Self { name, version, is_own, service: service.map_err(|error| format!("{error:#}")) })
    }
}

impl Endpoints {
    /// Texts that prompts are made of.
    pub fn texts(&self) -> Result<Texts> {
        Ok(Texts::new(Queries::load(&self.queries)?, self.seed))
    }

    /// A checkpoint's bundle, with this many positions.
    pub fn bundle(&self, checkpoint: &Path, context: usize, precision: Precision) -> Result<(PathBuf, Manifest)> {
        let quantization = match precision {
            Precision::Fp32 => Quantization::None,
            Precision::Int8 => Quantization::Int8,
        };
        own::bundle(checkpoint, &self.cache, context as u32, quantization)
            .with_context(|| format!("{} with {context} positions", checkpoint.display()))
    }

    /// foretype with a bundle.
    pub async fn own(&self, bundle: &Path, precision: Precision) -> Result<Side> {
        let logs = self.logs()?;
        let program = Program::at(self.server.as_deref(), &logs)?;
        let service = Service::container(&program, &self.entry, &self.environment(bundle)?, &logs).await;
        let kind = if precision == Precision::Int8 { "int8" } else { "fp32" };
        Side::new(format!("foretype {kind}"), env!("CARGO_PKG_VERSION").to_owned(), true, service)
    }

    /// A peer with a checkpoint that it reads as it is.
    pub async fn peer(&self, peer: &Peer, checkpoint: &Path) -> Result<Side> {
        let name = format!("grid-{}", checkpoint_name(checkpoint)?);
        let installed = Installed::new(&self.peers, &self.peer_scripts, &name);
        fs::create_dir_all(&installed.models)?;
        fs::write(installed.models.join("checkpoint.txt"), format!("{}\n", checkpoint.canonicalize()?.display()))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        println!("starting {} behind gunicorn", peer.name);
        let service = Service::peer(peer, &installed, threads, &self.logs()?).await;
        Side::new(peer.name.to_owned(), installed.versions(peer), false, service)
    }

    fn logs(&self) -> Result<PathBuf> {
        let logs = self.results.join("tmp");
        fs::create_dir_all(&logs)?;
        Ok(logs)
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
}

/// The name of a checkpoint's folder.
pub fn checkpoint_name(checkpoint: &Path) -> Result<String> {
    Ok(checkpoint.file_name().context("a checkpoint folder has a name")?.to_string_lossy().into_owned())
}

/// Whether a round is one of `runs`, spread evenly over all of them from the first on.
pub fn is_turn(round: usize, runs: usize, rounds: usize) -> bool {
    (round * runs).div_ceil(rounds) < ((round + 1) * runs).div_ceil(rounds)
}

/// Words of exactly this many tokens, by what `length` says.
pub fn prompt(texts: &mut Texts, length: impl Fn(&str) -> usize, tokens: usize) -> String {
    loop {
        let mut words = texts.typed(Name::Gpt2);
        while length(&words) < tokens {
            words.push(' ');
            words.push_str(&texts.typed(Name::Gpt2));
        }
        // Characters off the end until the length is met; it may be jumped over.
        while length(&words) > tokens && words.pop().is_some() {}
        if length(&words) == tokens {
            return words;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_over_the_rounds() {
        let turns = |runs, rounds| (0..rounds).filter(|&round| is_turn(round, runs, rounds)).collect::<Vec<_>>();
        assert_eq!(turns(2, 6), [0, 3]);
        assert_eq!(turns(3, 3), [0, 1, 2]);
        assert_eq!(turns(1, 4), [0]);
        assert!(turns(0, 4).is_empty());
        assert_eq!(turns(7, 20).len(), 7);
    }

    #[test]
    fn prompts_have_the_length_asked_for() {
        let mut texts = Texts::new(Queries::of("battery cooling plate\nair filter\n"), 1);
        let length = |words: &str| words.len().div_ceil(3);
        for tokens in [1, 7, 40] {
            assert_eq!(length(&prompt(&mut texts, length, tokens)), tokens);
        }
    }
}
