//! The actor that owns the one running job: it starts it, stops it, and knows when it has ended.
//!
//! 1. `start_training`: [`Slot`] decides. A job begins as one future that prepares (data, model,
//!    checkpoint), trains on a thread of its own, and reports its end before it is over.
//! 2. `stop_training` sets the job's [`StopSignal`]; the job itself saves its checkpoint and reports.
//! 3. A newer attempt at the running job waits here until the older one has let go.

use actix::prelude::*;
use tokio::sync::watch;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{JobId, MessageId};
use trainyard_shared::message::{
    FromWorker, JobFailed, JobFailedData, JobStopped, JobStoppedData, StartTraining,
};

use super::slot::{OnStart, OnStop, Slot};
use super::training::{TrainingContext, run_training};
use super::{StopReason, StopSignal, TaskCommand};
use crate::connection::Activity;
use crate::connection::outbox::JobAttempt;

/// Owns the running job.
pub struct Tasks {
    context: TrainingContext,
    slot: Slot,
    running: Option<StopSignal>,
    /// A newer attempt at the running job.
    next: Option<Box<StartTraining>>,
    shutting_down: bool,
    busy: watch::Sender<bool>,
}

/// Stops the running job because the worker shuts down; answered once the job has ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct FinishTasks;

impl Tasks {
    /// Runs jobs by `context`. `ended` are attempts whose end is on its way to the platform already.
    pub fn new(context: TrainingContext, ended: Vec<JobAttempt>) -> Self {
        Self {
            context,
            slot: Slot::new(ended),
            running: None,
            next: None,
            shutting_down: false,
            busy: watch::Sender::new(false),
        }
    }

    fn start(&mut self, start: Box<StartTraining>, ctx: &mut Context<Self>) {
        let job = attempt_of(&start);
        if self.shutting_down {
            return self.refuse(job, "the worker is shutting down");
        }
        match self.slot.on_start(job, self.context.worker_type) {
            OnStart::Begin => self.begin(start, ctx),
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
        self.busy.send_replace(true);
        self.context.reports.set_activity(Activity {
            job: Some(job),
            status_message: Some("Preparing".to_owned()),
        });
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
            _ => {
                self.context.reports.set_activity(Activity::default());
                self.busy.send_replace(false);
            }
        }
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
        }
    }
}

impl Handler<FinishTasks> for Tasks {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: FinishTasks, _: &mut Self::Context) -> Self::Result {
        self.shutting_down = true;
        if let Some(running) = &self.running {
            running.stop(StopReason::Shutdown);
        }
        let mut busy = self.busy.subscribe();
        Box::pin(async move {
            // The sender is dropped only together with the actor: then nothing runs any more.
            let _ = busy.wait_for(|busy| !busy).await;
        })
    }
}
