//! `foretype serve` with the demo model, as a process of its own.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::repository;

/// The process, killed when dropped.
pub struct ServedDemo {
    process: Child,
    /// Host and port.
    pub address: String,
}

impl ServedDemo {
    /// Starts this build's program, and waits until its model answers.
    pub fn start(cache: &Path) -> Self {
        Self::of(env!("CARGO_BIN_EXE_foretype").into(), cache, &[])
    }

    /// Starts a program with more arguments, and waits until its model answers.
    pub fn of(program: OsString, cache: &Path, arguments: &[&OsStr]) -> Self {
        let mut process = Command::new(program)
            .args(["serve", "--port", "0", "--kv-pool-mib", "64", "--model"])
            .arg(repository("models/demo"))
            .arg("--cache")
            .arg(cache)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = said.find_map(|line| line.unwrap().split_once("http://").map(|(_, rest)| rest.to_owned())).unwrap();
        Self { process, address: ready.split(". Try").next().unwrap().to_owned() }
    }

    /// Sends SIGTERM and waits for the end; how long that took.
    pub fn stop(&mut self) -> Duration {
        let asked = Instant::now();
        self.signal("-TERM");
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status:?}");
        asked.elapsed()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for ServedDemo {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
