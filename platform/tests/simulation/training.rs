//! What a worker's process does about its job: the real [`Slot`] decides, and the training itself is a number of
//! steps with a checkpoint now and then.

use uuid::Uuid;

use trainyard_shared::FailureKind;
use trainyard_shared::WorkerType;
use trainyard_shared::ids::{JobId, MessageId};
use trainyard_shared::message::{
    ArtifactFile, CheckpointSaved, CheckpointSavedData, FromWorker, JobCompleted, JobCompletedData,
    JobFailed, JobFailedData, JobStarted, JobStartedData, JobStopped, JobStoppedData,
    StartTraining, TrainingProgress, TrainingProgressData,
};
use trainyard_worker::connection::waiting::{JobAttempt, WaitingFile};
use trainyard_worker::tasks::StopReason;
use trainyard_worker::tasks::slot::{OnStart, OnStop};

use crate::worker::MachineEvent;
use crate::world::{Broken, World};

/// Steps between two checkpoints.
const SAVE_STEPS: u64 = 4;

/// The job that trains.
pub struct Running {
    pub job: JobAttempt,
    pub step: u64,
    total: u64,
    started: bool,
    stop: Option<StopReason>,
    token: u64,
}

impl World {
    pub fn told_to_start(&mut self, machine: usize, start: StartTraining) {
        let job = attempt_of(&start);
        let decision = match self.broken {
            Some(Broken::StartsTwice) => OnStart::Begin,
            _ => self.worker(machine).slot.on_start(job, WorkerType::Both),
        };
        self.note(|| format!("machine {machine}: start of {job:?}: {decision:?}"));
        match decision {
            OnStart::Begin if self.worker(machine).session.is_some() => {
                let reason = "this worker takes part in a session";
                let failed = self.failed_message(job, FailureKind::NotStarted, reason);
                self.keep_or_send(machine, failed);
            }
            OnStart::Begin => self.begin_training(machine, &start),
            OnStart::Ignore => {}
            OnStart::Supersede => {
                self.worker(machine).next = Some(start);
                self.stop_training(machine, StopReason::Superseded);
            }
            OnStart::Refuse(reason) => {
                let failed = self.failed_message(job, FailureKind::NotStarted, &reason);
                self.keep_or_send(machine, failed);
            }
        }
    }

    fn begin_training(&mut self, machine: usize, start: &StartTraining) {
        let job = attempt_of(start);
        self.check_begun(machine, job);
        let step = start.data.resume.as_ref().map_or(0, |resume| resume.step);
        let token = self.random.next();
        let total = self.record.total_steps(job.job_id);
        let process = self.worker(machine);
        process.slot.begun(job);
        process.running = Some(Running {
            job,
            step,
            total,
            started: false,
            stop: None,
            token,
        });
        let wait = self.random.between(200, 15_000);
        self.machine_later(machine, wait, MachineEvent::Step(token));
        self.beat(machine);
    }

    pub fn told_to_stop(&mut self, machine: usize, job_id: JobId) {
        let process = self.worker(machine);
        if let Some(next) = process.next.take_if(|next| next.job_id == job_id) {
            let job = attempt_of(&next);
            process.slot.ended(job);
            return self.answer_stopped(machine, job, None);
        }
        match process.slot.on_stop(job_id) {
            OnStop::Stop => self.stop_training(machine, StopReason::Requested),
            OnStop::Ignore => {}
            OnStop::Answer => {
                let attempt = None;
                self.answer_stopped(machine, JobAttempt { job_id, attempt }, None);
            }
        }
    }

    fn stop_training(&mut self, machine: usize, reason: StopReason) {
        let token = self.random.next();
        let Some(running) = &mut self.worker(machine).running else {
            return;
        };
        running.stop.get_or_insert(reason);
        // The step that is under way ends first.
        running.token = token;
        let wait = self.random.between(10, 4_000);
        self.machine_later(machine, wait, MachineEvent::Step(token));
    }

    /// The training gets one step further, or to its end.
    pub fn train(&mut self, machine: usize, token: u64) {
        let Some(running) = &mut self.worker(machine).running else {
            return;
        };
        if running.token != token {
            return;
        }
        let job = running.job;
        if let Some(reason) = running.stop {
            let (step, started) = (running.step, running.started);
            if reason == StopReason::Requested {
                if started && step > 0 {
                    self.save_checkpoint(machine, job, step);
                }
                self.answer_stopped(machine, job, Some(step));
            }
            return self.end_training(machine, job);
        }
        if !running.started {
            running.started = true;
            let started = self.started_message(job);
            self.keep_or_send(machine, started);
        } else if running.step >= running.total {
            let total = running.total;
            self.complete(machine, job, total);
            return self.end_training(machine, job);
        } else if self.random.chance(8) {
            let failed = self.failed_message(job, FailureKind::Diverged, "the loss is not finite");
            self.keep_or_send(machine, failed);
            return self.end_training(machine, job);
        } else {
            let running = self.worker(machine).running.as_mut().expect("it trains");
            running.step += 1;
            let step = running.step;
            self.send_report(machine, progress_message(job, step));
            if step.is_multiple_of(SAVE_STEPS) {
                self.save_checkpoint(machine, job, step);
            }
        }
        let wait = self.random.between(500, 9_000);
        self.machine_later(machine, wait, MachineEvent::Step(token));
    }

