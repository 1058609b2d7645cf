//! `foretype-bench`: loads a foretype server as people and machines do, and measures it.
//!
//! * [`checkpoint`] writes random models of real shapes, so that no download is needed.
//! * [`load`] is a closed loop: a number of clients, each sending its next request when the last is answered. [`steps`]
//!   times single model steps without a server. [`kit`] measures each engine of a machine with a GPU.
//! * [`overload`] sends more than the server can answer and checks that it degrades as it should. [`soak`] sends
//!   everything for hours, while engines fail, processes are killed and the disk is full.
//! * [`peers`], [`paper`] and [`typeahead`] compare with other engines: steps side by side, whole servers, people who
//!   type. [`grid`] does it by the lengths of prompts and answers. [`turnover`] shows what memory is worth.
//! * [`http`] measures everything but the model. [`hot`] is what `bench/check.sh` counts instructions of.
//!
//! The parts that these share:
//!
//! * [`server`] starts and stops servers, [`wrapper`] those of other engines, [`endpoints`] both as they are deployed.
//!   [`fake_server`] has no model.
//! * [`client`] speaks HTTP; [`load_tools`] runs wrk and JMeter; [`workload`] makes texts; [`ladder`] chooses the
//!   numbers of clients.
//! * [`latency`], [`tally`] and [`summary`] count; [`bandwidth`] measures memory; [`metrics`] reads the server's
//!   metrics.
//! * [`report`] and [`plot`] write results; [`machine`] describes the machine.
//!
//! Deliberately absent: any policy of the server. What is measured is what a client sees.

mod bandwidth;
mod checkpoint;
mod client;
mod echo;
mod endpoints;
mod fake_server;
mod grid;
mod hot;
mod http;
mod kit;
mod ladder;
mod latency;
mod load;
mod load_tools;
mod machine;
mod metrics;
mod model;
mod overload;
mod paper;
mod peers;
mod people;
mod plot;
mod report;
mod server;
mod soak;
mod steps;
mod summary;
mod tally;
mod turnover;
mod typeahead;
mod workload;
mod wrapper;

use clap::{Parser, Subcommand};

/// Loads a foretype server and measures it.
#[derive(Debug, Parser)]
#[command(name = "foretype-bench", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a random checkpoint, if it is not there yet: GPT-2 of the real size (124M), or another shape or family.
    Checkpoint(checkpoint::CheckpointArgs),
    /// Closed loop: throughput and latency against concurrency, batched and one request at a time.
    Load(load::LoadArgs),
    /// Time of one model step against the rows in it.
    Steps(steps::StepsArgs),
    /// Each engine of a machine, most of all of its GPU: steps, copies, the start, ten suggestions, people who type.
    Kit(kit::KitArgs),
    /// foretype's engine beside those of others: the same prompts, greedily, in turns.
    Peers(Box<peers::PeersArgs>),
    /// The paper case's workload on whole servers: foretype's and others'.
    Paper(Box<paper::PaperArgs>),
    /// Open-ended generation by the lengths of prompt and answer, on foretype's container and on others' servers.
    Grid(Box<grid::GridArgs>),
    /// People who type, on foretype and on others' engines in the obvious wrapper.
    Typeahead(Box<typeahead::TypeaheadArgs>),
    /// What the prefix cache remembers by its memory, while many people type.
    Turnover(turnover::TurnoverArgs),
    /// HTTP, JSON, queue and search without a model.
    Http(http::HttpArgs),
    /// A hot path, repeated, for counting its instructions.
    Hot(hot::HotArgs),
    /// Several times the load that the server can answer; fails if it does not stay upright.
    Overload(overload::OverloadArgs),
    /// Hours of mixed traffic with faults; fails if anything is lost, wrong or kept.
    Soak(soak::SoakArgs),
}

fn main() -> anyhow::Result<()> {
    let command = Cli::parse().command;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match command {
        Command::Checkpoint(args) => args.run(),
        Command::Steps(args) => args.run(),
        Command::Kit(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Peers(args) => args.run(),
        Command::Paper(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Grid(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Typeahead(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Turnover(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Http(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Hot(args) => args.run(),
        Command::Load(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Overload(args) => runtime.block_on(until_interrupted(args.run())),
        Command::Soak(args) => runtime.block_on(until_interrupted(args.run())),
    }
}

/// Runs until it is over, or until someone stops this program: then the servers that were started are ended too.
async fn until_interrupted(run: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        result = run => result,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        _ = terminated.recv() => anyhow::bail!("stopped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_flag_is_documented() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        for sub in command.get_subcommands_mut() {
            for arg in sub.get_arguments() {
                assert!(arg.get_help().is_some(), "--{} of {} has no help", arg.get_id(), sub.get_name());
            }
        }
    }
}
