//! `trainyard-worker run`: works for a platform until it is asked to end.

use clap::Args;

use super::error::CliError;
use super::signals::asked_to_end;
use crate::config::RunArgs;

/// Options of `run`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    settings: RunArgs,
}

/// Runs the worker.
pub fn run(options: Options) -> Result<(), CliError> {
    let config = options.settings.into_config()?;
    actix_rt::System::new().block_on(crate::run(config, asked_to_end()))?;
    Ok(())
}
