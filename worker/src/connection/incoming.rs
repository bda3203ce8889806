//! What the platform says, and what the connection does about it.

use std::time::Duration;

use actix::prelude::*;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use trainyard_shared::WorkerStatus;
use trainyard_shared::frame::close;
use trainyard_shared::ids::{FederatedSessionId, MessageId, TaskId};
use trainyard_shared::message::{
    EnrollmentComplete, FromWorker, Ping, Pong, ToWorker, WorkerRegister,
};

use super::actor::Connection;
use super::answers;
use super::backoff::NextTry;
use super::link::LinkState;
use crate::tasks::{Order, SumOrder, TaskCommand};

/// Answers of ours to frames that are no messages, at most so many a minute.
const ERROR_ANSWERS_PER_MINUTE: usize = 10;

impl Connection {
    /// Takes one frame of the current socket.
    pub(super) fn heard(&mut self, frame: tungstenite::Message, ctx: &mut Context<Self>) {
        if let Some(link) = &mut self.link {
            link.heard();
        }
        match frame {
            tungstenite::Message::Text(text) => match ToWorker::decode(&text) {
                Ok(message) => self.take(message, ctx),
                Err(error) => {
                    tracing::warn!(
                        message.kind = error.in_reply_to.as_deref().unwrap_or("none"),
                        %error,
                        "message of the platform is not understood"
                    );
                    if let Some(answer) = answers::to_undecodable(error) {
                        self.answer(answer, ctx);
                    }
                }
            },
            tungstenite::Message::Binary(_) => {
                tracing::warn!("the platform sent a binary frame");
                self.close(close::UNSUPPORTED, NextTry::ByBackoff, ctx);
            }
            tungstenite::Message::Close(frame) => self.closed_by_platform(frame),
            tungstenite::Message::Ping(_)
            | tungstenite::Message::Pong(_)
            | tungstenite::Message::Frame(_) => {}
        }
    }

    fn take(&mut self, message: ToWorker, ctx: &mut Context<Self>) {
        tracing::debug!(message.kind = message.wire_type(), "message came");
        match message {
            ToWorker::EnrollmentComplete(issued) => self.enrolled(issued, ctx),
            ToWorker::Authenticated(_) => self.authenticated(ctx),
            ToWorker::AuthFailed(failed) => self.refused(&failed.reason, ctx),
            ToWorker::Ping(ping) => self.pong(ping),
            ToWorker::Ack(ack) => self.acknowledged(ack.message_id, ctx),
            ToWorker::Error(error) => self.answered_by_error(error, ctx),
            ToWorker::StartTraining(start) => self.command(TaskCommand::Start(Box::new(start))),
            ToWorker::StopTraining(stop) => self.command(TaskCommand::Stop(stop.job_id)),
            ToWorker::StartInference(start) => {
                self.command(TaskCommand::StartInference(Box::new(start)));
            }
            ToWorker::StopInference(stop) => {
                self.command(TaskCommand::StopInference(stop.inference_id));
            }
            ToWorker::StartEvaluation(start) => {
                self.command(TaskCommand::StartTask(Box::new(start.into())));
            }
            ToWorker::StopEvaluation(stop) => {
                self.command(TaskCommand::StopTask(stop.evaluation_id.into()));
            }
            ToWorker::StartExport(start) => {
                self.command(TaskCommand::StartTask(Box::new(start.into())));
            }
            ToWorker::StopExport(stop) => {
                self.command(TaskCommand::StopTask(stop.export_id.into()));
            }
            ToWorker::StartFederatedTraining(start) => {
                let id = start.session_id;
                self.command(TaskCommand::Federated(id, Order::Start(Box::new(start))));
            }
            ToWorker::LoadAggregatedWeights(load) => {
                self.command(TaskCommand::Federated(load.session_id, Order::Load(load)));
            }
            ToWorker::ContinueRound(next) => {
                self.command(TaskCommand::Federated(
                    next.session_id,
                    Order::Continue(next),
                ));
            }
            ToWorker::AnnounceKeys(ask) => {
                self.of_sum(ask.session_id, SumOrder::AnnounceKeys(ask.data));
            }
            ToWorker::ShareSecrets(ask) => {
                self.of_sum(ask.session_id, SumOrder::ShareSecrets(ask.data));
            }
            ToWorker::MaskResult(ask) => {
                self.of_sum(ask.session_id, SumOrder::MaskResult(ask.data));
            }
            ToWorker::RevealShares(ask) => {
                self.of_sum(ask.session_id, SumOrder::RevealShares(ask.data));
            }
            ToWorker::StopFederatedTraining(stop) => {
                self.command(TaskCommand::StopFederated(stop.session_id));
            }
        }
    }

    /// Stores the key that the platform issued before anything else happens.
    fn enrolled(&mut self, issued: EnrollmentComplete, ctx: &mut Context<Self>) {
        let (id, name) = (issued.data.worker_id, issued.data.worker_name.clone());
        let key = issued.data.api_key.clone();
        if let Err(error) = self.identity.keep_key(issued.data) {
            // Going on without the key on disk would lose it at the next restart. The platform issues
            // another one as long as this one was never used.
            tracing::error!(%error, "the worker's key cannot be stored");
            return self.close(close::GOING_AWAY, NextTry::ByBackoff, ctx);
        }
        self.key.set(key);
        self.try_given_key = false;
        tracing::info!(worker.id = %id, worker.name = name, "enrolled; the key is stored");
        if self.is_registered() {
            self.close(NORMAL_CLOSE, NextTry::AtOnce, ctx);
        }
    }

