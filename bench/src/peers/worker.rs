//! An engine of someone else: a Python process that speaks `bench/peers/worker.py`'s protocol over its pipes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

/// How long an engine may take to load its model, and to answer.
const PATIENCE: Duration = Duration::from_secs(240);

/// An engine, and how it computes.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The name that tables show.
    pub name: &'static str,
    /// Name of the engine's Python environment.
    pub family: &'static str,
    /// The argument that its Python module gets: how it computes.
    pub variant: &'static str,
    /// The folder of its converted model; none if it reads the checkpoint.
    pub model: Option<&'static str>,
    /// The module that wraps it for gunicorn.
    pub wrapper: &'static str,
}

impl Peer {
    /// Whether the engine computes in 32-bit floating point throughout.
    pub fn is_full_precision(&self) -> bool {
        self.variant.ends_with("fp32")
    }
}

const fn peer(name: &'static str, family: &'static str, variant: &'static str, model: Option<&'static str>) -> Peer {
    Peer { name, family, variant, model, wrapper: "app" }
}

/// All of them. The first is what answers are compared with.
pub const PEERS: [Peer; 12] = [
    peer("transformers fp32", "torch", "fp32", None),
    peer("transformers bf16", "torch", "bf16", None),
    peer("OpenVINO fp32", "openvino", "fp32", Some("openvino")),
    peer("OpenVINO int8 weights", "openvino", "int8", Some("openvino")),
    peer("OpenVINO GenAI int8, paged attention", "openvino", "genai-int8", Some("openvino")),
    peer("CTranslate2 fp32", "ctranslate2", "fp32", Some("ctranslate2")),
    peer("CTranslate2 int8", "ctranslate2", "int8", Some("ctranslate2")),
    peer("llama.cpp F32", "llama", "fp32", Some("gguf")),
    peer("llama.cpp Q8_0", "llama", "q8_0", Some("gguf")),
    peer("ONNX Runtime, standard export, fp32", "onnxruntime", "standard-fp32", Some("onnx")),
    peer("ONNX Runtime, standard export, dynamic int8", "onnxruntime", "standard-int8", Some("ort")),
    peer("ONNX Runtime, fused GPT-2, dynamic int8", "onnxruntime", "fused-int8", Some("ort")),
];

/// Where `bench/peers/setup.sh` put environments and models.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The folder of the Python environments.
    pub folder: PathBuf,
    /// The folder of the Python scripts.
    pub scripts: PathBuf,
    /// Models of the checkpoint that is measured.
    pub models: PathBuf,
}

impl Installed {
    /// The peers' folder, with the models of a checkpoint of this name.
    pub fn new(folder: &Path, scripts: &Path, checkpoint: &str) -> Self {
        let full = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = full(folder);
        Self { models: folder.join("models").join(checkpoint), scripts: full(scripts), folder }
    }

    /// Versions of the packages that a peer's environment is named for, as pip told them when it was installed.
    pub fn versions(&self, peer: &Peer) -> String {
        let installed =
            std::fs::read_to_string(self.folder.join(peer.family).join("installed.txt")).unwrap_or_default();
        let is_named = |line: &&str| line.starts_with(peer.family) || line.starts_with("transformers==");
        let named: Vec<String> = installed.lines().filter(is_named).map(|line| line.replace("==", " ")).collect();
        named.join(", ")
    }

    /// The Python of an environment, or why the peer can't be run.
    pub fn python(&self, peer: &Peer) -> Result<PathBuf> {
        let said = |folder: &Path| std::fs::read_to_string(folder.join("failed.txt")).ok();
        let environment = self.folder.join(peer.family);
        if let Some(reason) = said(&environment) {
            bail!("not installed: {}", reason.trim());
        }
        if let Some(reason) = peer.model.and_then(|model| said(&self.models.join(model))) {
            bail!("model not converted: {}", reason.trim());
        }
        let python = environment.join("bin/python");
        if !environment.join("installed.txt").exists() || !python.exists() {
            bail!("not installed; run bench/peers/setup.sh");
        }
        if let Some(model) = peer.model.filter(|model| !self.models.join(model).join("done.txt").exists()) {
            bail!("there is no {}; run bench/peers/setup.sh", self.models.join(model).display());
        }
        Ok(python)
    }
}

/// What a worker says.
#[derive(Debug, Deserialize)]
struct Answer {
    version: Option<String>,
    tokens: Option<Vec<Vec<u32>>>,
    seconds: Option<f64>,
    error: Option<String>,
}

/// A running engine. Stopped between its turns, so that nothing it does while idle takes time from another.
pub struct Worker {
    /// The engine's library with its version.
    pub version: String,
    child: Child,
    questions: ChildStdin,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts it and waits until its model is loaded.
    pub fn start(peer: &Peer, installed: &Installed, threads: usize, log: &Path) -> Result<Self> {
        let mut command = Command::new(installed.python(peer)?);
        command.arg(installed.scripts.join("worker.py")).args([peer.family, peer.variant]);
        command.arg(&installed.models).arg(threads.to_string());
        command.env("OMP_NUM_THREADS", threads.to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(log)?);
        let mut child = command.spawn()?;
        let questions = child.stdin.take().context("a pipe to the worker")?;
        let output = child.stdout.take().context("a pipe from the worker")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // Nobody listens any more once the worker is dropped.
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        let mut worker = Self { version: String::new(), child, questions, answers };
        let ready = worker.answer().with_context(|| format!("see {}", log.display()))?;
        worker.version = ready.version.unwrap_or_default();
        worker.signal("-STOP")?;
        Ok(worker)
    }

    /// Continues rows of one length greedily by exactly `new_tokens` tokens each. Returns the rows' new tokens, and the
    /// duration in milliseconds.
    pub fn generate(&mut self, prompt: &[Vec<u32>], new_tokens: usize) -> Result<(Vec<Vec<u32>>, f64)> {
        self.signal("-CONT")?;
        writeln!(self.questions, "{}", json!({"prompt": prompt, "new_tokens": new_tokens}))?;
        self.questions.flush()?;
        let answer = self.answer()?;
        self.signal("-STOP")?;
        let (tokens, seconds) = answer.tokens.zip(answer.seconds).context("an answer without tokens")?;
        Ok((tokens, seconds * 1000.0))
    }

    /// Memory that it has in use, in MiB.
    pub fn resident_mib(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS"))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    }

    fn answer(&mut self) -> Result<Answer> {
        let line = match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("no answer within {} s", PATIENCE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the worker ended ({})", self.child.wait()?),
        };
        let answer: Answer = serde_json::from_str(&line).with_context(|| line.clone())?;
        match answer.error {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }

    fn signal(&self, signal: &str) -> Result<()> {
        crate::server::signal(self.child.id().cast_signed(), signal)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
