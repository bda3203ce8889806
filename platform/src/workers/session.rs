//! One worker's connection.
//!
//! 1. Until it has authenticated (10 s) only `authenticate` is taken; until it has registered (60 s) only
//!    `worker_register`; anything else is answered with `error`.
//! 2. Every message notes a sign of life. Those about the worker go to the supervisor, those about a job to
//!    that job's actor; the next frame is not read before the answer is there, so a worker that sends faster
//!    than the platform takes it in is slowed down.
//! 3. A message with a `message_id` is acknowledged when what it changed is in the database.
//! 4. A newer connection of the same worker takes over: from that moment nothing that this one says counts.

mod entering;
mod federated;
mod inference;
mod tasks;

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use actix::prelude::*;
use actix_http::ws::{Message as WsMessage, ProtocolError};
use actix_web_actors::ws::WebsocketContext;
use bytestring::ByteString;
use trainyard_shared::Secret;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{InferenceId, MessageId, WorkerUuid};
use trainyard_shared::message::{
    Ack, DecodeError, EnrollmentComplete, EnrollmentCompleteData, Error, ErrorCode, FromDashboard,
    FromWorker, ToDashboard, ToWorker,
};

use super::event::{NamedWork, ReportedBy, SelfReport};
use super::job_messages::{self, JobMessage};
use super::lease::Lease;
use super::supervisor::{Disconnected, Reported, Supervisor};
use super::{WorkerLimits, store};
use crate::artifacts::ArtifactError;
use crate::evaluations::Evaluations;
use crate::exports::Exports;
use crate::jobs::directory::JobError;
use crate::jobs::event::Answer;
use crate::server::AppState;
use crate::sockets::Session;
use crate::sockets::caps::WorkerPlace;
use crate::sockets::incoming::{Incoming, Received};
use crate::sockets::outgoing::Outgoing;
use crate::sockets::rate::OF_WORKER;
use federated::FederatedMessage;
use inference::InferenceMessage;

/// Messages that may wait.
const MAILBOX: usize = 256;
/// How often it is looked whether the connection is still there.
const LOOK: Duration = Duration::from_millis(500);

/// The actor.
pub struct WorkerSession {
    state: actix_web::web::Data<AppState>,
    uuid: WorkerUuid,
    address: IpAddr,
    limits: WorkerLimits,
    outgoing: Outgoing,
    incoming: Incoming,
    place: WorkerPlace,
    stage: Stage,
    refused_inference: Option<InferenceId>,
    ending: bool,
}

/// How far the worker has come.
enum Stage {
    Connected,
    Authenticated(HeldLease),
    Registered(HeldLease),
}

/// A lease whose connection counts as gone when this is dropped, however that comes about.
struct HeldLease {
    lease: Lease,
    supervisor: Addr<Supervisor>,
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let gone = Disconnected(self.lease.clone());
        if let Err(error) = self.supervisor.try_send(gone) {
            tracing::warn!(worker.id = %self.lease.worker(), %error, "the end of a connection is noticed late");
        }
    }
}

type Context = WebsocketContext<WorkerSession>;

/// Send this frame to the worker.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Deliver(pub ByteString);

/// End the connection.
#[derive(Message)]
#[rtype(result = "()")]
pub struct End {
    /// The close code.
    pub code: u16,
    /// For a person.
    pub reason: Cow<'static, str>,
}

impl WorkerSession {
    /// A session on a connection that has just been opened from that address.
    pub fn new(
        state: actix_web::web::Data<AppState>,
        uuid: WorkerUuid,
        address: IpAddr,
        place: WorkerPlace,
        outgoing: Outgoing,
    ) -> Self {
        let incoming = Incoming::new(state.config.max_frame_bytes, OF_WORKER);
        Self {
            state,
            uuid,
            address,
            limits: WorkerLimits::default(),
            outgoing,
            incoming,
            place,
            stage: Stage::Connected,
            refused_inference: None,
            ending: false,
        }
    }

