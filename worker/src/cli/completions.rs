//! `trainyard-worker completions`: what a shell needs to complete our commands.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::error::CliError;
use super::output::Output;

/// Options of `completions`.
#[derive(Args)]
pub struct Options {
    /// The shell
    shell: Shell,
}

/// Prints the script to standard output.
pub fn run(options: &Options) -> Result<(), CliError> {
    let mut script = Vec::new();
    let mut command = super::Cli::command();
    clap_complete::generate(options.shell, &mut command, "trainyard-worker", &mut script);
    Output::new(false).text(&String::from_utf8_lossy(&script))
}
