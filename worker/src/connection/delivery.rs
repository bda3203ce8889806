//! How the outbox and waiting reports get onto a link: in order, files before the message that names them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{JobId, MessageId};
use trainyard_shared::message::{
    Error, ErrorCode, FederatedFailed, FederatedFailedData, FromWorker, JobFailed, JobFailedData,
    LogLevel, WorkerLog, WorkerLogData,
};

use super::actor::{Connection, Pushed};
use super::backoff::jittered;
use super::outbox::{Entry, Outbox, Place, ended_task};
use super::tokens::ended_answer;
use crate::platform_files::FileOwner;
use crate::tasks::transfers::TransferError;
use crate::tasks::{failed_message, masking_failed};

/// The platform may miss the files of one message so many times before the message is given up.
const MISSED_FILES: u32 = 5;
/// Longest pause between tries to store the files of one message.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A platform that has not acknowledged a job's end for so long does not acknowledge at all: the worker
/// is free then, and goes on sending the message after each reconnection.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// How far the outbox is delivered.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The last entry that was sent on this link, and when.
    sent: Option<(Place, Instant)>,
    /// Entries whose files are stored.
    stored: HashSet<Place>,
    /// The entry whose files are being stored, or wait for another try.
    storing: Option<Place>,
    /// Failed tries to store the files of the first entry in line.
    failed: u32,
    /// Ends of answers and tasks that were sent on this link past an entry whose files are not stored yet.
    overtook: HashSet<Place>,
    /// How often the platform missed the files of a message.
    missed: HashMap<MessageId, u32>,
}

impl Delivery {
    /// Everything that waits is sent again on a new link; repeats are harmless.
    pub(super) fn begin_link(&mut self) {
        self.sent = None;
        self.overtook.clear();
    }

    /// The message is not in the outbox any more.
    pub(super) fn forget(&mut self, message: MessageId) {
        self.missed.remove(&message);
    }

    /// The job whose end is not delivered yet: to the platform the worker still has it.
    pub(super) fn job_being_ended(&self, outbox: &Outbox) -> Option<JobId> {
        let (place, job_id) = outbox.undelivered_end()?;
        let given_up = self
            .sent
            .is_some_and(|(sent, at)| sent >= place && at.elapsed() > ACKNOWLEDGED_WITHIN);
        (!given_up).then_some(job_id)
    }
}

impl Connection {
    /// Sends what can be sent: entries of the outbox in order up to one whose files are not stored yet,
    /// and the waiting reports behind the `job_started` that they belong to.
    pub(super) fn deliver(&mut self, ctx: &mut Context<Self>) {
        if !self.is_registered() {
            return;
        }
        while let Some(entry) = self
            .outbox
            .next_after(self.delivery.sent.map(|(place, _)| place))
        {
            if !matches!(entry.message, FromWorker::JobStarted(_)) {
                self.send_waiting();
            }
            if !entry.files.is_empty() && !self.delivery.stored.contains(&entry.place) {
                let place = entry.place;
                self.store_files(entry, ctx);
                self.overtake(place);
                break;
            }
            let is_sent = self.delivery.overtook.remove(&entry.place);
            let pushed = if is_sent {
                Pushed::Queued
            } else {
                self.push_entry(&entry)
            };
            match pushed {
                Pushed::Queued => self.delivery.sent = Some((entry.place, Instant::now())),
                Pushed::NoRoom => break,
                Pushed::TooLarge => self.give_up(entry, "the message is too large"),
            }
        }
        self.send_waiting();
    }

    /// Sends an entry; the end of an answer only behind all its tokens.
    fn push_entry(&mut self, entry: &Entry) -> Pushed {
        let answer = ended_answer(&entry.message);
        if let Some(id) = answer {
            while self.has_room_for(2)
                && let Some(tokens) = self.tokens.next_of(id)
            {
                self.push(tokens);
            }
            if !self.has_room_for(1) {
                return Pushed::NoRoom;
            }
        }
        let pushed = self.push(entry.message.clone());
        if let Some(id) = answer {
            self.tokens.forget(id);
        }
        pushed
    }

    /// Ends of answers and tasks do not wait until another's files of gigabytes are stored.
    fn overtake(&mut self, blocked: Place) {
        let mut last = blocked;
        while let Some(entry) = self.outbox.next_after(Some(last)) {
            last = entry.place;
            let may_pass = ended_answer(&entry.message).is_some()
                || (ended_task(&entry.message).is_some() && entry.files.is_empty());
            if !may_pass || self.delivery.overtook.contains(&entry.place) {
                continue;
            }
            if self.push_entry(&entry) != Pushed::Queued {
                break;
            }
            self.delivery.overtook.insert(entry.place);
        }
    }

    /// Half of the queue is left for messages that matter more.
    fn send_waiting(&mut self) {
        while self.has_room_for(512)
            && let Some(message) = self.waiting.pop_front()
        {
            self.push(message);
        }
        while self.has_room_for(512)
            && let Some(tokens) = self.tokens.next()
        {
            self.push(tokens);
        }
    }

    fn store_files(&mut self, entry: Entry, ctx: &mut Context<Self>) {
        if self.delivery.storing.is_some() {
            return;
        }
        self.delivery.storing = Some(entry.place);
        let files = self.files.clone();
        let storing = async move {
            let owner = match &entry.message {
                FromWorker::CheckpointSaved(message) => FileOwner::Job(message.job_id),
                FromWorker::JobCompleted(message) => FileOwner::Job(message.job_id),
                FromWorker::FederatedUpdate(message) => FileOwner::Session(message.session_id),
                FromWorker::ExportCompleted(message) => FileOwner::Job(message.job_id),
                // No other message names files.
                _ => return (entry, Ok(())),
            };
            for file in &entry.files {
                if let Err(error) = files.store(owner, file).await {
                    return (entry, Err(error));
                }
            }
            (entry, Ok(()))
        };
        ctx.spawn(
            storing
                .into_actor(self)
                .map(|(entry, result), connection, ctx| connection.stored(entry, result, ctx)),
        );
    }

