//! `trainyard models`: what can be asked, measured and trained further.

use clap::Subcommand;
use serde_json::Value;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, items, table, time};

/// Commands on models.
#[derive(Subcommand)]
pub enum Command {
    /// List the base models that workers have, and what was trained here.
    List,
}

/// Runs a command on models.
pub async fn run(command: Command, platform: &Platform, output: &Output) -> Result<(), CliError> {
    match command {
        Command::List => {
            output.result(&platform.get(&["api", "models"], &[]).await?, list_in_words)
        }
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |model: &Value| {
        vec![
            cell(model, "/id"),
            cell(model, "/kind"),
            cell(model, "/base_model"),
            where_it_is(model),
            time(model, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(&["MODEL", "KIND", "BASE MODEL", "WHERE", "CREATED"], &rows)
}

fn where_it_is(model: &Value) -> String {
    let workers = model["worker_ids"].as_array().map(Vec::as_slice);
    let workers = workers.unwrap_or_default();
    match (workers, model["verified"].as_bool()) {
        ([], Some(true)) => "stored here".to_owned(),
        ([], Some(false)) => "not stored here".to_owned(),
        ([], None) => "-".to_owned(),
        ([one], _) => format!("worker {one}"),
        (several, _) => {
            let names: Vec<_> = several.iter().map(Value::to_string).collect();
            format!("workers {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn models_are_listed_with_where_they_are() {
        let list = json!({"items": [
            {"id": "org/tiny", "kind": "base", "worker_ids": [1, 3]},
            {"id": "job-2", "kind": "adapter", "base_model": "org/tiny", "job_id": 2, "verified": true,
             "created_at": "2026-01-02T03:04:05.1Z"},
        ]});
        assert_eq!(
            list_in_words(&list),
            "MODEL     KIND     BASE MODEL  WHERE         CREATED\n\
             org/tiny  base     -           workers 1, 3  -\n\
             job-2     adapter  org/tiny    stored here   2026-01-02T03:04:05Z"
        );
    }
}
