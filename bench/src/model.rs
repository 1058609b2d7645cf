//! The models that are measured, and the flags that every command has.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bundle::Manifest;
use clap::{Args, ValueEnum};
use completion::text::Text;
use foretype::models::folder::{self, IntakeOptions};
use serde::Serialize;

/// A model that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Name {
    /// The demo model of this repository.
    Demo,
    /// A random model of GPT-2's real size, 124M.
    Gpt2,
    /// SmolLM2-135M, as it is or fine-tuned.
    Smollm2,
}

impl Name {
    /// In file names and tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Gpt2 => "gpt2",
            Self::Smollm2 => "smollm2",
        }
    }
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub struct Setting {
    /// The demo model.
    #[arg(long, value_name = "DIR", default_value = "models/demo")]
    demo: PathBuf,
    /// The random GPT-2 that `checkpoint` writes.
    #[arg(long, value_name = "DIR", default_value = "target/bench/gpt2-random")]
    gpt2: PathBuf,
    /// SmolLM2-135M: `tools/real_model.sh` makes it, `tools/fine_tune.sh` the fine-tuned one.
    #[arg(long, value_name = "DIR", default_value = "target/real-model")]
    smollm2: PathBuf,
    /// Where bundles built from the checkpoints are kept.
    #[arg(long, value_name = "DIR", default_value = "target/bench/bundles")]
    pub cache: PathBuf,
    /// Build bundles from the checkpoints for a GPU: in f16, of ONNX's operators.
    #[arg(long)]
    pub for_gpu: bool,
    /// Queries that people type, one a line.
    #[arg(long, value_name = "FILE", default_value = "models/demo/queries/heldout_unseen.txt")]
    pub queries: PathBuf,
    /// The server. Default: `foretype` beside this program.
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// More arguments for every server, in one string, such as "--beams 10 --no-lookahead".
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, default_value = "")]
    server_args: String,
    /// More arguments for servers of the random GPT-2.
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, default_value = "")]
    gpt2_args: String,
    /// Where results are written.
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub results: PathBuf,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A model and its bundle.
pub struct Model {
    /// The model's name.
    pub name: Name,
    /// The bundle's folder.
    pub bundle: PathBuf,
    /// What the bundle says of itself.
    pub manifest: Manifest,
    /// Arguments for its servers.
    pub server_args: Vec<String>,
    text: Text,
}

impl Setting {
    /// The demo model's folder.
    pub fn demo(&self) -> PathBuf {
        self.demo.clone()
    }

    /// The checkpoint of a model.
    pub fn checkpoint(&self, name: Name) -> &Path {
        match name {
            Name::Demo => &self.demo,
            Name::Gpt2 => &self.gpt2,
            Name::Smollm2 => &self.smollm2,
        }
    }
}

impl Model {
    /// The same model in another bundle.
    pub fn with_bundle(&self, bundle: PathBuf, manifest: Manifest) -> Result<Self> {
        let text = foretype::engine::read_text(&bundle, &manifest)?;
        Ok(Self { name: self.name, bundle, manifest, server_args: self.server_args.clone(), text })
    }

    /// Builds the model's bundle if it isn't there, and reads its tokenizer.
    pub fn open(name: Name, setting: &Setting) -> Result<Self> {
        let folder = setting.checkpoint(name);
        let hint = "`foretype-bench checkpoint` makes the random GPT-2, `make real-model` SmolLM2";
        let source = folder::identify(folder).context(hint)?;
        let options = IntakeOptions { for_gpu: setting.for_gpu, ..IntakeOptions::new(setting.cache.clone()) };
        let (bundle, manifest) = folder::open(&source, &options, &())?;
        let text = foretype::engine::read_text(&bundle, &manifest)?;
        let own = if name == Name::Gpt2 { setting.gpt2_args.as_str() } else { "" };
        let server_args = setting.server_args.split_whitespace().chain(own.split_whitespace());
        Ok(Self { name, bundle, manifest, server_args: server_args.map(str::to_owned).collect(), text })
    }

    /// Tokens of a text.
    pub fn tokens(&self, text: &str) -> usize {
        self.text.encode(text).len()
    }
}
