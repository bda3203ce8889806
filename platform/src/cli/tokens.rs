//! `trainyard tokens`: personal API tokens, for scripts and for clients that speak OpenAI's API.

use clap::Subcommand;
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, items, table, time};
use super::settings::time_span;
use super::users::Role;

/// Commands on one's own API tokens.
#[derive(Subcommand)]
pub enum Command {
    /// Make a token and print it, this once.
    Create {
        /// What it is for.
        name: String,
        /// What it may do, no more than you; all that you may when absent.
        #[arg(long, value_enum)]
        role: Option<Role>,
        /// How long it is valid: seconds, or with a unit as 30m, 12h, 7d; without end when absent.
        #[arg(long, value_name = "TIME", value_parser = time_span)]
        expires_in: Option<Duration>,
    },
    /// List your tokens, without their text.
    List,
    /// Revoke one of your tokens.
    Revoke {
        /// The token's number, as `tokens list` shows it.
        id: u64,
    },
}

const TOKENS: &[&str] = &["api", "api-tokens"];

/// Runs a command on API tokens.
pub async fn run(command: Command, platform: &Platform, output: &Output) -> Result<(), CliError> {
    match command {
        Command::Create {
            name,
            role,
            expires_in,
        } => {
            let mut body = Map::new();
            body.insert("name".to_owned(), json!(name));
            body.extend(role.map(|role| ("role".to_owned(), json!(role.word()))));
            body.extend(
                expires_in.map(|time| ("expires_in_seconds".to_owned(), json!(time.as_secs()))),
            );
            let made = platform.post(TOKENS, &Value::Object(body)).await?;
            output.result(&made, |made| {
                format!(
                    "token {} of role {}; it is shown this once:\n\n  {}",
                    cell(made, "/id"),
                    cell(made, "/role"),
                    cell(made, "/token")
                )
            })
        }
        Command::List => output.result(&platform.all(TOKENS, &[]).await?, list_in_words),
        Command::Revoke { id } => {
            platform
                .delete(&["api", "api-tokens", &id.to_string()])
                .await?;
            output.result(&json!({ "id": id, "revoked": true }), |_| {
                format!("token {id} is revoked")
            })
        }
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |token: &Value| {
        vec![
            cell(token, "/id"),
            cell(token, "/name"),
            cell(token, "/role"),
            time(token, "/created_at"),
            time(token, "/expires_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(&["ID", "NAME", "ROLE", "CREATED", "EXPIRES"], &rows)
}
