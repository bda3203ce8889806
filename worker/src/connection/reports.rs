//! How a task's reports reach the platform: what may be lost goes to the socket, what may not to the outbox.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use actix::{Addr, Message};
use trainyard_shared::message::{ArtifactFile, FromWorker};

use super::actor::Connection;
use super::outbox::{JobAttempt, Outbox, OutboxError};

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

    fn set(&self, activity: Activity) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = activity;
    }
}

/// A task's way to the platform. Cheap to clone; works from any thread.
#[derive(Debug, Clone)]
pub struct Reports {
    outbox: Arc<Outbox>,
    activity: SharedActivity,
    connection: Addr<Connection>,
}

impl Reports {
    /// Reports through `connection`, which delivers what is in `outbox` and tells `activity`.
    pub fn new(
        outbox: Arc<Outbox>,
        activity: SharedActivity,
        connection: Addr<Connection>,
    ) -> Self {
        Self {
            outbox,
            activity,
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

    /// Says what the worker does from now on.
    pub fn set_activity(&self, activity: Activity) {
        let before = self.activity.get();
        self.activity.set(activity.clone());
        if before.job != activity.job {
            // A full mailbox does no harm: the next heartbeat tells it.
            let _ = self.connection.try_send(TellActivity);
        }
    }
}
