//! The actor that owns what runs: one job or federated session, and any number of answers, evaluations and exports.
//! It starts them, stops them, and knows when they have ended.
//!
//! 1. `start_training`: [`Slot`] decides. A job begins as one future that prepares (data, model,
//!    checkpoint), trains on a thread of its own, and reports its end before it is over.
//! 2. `stop_training` sets the job's [`StopSignal`]; the job itself saves its checkpoint and reports.
//! 3. A newer attempt at the running job waits here until the older one has let go.
//! 4. `start_inference`, `start_evaluation`, `start_export`: [`Running`] decides. Each is one future that reports
//!    its end before it is over; how many get their turn at once, two semaphores say.
//! 5. Orders of a federated session go to its future, which lasts from `start_federated_training` to the stop.

use std::sync::Arc;

use actix::prelude::*;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{FederatedSessionId, InferenceId, JobId, MessageId, TaskId};
use trainyard_shared::message::{
    FromWorker, JobFailed, JobFailedData, JobStopped, JobStoppedData, StartFederatedTraining,
    StartInference, StartTraining,
};

use super::failure::Failure;
use super::federated::{self, Order, run_session};
use super::inference::{self, ANSWERS_AT_ONCE, MOST_ANSWERS, run_inference};
use super::model_task::{self, MOST_TASKS, ModelTask, run_task};
use super::running::{Running, Stop};
use super::slot::{OnStart, OnStop, Slot};
use super::training::run_training;
use super::{StopReason, StopSignal, TaskCommand, TaskContext};
use crate::connection::outbox::{JobAttempt, Undelivered};

/// Owns what runs.
pub struct Tasks {
    context: TaskContext,
    slot: Slot,
    running: Option<StopSignal>,
    /// A newer attempt at the running job.
    next: Option<Box<StartTraining>>,
    session: Option<RunningSession>,
    answers: Running<InferenceId>,
    answers_at_once: Arc<Semaphore>,
    /// Evaluations and exports.
    tasks: Running<TaskId>,
    tasks_at_once: Arc<Semaphore>,
    shutting_down: bool,
    /// How many futures run.
    busy: watch::Sender<usize>,
}

/// The federated session that the worker takes part in.
struct RunningSession {
    id: FederatedSessionId,
    orders: UnboundedSender<Order>,
    stop: StopSignal,
}

/// Stops all that runs because the worker shuts down; answered once it has ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct FinishTasks;

impl Tasks {
    /// Runs tasks by `context`. `ended` are those whose end is on its way to the platform already.
    pub fn new(context: TaskContext, ended: Undelivered) -> Self {
        Self {
            context,
            slot: Slot::new(ended.jobs),
            running: None,
            next: None,
            session: None,
            answers: Running::new(ended.inferences),
            answers_at_once: Arc::new(Semaphore::new(ANSWERS_AT_ONCE)),
            tasks: Running::new(ended.tasks),
            tasks_at_once: Arc::new(Semaphore::new(1)),
            shutting_down: false,
            busy: watch::Sender::new(0),
        }
    }

    fn start(&mut self, start: Box<StartTraining>, ctx: &mut Context<Self>) {
        let job = attempt_of(&start);
        if self.shutting_down {
            return self.refuse(job, "the worker is shutting down");
        }
        match self.slot.on_start(job, self.context.worker_type) {
            OnStart::Begin => match &self.session {
                Some(session) => {
                    let reason =
                        format!("this worker takes part in federated session {}", session.id);
                    self.refuse(job, &reason);
                }
                None => self.begin(start, ctx),
            },
            OnStart::Ignore => {
                tracing::debug!(job.id = %job.job_id, job.attempt = job.attempt, "job is here already");
            }
            OnStart::Supersede => {
                tracing::info!(job.id = %job.job_id, job.attempt = job.attempt, "a newer attempt takes the place of the running one");
                if let Some(running) = &self.running {
                    running.stop(StopReason::Superseded);
                }
                self.next = Some(start);
            }
            OnStart::Refuse(reason) => self.refuse(job, &reason),
        }
    }

    fn begin(&mut self, start: Box<StartTraining>, ctx: &mut Context<Self>) {
        let job = attempt_of(&start);
        tracing::info!(job.id = %job.job_id, job.attempt = job.attempt, "job begins");
        let stop = StopSignal::default();
        self.slot.begun(job);
        self.running = Some(stop.clone());
        self.busy.send_modify(|busy| *busy += 1);
        self.context.reports.change_activity(|activity| {
            activity.job = Some(job);
            activity.status_message = Some("Preparing".to_owned());
        });
        // Training needs all the memory that there is.
        self.context.loaded.release_unused();
        let training = run_training(*start, self.context.clone(), stop);
        ctx.spawn(
            training
                .into_actor(self)
                .map(move |(), tasks, ctx| tasks.ended(job, ctx)),
        );
    }

