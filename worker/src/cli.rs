//! The commands of `trainyard-worker`: what each one is called, and how it ends.
//!
//! Results go to standard output, everything else to standard error. The exit code is 0 only for
//! success, 1 for failure and 2 for a command line that is not understood.

mod benchmark;
mod completions;
mod error;
mod evaluate;
mod export;
mod generate;
mod model;
mod output;
mod pack;
mod run;
mod signals;
mod train;
mod volunteer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::logging::{self, LogArgs};
use output::Output;

/// A worker of Trainyard: takes training jobs from a platform, or trains and generates by itself.
#[derive(Parser)]
#[command(
    name = "trainyard-worker",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    /// Print results as JSON, one object a line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Connect to a platform and work for it until stopped
    Run(run::Options),
    /// Train for a coordinator of Coordinator protocol v1, round after round
    Volunteer(Box<volunteer::Options>),
    /// Train by a job file, without a platform
    Train(train::Options),
    /// Let a model answer, with or without an adapter
    Generate(generate::Options),
    /// Measure how well a model predicts data, with or without an adapter
    Evaluate(evaluate::Options),
    /// Write a model, with or without an adapter, in another form
    Export(export::Options),
    /// Turn a data set into token shards for volunteers
    Pack(pack::Options),
    /// Measure how fast this machine trains
    Benchmark(benchmark::Options),
    /// Print a shell's completions
    Completions(completions::Options),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let default_level = match cli.command {
        Command::Run(_) => "info",
        _ => "warn",
    };
    logging::init(&cli.log, default_level);
    // Fails only where an embedding program has chosen a provider before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let output = Output::new(cli.json);
    let result = match cli.command {
        Command::Run(options) => run::run(options),
        Command::Volunteer(options) => volunteer::run(*options, &output),
        Command::Train(options) => train::run(options, &output),
        Command::Generate(options) => generate::run(options, &output),
        Command::Evaluate(options) => evaluate::run(options, &output),
        Command::Export(options) => export::run(options, &output),
        Command::Pack(options) => pack::run(options, &output),
        Command::Benchmark(options) => benchmark::run(options, &output),
        Command::Completions(options) => completions::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output.error(&error);
            error.exit_code()
        }
    }
}
