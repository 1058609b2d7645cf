//! The command line. Every flag is also an environment variable, and both are documented here, once: default and unit
//! in the doc line that `--help` shows.

mod build;
mod choices;
mod client;
mod complete;
#[cfg(feature = "workbench")]
mod evaluate;
pub mod gpu;
mod listen;
mod lmi;
mod loading;
#[cfg(feature = "workbench")]
mod local_endpoint;
mod model_args;
mod pack;
mod plan;
mod popular;
mod progress;
mod replicas;
mod serve;
mod swap;
pub mod telemetry;
mod warm;

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::telemetry::LogFormat;

/// Completes search queries as people type them, with a GPT-style language model.
#[derive(Debug, Parser)]
#[command(name = "foretype", version, max_term_width = 110)]
pub struct Cli {
    /// How log lines are written. FORETYPE_LOG chooses which, such as `debug` or `foretype=debug,warn`.
    #[arg(long, global = true, env = "FORETYPE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Turn a Hugging Face checkpoint folder into a bundle that can be served.
    Build(build::BuildArgs),
    /// Add TensorRT plans for the GPUs of instance types to a bundle, so that an instance starts in seconds.
    Plan(plan::PlanCommand),
    /// Serve a model over HTTP.
    Serve(serve::ServeArgs),
    /// Complete one text on the command line.
    Complete(complete::CompleteArgs),
    /// Type queries at a model, keystroke by keystroke, and measure quality and cost.
    #[cfg(feature = "workbench")]
    Evaluate(Box<evaluate::EvaluateArgs>),
    /// Put another version in the place of a running server's model, without a pause.
    Swap(swap::SwapArgs),
    /// Make the model.tar.gz that Amazon SageMaker unpacks for a container, from a bundle.
    Pack(pack::PackArgs),
    /// Fold logs of queries into the popular queries that `build --popular` takes.
    Popular(popular::PopularArgs),
    /// Speak Amazon SageMaker's runtime API in front of a server or container, to try client code without AWS.
    #[cfg(feature = "workbench")]
    LocalEndpoint(local_endpoint::LocalEndpointArgs),
    /// The commands that this build leaves out.
    #[cfg(not(feature = "workbench"))]
    #[command(name = "local-endpoint", alias = "evaluate", hide = true, disable_help_flag = true)]
    LeftOut {
        /// Whatever they were given.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
}

/// The command that takes the options of LMI containers.
const SERVE: &str = "serve";

impl Cli {
    /// Reads the command line; ends the process if it can't be understood, or has been answered.
    ///
    /// `serve` takes the options of AWS's LMI containers, too.
    pub fn read() -> Self {
        let read = |matches: &ArgMatches| Self::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
        let mut command = Self::command();
        let matches = command.get_matches_mut();
        let Some(serve) = matches.subcommand_matches(SERVE) else { return read(&matches) };
        let model = serve.get_one::<PathBuf>("model");
        let options = lmi::read(std::env::vars(), model.map(PathBuf::as_path));
        let options = options.unwrap_or_else(|refused| command.error(ErrorKind::InvalidValue, refused).exit());
        let command = Self::command().mut_subcommand(SERVE, |serve| {
            options.defaults.into_iter().fold(serve, |serve, (flag, value)| {
                // Read once in the process's life.
                serve.mut_arg(flag, |arg| arg.default_value(&*value.leak()))
            })
        });
        let mut cli = read(&command.get_matches());
        if let Command::Serve(args) = &mut cli.command {
            args.take_options(options.model, options.unused);
        }
        cli
    }

    /// Runs the command.
    ///
    /// # Errors
    /// In words for the person who typed it.
    pub fn run(self) -> Result<(), Box<dyn std::error::Error>> {
        match self.command {
            Command::Build(args) => args.run(),
            Command::Plan(args) => args.run(),
            Command::Serve(args) => args.run(),
            Command::Complete(args) => args.run(),
            #[cfg(feature = "workbench")]
            Command::Evaluate(args) => args.run(),
            Command::Swap(args) => args.run(),
            Command::Pack(args) => args.run(),
            Command::Popular(args) => args.run(),
            #[cfg(feature = "workbench")]
            Command::LocalEndpoint(args) => args.run(),
            #[cfg(not(feature = "workbench"))]
            Command::LeftOut { .. } => {
                Err("this build leaves out the commands evaluate and local-endpoint, as the container's does: build \
                 foretype with the feature `workbench`, which is on by default, and run them from there"
                    .into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_knob_is_documented() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        for sub in command.get_subcommands_mut() {
            for arg in sub.get_arguments() {
                assert!(arg.get_help().is_some(), "--{} of {} has no help", arg.get_id(), sub.get_name());
            }
        }
    }
}
