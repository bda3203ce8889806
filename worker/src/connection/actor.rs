//! The actor that owns the socket to the platform.
//!
//! 1. It connects, sends `authenticate`, and waits for the answer. A key that enrolment issues is on
//!    disk before anything else happens.
//! 2. On `authenticated` it resets the backoff, registers with hardware and benchmark, sends a
//!    heartbeat with what it does, then everything in the outbox in order, then reports that waited.
//! 3. It beats every `HEARTBEAT_INTERVAL` and reports the load every `METRICS_INTERVAL`, whatever the
//!    training does: training runs on threads of its own.
//! 4. A link that breaks, or on which nothing comes for too long, is given up; it connects again by
//!    [`Backoff`]. Every socket has a generation; what comes late from an older one is ignored.
//!
//! Known gap: a proxy that has to be spoken to with CONNECT is not used for the socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::StreamExt;
use futures_util::stream;
use rustls::ClientConfig;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use trainyard_shared::frame::{MAX_FRAME_BYTES, close};
use trainyard_shared::ids::{FederatedSessionId, InferenceId, JobId, TaskId, WorkerUuid};
use trainyard_shared::message::{
    Authenticate, FromWorker, Heartbeat, WorkerMetrics, WorkerMetricsData, WorkerRegisterData,
};
use trainyard_shared::{Secret, WorkerStatus};

use super::backoff::{Backoff, NextTry};
use super::delivery::Delivery;
use super::identity::IdentityFile;
use super::link::{self, Link, LinkState, OpenError, Opened};
use super::outbox::Outbox;
use super::reports::{Deliver, SendReport, SharedActivity, TellActivity};
use super::tokens::{WaitingTokens, ended_answer};
use crate::config::WorkerConfig;
use crate::hardware::LoadWatch;
use crate::platform_files::{PlatformFiles, SharedKey};
use crate::tasks::TaskCommand;

/// Reports that may be lost and wait for a connection.
const WAITING_REPORTS: usize = 1000;
/// How long the other side may take to answer a close.
const CLOSE_ANSWER: Duration = Duration::from_secs(2);

/// What the connection works with.
pub struct Parts {
    /// Settings.
    pub config: WorkerConfig,
    /// Who the worker is.
    pub identity: IdentityFile,
    /// The worker's key for others: kept up to date here.
    pub key: SharedKey,
    /// What `worker_register` says.
    pub hardware: WorkerRegisterData,
    /// What has to be delivered.
    pub outbox: Arc<Outbox>,
    /// What the worker does.
    pub activity: SharedActivity,
    /// Tokens that are to be sent.
    pub tokens: WaitingTokens,
    /// Stores the files of messages.
    pub files: PlatformFiles,
    /// Takes what the platform wants done.
    pub tasks: Recipient<TaskCommand>,
    /// For `wss`.
    pub tls: Arc<ClientConfig>,
}

/// The connection to the platform.
pub struct Connection {
    pub(super) config: WorkerConfig,
    pub(super) identity: IdentityFile,
    pub(super) key: SharedKey,
    pub(super) hardware: WorkerRegisterData,
    pub(super) outbox: Arc<Outbox>,
    activity: SharedActivity,
    pub(super) tokens: WaitingTokens,
    pub(super) files: PlatformFiles,
    pub(super) tasks: Recipient<TaskCommand>,
    tls: Arc<ClientConfig>,
    load: LoadWatch,
    pub(super) backoff: Backoff,
    generation: u64,
    pub(super) link: Option<Link>,
    /// Whether the next try uses the key from the settings although there is a stored one.
    pub(super) try_given_key: bool,
    /// Whether the platform has said, in this run, that this worker was deleted.
    pub(super) deleted: bool,
    pub(super) waiting: VecDeque<FromWorker>,
    pub(super) delivery: Delivery,
    pub(super) error_answers: VecDeque<Instant>,
    closing: Option<oneshot::Sender<()>>,
    stopping: bool,
}

/// What became of a message that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It is on its way, as far as this link reaches.
    Queued,
    /// The queue is full or there is no link.
    NoRoom,
    /// It will never fit into a frame.
    TooLarge,
}

