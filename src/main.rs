//! The `foretype` command. See the library for the map.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use foretype::cli::{Cli, LogFormat};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(cli.log_format);
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foretype: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to standard error, plain where it is no terminal: log collectors show colour codes as noise.
fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_env("FORETYPE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let stderr = std::io::stderr;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
    match format {
        LogFormat::Text => builder.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
    }
}
