//! Load generators that people know: wrk, and JMeter with the plan in `bench/jmeter`. Each posts the bodies of a file
//! in turn.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Longest answer that is waited for. wrk's own limit of 2 s would count slow answers as none.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a generator counted.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Counted {
    /// Number of answers.
    pub requests: u64,
    /// Number of answers with another status than 200.
    pub refused: u64,
    /// Connections that broke, and requests that were not answered in time.
    pub failed: u64,
    /// Duration of the run.
    pub seconds: f64,
    /// Mean latency of all answers.
    pub mean_ms: f64,
    /// Median latency of all answers.
    pub p50_ms: f64,
    /// 99th percentile of the latency of all answers.
    pub p99_ms: f64,
    /// Largest latency of all answers.
    pub max_ms: f64,
}

impl Counted {
    /// Good answers per second.
    pub fn qps(&self) -> f64 {
        self.requests.saturating_sub(self.refused) as f64 / self.seconds
    }
}

/// How many clients, for how long, with which bodies.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// Address of the server.
    pub address: SocketAddr,
    /// Clients, each with one request at a time.
    pub clients: usize,
    /// Duration of the load.
    pub seconds: u64,
    /// JSON bodies, one a line.
    pub bodies: &'a Path,
}

/// A generator of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// wrk.
    Wrk,
    /// Apache JMeter.
    Jmeter,
}

impl Tool {
    /// The tool's name, which is its command too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::Jmeter => "jmeter",
        }
    }

    /// Whether it can be run here.
    pub fn is_installed(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(self.name()).is_file())
    }

    /// Runs it. Blocks until it is over.
    pub fn run(self, load: &Load<'_>, bench: &Path, scratch: &Path) -> Result<Counted> {
        match self {
            Self::Wrk => wrk(load, &bench.join("wrk/bodies.lua")),
            Self::Jmeter => jmeter(load, &bench.join("jmeter"), scratch),
        }
    }
}

fn wrk(load: &Load<'_>, script: &Path) -> Result<Counted> {
    let threads = load.clients.min(2).to_string();
    let mut command = Command::new("wrk");
    command.args(["-t", &threads, "-c", &load.clients.to_string(), "-d", &format!("{}s", load.seconds)]);
    command.args(["--timeout", &format!("{}s", TIMEOUT.as_secs())]).arg("-s").arg(script);
    command.arg(format!("http://{}/invocations", load.address)).arg("--").arg(load.bodies).arg(&threads);
    let output = command.stdin(Stdio::null()).output().context("wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk: {}", String::from_utf8_lossy(&output.stderr));
    let summary = text.lines().find_map(|line| line.strip_prefix("summary ")).context("wrk said no summary")?;
    Ok(serde_json::from_str(summary)?)
}

/// One answer, as JMeter writes it.
#[derive(Debug, Deserialize)]
struct Sample {
    #[serde(rename = "timeStamp")]
    started_ms: u64,
    #[serde(rename = "elapsed")]
    elapsed_ms: u64,
    #[serde(rename = "responseCode")]
    code: String,
}

fn jmeter(load: &Load<'_>, folder: &Path, scratch: &Path) -> Result<Counted> {
    let results = scratch.join("jmeter.jtl");
    drop(std::fs::remove_file(&results));
    let bodies = load.bodies.canonicalize()?;
    let mut command = Command::new(folder.join("run.sh"));
    command
        .arg("-n")
        .arg("-t")
        .arg(folder.join("paper.jmx"))
        .arg("-l")
        .arg(&results)
        .arg("-j")
        .arg(scratch.join("jmeter.log"));
    command.arg(format!("-Jhost={}", load.address.ip())).arg(format!("-Jport={}", load.address.port()));
    command.arg(format!("-Jthreads={}", load.clients)).arg(format!("-Jseconds={}", load.seconds));
    command.arg(format!("-Jbodies={}", bodies.display())).arg("-Jjmeter.save.saveservice.output_format=csv");
    command.arg("-Jjmeter.save.saveservice.print_field_names=true");
    let output = command.stdin(Stdio::null()).output().context("jmeter")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // It ends with 0 even where it could not start.
    let error = || said.lines().find(|line| line.contains("Error")).unwrap_or("it wrote no results").trim().to_owned();
    ensure!(output.status.success() && results.exists(), "jmeter: {}", error());
    let mut reader = csv::Reader::from_path(&results)?;
    let samples: Vec<Sample> = reader.deserialize().collect::<Result<_, _>>()?;
    count(&samples)
}

fn count(samples: &[Sample]) -> Result<Counted> {
    let Some(first) = samples.iter().map(|sample| sample.started_ms).min() else { bail!("jmeter got no answer") };
    let last = samples.iter().map(|sample| sample.started_ms + sample.elapsed_ms).max().unwrap_or(first);
    let mut sorted: Vec<f64> = samples.iter().map(|sample| sample.elapsed_ms as f64).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    // A code that is no number is the name of an exception: nothing was answered.
    let code = |sample: &Sample| sample.code.parse::<u16>().ok();
    Ok(Counted {
        requests: samples.iter().filter(|sample| code(sample).is_some()).count() as u64,
        refused: samples.iter().filter(|sample| code(sample).is_some_and(|code| code != 200)).count() as u64,
        failed: samples.iter().filter(|sample| code(sample).is_none()).count() as u64,
        seconds: (last - first).max(1) as f64 / 1000.0,
        mean_ms: sorted.iter().sum::<f64>() / sorted.len() as f64,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        max_ms: at(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jmeters_samples_are_counted_by_what_was_answered() {
        let sample = |started_ms, elapsed_ms, code: &str| Sample { started_ms, elapsed_ms, code: code.to_owned() };
        let counted = count(&[
            sample(1000, 500, "200"),
            sample(1500, 300, "429"),
            sample(1800, 200, "Non HTTP response code: java.net.SocketException"),
        ])
        .unwrap();
        assert_eq!((counted.requests, counted.refused, counted.failed), (2, 1, 1));
        assert_eq!((counted.seconds, counted.max_ms), (1.0, 500.0));
        assert_eq!(counted.qps(), 1.0);
        assert!(count(&[]).is_err());
    }
}