/// What the worker does, as heartbeats and pongs tell it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Doing {
    pub(super) status: WorkerStatus,
    pub(super) job_id: Option<JobId>,
    pub(super) inference_ids: Vec<InferenceId>,
    pub(super) tasks: Vec<TaskId>,
    pub(super) session_ids: Vec<FederatedSessionId>,
}

/// What comes from a socket of some generation; none is its end.
struct FromSocket {
    generation: u64,
    event: Option<Result<tungstenite::Message, tungstenite::Error>>,
}

/// Closes the connection (1001) and connects no more; answered once that is done.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Leave;

impl Connection {
    /// A connection that begins to connect when it is started.
    pub fn new(parts: Parts) -> Self {
        Self {
            backoff: Backoff::new(
                parts.config.reconnect_delay,
                parts.config.longest_reconnect_delay,
            ),
            try_given_key: parts
                .identity
                .is_outdated_by(parts.config.worker_key.as_ref()),
            deleted: false,
            identity: parts.identity,
            key: parts.key,
            hardware: parts.hardware,
            outbox: parts.outbox,
            activity: parts.activity,
            tokens: parts.tokens,
            files: parts.files,
            tasks: parts.tasks,
            tls: parts.tls,
            load: LoadWatch::start(parts.config.metrics_interval),
            config: parts.config,
            generation: 0,
            link: None,
            waiting: VecDeque::new(),
            delivery: Delivery::default(),
            error_answers: VecDeque::new(),
            closing: None,
            stopping: false,
        }
    }

    fn connect(&mut self, ctx: &mut Context<Self>) {
        if self.stopping {
            return;
        }
        let address = self.config.platform.worker_socket(self.worker());
        tracing::info!(platform.url = %self.config.platform, worker.uuid = %self.worker(), "connecting");
        let opening = link::open(address, self.tls.clone(), self.config.link);
        ctx.spawn(
            opening
                .into_actor(self)
                .map(|result, connection, ctx| connection.opened(result, ctx)),
        );
    }

    fn opened(&mut self, result: Result<Opened, OpenError>, ctx: &mut Context<Self>) {
        let opened = match result {
            Ok(opened) if !self.stopping => opened,
            Ok(_) => return,
            Err(error) => {
                let next_try = match error {
                    OpenError::RateLimited { wait } => NextTry::NotBefore(wait),
                    OpenError::Busy { turn } => NextTry::InTurn(turn),
                    _ => NextTry::ByBackoff,
                };
                return self.try_again(&error.to_string(), next_try, ctx);
            }
        };
        self.generation += 1;
        let generation = self.generation;
        let (incoming, queue, writing) = opened.into_parts(self.config.link.write);
        let events = incoming
            .map(Some)
            .chain(stream::once(std::future::ready(None)))
            .map(move |event| FromSocket { generation, event });
        let now = Instant::now();
        self.link = Some(Link {
            queue,
            reader: ctx.add_stream(events),
            opened: now,
            last_heard: now,
            pinged: false,
            state: LinkState::Authenticating,
            next_try: NextTry::ByBackoff,
        });
        ctx.spawn(writing.into_actor(self).map(move |fault, connection, ctx| {
            if let Some(fault) = fault {
                connection.lost(generation, &fault, ctx);
            }
        }));
        self.push(FromWorker::Authenticate(Authenticate {
            api_key: self.key_to_show(),
            worker_uuid: self.worker().to_string(),
        }));
    }

    /// The stored key, or the one from the settings: before there is a stored one, first where it is a
    /// worker's own key and another one (the owner has replaced it), and in turn with the stored one while
    /// they are refused (so that a new enrolment key lets a worker back in whose own key is void).
    pub(super) fn key_to_show(&self) -> Secret {
        let stored = self.identity.identity().api_key.clone();
        let given = self.config.worker_key.clone();
        let (first, second) = if self.try_given_key {
            (given, stored)
        } else {
            (stored, given)
        };
        first
            .or(second)
            .expect("a worker without any key is refused before it is started")
    }

    fn worker(&self) -> WorkerUuid {
        self.identity.identity().worker_uuid
    }