    fn stored(&mut self, entry: Entry, result: Result<(), TransferError>, ctx: &mut Context<Self>) {
        match result {
            Ok(()) => {
                self.delivery.storing = None;
                self.delivery.failed = 0;
                self.delivery.stored.insert(entry.place);
                self.deliver(ctx);
            }
            Err(error) if error.may_pass() => {
                let factor = 1_u32.checked_shl(self.delivery.failed).unwrap_or(u32::MAX);
                self.delivery.failed += 1;
                let pause = self
                    .config
                    .reconnect_delay
                    .saturating_mul(factor)
                    .min(LONGEST_PAUSE);
                tracing::warn!(%error, pause_seconds = pause.as_secs_f64(), "files cannot be stored yet");
                ctx.run_later(jittered(pause, rand::random()), |connection, ctx| {
                    connection.delivery.storing = None;
                    connection.deliver(ctx);
                });
            }
            Err(error) => {
                self.delivery.storing = None;
                self.give_up(entry, &error.to_string());
                self.deliver(ctx);
            }
        }
    }

    /// A message that can't be delivered: a checkpoint less is a line in the log, a result less is the
    /// job's, the round's or the export's failure.
    fn give_up(&mut self, entry: Entry, reason: &str) {
        tracing::error!(
            message.kind = entry.message.wire_type(),
            reason,
            "files cannot be stored"
        );
        match entry.message {
            FromWorker::ExportCompleted(message) => {
                let error = format!("the files cannot be stored: {reason}");
                let kind = Some(FailureKind::Storage);
                let failed = failed_message(message.export_id.into(), error, kind);
                self.say_instead(entry.place, failed);
            }
            FromWorker::JobCompleted(message) => {
                let failed = FromWorker::JobFailed(JobFailed {
                    worker_id: None,
                    job_id: message.job_id,
                    attempt: message.attempt,
                    message_id: Some(MessageId::random()),
                    data: JobFailedData {
                        error: format!("the result cannot be stored: {reason}"),
                        step: message.data.total_steps,
                        last_checkpoint: None,
                        failure_kind: Some(FailureKind::Storage),
                    },
                });
                self.say_instead(entry.place, failed);
            }
            FromWorker::FederatedUpdate(message) if message.data.attempt.is_some() => {
                let data = &message.data;
                let place = (data.round, data.attempt.unwrap_or(0));
                let error = format!("the masked result cannot be stored: {reason}");
                self.push(masking_failed(message.session_id, place, error, None));
                if let Some(id) = message.message_id {
                    self.outbox.remove(id);
                }
            }
            FromWorker::FederatedUpdate(message) => {
                let failed = FromWorker::FederatedFailed(FederatedFailed {
                    worker_id: None,
                    session_id: message.session_id,
                    message_id: Some(MessageId::random()),
                    data: FederatedFailedData {
                        round: Some(message.data.round),
                        error: format!("the round's result cannot be stored: {reason}"),
                        failure_kind: Some(FailureKind::Storage),
                    },
                });
                self.say_instead(entry.place, failed);
            }
            FromWorker::CheckpointSaved(message) => {
                self.waiting.push_back(FromWorker::WorkerLog(WorkerLog {
                    worker_id: None,
                    job_id: message.job_id,
                    attempt: message.attempt,
                    data: WorkerLogData {
                        level: LogLevel::Warn,
                        line: format!(
                            "the checkpoint of step {} cannot be stored: {reason}",
                            message.data.step
                        ),
                    },
                }));
                if let Some(id) = message.message_id {
                    self.outbox.remove(id);
                }
            }
            other => {
                if let Some(id) = other.message_id() {
                    self.outbox.remove(id);
                }
            }
        }
    }

    /// Puts a message into the place of one that can't be delivered.
    fn say_instead(&mut self, place: Place, message: FromWorker) {
        if let Err(error) = self.outbox.replace(place, message.clone()) {
            tracing::error!(%error, "message cannot be kept on disk");
            self.push(message);
        }
    }

    /// The platform does not take a message: it is sent again where that may help, else dropped (PROTOCOL 11).
    pub(super) fn answered_by_error(&mut self, error: Error, ctx: &mut Context<Self>) {
        tracing::warn!(
            error.code = %error.code,
            error.message = error.message,
            message.kind = error.in_reply_to.as_deref().unwrap_or("none"),
            "the platform does not take a message"
        );
        let Some(id) = error.message_id else { return };
        if !error.code.keeps_message() {
            self.outbox.remove(id);
            return self.deliver(ctx);
        }
        let Some(entry) = self.outbox.find(id) else {
            return;
        };
        if error.code == ErrorCode::ArtifactMissing {
            self.delivery.stored.remove(&entry.place);
            let missed = self.delivery.missed.entry(id).or_insert(0);
            *missed += 1;
            if *missed >= MISSED_FILES {
                self.give_up(entry, &error.message);
                return self.deliver(ctx);
            }
        }
        let pause = jittered(self.config.reconnect_delay, rand::random());
        ctx.run_later(pause, |connection, ctx| {
            // Repeats of what was sent already are harmless.
            connection.delivery.begin_link();
            connection.deliver(ctx);
        });
    }
}