    fn ended(&mut self, job: JobAttempt, ctx: &mut Context<Self>) {
        tracing::info!(job.id = %job.job_id, job.attempt = job.attempt, "job has ended");
        self.slot.ended(job);
        self.running = None;
        match self.next.take() {
            Some(next) if !self.shutting_down => self.begin(next, ctx),
            _ => self.context.reports.change_activity(|activity| {
                activity.job = None;
                activity.status_message = None;
            }),
        }
        self.busy.send_modify(|busy| *busy -= 1);
    }

    fn stop(&mut self, job_id: JobId) {
        if let Some(next) = self.next.take_if(|next| next.job_id == job_id) {
            let attempt = attempt_of(&next);
            self.slot.ended(attempt);
            return self.answer_stopped(attempt);
        }
        match self.slot.on_stop(job_id) {
            OnStop::Stop => {
                tracing::info!(job.id = %job_id, "job is to stop");
                if let Some(running) = &self.running {
                    running.stop(StopReason::Requested);
                }
            }
            OnStop::Ignore => {}
            OnStop::Answer => self.answer_stopped(JobAttempt {
                job_id,
                attempt: None,
            }),
        }
    }

    fn answer_stopped(&self, job: JobAttempt) {
        self.context
            .reports
            .keep_or_send(FromWorker::JobStopped(JobStopped {
                worker_id: None,
                job_id: job.job_id,
                attempt: job.attempt,
                message_id: Some(MessageId::random()),
                data: JobStoppedData::default(),
            }));
    }

    fn refuse(&self, job: JobAttempt, reason: &str) {
        tracing::warn!(job.id = %job.job_id, reason, "job is refused");
        self.context
            .reports
            .keep_or_send(FromWorker::JobFailed(JobFailed {
                worker_id: None,
                job_id: job.job_id,
                attempt: job.attempt,
                message_id: Some(MessageId::random()),
                data: JobFailedData {
                    error: reason.to_owned(),
                    step: None,
                    last_checkpoint: None,
                    failure_kind: Some(FailureKind::NotStarted),
                },
            }));
    }
}

impl Tasks {
    fn start_inference(&mut self, start: StartInference, ctx: &mut Context<Self>) {
        let id = start.inference_id.clone();
        let Some(stop) = self.answers.begin(&id) else {
            tracing::debug!(inference.id = %id, "answer is here already");
            return;
        };
        if let Some(refusal) = self.refusal("inference", self.answers.ids().len(), MOST_ANSWERS) {
            self.answers.end(&id);
            return inference::report_failed(&id, refusal, &self.context.reports);
        }
        tracing::info!(inference.id = %id, "answer begins");
        self.busy.send_modify(|busy| *busy += 1);
        self.tell_activity();
        let turns = self.answers_at_once.clone();
        let answering = run_inference(start, self.context.clone(), turns, stop);
        ctx.spawn(answering.into_actor(self).map(move |(), tasks, _| {
            tasks.answers.end(&id);
            tasks.tell_activity();
            tasks.busy.send_modify(|busy| *busy -= 1);
        }));
    }

    fn stop_inference(&mut self, id: &InferenceId) {
        if self.answers.stop(id) == Stop::Unknown {
            inference::report_unknown(id, &self.context.reports);
        }
    }

    fn start_task(&mut self, task: ModelTask, ctx: &mut Context<Self>) {
        let id = task.id();
        let Some(stop) = self.tasks.begin(&id) else {
            tracing::debug!("{id} is here already");
            return;
        };
        if let Some(refusal) = self.refusal(id.noun(), self.tasks.ids().len(), MOST_TASKS) {
            self.tasks.end(&id);
            return model_task::report_failed(id, refusal, &self.context.reports);
        }
        tracing::info!("{id} begins");
        self.busy.send_modify(|busy| *busy += 1);
        self.tell_activity();
        let turns = self.tasks_at_once.clone();
        let running = run_task(task, self.context.clone(), turns, stop);
        ctx.spawn(running.into_actor(self).map(move |(), tasks, _| {
            tasks.tasks.end(&id);
            tasks.tell_activity();
            tasks.busy.send_modify(|busy| *busy -= 1);
        }));
    }

    fn stop_task(&mut self, id: TaskId) {
        if self.tasks.stop(&id) == Stop::Unknown {
            model_task::report_cancelled(id, &self.context.reports);
        }
    }

    fn order(&mut self, id: FederatedSessionId, order: Order, ctx: &mut Context<Self>) {
        let running = self.session.as_ref().filter(|session| session.id == id);
        match (running, order) {
            (Some(session), order) => {
                // It has just ended where nobody takes the order; the platform is told so.
                let _ = session.orders.send(order);
            }
            (None, Order::Start(start)) => self.start_session(*start, ctx),
            (None, Order::OfSum(order)) => {
                let error = "this worker does not take part in the session (any more)".to_owned();
                let failed = federated::failed_message(id, order.place(), error, None);
                self.context.reports.send(failed);
            }
            (None, order) => {
                let message = "this worker does not take part in it (any more)";
                let failure = Failure::new(FailureKind::WorkerRestarted, message);
                let reports = &self.context.reports;
                federated::report_failed(id, Some(order.round()), failure, reports);
            }
        }
    }

