//! Where a measurement was made.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// The machine and the code.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name for itself.
    pub cpu: String,
    /// Hardware threads that this process may use.
    pub cores: usize,
    /// Main memory.
    pub memory_gib: f64,
    /// The first GPU's name, if the CUDA driver finds one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The commit that was measured: FORETYPE_COMMIT, or what git knows.
    pub commit: Option<String>,
}

impl Machine {
    /// Describes this machine and the commit of the working folder.
    pub fn describe() -> Self {
        let field = |file: &str, name: &str| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kib = field("/proc/meminfo", "MemTotal").and_then(|v| v.split(' ').next()?.parse::<f64>().ok());
        let git = || {
            let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let gpu = backends::cuda::Driver::load(None).ok().and_then(|driver| driver.open(0).ok());
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (kib.unwrap_or(0.0) / 1024.0 / 1024.0 * 10.0).round() / 10.0,
            gpu: gpu.map(|device| device.name().to_owned()),
            commit: std::env::var("FORETYPE_COMMIT").ok().or_else(git),
        }
    }

    /// Machine and commit in one line, for people.
    pub fn line(&self) -> String {
        let gpu = self.gpu.as_deref().map(|gpu| format!(", {gpu}")).unwrap_or_default();
        let commit = self.commit.as_deref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
        format!("{} cores of {}, {:.1} GiB{gpu}{commit}", self.cores, self.cpu, self.memory_gib)
    }
}
