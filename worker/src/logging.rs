//! What is logged and how. Crates of others never log below `info`: their debug lines may hold frames
//! and headers, and with them keys.

use clap::{Args, ValueEnum};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

/// Settings of the log.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// What is logged: error, warn, info, debug or trace, also by part as `info,trainyard_worker::tasks=debug`
    #[arg(long, env = "LOG", global = true, value_name = "LEVEL", value_parser = directives)]
    log: Option<String>,
    /// How it is written
    #[arg(
        long,
        env = "LOG_FORMAT",
        global = true,
        value_enum,
        default_value = "text"
    )]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One object a line
    Json,
}

/// What is logged, checked: levels, and levels of parts. A word that is neither would be taken for a part of the
/// program that there is not, and nothing at all would be logged.
///
/// # Errors
/// What is wrong with it.
pub fn directives(text: &str) -> Result<String, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    for part in parts {
        let is_of_part = part.contains(['=', '[', ':']) || part.starts_with("trainyard");
        if !is_of_part && part.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{part:?} is no level: error, warn, info, debug, trace or off; for a part of the program write PART=LEVEL"
            ));
        }
    }
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Starts logging to standard error, at `default` where `LOG` says nothing. Where logging has been
/// started already, that stays.
pub fn init(settings: &LogArgs, default: &str) {
    let lines = layer(settings, default, std::io::stderr);
    if tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .is_err()
    {
        tracing::debug!("logging had been started before");
    }
}

fn layer<W>(settings: &LogArgs, default: &str, writer: W) -> impl Layer<Registry> + use<W>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer::<Registry>()
        .with_writer(writer)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match settings.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let set = settings.log.as_deref().filter(|log| !log.trim().is_empty());
    let filter = EnvFilter::new(set.unwrap_or(default));
    lines.with_filter(filter.and(filter_fn(may_be_logged)))
}

fn may_be_logged(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO || metadata.target().starts_with("trainyard")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_level_is_refused_and_does_not_silence_the_log() {
        for good in [
            "info",
            "DEBUG",
            "off",
            "3",
            "",
            "info,trainyard_worker::tasks=debug",
            "trainyard_platform",
        ] {
            assert_eq!(directives(good).as_deref(), Ok(good));
        }
        for bad in [
            "inof",
            "info,debgu",
            "warning",
            "trainyard=verbose",
            "log level",
        ] {
            assert!(directives(bad).is_err(), "{bad}");
        }
        assert!(directives("inof").unwrap_err().contains("\"inof\""));
    }
}