    fn lease(&self) -> Option<&Lease> {
        match &self.stage {
            Stage::Connected => None,
            Stage::Authenticated(held) | Stage::Registered(held) => Some(&held.lease),
        }
    }

    fn say(&mut self, message: impl Into<ToWorker>, context: &mut Context) {
        self.push(message.into().encode().into(), context);
    }

    fn push(&mut self, text: ByteString, context: &mut Context) {
        if self.outgoing.push(text, None).is_err() {
            tracing::warn!(worker.uuid = %self.uuid, "worker takes too little of what is sent to it");
            let reason = "too much is waiting to be taken";
            self.outgoing.close_now(close::RATE_LIMITED, reason);
            self.end(close::RATE_LIMITED, reason, context);
        }
    }

    fn refuse(&mut self, error: Error, context: &mut Context) {
        tracing::debug!(worker.uuid = %self.uuid, code = %error.code, message = error.message, "refused");
        self.say(error, context);
        if self.incoming.count_error(self.state.actors.clock.now()) {
            let reason = "too many messages that had to be refused";
            self.end(close::PROTOCOL_VIOLATION, reason, context);
        }
    }

    fn refuse_with(&mut self, message: &FromWorker, code: ErrorCode, why: &str, ctx: &mut Context) {
        let error = Error {
            message_id: message.message_id(),
            ..Error::in_reply_to(message.wire_type(), code, why)
        };
        self.refuse(error, ctx);
    }

    fn take(&mut self, text: &str, context: &mut Context) {
        if let Some(lease) = self.lease() {
            if !lease.is_current() {
                return;
            }
            lease.heard(self.state.actors.clock.now());
        }
        match FromWorker::decode(text) {
            Ok(message) => self.take_message(message, context),
            Err(error) => self.take_malformed(&error, context),
        }
    }

    fn take_malformed(&mut self, error: &DecodeError, context: &mut Context) {
        let named = error.in_reply_to.as_deref();
        match (&self.stage, named) {
            (Stage::Connected, Some("authenticate")) => {
                let reason = error.message.clone();
                self.fail_authentication(reason, context);
            }
            (Stage::Connected, Some(named)) if is_spoken(named) => {
                let refusal = Error {
                    code: ErrorCode::NotAuthenticated,
                    message: "authenticate comes first".to_owned(),
                    ..error.to_error()
                };
                self.refuse(refusal, context);
            }
            _ => self.refuse(error.to_error(), context),
        }
    }

    fn take_message(&mut self, message: FromWorker, context: &mut Context) {
        if message
            .worker_id()
            .is_some_and(|named| !self.uuid.is_named_by(named))
        {
            let why = "worker_id names another worker";
            return self.refuse_with(&message, ErrorCode::WrongWorker, why, context);
        }
        match (&self.stage, message) {
            (Stage::Connected, FromWorker::Authenticate(presented)) => {
                self.authenticate(presented, context);
            }
            (Stage::Connected, other) => {
                let why = "authenticate comes first";
                self.refuse_with(&other, ErrorCode::NotAuthenticated, why, context);
            }
            (_, other @ FromWorker::Authenticate(_)) => {
                let why = "this connection is authenticated already";
                self.refuse_with(&other, ErrorCode::InvalidMessage, why, context);
            }
            (
                Stage::Authenticated(held) | Stage::Registered(held),
                FromWorker::WorkerRegister(register),
            ) => {
                let lease = held.lease.clone();
                self.register(lease, register, context);
            }
            (Stage::Authenticated(_), other) => {
                let why = "worker_register comes first";
                self.refuse_with(&other, ErrorCode::NotRegistered, why, context);
            }
            (Stage::Registered(held), message) => {
                let lease = held.lease.clone();
                self.take_from_registered(lease, message, context);
            }
        }
    }

