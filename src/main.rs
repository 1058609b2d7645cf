//! The `foretype` command. See the library for the map.

use std::process::ExitCode;

use clap::Parser;
use foretype::cli::{Cli, telemetry};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = telemetry::start(cli.log_format).and_then(|telemetry| {
        let done = cli.run();
        drop(telemetry);
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foretype: {error}");
            ExitCode::FAILURE
        }
    }
}