    fn start_session(&mut self, start: StartFederatedTraining, ctx: &mut Context<Self>) {
        let id = start.session_id;
        if let Some(reason) = self.session_refusal() {
            let failure = Failure::new(FailureKind::NotStarted, reason);
            let (round, reports) = (Some(start.data.round), &self.context.reports);
            return federated::report_failed(id, round, failure, reports);
        }
        tracing::info!(session.id = %id, "federated session begins");
        let (orders, taken) = unbounded_channel();
        let stop = StopSignal::default();
        self.session = Some(RunningSession {
            id,
            orders,
            stop: stop.clone(),
        });
        self.busy.send_modify(|busy| *busy += 1);
        self.tell_activity();
        // Training needs all the memory that there is.
        self.context.loaded.release_unused();
        let running = run_session(start, self.context.clone(), taken, stop);
        ctx.spawn(running.into_actor(self).map(move |(), tasks, _| {
            tracing::info!(session.id = %id, "federated session is over");
            tasks.session = None;
            let reports = &tasks.context.reports;
            reports.change_activity(|activity| activity.status_message = None);
            tasks.tell_activity();
            tasks.busy.send_modify(|busy| *busy -= 1);
        }));
    }

    /// Why this worker does not take part in a session now, if it does not.
    fn session_refusal(&self) -> Option<String> {
        if self.shutting_down {
            return Some("the worker is shutting down".to_owned());
        }
        if !self.context.worker_type.takes_training() {
            return Some("this worker does not train (WORKER_TYPE)".to_owned());
        }
        if let Some(session) = &self.session {
            let id = session.id;
            return Some(format!("this worker takes part in federated session {id}"));
        }
        let job = self.slot.running()?;
        Some(format!("this worker is busy with job {}", job.job_id))
    }

    fn stop_session(&self, id: FederatedSessionId) {
        match &self.session {
            Some(session) if session.id == id => session.stop.stop(StopReason::Requested),
            _ => tracing::debug!(session.id = %id, "there is no such session to leave"),
        }
    }

    /// Why this worker takes no such work now, if it does not.
    fn refusal(&self, work: &str, waiting: usize, most: usize) -> Option<Failure> {
        let reason = if self.shutting_down {
            "the worker is shutting down".to_owned()
        } else if !self.context.worker_type.takes_inference() {
            format!("this worker takes no {work} (WORKER_TYPE)")
        } else if waiting > most {
            format!("this worker has {most} requests of {work} waiting")
        } else {
            return None;
        };
        Some(Failure::new(FailureKind::NotStarted, reason))
    }

    fn tell_activity(&self) {
        self.context.reports.change_activity(|activity| {
            activity.inferences = self.answers.ids();
            activity.tasks = self.tasks.ids();
            activity.session = self.session.as_ref().map(|session| session.id);
        });
    }
}

fn attempt_of(start: &StartTraining) -> JobAttempt {
    JobAttempt {
        job_id: start.job_id,
        attempt: start.attempt,
    }
}

impl Actor for Tasks {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(256);
    }
}

impl Handler<TaskCommand> for Tasks {
    type Result = ();

    fn handle(&mut self, command: TaskCommand, ctx: &mut Self::Context) {
        match command {
            TaskCommand::Start(start) => self.start(start, ctx),
            TaskCommand::Stop(job_id) => self.stop(job_id),
            TaskCommand::StartInference(start) => self.start_inference(*start, ctx),
            TaskCommand::StopInference(id) => self.stop_inference(&id),
            TaskCommand::StartTask(task) => self.start_task(*task, ctx),
            TaskCommand::StopTask(id) => self.stop_task(id),
            TaskCommand::Federated(id, order) => self.order(id, order, ctx),
            TaskCommand::StopFederated(id) => self.stop_session(id),
        }
    }
}

impl Handler<FinishTasks> for Tasks {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: FinishTasks, _: &mut Self::Context) -> Self::Result {
        self.shutting_down = true;
        // Before anything is stopped, so that no end of it makes this worker look free.
        self.context
            .reports
            .change_activity(|activity| activity.shutting_down = true);
        if let Some(running) = &self.running {
            running.stop(StopReason::Shutdown);
        }
        if let Some(session) = &self.session {
            session.stop.stop(StopReason::Shutdown);
        }
        self.answers.shut_down();
        self.tasks.shut_down();
        let mut busy = self.busy.subscribe();
        Box::pin(async move {
            // The sender is dropped only together with the actor: then nothing runs any more.
            let _ = busy.wait_for(|busy| *busy == 0).await;
        })
    }
}
