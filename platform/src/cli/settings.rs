//! The platform's settings as flags, made from the one table of settings, and values that have a unit.

use clap::{Arg, ArgMatches, Args, FromArgMatches};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;
use trainyard_platform::config::{Config, SETTINGS, Sources};

use super::error::CliError;

/// Flags for all settings of the platform but the secret ones, and the name of a file of settings.
pub struct PlatformSettings {
    file: Option<PathBuf>,
    flags: Vec<(&'static str, String)>,
}

impl PlatformSettings {
    /// The settings in force: flags win over the environment, that over the file, that over defaults.
    pub fn resolve(&self) -> Result<Config, CliError> {
        let mut sources = Sources::from_environment();
        let refused =
            |error: trainyard_platform::config::ConfigError| CliError::Input(error.to_string());
        if let Some(file) = &self.file {
            sources = sources.read_file(file).map_err(refused)?;
        }
        for (name, value) in &self.flags {
            sources = sources.with_flag(name, value.as_str());
        }
        Config::resolve(&sources).map_err(refused)
    }
}

/// The settings that are flags: their names as in the environment and as a flag.
static FLAGS: LazyLock<Vec<(&'static str, String)>> = LazyLock::new(|| {
    let public = SETTINGS.iter().filter(|setting| !setting.is_secret);
    public
        .map(|setting| (setting.name, setting.name.to_lowercase().replace('_', "-")))
        .collect()
});

impl Args for PlatformSettings {
    fn augment_args(command: clap::Command) -> clap::Command {
        let file = Arg::new("settings_file")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file of settings, by their names in lower case");
        FLAGS
            .iter()
            .fold(command.arg(file), |command, (name, flag)| {
                let setting = SETTINGS.iter().find(|setting| setting.name == *name);
                let about = setting.map_or("", |setting| setting.about);
                let default = setting.map_or("", |setting| setting.default);
                let unit = setting.map_or("", |setting| setting.unit);
                let value_name = if unit.is_empty() { "VALUE" } else { unit };
                let help = match default {
                    "" => format!("{about} [env: {name}]"),
                    default => format!("{about} [env: {name}] [default: {default}]"),
                };
                command.arg(
                    Arg::new(*name)
                        .long(flag.as_str())
                        .value_name(value_name)
                        .help(help),
                )
            })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PlatformSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |(name, _): &(&'static str, String)| {
            Some((*name, matches.get_one::<String>(name)?.clone()))
        };
        Ok(Self {
            file: matches.get_one::<PathBuf>("settings_file").cloned(),
            flags: FLAGS.iter().filter_map(given).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Reads a time span: seconds, or a number with `s`, `m`, `h` or `d`.
pub fn time_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time span: give seconds, or a number with s, m, h or d");
    let (number, seconds) = match text.char_indices().last() {
        Some((end, 's')) => (&text[..end], 1),
        Some((end, 'm')) => (&text[..end], 60),
        Some((end, 'h')) => (&text[..end], 3600),
        Some((end, 'd')) => (&text[..end], 86_400),
        _ => (text, 1),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: PlatformSettings,
    }

    #[test]
    fn a_flag_wins_over_everything_else() {
        let line =
            Line::try_parse_from(["x", "--bind", "127.0.0.1:0", "--heartbeat-interval", "0.5"])
                .unwrap();
        let config = line.settings.resolve().unwrap();
        assert_eq!(config.bind.port(), 0);
        assert_eq!(config.heartbeat_interval, Duration::from_millis(500));
    }

    #[test]
    fn g022_secrets_are_no_flags() {
        assert!(Line::try_parse_from(["x", "--admin-password", "y"]).is_err());
        assert!(Line::try_parse_from(["x", "--secret-key", "y"]).is_err());
    }

    #[test]
    fn time_spans_have_units() {
        assert_eq!(time_span("90"), Ok(Duration::from_secs(90)));
        assert_eq!(time_span("12h"), Ok(Duration::from_secs(43_200)));
        assert_eq!(time_span("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in [
            "",
            "h",
            "1w",
            "-5",
            "1.5h",
            "99999999999999999999d",
            "184467440737095516d",
        ] {
            assert!(time_span(wrong).is_err(), "{wrong}");
        }
    }
}
