//! How a task's reports reach the platform: what may be lost goes to the socket, what may not to the outbox.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use actix::{Addr, Message};
use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::{FederatedSessionId, InferenceId, TaskId};
use trainyard_shared::message::{ArtifactFile, FromWorker};

use super::actor::Connection;
use super::outbox::{JobAttempt, Outbox, OutboxError};
use super::tokens::WaitingTokens;

/// Sends one message that may be lost: kept in memory while there is no connection, oldest dropped first.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SendReport(pub FromWorker);

/// Delivers what is new in the outbox.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Deliver;

/// Says at once what the worker does, because that has changed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TellActivity;

/// What the worker does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Activity {
    /// The job that runs, if one does.
    pub job: Option<JobAttempt>,
    /// The same in words.
    pub status_message: Option<String>,
    /// The answers that are being given or wait for their turn.
    pub inferences: Vec<InferenceId>,
    /// The evaluations and exports that run or wait for their turn.
    pub tasks: Vec<TaskId>,
    /// The federated session that it takes part in.
    pub session: Option<FederatedSessionId>,
    /// Whether the worker ends, and takes nothing new.
    pub shutting_down: bool,
}

impl Activity {
    /// The one word for it.
    pub fn status(&self) -> WorkerStatus {
        if self.shutting_down {
            WorkerStatus::Draining
        } else if self.job.is_some() {
            WorkerStatus::Training
        } else if self.session.is_some() {
            WorkerStatus::Federated
        } else if let Some(task) = self.tasks.first() {
            match task {
                TaskId::Evaluation(_) => WorkerStatus::Evaluating,
                TaskId::Export(_) => WorkerStatus::Exporting,
            }
        } else if !self.inferences.is_empty() {
            WorkerStatus::Inference
        } else {
            WorkerStatus::Idle
        }
    }
}

/// What the worker does, as its tasks say and its connection tells.
#[derive(Debug, Clone, Default)]
pub struct SharedActivity(Arc<Mutex<Activity>>);

impl SharedActivity {
    /// What the worker does now.
    pub fn get(&self) -> Activity {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes it; gives whether that is worth a heartbeat at once.
    fn change(&self, change: impl FnOnce(&mut Activity)) -> bool {
        let mut activity = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |activity: &Activity| (activity.job, activity.session, activity.status());
        let before = told(&activity);
        change(&mut activity);
        before != told(&activity)
    }
}

/// A task's way to the platform. Cheap to clone; works from any thread.
#[derive(Debug, Clone)]
pub struct Reports {
    outbox: Arc<Outbox>,
    activity: SharedActivity,
    tokens: WaitingTokens,
    connection: Addr<Connection>,
}

impl Reports {
    /// Reports through `connection`, which delivers what is in `outbox` and `tokens`, and tells `activity`.
    pub fn new(
        outbox: Arc<Outbox>,
        activity: SharedActivity,
        tokens: WaitingTokens,
        connection: Addr<Connection>,
    ) -> Self {
        Self {
            outbox,
            activity,
            tokens,
            connection,
        }
    }

    /// Sends a report of which only the newest matters.
    pub fn send(&self, message: FromWorker) {
        // A full mailbox means that newer reports are on their way.
        let _ = self.connection.try_send(SendReport(message));
    }

    /// Keeps a report until it has reached the platform, with the files that it names (described, and
    /// where they lie).
    ///
    /// # Errors
    ///
    /// The disk refused; nothing is kept then.
    pub fn keep(
        &self,
        message: FromWorker,
        files: Vec<(ArtifactFile, PathBuf)>,
    ) -> Result<(), OutboxError> {
        self.outbox.push(message, files)?;
        // A full mailbox does no harm: the connection looks for itself from time to time.
        let _ = self.connection.try_send(Deliver);
        Ok(())
    }

    /// As [`Reports::keep`] for a report without files; on a disk that refuses it is sent once, which
    /// is better than silence.
    pub fn keep_or_send(&self, message: FromWorker) {
        if let Err(error) = self.keep(message.clone(), Vec::new()) {
            tracing::error!(message.kind = message.wire_type(), %error, "message cannot be kept on disk");
            self.send(message);
        }
    }

    /// Sends the next tokens of an answer, behind all its earlier ones.
    pub fn send_tokens(&self, inference_id: &InferenceId, tokens: Vec<String>) {
        self.tokens.add(inference_id, tokens);
        // A full mailbox does no harm: whatever is in it makes the connection look.
        let _ = self.connection.try_send(Deliver);
    }

    /// The rounds of a federated session whose results wait for delivery.
    pub fn undelivered_rounds(&self, session: FederatedSessionId) -> Vec<u64> {
        self.outbox.undelivered_rounds(session)
    }

    /// Whether a masked result of that round and attempt waits for delivery.
    pub fn has_masked(&self, session: FederatedSessionId, round: u64, attempt: u64) -> bool {
        self.outbox.has_masked(session, round, attempt)
    }

    /// Changes what the worker says that it does.
    pub fn change_activity(&self, change: impl FnOnce(&mut Activity)) {
        if self.activity.change(change) {
            // A full mailbox does no harm: the next heartbeat tells it.
            let _ = self.connection.try_send(TellActivity);
        }
    }
}
