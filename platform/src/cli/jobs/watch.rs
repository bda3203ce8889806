//! `trainyard jobs watch`: follows a job over the dashboards' socket until it ends.
//!
//! A socket that breaks is opened again with a fresh token, however often; the platform tells the job's present
//! state at each subscription, so nothing is missed that matters.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use trainyard_shared::JobStatus;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::{FromDashboard, JobUpdate, SubscribeJob, ToDashboard};
use url::Url;

use super::progress::Progress;
use crate::cli::client::Platform;
use crate::cli::error::CliError;
use crate::cli::output::{Output, cell, remark};

/// First and longest wait before a broken socket is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(30);
/// How long opening the socket may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);
/// Where nothing comes for so long, the platform is asked over REST whether the job has ended.
const QUIET_INTERVAL: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Follows the job and prints how it ended.
pub async fn run(id: u64, platform: &Platform, output: &Output) -> Result<ExitCode, CliError> {
    let job_id = i64::try_from(id)
        .ok()
        .and_then(|id| JobId::try_from(id).ok());
    let job_id = job_id.ok_or_else(|| CliError::Input(format!("there is no job {id}")))?;
    let mut progress = Progress::new(output, io::stderr().is_terminal());
    let followed = follow(job_id, platform, &mut progress, output).await;
    progress.end();
    followed?;
    let job = job(job_id, platform).await?;
    let shown = json!({ "type": "job", "job": job });
    output.result(&shown, |shown| end_in_words(&shown["job"]))?;
    let is_completed = job["status"] == JobStatus::Completed.as_str();
    Ok(if is_completed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns once the job has ended.
async fn follow(
    job_id: JobId,
    platform: &Platform,
    progress: &mut Progress,
    output: &Output,
) -> Result<(), CliError> {
    let mut socket = open(job_id, platform).await?;
    loop {
        if watch(socket, job_id, platform, progress, output).await? == Watched::Ended {
            return Ok(());
        }
        socket = open_again(job_id, platform).await?;
    }
}

/// Opens the socket again after it broke, as often as it takes.
async fn open_again(job_id: JobId, platform: &Platform) -> Result<Socket, CliError> {
    let mut delay = RECONNECT_DELAY;
    loop {
        tokio::time::sleep(delay).await;
        match open(job_id, platform).await {
            Err(error) if error.is_passing() => remark(&format!("{error}; trying again")),
            opened => return opened,
        }
        delay = (delay * 2).min(MAX_RECONNECT_DELAY);
    }
}

/// Gets a token, opens the socket with it and subscribes.
async fn open(job_id: JobId, platform: &Platform) -> Result<Socket, CliError> {
    let token = platform.post(&["api", "ws-token"], &json!({})).await?;
    let url = socket_url(platform, &token)?;
    let unreachable = |reason: String| CliError::Unreachable {
        platform: platform.base().to_string(),
        reason,
    };
    let opened = tokio::time::timeout(OPEN_TIMEOUT, connect_async(url.as_str())).await;
    let (mut socket, _) = opened
        .map_err(|_| unreachable("the dashboards' socket does not open".to_owned()))?
        .map_err(|error| unreachable(reason(&error)))?;
    let subscribe = FromDashboard::from(SubscribeJob { job_id }).encode();
    socket
        .send(Message::text(subscribe))
        .await
        .map_err(|error| unreachable(reason(&error)))?;
    Ok(socket)
}

/// The socket's address below the platform's own: the one that the platform names may be meant for browsers.
fn socket_url(platform: &Platform, token: &Value) -> Result<Url, CliError> {
    let (Some(user_id), Some(secret)) = (token["user_id"].as_u64(), token["token"].as_str()) else {
        return Err(CliError::UnexpectedAnswer(
            "no token for the socket".to_owned(),
        ));
    };
    let mut url = platform.url(&["ws", "user", &user_id.to_string()]);
    let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
    url.set_scheme(scheme)
        .expect("ws and wss may follow http and https");
    url.query_pairs_mut().append_pair("token", secret);
    Ok(url)
}

/// What went wrong with the socket, without its address: that holds the token.
fn reason(error: &SocketError) -> String {
    match error {
        SocketError::Http(response) => {
            format!("the socket is refused with HTTP {}", response.status())
        }
        SocketError::Url(_) => "the socket's address is not valid".to_owned(),
        other => other.to_string(),
    }
}

#[derive(PartialEq)]
enum Watched {
    /// The job has ended.
    Ended,
    /// The socket has closed before.
    Closed,
}

async fn watch(
    mut socket: Socket,
    job_id: JobId,
    platform: &Platform,
    progress: &mut Progress,
    output: &Output,
) -> Result<Watched, CliError> {
    loop {
        let frame = match tokio::time::timeout(QUIET_INTERVAL, socket.next()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None | Some(Err(_))) => return Ok(Watched::Closed),
            Err(_) => match job(job_id, platform).await {
                Ok(job) if has_ended(&job) => return Ok(Watched::Ended),
                Ok(_) => continue,
                Err(error) if error.is_passing() => return Ok(Watched::Closed),
                Err(error) => return Err(error),
            },
        };
        let Message::Text(text) = frame else { continue };
        let Ok(mut message) = ToDashboard::decode(&text) else {
            continue;
        };
        if let ToDashboard::Error(error) = &message {
            return Err(CliError::Input(error.message.clone()));
        }
        if subject(&message) != Some(job_id) {
            continue;
        }
        if let ToDashboard::JobUpdate(update) = &mut message {
            say_why_it_waits(update, platform).await;
        }
        progress.show(&message, &text, Instant::now(), output)?;
        if matches!(&message, ToDashboard::JobUpdate(update) if update.data.status.is_ended()) {
            return Ok(Watched::Ended);
        }
    }
}

/// Why a queued job waits is told by the job's page, not on the socket. Where that does not answer it stays
/// unsaid.
async fn say_why_it_waits(update: &mut JobUpdate, platform: &Platform) {
    let is_unsaid = update.data.waiting_because.is_none();
    if update.data.status == JobStatus::Queued && is_unsaid {
        let job = job(update.job_id, platform).await.unwrap_or_default();
        update.data.waiting_because = job["waiting_because"].as_str().map(str::to_owned);
    }
}

/// The job that a message is about.
fn subject(message: &ToDashboard) -> Option<JobId> {
    match message {
        ToDashboard::JobUpdate(message) => Some(message.job_id),
        ToDashboard::TrainingFailed(message) => Some(message.job_id),
        ToDashboard::JobCompleted(message) => Some(message.job_id),
        ToDashboard::CheckpointSaved(message) => Some(message.job_id),
        ToDashboard::WorkerLog(message) => Some(message.job_id),
        _ => None,
    }
}

async fn job(job_id: JobId, platform: &Platform) -> Result<Value, CliError> {
    platform
        .get(&["api", "jobs", &job_id.to_string()], &[])
        .await
}

fn has_ended(job: &Value) -> bool {
    job["status"]
        .as_str()
        .and_then(JobStatus::from_word)
        .is_some_and(JobStatus::is_ended)
}

fn end_in_words(job: &Value) -> String {
    let mut words = format!("job {} {}", cell(job, "/id"), cell(job, "/status"));
    if job["progress"]["step"].is_u64() {
        words.push_str(&format!(" at step {}", cell(job, "/progress/step")));
    }
    if let Some(loss) = job["progress"]["loss"].as_f64() {
        words.push_str(&format!(", loss {loss:.4}"));
    }
    if job["error"].is_string() {
        words.push_str(&format!(": {}", cell(job, "/error")));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_told_with_its_reason() {
        let job = json!({"id": 3, "status": "failed", "progress": {"step": 7, "loss": 0.5}, "error": "not started"});
        assert_eq!(
            end_in_words(&job),
            "job 3 failed at step 7, loss 0.5000: not started"
        );
        let job = json!({"id": 3, "status": "completed", "progress": null, "error": null});
        assert_eq!(end_in_words(&job), "job 3 completed");
    }

    #[test]
    fn only_what_may_heal_is_tried_again() {
        let refused = |status| CliError::Refused {
            status,
            code: String::new(),
            message: String::new(),
            details: Value::Null,
        };
        assert!(refused(503).is_passing() && refused(429).is_passing());
        assert!(!refused(401).is_passing() && !refused(404).is_passing());
        let unreachable = CliError::Unreachable {
            platform: String::new(),
            reason: String::new(),
        };
        assert!(unreachable.is_passing());
    }
}
