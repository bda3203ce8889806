//! `trainyard config`: every setting of the platform with its value and where that came from.

use clap::Args;
use serde_json::json;
use trainyard_platform::config::ShownSetting;

use super::error::CliError;
use super::output::{Output, printable, table};
use super::settings::PlatformSettings;

/// Options of `config`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    settings: PlatformSettings,
}

/// Prints the settings; secrets are not shown.
pub fn run(options: &Options, output: &Output) -> Result<(), CliError> {
    let config = options.settings.resolve()?;
    let settings = config.settings();
    output.result(&json!({ "settings": settings }), |_| {
        table(
            &["SETTING", "VALUE", "FROM", "WHAT FOR"],
            &settings.iter().map(row).collect::<Vec<_>>(),
        )
    })
}

fn row(setting: &ShownSetting) -> Vec<String> {
    let value = setting
        .value
        .as_deref()
        .map_or_else(|| "-".to_owned(), printable);
    let value = if setting.unit.is_empty() {
        value
    } else {
        format!("{value} {}", setting.unit)
    };
    vec![
        setting.name.to_owned(),
        value,
        setting.source.to_string(),
        setting.about.to_owned(),
    ]
}