    fn end_training(&mut self, machine: usize, job: JobAttempt) {
        let process = self.worker(machine);
        process.slot.ended(job);
        process.running = None;
        match process.next.take() {
            Some(next) => self.begin_training(machine, &next),
            None => self.beat(machine),
        }
    }

    fn complete(&mut self, machine: usize, job: JobAttempt, steps: u64) {
        let file = file(job, "final");
        let completed = FromWorker::JobCompleted(JobCompleted {
            worker_id: None,
            job_id: job.job_id,
            attempt: job.attempt,
            message_id: Some(self.message_id()),
            data: JobCompletedData {
                total_steps: Some(steps),
                files: vec![file.artifact.clone()],
                ..JobCompletedData::default()
            },
        });
        if !self.keep(machine, completed, vec![file]) {
            let failed = self.failed_message(job, FailureKind::Storage, "the disk is full");
            self.keep_or_send(machine, failed);
        }
    }

    fn save_checkpoint(&mut self, machine: usize, job: JobAttempt, step: u64) {
        let file = file(job, &format!("step-{step}"));
        let saved = FromWorker::CheckpointSaved(CheckpointSaved {
            worker_id: None,
            job_id: job.job_id,
            attempt: job.attempt,
            message_id: Some(self.message_id()),
            data: CheckpointSavedData {
                step,
                epoch: None,
                path: format!("checkpoints/job-{}/step-{step}/", job.job_id),
                metrics: Default::default(),
                files: vec![file.artifact.clone()],
            },
        });
        // Without room for it the training goes on.
        self.keep(machine, saved, vec![file]);
    }

    fn answer_stopped(&mut self, machine: usize, job: JobAttempt, step: Option<u64>) {
        let stopped = FromWorker::JobStopped(JobStopped {
            worker_id: None,
            job_id: job.job_id,
            attempt: job.attempt,
            message_id: Some(self.message_id()),
            data: JobStoppedData {
                step,
                last_checkpoint: None,
            },
        });
        self.keep_or_send(machine, stopped);
    }

    pub fn keep(&mut self, machine: usize, message: FromWorker, files: Vec<WaitingFile>) -> bool {
        let syncs = self.broken != Some(Broken::OutboxNotSynced);
        let now = self.now;
        self.record
            .said(&message, now < self.machines[machine].disk.full_until);
        let kept = self.machines[machine].disk.keep(message, files, now, syncs);
        if kept {
            self.deliver_outbox(machine);
        }
        kept
    }

    pub fn keep_or_send(&mut self, machine: usize, message: FromWorker) {
        if !self.keep(machine, message.clone(), Vec::new()) {
            self.send_report(machine, message);
        }
    }

    fn started_message(&mut self, job: JobAttempt) -> FromWorker {
        FromWorker::JobStarted(JobStarted {
            worker_id: None,
            job_id: job.job_id,
            attempt: job.attempt,
            message_id: Some(self.message_id()),
            data: JobStartedData::default(),
        })
    }

    fn failed_message(&mut self, job: JobAttempt, kind: FailureKind, error: &str) -> FromWorker {
        FromWorker::JobFailed(JobFailed {
            worker_id: None,
            job_id: job.job_id,
            attempt: job.attempt,
            message_id: Some(self.message_id()),
            data: JobFailedData {
                error: error.to_owned(),
                step: None,
                last_checkpoint: None,
                failure_kind: Some(kind),
            },
        })
    }

    pub fn message_id(&mut self) -> MessageId {
        let halves = (self.random.next(), self.random.next());
        MessageId(Uuid::from_u64_pair(halves.0, halves.1))
    }
}

fn progress_message(job: JobAttempt, step: u64) -> FromWorker {
    FromWorker::TrainingProgress(TrainingProgress {
        worker_id: None,
        job_id: job.job_id,
        attempt: job.attempt,
        data: TrainingProgressData {
            step,
            ..TrainingProgressData::default()
        },
    })
}

fn attempt_of(start: &StartTraining) -> JobAttempt {
    JobAttempt {
        job_id: start.job_id,
        attempt: start.attempt,
    }
}

fn file(job: JobAttempt, name: &str) -> WaitingFile {
    WaitingFile {
        artifact: ArtifactFile {
            key: format!("job-{}/{name}", job.job_id),
            size_bytes: 1,
            sha256: String::new(),
        },
        path: name.into(),
    }
}