    fn take_from_registered(&mut self, lease: Lease, message: FromWorker, ctx: &mut Context) {
        let (report, metrics, named) = match message {
            FromWorker::Heartbeat(heartbeat) => {
                self.stop_unwanted(&lease, heartbeat.current_inference_ids, ctx);
                let status = heartbeat.status;
                let named = NamedWork {
                    evaluations: job_messages::named(status, heartbeat.current_evaluation_ids),
                    exports: heartbeat.current_export_ids,
                    sessions: job_messages::named(status, heartbeat.current_session_ids),
                };
                let report = SelfReport {
                    by: ReportedBy::Heartbeat,
                    status: heartbeat.status,
                    current_job: heartbeat.current_job_id,
                };
                (report, None, named)
            }
            FromWorker::Pong(pong) => {
                let report = job_messages::self_report(&pong);
                self.stop_unwanted(&lease, pong.current_inference_ids, ctx);
                let named = NamedWork {
                    evaluations: job_messages::named(report.status, pong.current_evaluation_ids),
                    exports: pong.current_export_ids,
                    sessions: job_messages::named(report.status, pong.current_session_ids),
                };
                (report, None, named)
            }
            FromWorker::WorkerMetrics(metrics) => {
                let report = SelfReport {
                    by: ReportedBy::Metrics,
                    status: metrics.data.status,
                    current_job: None,
                };
                (report, Some(Box::new(metrics.data)), NamedWork::default())
            }
            FromWorker::Error(error) => {
                tracing::warn!(
                    worker.uuid = %self.uuid, code = %error.code, message = error.message,
                    "worker refused a message"
                );
                return;
            }
            other => return self.take_work_message(lease, other, ctx),
        };
        let reported = Reported {
            lease,
            report,
            metrics,
            named,
        };
        let told = self.state.actors.supervisor.send(reported);
        // Fails only when the platform stops.
        ctx.wait(told.into_actor(self).map(|_, _, _| ()));
    }

    fn take_work_message(&mut self, lease: Lease, message: FromWorker, context: &mut Context) {
        let message = match InferenceMessage::from_wire(message) {
            Ok(message) => return self.take_inference_message(lease, message, context),
            Err(other) => *other,
        };
        let message = match self.take_task_message::<Evaluations>(&lease, message, context) {
            Ok(()) => return,
            Err(other) => *other,
        };
        let message = match self.take_task_message::<Exports>(&lease, message, context) {
            Ok(()) => return,
            Err(other) => *other,
        };
        let message = match FederatedMessage::from_wire(message) {
            Ok(message) => return self.take_federated_message(lease, message, context),
            Err(other) => *other,
        };
        let message_id = message.message_id();
        let wire_type = message.wire_type();
        let refusal = move |code, why: String| Error {
            message_id,
            ..Error::in_reply_to(wire_type, code, why)
        };
        let job_message = match JobMessage::from_wire(message) {
            Ok(job_message) => job_message,
            Err(refused) => return self.refuse(refusal(refused.code, refused.message), context),
        };
        let actors = self.state.actors.clone();
        let job = job_message.job;
        let handled = async move {
            let event = job_message.event(lease.worker());
            actors.jobs.report(&actors, job, event, lease).await
        };
        context.wait(
            handled
                .into_actor(self)
                .map(move |outcome, session, context| {
                    let refused = match outcome {
                        Ok(Answer::Taken | Answer::Refused) => None,
                        Ok(Answer::Ignored(why)) => {
                            tracing::warn!(worker.uuid = %session.uuid, job.id = %job, why, "{wire_type} is ignored");
                            None
                        }
                        Ok(Answer::WrongWorker) | Err(JobError::NotFound) => {
                            tracing::warn!(worker.uuid = %session.uuid, job.id = %job, "{wire_type} of another's job");
                            let why = format!("job {job} is not this worker's");
                            Some((ErrorCode::WrongWorker, why))
                        }
                        Err(JobError::Artifact(error)) => Some(refusal_of_file(&error)),
                        Err(JobError::Superseded) => return,
                        Err(error) => {
                            tracing::warn!(job.id = %job, %error, "{wire_type} could not be taken");
                            Some((ErrorCode::TryAgain, "try again later".to_owned()))
                        }
                    };
                    match refused {
                        None => session.acknowledge(message_id, context),
                        Some((code, why)) => session.refuse(refusal(code, why), context),
                    }
                }),
        );
    }

