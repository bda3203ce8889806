//! `trainyard workers`: the machines that train.

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, items, pairs, printable, table, time};

/// Commands on workers.
#[derive(Subcommand)]
pub enum Command {
    /// List the workers.
    List,
    /// Show one worker.
    Show {
        /// The worker's number, as `workers list` shows it.
        id: u64,
    },
    /// Let a worker finish what it has and give it nothing new.
    Drain {
        /// The worker's number, as `workers list` shows it.
        id: u64,
    },
    /// Give a drained worker jobs again.
    Resume {
        /// The worker's number, as `workers list` shows it.
        id: u64,
    },
    /// Give a worker a new key, and print it, this once; the old one is void.
    RotateKey {
        /// The worker's number, as `workers list` shows it.
        id: u64,
        /// Send the key to the worker, which must be connected, instead of printing it.
        #[arg(long)]
        deliver: bool,
    },
    /// Forget a worker; its key is void and its connection is closed. Revoke the enrolment key that it joined with
    /// too: as long as that is valid, the machine can join anew.
    Delete {
        /// The worker's number, as `workers list` shows it.
        id: u64,
    },
}

const WORKERS: &[&str] = &["api", "workers"];

/// Runs a command on workers.
pub async fn run(command: Command, platform: &Platform, output: &Output) -> Result<(), CliError> {
    match command {
        Command::List => output.result(&platform.all(WORKERS, &[]).await?, list_in_words),
        Command::Show { id } => {
            let worker = platform
                .get(&["api", "workers", &id.to_string()], &[])
                .await?;
            output.result(&worker, worker_in_words)
        }
        Command::Drain { id } => {
            let worker = platform
                .post(&["api", "workers", &id.to_string(), "drain"], &json!({}))
                .await?;
            output.result(&worker, |_| {
                format!("worker {id} finishes what it has and gets nothing new")
            })
        }
        Command::Resume { id } => {
            let worker = platform
                .post(&["api", "workers", &id.to_string(), "resume"], &json!({}))
                .await?;
            output.result(&worker, |_| format!("worker {id} is given jobs again"))
        }
        Command::RotateKey { id, deliver } => {
            let path = ["api", "workers", &id.to_string(), "rotate-key"];
            let made = platform.post(&path, &json!({"deliver": deliver})).await?;
            output.result(&made, |made| match made["key"].as_str() {
                Some(key) => format!(
                    "the new key of worker {id}; it is shown this once:\n\n  {}\n\nstart the worker with it as WORKER_KEY",
                    printable(key)
                ),
                None => format!("worker {id} was sent its new key"),
            })
        }
        Command::Delete { id } => {
            platform
                .delete(&["api", "workers", &id.to_string()])
                .await?;
            output.result(&json!({ "id": id, "deleted": true }), |_| {
                format!("worker {id} is deleted")
            })
        }
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |worker: &Value| {
        vec![
            cell(worker, "/id"),
            cell(worker, "/name"),
            status(worker),
            cell(worker, "/current_job_id"),
            cell(worker, "/current_session_id"),
            cell(worker, "/hardware/gpu_name"),
            time(worker, "/last_seen_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    let headings = ["ID", "NAME", "STATUS", "JOB", "SESSION", "GPU", "LAST SEEN"];
    table(&headings, &rows)
}

/// What the worker does; and whether it is away, which it may be for a while before it counts as offline.
fn status(worker: &Value) -> String {
    let status = match (worker["status"].as_str(), &worker["draining"]) {
        // Nobody asked for it: it has said that it ends.
        (Some("draining"), Value::Bool(false)) => "shutting down".to_owned(),
        (Some("draining"), _) if worker["busy"] == false => "drained".to_owned(),
        _ => cell(worker, "/status"),
    };
    let away = worker["online"] == true && worker["connected"] == false;
    if away {
        format!("{status}, not connected")
    } else {
        status
    }
}

fn worker_in_words(worker: &Value) -> String {
    let mut lines = vec![
        ("id", cell(worker, "/id")),
        ("uuid", cell(worker, "/uuid")),
        ("name", cell(worker, "/name")),
        ("status", status(worker)),
        ("job", cell(worker, "/current_job_id")),
        ("session", cell(worker, "/current_session_id")),
        ("last seen", time(worker, "/last_seen_at")),
    ];
    for group in ["hardware", "benchmark"] {
        let fields = worker[group].as_object().into_iter().flatten();
        lines.extend(
            fields.map(|(name, _)| (name.as_str(), cell(&worker[group], &format!("/{name}")))),
        );
    }
    pairs(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_drains_says_whether_it_may_be_switched_off_and_whether_anybody_asked_for_it() {
        let told = |more: Value| {
            let mut worker = json!({
                "status": "draining", "online": true, "connected": true, "draining": true, "busy": true
            });
            let fields = more.as_object().unwrap().clone();
            worker.as_object_mut().unwrap().extend(fields);
            status(&worker)
        };
        assert_eq!(told(json!({})), "draining");
        assert_eq!(told(json!({"busy": false})), "drained");
        assert_eq!(told(json!({"draining": false})), "shutting down");
        assert_eq!(
            told(json!({"draining": false, "connected": false})),
            "shutting down, not connected"
        );
        assert_eq!(told(json!({"status": "idle", "draining": false})), "idle");
    }
}
