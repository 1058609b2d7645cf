//! The `foretype` command. See the library for the map.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use foretype::cli::Cli;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("FORETYPE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Logs go to standard error, plain where it is no terminal: log collectors show colour codes as noise.
    let stderr = std::io::stderr;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(stderr().is_terminal()).init();
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foretype: {error}");
            ExitCode::FAILURE
        }
    }
}