    fn acknowledge(&mut self, message_id: Option<MessageId>, context: &mut Context) {
        if let Some(message_id) = message_id {
            self.say(Ack { message_id }, context);
        }
    }
}

impl Stage {
    fn register(&mut self) {
        *self = match std::mem::replace(self, Self::Connected) {
            Self::Authenticated(held) | Self::Registered(held) => Self::Registered(held),
            Self::Connected => Self::Connected,
        };
    }
}

/// Whether anybody on the wire says messages of that type.
fn is_spoken(wire_type: &str) -> bool {
    let spoken = [
        FromWorker::TYPES,
        FromDashboard::TYPES,
        ToWorker::TYPES,
        ToDashboard::TYPES,
    ];
    spoken.iter().any(|types| types.contains(&wire_type))
}

/// How a file is refused that a message names. One that is only missing may still come.
fn refusal_of_file(error: &ArtifactError) -> (ErrorCode, String) {
    let code = match error {
        ArtifactError::ForeignKey { .. } => ErrorCode::InvalidMessage,
        ArtifactError::NotStored { .. } => ErrorCode::ArtifactMissing,
        ArtifactError::Storage(_) => ErrorCode::TryAgain,
    };
    (code, error.to_string())
}

/// The message that brings a worker its own key.
pub fn enrollment_complete(worker: &store::KnownWorker, api_key: Secret) -> EnrollmentComplete {
    EnrollmentComplete {
        data: EnrollmentCompleteData {
            worker_id: worker.id,
            worker_name: worker.name.clone(),
            api_key,
        },
    }
}

impl Actor for WorkerSession {
    type Context = Context;

    fn started(&mut self, context: &mut Context) {
        context.set_mailbox_capacity(MAILBOX);
        context.run_later(self.limits.authentication, |session, context| {
            if matches!(session.stage, Stage::Connected) {
                let reason = "no authenticate in time";
                session.end(close::DEADLINE_PASSED, reason, context);
            }
        });
        // A connection that was reset ends without a word on the receiving side.
        context.run_interval(LOOK, |session, context| {
            if session.outgoing.has_ended() {
                session.end(close::GOING_AWAY, "", context);
            }
        });
    }

    fn stopped(&mut self, _: &mut Context) {
        let reason = "the session has ended";
        self.outgoing.close(close::GOING_AWAY, reason);
    }
}

impl Session for WorkerSession {
    fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    fn ending(&mut self) -> &mut bool {
        &mut self.ending
    }
}

impl StreamHandler<Result<WsMessage, ProtocolError>> for WorkerSession {
    fn handle(&mut self, frame: Result<WsMessage, ProtocolError>, context: &mut Context) {
        if self.outgoing.is_closing() {
            return;
        }
        match self.incoming.take(frame, self.state.actors.clock.now()) {
            Received::Text(text) => self.take(&text, context),
            Received::Ping(payload) => self.outgoing.pong(payload),
            Received::Nothing => {}
            Received::Closed => self.end(1000, "", context),
            Received::Fault(fault) => self.end(fault.code, fault.reason, context),
        }
    }
}

impl Handler<Deliver> for WorkerSession {
    type Result = ();

    fn handle(&mut self, Deliver(text): Deliver, context: &mut Context) {
        self.push(text, context);
    }
}

impl Handler<End> for WorkerSession {
    type Result = ();

    fn handle(&mut self, end: End, context: &mut Context) {
        Session::end(self, end.code, &end.reason, context);
    }
}
