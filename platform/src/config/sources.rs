//! Owns where raw values come from and which one wins.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::table::{SETTINGS, Setting};
use super::{ConfigError, REDACTED, SettingProblem, ShownSetting};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A command-line flag.
    Flag,
    /// An environment variable.
    Environment,
    /// The TOML file of that name.
    File(String),
    /// Built in.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment => f.write_str("environment"),
            Self::File(name) => f.write_str(name),
            Self::Default => f.write_str("default"),
        }
    }
}

impl serde::Serialize for Source {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The raw values of one start, before they are checked.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    flags: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
    file_name: String,
    file: BTreeMap<String, String>,
}

impl Sources {
    /// The environment of this process.
    pub fn from_environment() -> Self {
        Self::default().with_environment(std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    /// Adds environment variables; those that are no settings are left aside.
    pub fn with_environment(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        self.environment.extend(
            variables
                .into_iter()
                .filter(|(name, _)| known(name).is_some()),
        );
        self
    }

    /// Adds the value of a flag, by the setting's name as in the environment.
    pub fn with_flag(mut self, name: &str, value: impl Into<String>) -> Self {
        self.flags.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the settings of a TOML file.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or names a setting that does not exist.
    pub fn read_file(self, path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| file_problem(&name, "", error.to_string()))?;
        self.with_file(&name, &text)
    }

    /// Adds the settings of a TOML file that has been read; `name` is shown in messages.
    ///
    /// # Errors
    /// When it is no TOML, or names a setting that does not exist.
    pub fn with_file(mut self, name: &str, text: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| file_problem(name, "", error.message().to_owned()))?;
        let mut problems = Vec::new();
        for (key, value) in table {
            let setting = (key == key.to_lowercase())
                .then(|| known(&key.to_uppercase()))
                .flatten();
            match (setting, scalar(&value)) {
                (Some(setting), Some(value)) => {
                    self.file.insert(setting.name.to_owned(), value);
                }
                (Some(_), None) => {
                    problems.extend(
                        file_problem(name, &key, "must be text, a number or a boolean").problems,
                    );
                }
                (None, _) => problems.extend(file_problem(name, &key, unknown(&key)).problems),
            }
        }
        self.file_name = name.to_owned();
        if problems.is_empty() {
            Ok(self)
        } else {
            Err(ConfigError { problems })
        }
    }

    fn raw(&self, setting: &Setting) -> Option<(&str, Source)> {
        [
            (&self.flags, Source::Flag),
            (&self.environment, Source::Environment),
            (&self.file, Source::File(self.file_name.clone())),
        ]
        .into_iter()
        .find_map(|(values, source)| {
            let value = values.get(setting.name)?.trim();
            (!value.is_empty()).then_some((value, source))
        })
        .or((!setting.default.is_empty()).then_some((setting.default, Source::Default)))
    }
}

/// Looks up and checks one setting after another, and keeps what was found.
pub(super) struct Resolver<'a> {
    sources: &'a Sources,
    problems: Vec<SettingProblem>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(sources: &'a Sources) -> Self {
        Self {
            sources,
            problems: Vec::new(),
        }
    }

    /// The checked value, or `None` where there is none or it is not valid.
    pub(super) fn optional<T>(
        &mut self,
        name: &str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let setting = known(name).expect("only settings of the table are asked for");
        let (text, source) = self.sources.raw(setting)?;
        match check(text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.problems.push(SettingProblem {
                    name: name.to_owned(),
                    source_of_value: source,
                    message,
                });
                None
            }
        }
    }

    /// The checked value of a setting that has a default. Where it is not valid the default stands in, so that
    /// the remaining settings are checked too; [`Resolver::finish`] then fails.
    pub(super) fn required<T>(
        &mut self,
        name: &str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        let default = known(name)
            .expect("only settings of the table are asked for")
            .default;
        self.optional(name, &check)
            .unwrap_or_else(|| check(default).expect("a default passes its own check"))
    }

    /// Says that settings which are good by themselves do not go together: told of the first of them that was set.
    pub(super) fn refuse(&mut self, names: [&str; 2], message: &str) {
        let set = names.into_iter().find_map(|name| {
            let (_, source) = self.sources.raw(known(name)?)?;
            (source != Source::Default).then(|| (name.to_owned(), source))
        });
        let (name, source_of_value) = set.unwrap_or((names[0].to_owned(), Source::Default));
        self.problems.push(SettingProblem {
            name,
            source_of_value,
            message: message.to_owned(),
        });
    }

    /// All settings with their values in force.
    pub(super) fn finish(self) -> Result<Vec<ShownSetting>, ConfigError> {
        if !self.problems.is_empty() {
            return Err(ConfigError {
                problems: self.problems,
            });
        }
        let shown = SETTINGS.iter().map(|setting| {
            let (value, source) = match self.sources.raw(setting) {
                Some((_, source)) if setting.is_secret => (Some(REDACTED.to_owned()), source),
                Some((value, source)) => (Some(value.to_owned()), source),
                None => (None, Source::Default),
            };
            ShownSetting {
                name: setting.name,
                value,
                source,
                unit: setting.unit,
                about: setting.about,
            }
        });
        Ok(shown.collect())
    }
}

fn known(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

fn unknown(key: &str) -> String {
    let wanted = key.to_uppercase();
    let nearest = SETTINGS
        .iter()
        .map(|setting| {
            (
                strsim::damerau_levenshtein(setting.name, &wanted),
                setting.name,
            )
        })
        .min();
    match nearest {
        Some((distance, name)) if distance <= name.len() / 3 => {
            format!(
                "there is no such setting; did you mean {} ({name})?",
                name.to_lowercase()
            )
        }
        _ => "there is no such setting".to_owned(),
    }
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

fn file_problem(file: &str, key: &str, message: impl Into<String>) -> ConfigError {
    let problem = SettingProblem {
        name: if key.is_empty() {
            "configuration file".to_owned()
        } else {
            key.to_owned()
        },
        source_of_value: Source::File(file.to_owned()),
        message: message.into(),
    };
    ConfigError {
        problems: vec![problem],
    }
}
