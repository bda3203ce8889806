//! The commands: what each one is called, and how it ends.
//!
//! Results go to standard output, everything else to standard error. The exit code is 0 only for success, 1
//! for failure and 2 for a command line that is not understood.

mod chat;
mod client;
mod completions;
mod config;
mod conformance;
mod coordinators;
mod credentials;
mod datasets;
mod demo;
mod error;
mod evaluate;
mod federated;
mod jobs;
mod keys;
mod login;
mod models;
mod output;
mod serve;
mod sessions;
mod settings;
mod task;
mod terminal;
mod tokens;
mod users;
mod workers;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::future::Future;
use std::num::{ParseFloatError, ParseIntError};
use std::process::ExitCode;

use client::Platform;
use error::CliError;
use output::Output;

/// A self-hosted yard for fine-tuning language models.
#[derive(Parser)]
#[command(
    name = "trainyard",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What all commands know.
#[derive(Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Address of the platform; else that of the last login, else http://127.0.0.1:8080.
    #[arg(long, global = true, env = "TRAINYARD_PLATFORM", value_name = "URL")]
    platform: Option<url::Url>,
    /// Print results as JSON, one object a line; a list is one object with its items.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Run the platform.
    Serve(serve::Options),
    /// Show the whole main job on this machine: a platform, a worker, a fine-tune, the answers before and after.
    Demo(demo::Options),
    /// Print every setting of the platform with its value and where that came from.
    Config(config::Options),
    /// Judge whether a platform, a worker or a coordinator, ours or another's, speaks its protocol as it should.
    #[command(subcommand)]
    Conformance(conformance::Command),
    /// Log in; the token is kept in your config folder, readable by you only.
    Login(login::Options),
    /// Log out and forget the token.
    Logout,
    /// Accounts of people (for administrators).
    #[command(subcommand)]
    Users(users::Command),
    /// Your personal API tokens, for scripts and OpenAI's clients.
    #[command(subcommand)]
    Tokens(tokens::Command),
    /// Enrolment keys, with which new workers join (for administrators).
    #[command(subcommand)]
    Keys(keys::Command),
    /// The machines that train.
    #[command(subcommand)]
    Workers(workers::Command),
    /// The data to train on.
    #[command(subcommand)]
    Datasets(datasets::Command),
    /// Training jobs.
    #[command(subcommand)]
    Jobs(jobs::Command),
    /// Sessions in which volunteers train over Coordinator protocol v1.
    #[command(subcommand)]
    Coordinators(coordinators::Command),
    /// Training in rounds on several workers.
    #[command(subcommand)]
    Federated(federated::Command),
    /// The models that can be asked and trained.
    #[command(subcommand)]
    Models(models::Command),
    /// Talk with a model, one that was trained here or a base model.
    Chat(chat::Options),
    /// Have a model measured on a data set.
    Evaluate(evaluate::Options),
    /// Evaluations that were submitted.
    #[command(subcommand)]
    Evaluations(evaluate::Command),
    /// Print a completion script for a shell.
    Completions(completions::Options),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        // Only a second call in one process can fail, and then the same provider is installed already.
        tracing::debug!("a TLS provider was installed before");
    }
    let output = Output::new(cli.common.json);
    match run(cli.command, &cli.common, &output) {
        Ok(code) => code,
        Err(error) => {
            output.error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Reads a command line. Negative numbers are values, so that what they are for can say what it takes.
fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = with_negative_numbers(Cli::command()).try_get_matches_from(line);
    matches
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(in_plain_words)
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| {
            let takes_values = argument.get_action().takes_values();
            argument.allow_negative_numbers(takes_values)
        })
        .mut_subcommands(with_negative_numbers)
}

/// Numbers that are none are told without the words of the parser.
fn in_plain_words(error: clap::Error) -> clap::Error {
    let source = std::error::Error::source(&error);
    let expected = match source {
        Some(source) if source.is::<ParseIntError>() => "a whole number, 0 or more",
        Some(source) if source.is::<ParseFloatError>() => "a number",
        _ => return error,
    };
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, name) = (
        context(ContextKind::InvalidValue),
        context(ContextKind::InvalidArg),
    );
    let message = format!("{value:?} is no value for {name}: {expected} is expected\n");
    clap::Error::raw(ErrorKind::ValueValidation, message)
}

