//! `trainyard keys`: enrolment keys, with which new workers join.

use clap::Subcommand;
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, items, table, time};
use super::settings::time_span;

/// Commands on enrolment keys.
#[derive(Subcommand)]
pub enum Command {
    /// Make a key and print it, this once, with the command to paste on the new machine.
    Create {
        /// Workers that join with it are named PREFIX-1, PREFIX-2, …
        #[arg(long, value_name = "PREFIX")]
        name_prefix: Option<String>,
        /// How many machines may join with it; any number when absent.
        #[arg(long, value_name = "COUNT")]
        max_uses: Option<u64>,
        /// How long it is valid: seconds, or with a unit as 30m, 12h, 7d; 24h when absent.
        #[arg(long, value_name = "TIME", value_parser = time_span)]
        expires_in: Option<Duration>,
    },
    /// List the keys, without their text.
    List,
    /// Revoke a key; workers that joined with it stay.
    Revoke {
        /// The key's number, as `keys list` shows it.
        id: u64,
    },
}

const KEYS: &[&str] = &["api", "enrollment-keys"];

/// Runs a command on enrolment keys.
pub async fn run(command: Command, platform: &Platform, output: &Output) -> Result<(), CliError> {
    match command {
        Command::Create {
            name_prefix,
            max_uses,
            expires_in,
        } => {
            let mut body = Map::new();
            body.extend(name_prefix.map(|prefix| ("name_prefix".to_owned(), json!(prefix))));
            body.extend(max_uses.map(|uses| ("max_uses".to_owned(), json!(uses))));
            body.extend(
                expires_in.map(|time| ("expires_in_seconds".to_owned(), json!(time.as_secs()))),
            );
            let made = platform.post(KEYS, &Value::Object(body)).await?;
            output.result(&made, |made| {
                format!(
                    "key {}, valid until {}; it is shown this once:\n\n  {}\n\non the new machine:\n\n  {}",
                    cell(made, "/id"),
                    time(made, "/expires_at"),
                    cell(made, "/key"),
                    cell(made, "/command")
                )
            })
        }
        Command::List => output.result(&platform.all(KEYS, &[]).await?, list_in_words),
        Command::Revoke { id } => {
            platform
                .delete(&["api", "enrollment-keys", &id.to_string()])
                .await?;
            output.result(&json!({ "id": id, "revoked": true }), |_| {
                format!("key {id} is revoked")
            })
        }
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |key: &Value| {
        let uses = format!(
            "{} of {}",
            cell(key, "/uses"),
            cell(key, "/max_uses").replace('-', "any number")
        );
        vec![
            cell(key, "/id"),
            cell(key, "/name_prefix"),
            uses,
            time(key, "/expires_at"),
            time(key, "/revoked_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(&["ID", "NAME PREFIX", "USED", "EXPIRES", "REVOKED"], &rows)
}