    /// Puts a message into the socket's queue, whatever the link's state.
    pub(super) fn push(&mut self, mut message: FromWorker) -> Pushed {
        let Some(link) = &self.link else {
            return Pushed::NoRoom;
        };
        message.set_worker_id(self.identity.identity().worker_uuid);
        let frame = message.encode();
        if frame.len() > MAX_FRAME_BYTES {
            tracing::error!(
                message.kind = message.wire_type(),
                frame.bytes = frame.len(),
                "message is too large to be sent"
            );
            return Pushed::TooLarge;
        }
        tracing::trace!(message.kind = message.wire_type(), "message is sent");
        if link.queue.push(tungstenite::Message::text(frame)) {
            Pushed::Queued
        } else {
            Pushed::NoRoom
        }
    }

    /// Whether messages other than those of authentication may be sent.
    pub(super) fn is_registered(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.state == LinkState::Registered)
    }

    /// Whether the queue has room for so many more frames.
    pub(super) fn has_room_for(&self, frames: usize) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.queue.has_room_for(frames))
    }

    /// What the worker does. What has ended and is not delivered yet still counts as its own, and a job
    /// as what it does.
    pub(super) fn doing(&self) -> Doing {
        let activity = self.activity.get();
        let running = activity.job.map(|job| job.job_id);
        let job_id = running.or_else(|| self.delivery.job_being_ended(&self.outbox));
        let mut doing = Doing {
            status: match job_id {
                Some(_) if !activity.shutting_down => WorkerStatus::Training,
                _ => activity.status(),
            },
            job_id,
            inference_ids: activity.inferences,
            tasks: activity.tasks,
            session_ids: activity.session.into_iter().collect(),
        };
        let undelivered = self.outbox.undelivered_ends();
        doing.inference_ids.extend(undelivered.inferences);
        doing.tasks.extend(undelivered.tasks);
        doing
    }

    /// Sends a heartbeat, if the worker is registered.
    pub(super) fn beat(&mut self) {
        if self.is_registered() {
            let doing = self.doing();
            self.push(FromWorker::Heartbeat(Heartbeat {
                worker_id: None,
                status: Some(doing.status),
                current_job_id: doing.job_id,
                current_inference_ids: Some(doing.inference_ids),
                current_evaluation_ids: Some(TaskId::evaluations(&doing.tasks)),
                current_export_ids: Some(TaskId::exports(&doing.tasks)),
                current_session_ids: Some(doing.session_ids),
            }));
        }
    }

    /// Sends the newest sample of the load, if the worker is registered.
    pub(super) fn report_load(&mut self) {
        if let Some(load) = self.load.newest().filter(|_| self.is_registered()) {
            let status = self.doing().status;
            self.push(FromWorker::WorkerMetrics(WorkerMetrics {
                worker_id: None,
                data: WorkerMetricsData {
                    gpu_utilization: load.gpu_utilization,
                    gpu_memory_used: load.gpu_memory_used,
                    gpu_memory_total: load.gpu_memory_total,
                    cpu_utilization: load.cpu_utilization,
                    ram_used: load.ram_used,
                    ram_total: load.ram_total,
                    status: Some(status),
                    status_message: self.activity.get().status_message,
                },
            }));
        }
    }

    /// Looks whether the link lives: within the time for authentication, and with something heard lately.
    fn watch(&mut self, ctx: &mut Context<Self>) {
        let limits = self.config.link;
        let generation = self.generation;
        let Some(link) = &mut self.link else { return };
        let silent = link.last_heard.elapsed();
        if link.state == LinkState::Authenticating && link.opened.elapsed() > limits.authenticate {
            let fault = format!("no answer to authenticate within {:?}", limits.authenticate);
            self.lost(generation, &fault, ctx);
        } else if silent > limits.dead_after {
            let fault = format!("nothing came from the platform for {silent:.0?}");
            self.lost(generation, &fault, ctx);
        } else if silent > limits.ping_after && !link.pinged {
            link.pinged = link
                .queue
                .push(tungstenite::Message::Ping(tungstenite::Bytes::new()));
        }
    }

    /// Says goodbye, and gives the link up where the platform does not answer.
    pub(super) fn close(&mut self, code: u16, next_try: NextTry, ctx: &mut Context<Self>) {
        if let Some(link) = &self.link {
            link.queue
                .push(tungstenite::Message::Close(Some(CloseFrame {
                    code: code.into(),
                    reason: "".into(),
                })));
        }
        self.expect_close(next_try, ctx);
    }

    /// Says nothing more, and gives the link up where the platform does not close it.
    pub(super) fn expect_close(&mut self, next_try: NextTry, ctx: &mut Context<Self>) {
        let Some(link) = &mut self.link else { return };
        link.state = LinkState::Closing;
        link.next_try = next_try;
        let generation = self.generation;
        ctx.run_later(CLOSE_ANSWER, move |connection, ctx| {
            connection.lost(generation, "closed", ctx);
        });
    }

    /// The link of this generation is no more.
    fn lost(&mut self, generation: u64, reason: &str, ctx: &mut Context<Self>) {
        if generation != self.generation {
            return;
        }
        let Some(link) = self.link.take() else { return };
        ctx.cancel_future(link.reader);
        self.tokens.link_lost();
        if let Some(closing) = self.closing.take() {
            let _ = closing.send(());
        }
        self.try_again(reason, link.next_try, ctx);
    }

    fn try_again(&mut self, reason: &str, next_try: NextTry, ctx: &mut Context<Self>) {
        if self.stopping {
            return;
        }
        let delay = self.backoff.delay(next_try, rand::random());
        tracing::info!(
            reason,
            delay_seconds = (delay.as_secs_f64() * 10.0).round() / 10.0,
            "not connected; tries again"
        );
        ctx.run_later(delay, Self::connect);
    }
}