fn run(command: Command, common: &Common, output: &Output) -> Result<ExitCode, CliError> {
    match command {
        Command::Serve(options) => serve::run(options),
        Command::Demo(options) => demo::run(&options, output),
        Command::Config(options) => done(config::run(&options, output)),
        Command::Completions(options) => done(completions::run(&options)),
        Command::Conformance(command) => conformance::run(command, common, output),
        Command::Datasets(datasets::Command::Check(options)) => {
            datasets::check::run(&options, output)
        }
        Command::Login(options) => {
            block_on(async { done(login::login(&options, common, output).await) })
        }
        Command::Logout => block_on(async { done(login::logout(common, output).await) }),
        Command::Users(command) => {
            block_on(async { done(users::run(command, &platform(common)?, output).await) })
        }
        Command::Tokens(command) => {
            block_on(async { done(tokens::run(command, &platform(common)?, output).await) })
        }
        Command::Keys(command) => {
            block_on(async { done(keys::run(command, &platform(common)?, output).await) })
        }
        Command::Workers(command) => {
            block_on(async { done(workers::run(command, &platform(common)?, output).await) })
        }
        Command::Datasets(command) => {
            block_on(async { done(datasets::run(command, &platform(common)?, output).await) })
        }
        Command::Models(command) => {
            block_on(async { done(models::run(command, &platform(common)?, output).await) })
        }
        Command::Chat(options) => {
            block_on(async { done(chat::run(&options, &platform(common)?, output).await) })
        }
        Command::Evaluate(options) => {
            block_on(async { evaluate::run(&options, &platform(common)?, output).await })
        }
        Command::Evaluations(command) => {
            block_on(async { evaluate::look(command, &platform(common)?, output).await })
        }
        Command::Coordinators(command) => {
            block_on(async { coordinators::run(command, &platform(common)?, output).await })
        }
        Command::Federated(command) => {
            block_on(async { federated::run(command, &platform(common)?, output).await })
        }
        Command::Jobs(command) => {
            block_on(async { jobs::run(command, &platform(common)?, output).await })
        }
    }
}

fn platform(common: &Common) -> Result<Platform, CliError> {
    Platform::with_credentials(common.platform.as_ref())
}

fn done(result: Result<(), CliError>) -> Result<ExitCode, CliError> {
    result.map(|()| ExitCode::SUCCESS)
}

fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|source| CliError::io("starting", source))?
        .block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn refusal(line: &[&str]) -> String {
        let line = ["trainyard"].iter().chain(line).map(OsString::from);
        match parse(line) {
            Ok(_) => "taken".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_negative_number_is_a_value_and_no_option() {
        let chat = ["chat", "--model", "m", "--temperature", "-1"];
        assert_eq!(refusal(&chat), "taken");
        let serve = ["config", "--heartbeat-interval", "-5"];
        assert_eq!(refusal(&serve), "taken");
    }

    #[test]
    fn a_number_that_is_none_is_told_in_plain_words() {
        assert_eq!(
            refusal(&["datasets", "delete", "abc"]),
            "error: \"abc\" is no value for <ID>: a whole number, 0 or more is expected\n"
        );
        assert_eq!(
            refusal(&["chat", "--model", "m", "--top-p", "high"]),
            "error: \"high\" is no value for --top-p <TOP_P>: a number is expected\n"
        );
        assert!(refusal(&["jobs", "show", "-1"]).contains("0 or more is expected"));
    }

    #[test]
    fn a_password_is_never_a_flag() {
        let login = [
            "trainyard",
            "login",
            "--email",
            "a@b.example",
            "--password",
            "x",
        ];
        assert!(Cli::try_parse_from(login).is_err());
    }

    #[test]
    fn options_that_all_commands_know_stand_anywhere() {
        let cli = Cli::try_parse_from([
            "trainyard",
            "jobs",
            "list",
            "--json",
            "--platform",
            "http://h:1/",
        ])
        .unwrap();
        assert!(cli.common.json);
        assert_eq!(cli.common.platform.unwrap().as_str(), "http://h:1/");
    }
}
