//! `trainyard completions`: what a shell needs to complete our commands.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, CliError};

/// Options of `completions`.
#[derive(Args)]
pub struct Options {
    /// The shell.
    shell: Shell,
}

/// Prints the script to standard output.
pub fn run(options: &Options) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "trainyard", &mut script);
    let written = std::io::stdout().write_all(&script);
    written.map_err(|source| CliError::io("standard output", source))
}