impl Actor for Connection {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(2048);
        ctx.run_interval(self.config.heartbeat_interval, |connection, ctx| {
            connection.beat();
            connection.deliver(ctx);
        });
        ctx.run_interval(self.config.metrics_interval, |connection, _| {
            connection.report_load();
        });
        let watch = (self.config.link.ping_after / 4).min(Duration::from_secs(1));
        ctx.run_interval(watch, Self::watch);
        self.connect(ctx);
    }
}

impl StreamHandler<FromSocket> for Connection {
    fn handle(&mut self, from: FromSocket, ctx: &mut Self::Context) {
        if from.generation != self.generation || self.link.is_none() {
            return;
        }
        match from.event {
            Some(Ok(message)) => self.heard(message, ctx),
            Some(Err(error)) => self.lost(from.generation, &error.to_string(), ctx),
            None => self.lost(
                from.generation,
                "the platform has closed the connection",
                ctx,
            ),
        }
    }

    /// The end of one socket is not the end of the actor.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<SendReport> for Connection {
    type Result = ();

    fn handle(&mut self, SendReport(mut message): SendReport, ctx: &mut Self::Context) {
        if let FromWorker::TrainingProgress(progress) = &mut message {
            let load = self.load.newest().unwrap_or_default();
            progress.data.gpu_utilization = load.gpu_utilization;
            progress.data.gpu_memory_used = load.gpu_memory_used;
            progress.data.cpu_utilization = load.cpu_utilization;
            progress.data.ram_used = load.ram_used;
        }
        if let Some(id) = ended_answer(&message) {
            while let Some(tokens) = self.tokens.next_of(id) {
                self.waiting.push_back(tokens);
            }
            self.tokens.forget(id);
        }
        if self.waiting.len() >= WAITING_REPORTS {
            self.waiting.pop_front();
        }
        self.waiting.push_back(message);
        self.deliver(ctx);
    }
}

impl Handler<Deliver> for Connection {
    type Result = ();

    fn handle(&mut self, _: Deliver, ctx: &mut Self::Context) {
        self.deliver(ctx);
    }
}

impl Handler<TellActivity> for Connection {
    type Result = ();

    fn handle(&mut self, _: TellActivity, _: &mut Self::Context) {
        self.beat();
    }
}

impl Handler<Leave> for Connection {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: Leave, ctx: &mut Self::Context) -> Self::Result {
        self.stopping = true;
        if self.link.is_none() {
            return Box::pin(std::future::ready(()));
        }
        let (closing, closed) = oneshot::channel();
        self.closing = Some(closing);
        self.close(close::GOING_AWAY, NextTry::ByBackoff, ctx);
        Box::pin(async {
            // The sender is dropped only together with the actor, which is as good as closed.
            let _ = closed.await;
        })
    }
}
