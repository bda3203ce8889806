//! `trainyard users`: accounts of people.

use clap::{Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, items, table, time};
use super::terminal;

/// Commands on accounts.
#[derive(Subcommand)]
pub enum Command {
    /// List the accounts.
    List,
    /// Make an account; the password is asked for.
    Create {
        /// The person's e-mail, with which it logs in.
        email: String,
        /// What the person may do.
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
        /// Most jobs of the person at the same time.
        #[arg(long, value_name = "COUNT")]
        max_concurrent_jobs: Option<u64>,
        /// Most storage of the person, in bytes.
        #[arg(long, value_name = "BYTES")]
        max_storage_bytes: Option<u64>,
        /// Read the password from the first line of standard input instead of the terminal.
        #[arg(long)]
        password_stdin: bool,
    },
    /// Change an account's role or password; what it has open is closed.
    Change {
        /// The account's number, as `users list` shows it.
        id: u64,
        /// What the person may do from now on.
        #[arg(long, value_enum)]
        role: Option<Role>,
        /// Ask for a new password.
        #[arg(long)]
        password: bool,
        /// Read the new password from the first line of standard input instead of the terminal.
        #[arg(long)]
        password_stdin: bool,
    },
    /// Delete an account; what it made stays.
    Delete {
        /// The account's number, as `users list` shows it.
        id: u64,
    },
}

/// What a person may do.
#[derive(Clone, Copy, ValueEnum)]
pub enum Role {
    /// Sees and changes everything.
    Admin,
    /// Sees and changes its own, uses all workers.
    Member,
    /// Sees everything and changes nothing.
    Viewer,
}

const USERS: &[&str] = &["api", "users"];

/// Runs a command on accounts.
pub async fn run(command: Command, platform: &Platform, output: &Output) -> Result<(), CliError> {
    match command {
        Command::List => output.result(&platform.all(USERS, &[]).await?, list_in_words),
        Command::Create {
            email,
            role,
            max_concurrent_jobs,
            max_storage_bytes,
            password_stdin,
        } => {
            let password = terminal::new_password(password_stdin)?;
            let mut body =
                json!({ "email": email, "role": role.word(), "password": password.expose() });
            if let Some(jobs) = max_concurrent_jobs {
                body["max_concurrent_jobs"] = json!(jobs);
            }
            if let Some(bytes) = max_storage_bytes {
                body["max_storage_bytes"] = json!(bytes);
            }
            let made = platform.post(USERS, &body).await?;
            output.result(&made, |made| {
                format!(
                    "account {} is made: {}",
                    cell(made, "/id"),
                    cell(made, "/email")
                )
            })
        }
        Command::Change {
            id,
            role,
            password,
            password_stdin,
        } => {
            let mut body = Map::new();
            body.extend(role.map(|role| ("role".to_owned(), json!(role.word()))));
            if password || password_stdin {
                let password = terminal::new_password(password_stdin)?;
                body.insert("password".to_owned(), json!(password.expose()));
            }
            if body.is_empty() {
                return Err(CliError::Input(
                    "nothing to change: give --role or --password".to_owned(),
                ));
            }
            let changed = platform
                .patch(&["api", "users", &id.to_string()], &Value::Object(body))
                .await?;
            output.result(&changed, |user| {
                format!("account {id} is changed: {}", cell(user, "/role"))
            })
        }
        Command::Delete { id } => {
            platform.delete(&["api", "users", &id.to_string()]).await?;
            output.result(&json!({ "id": id, "deleted": true }), |_| {
                format!("account {id} is deleted")
            })
        }
    }
}

impl Role {
    /// The API's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Member => "member",
            Self::Viewer => "viewer",
        }
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |user: &Value| {
        vec![
            cell(user, "/id"),
            cell(user, "/email"),
            cell(user, "/role"),
            time(user, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(&["ID", "E-MAIL", "ROLE", "CREATED"], &rows)
}
