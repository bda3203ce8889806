//! What `trainyard federated` and `trainyard coordinators` have in common: sessions are followed, ended, deleted, and
//! what they made is fetched.

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use super::client::Platform;
use super::error::CliError;
use super::jobs::download::{Maker, Place, fetch_all};
use super::output::{Output, cell, remark};

/// Between two looks at how far a session is.
const LOOK: Duration = Duration::from_millis(500);

/// Commands on one session that there is.
#[derive(Subcommand)]
pub enum Command {
    /// Follow a session until it ends; the exit code is 0 only if all rounds are done.
    Watch {
        /// The session's number.
        id: u64,
    },
    /// End a session; what has been merged so far is its final adapter.
    Stop {
        /// The session's number.
        id: u64,
    },
    /// Delete a session that has ended, with its final adapter.
    Delete {
        /// The session's number.
        id: u64,
    },
    /// Fetch the final adapter; into the folder federated-ID where no other is named.
    Download {
        /// The session's number.
        id: u64,
        #[command(flatten)]
        place: Place,
    },
}

/// One of the two ways to train in rounds.
pub struct Sessions {
    /// As in `/api/federated`.
    pub collection: &'static str,
    /// How many rounds of a session are over, and how many there are.
    pub progress: fn(&Value) -> (u64, u64),
    /// Where a session stands that goes on.
    pub standing: fn(&Value) -> String,
}

impl Sessions {
    /// Runs a command on a session.
    pub async fn run(
        &self,
        command: Command,
        platform: &Platform,
        output: &Output,
    ) -> Result<ExitCode, CliError> {
        match command {
            Command::Watch { id } => return self.watch(id, platform, output).await,
            Command::Stop { id } => {
                let path = ["api", self.collection, &id.to_string(), "stop"];
                let session = platform.post(&path, &json!({})).await?;
                output.result(&session, |session| {
                    format!("session {id} is {}", cell(session, "/status"))
                })?;
            }
            Command::Delete { id } => {
                platform
                    .delete(&["api", self.collection, &id.to_string()])
                    .await?;
                output.result(&json!({"id": id, "deleted": true}), |_| {
                    format!("session {id} is deleted")
                })?;
            }
            Command::Download { id, place } => {
                let maker = Maker::session(self.collection, id);
                fetch_all(&maker, &place, platform, output).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Follows a session to its end.
    pub async fn watch(
        &self,
        id: u64,
        platform: &Platform,
        output: &Output,
    ) -> Result<ExitCode, CliError> {
        let text = id.to_string();
        let path = ["api", self.collection, text.as_str()];
        let bar = (io::stderr().is_terminal() && !output.is_json()).then(bar);
        let mut told = String::new();
        let mut session = platform.get(&path, &[]).await?;
        while ["preparing", "open"].contains(&cell(&session, "/status").as_str()) {
            let stands = (self.standing)(&session);
            match &bar {
                Some(bar) => {
                    let (over, all) = (self.progress)(&session);
                    bar.set_length(all);
                    bar.set_position(over);
                    bar.set_message(stands);
                }
                None if told != stands && !output.is_json() => {
                    remark(&stands);
                    told = stands;
                }
                None => {}
            }
            tokio::time::sleep(LOOK).await;
            session = platform.get_again(&path).await?;
        }
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        output.result(&session, |session| self.end(session))?;
        Ok(match session["status"] == "finished" {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// How a session ended.
    fn end(&self, session: &Value) -> String {
        let (over, all) = (self.progress)(session);
        let mut words = format!(
            "session {} is {}",
            cell(session, "/id"),
            cell(session, "/status")
        );
        match (over, session["model"].is_null()) {
            (0, true) => words.push_str(", before its first round was over"),
            _ => words.push_str(&format!(" after {over} of {all} rounds")),
        }
        for more in ["/error", "/model"] {
            if session.pointer(more).is_some_and(Value::is_string) {
                words.push_str(&format!(": {}", cell(session, more)));
            }
        }
        words
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{pos}/{len} rounds [{bar:20}] {wide_msg}")
        .expect("the template is a constant that is valid");
    ProgressBar::new(0).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_with_the_rounds_that_were_and_what_came_of_them() {
        let sessions = Sessions {
            collection: "federated",
            progress: |session| {
                (
                    session["over"].as_u64().unwrap(),
                    session["rounds"].as_u64().unwrap(),
                )
            },
            standing: |_| String::new(),
        };
        let failed = json!({
            "id": 1, "status": "failed", "over": 0, "rounds": 2, "error": "no such model", "model": null
        });
        assert_eq!(
            sessions.end(&failed),
            "session 1 is failed, before its first round was over: no such model"
        );
        let stopped = json!({
            "id": 7, "status": "stopped", "over": 1, "rounds": 2, "error": null, "model": "federated-7"
        });
        assert_eq!(
            sessions.end(&stopped),
            "session 7 is stopped after 1 of 2 rounds: federated-7"
        );
    }
}