    fn authenticated(&mut self, ctx: &mut Context<Self>) {
        let Some(link) = &mut self.link else { return };
        if link.state != LinkState::Authenticating {
            return;
        }
        link.state = LinkState::Registered;
        self.backoff.reset();
        self.deleted = false;
        self.keep_accepted_key();
        tracing::info!(platform.url = %self.config.platform, "connected");
        let hardware = self.hardware.clone();
        self.push(FromWorker::WorkerRegister(WorkerRegister {
            worker_id: None,
            data: hardware,
        }));
        self.beat();
        self.report_load();
        self.delivery.begin_link();
        self.deliver(ctx);
    }

    /// The key that was shown holds: for transfers, and from now on, if it is another own key from the settings.
    fn keep_accepted_key(&mut self) {
        let key = self.key_to_show();
        let given = self.config.worker_key.as_ref();
        if self.try_given_key && self.identity.is_outdated_by(given) {
            match self.identity.replace_key(key.clone()) {
                Ok(()) => tracing::info!("the key in WORKER_KEY is stored"),
                Err(error) => tracing::error!(%error, "the key in WORKER_KEY cannot be stored"),
            }
        }
        self.key.set(key);
    }

    fn refused(&mut self, reason: &str, ctx: &mut Context<Self>) {
        let stored = self.identity.identity().api_key.as_ref();
        let given = self.config.worker_key.as_ref();
        let both = stored.is_some() && given.is_some() && stored != given;
        let key_of = |given| match given {
            true => "WORKER_KEY",
            false => "identity.json",
        };
        let shown = key_of(self.try_given_key || stored.is_none());
        if self.deleted && stored.is_some() && !self.try_given_key {
            // Joining anew by itself would undo what the administrator has decided.
            tracing::error!(
                reason,
                "this worker was deleted at the platform; it joins anew only when it is started again with an \
                 enrolment key that is still valid"
            );
        } else if both {
            self.try_given_key = !self.try_given_key;
            tracing::error!(
                reason,
                key = shown,
                next = key_of(self.try_given_key),
                "the platform refuses this worker's key; the other one is tried next"
            );
        } else {
            tracing::error!(
                reason,
                key = shown,
                "the platform refuses this worker's key; it is tried again all the same"
            );
        }
        // The platform closes by itself (4401).
        self.expect_close(NextTry::ByBackoff, ctx);
    }

    fn pong(&mut self, ping: Ping) {
        let doing = self.doing();
        self.push(FromWorker::Pong(Pong {
            worker_id: None,
            status: Some(doing.status),
            // Several answers at once are normal.
            busy: matches!(
                doing.status,
                WorkerStatus::Training
                    | WorkerStatus::Evaluating
                    | WorkerStatus::Exporting
                    | WorkerStatus::Federated
                    | WorkerStatus::Draining
            ),
            current_job_id: doing.job_id,
            current_inference_ids: Some(doing.inference_ids),
            current_evaluation_ids: Some(TaskId::evaluations(&doing.tasks)),
            current_export_ids: Some(TaskId::exports(&doing.tasks)),
            current_session_ids: Some(doing.session_ids),
            ping_id: ping.ping_id,
        }));
    }

    fn of_sum(&mut self, session: FederatedSessionId, order: SumOrder) {
        self.command(TaskCommand::Federated(session, Order::OfSum(order)));
    }

    fn command(&mut self, command: TaskCommand) {
        if let Err(error) = self.tasks.try_send(command) {
            tracing::error!(%error, "the worker cannot take more commands");
        }
    }

    /// Answers a message that cannot be carried out; the answer is kept if it is one that is acknowledged.
    fn answer(&mut self, answer: FromWorker, ctx: &mut Context<Self>) {
        if answer.message_id().is_some() && self.outbox.push(answer.clone(), Vec::new()).is_ok() {
            return self.deliver(ctx);
        }
        let now = Instant::now();
        let minute = Duration::from_secs(60);
        self.error_answers
            .retain(|at| now.duration_since(*at) < minute);
        if self.error_answers.len() < ERROR_ANSWERS_PER_MINUTE {
            self.error_answers.push_back(now);
            self.push(answer);
        }
    }

    fn acknowledged(&mut self, message: MessageId, ctx: &mut Context<Self>) {
        let before = self.doing().status;
        if self.outbox.remove(message) {
            self.delivery.forget(message);
            if self.doing().status != before {
                self.beat();
            }
            self.deliver(ctx);
        }
    }

    fn closed_by_platform(&mut self, frame: Option<CloseFrame>) {
        let (Some(link), Some(frame)) = (&mut self.link, frame) else {
            return;
        };
        let code = u16::from(frame.code);
        let reason = frame.reason.as_str();
        match code {
            close::REPLACED => {
                tracing::warn!(
                    close.code = code,
                    reason,
                    "another process with this worker's identity has connected"
                );
                link.next_try = NextTry::AfterLongestDelay;
            }
            // It was told before, or is the answer to our own close.
            _ if link.state == LinkState::Closing => {}
            close::AUTHENTICATION_FAILED => tracing::error!(
                close.code = code,
                reason,
                "the worker's key is refused, revoked or replaced"
            ),
            close::NOT_ALLOWED => {
                tracing::error!(
                    close.code = code,
                    reason,
                    "the worker is not allowed any more"
                );
                self.deleted = true;
            }
            close::TOO_BIG => tracing::error!(
                close.code = code,
                reason,
                "the platform found a message of this worker too large"
            ),
            _ => {
                tracing::info!(
                    close.code = code,
                    reason,
                    "the platform closes the connection"
                );
                if let Some(turn) = close::turn(reason) {
                    link.next_try = NextTry::InTurn(turn);
                }
            }
        }
    }
}

/// Nothing is wrong; the worker comes back.
const NORMAL_CLOSE: u16 = 1000;
