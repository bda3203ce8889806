//! What a worker's reports on its job come to.

use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{
    CheckpointSavedData, JobCompletedData, JobFailedData, JobStartedData, TrainingProgressData,
};

use super::{JobState, MAX_ERROR_BYTES};
use crate::jobs::event::{Command, News, Outcome, Record, Report, StepBuilder, TransitionKind};
use crate::jobs::failure::{Failure, kind_of, step_of_path};
use crate::jobs::phase::{CheckpointMark, Phase};
use crate::jobs::progress::Arrival;

impl JobState {
    /// Lets the worker that has the job report on it.
    pub(super) fn report(&self, worker: WorkerId, report: Report) -> Outcome {
        match report {
            Report::Started(data) => self.started(worker, data),
            Report::Progress(data) => self.progressed(worker, &data),
            Report::CheckpointSaved(data) => self.checkpoint_saved(worker, data),
            Report::Logged(data) => StepBuilder::passing(self.clone())
                .publish(News::Logged(data))
                .send(Command::KeepLine)
                .done(),
            _ if self.phase.worker().is_none() => self.ignored("the job has ended"),
            Report::Completed(data) => self.completed(worker, data),
            Report::Failed(data) => self.failed_by_worker(data),
            Report::Stopped(_) => self.stopped("by the worker", true),
        }
    }

    /// Whether an end that names no attempt, as the source's do not, may be that of one before the present.
    pub(super) fn may_end_an_earlier_attempt(&self, worker: WorkerId, report: &Report) -> bool {
        let mut earlier = self.owners.range(..self.attempt);
        matches!(
            (self.phase, report),
            (Phase::Assigned { .. }, Report::Completed(_))
        ) && earlier.any(|(_, owner)| *owner == worker)
    }

    fn started(&self, worker: WorkerId, data: JobStartedData) -> Outcome {
        if !matches!(self.phase, Phase::Assigned { .. }) {
            return self.ignored("the job has started already");
        }
        let mut next = self.clone();
        next.phase = Phase::Running {
            worker,
            missing_by: None,
        };
        next.total_steps = data.total_steps;
        self.step(next, TransitionKind::Started, String::new())
            .record(Record::Started(data))
            .publish(News::Update)
            .done()
    }

    fn progressed(&self, worker: WorkerId, data: &TrainingProgressData) -> Outcome {
        if self.phase.worker().is_none() {
            return self.ignored("the job has ended");
        }
        if !self.progress.is_possible(data, self.total_steps) {
            return self.ignored("a step beyond the job's last");
        }
        let mut next = self.clone();
        let arrival = next.progress.take(data);
        // A worker that trains has started, whether or not it said so, and has the job.
        let step = match self.phase {
            Phase::Assigned { .. } => {
                next.phase = Phase::Running {
                    worker,
                    missing_by: None,
                };
                self.step(next, TransitionKind::Started, String::new())
                    .record(Record::Started(JobStartedData::default()))
            }
            Phase::Running { .. } => {
                next.phase = Phase::Running {
                    worker,
                    missing_by: None,
                };
                StepBuilder::passing(next)
            }
            _ => StepBuilder::passing(next),
        };
        match arrival {
            Arrival::Newest => step.publish(News::Update).send(Command::KeepPoint).done(),
            Arrival::Late => step.send(Command::KeepPoint).done(),
            Arrival::Repeat => step.done(),
        }
    }

    fn checkpoint_saved(&self, worker: WorkerId, data: CheckpointSavedData) -> Outcome {
        let verified = !data.files.is_empty();
        // It may have waited in the outbox of a worker that has restarted, so it does not show that the worker
        // still has the job.
        let mut next = self.clone();
        let key = (self.attempt, data.step);
        if self
            .checkpoints
            .get(&key)
            .is_some_and(|known| known.verified >= verified)
        {
            return Outcome {
                next,
                ..self.ignored("the checkpoint is recorded already")
            };
        }
        let mark = CheckpointMark::new(verified, &data.metrics);
        next.checkpoints.insert(key, mark);
        next.forget_old_checkpoints();
        if !next.checkpoints.contains_key(&key) {
            return self.ignored("an older checkpoint than those that are kept");
        }
        if let Phase::Assigned { .. } = self.phase {
            next.phase = Phase::Running {
                worker,
                missing_by: None,
            };
        }
        let detail = format!("step {}", data.step);
        self.step(next, TransitionKind::CheckpointSaved, detail)
            .record(Record::Checkpoint(data.clone()))
            .publish(News::CheckpointSaved(data))
            .done()
    }

    fn completed(&self, worker: WorkerId, data: JobCompletedData) -> Outcome {
        let mut next = self.clone();
        next.awaiting_worker = false;
        next.failure = None;
        let release = Command::Release {
            worker,
            said_by_worker: true,
        };
        if let Phase::Stopping { .. } = self.phase {
            next.phase = Phase::Stopped;
            return self
                .step(
                    next,
                    TransitionKind::Stopped,
                    "the training had come to its end".to_owned(),
                )
                .record(Record::Result(data))
                .publish(News::Update)
                .send(release)
                .done();
        }
        next.phase = Phase::Completed;
        self.step(next, TransitionKind::Completed, String::new())
            .record(Record::Result(data.clone()))
            .publish(News::Update)
            .publish(News::Completed(data))
            .send(release)
            .done()
    }

    fn failed_by_worker(&self, data: JobFailedData) -> Outcome {
        if let Phase::Stopping { .. } = self.phase {
            return self.stopped(&data.error, true);
        }
        let kind = data.failure_kind.unwrap_or_else(|| kind_of(&data.error));
        let named = data.last_checkpoint.as_deref().and_then(step_of_path);
        let mut error = data.error;
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
        self.failed(Failure { kind, error }, named, true)
    }
}
