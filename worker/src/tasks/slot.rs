//! What becomes of a request to start or stop a job, given what runs and what has ended: pure decisions.

use std::collections::VecDeque;

use trainyard_shared::WorkerType;
use trainyard_shared::ids::JobId;

use crate::connection::outbox::JobAttempt;

/// Ended attempts that are remembered, so that a late repeat of their start starts nothing.
const REMEMBERED: usize = 256;

/// The one place for a running job, and the memory of those that were in it.
#[derive(Debug, Default)]
pub struct Slot {
    running: Option<JobAttempt>,
    ended: VecDeque<JobAttempt>,
}

/// What to do about `start_training`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnStart {
    /// Start it now.
    Begin,
    /// A repeat of what runs or has ended: nothing.
    Ignore,
    /// Stop the older attempt of the same job without a word, then start this one.
    Supersede,
    /// Answer with the job's failure.
    Refuse(String),
}

/// What to do about `stop_training`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStop {
    /// It runs: stop it.
    Stop,
    /// It has ended, and its end is told or on its way.
    Ignore,
    /// This worker knows nothing of it: say that it is stopped.
    Answer,
}

impl Slot {
    /// A free place. `ended` are attempts whose end is on its way to the platform already.
    pub fn new(ended: Vec<JobAttempt>) -> Self {
        Self {
            running: None,
            ended: ended.into(),
        }
    }

    /// What `start_training` of `new` means to a worker that takes this kind of work.
    pub fn on_start(&self, new: JobAttempt, takes: WorkerType) -> OnStart {
        if self.ended.contains(&new) {
            return OnStart::Ignore;
        }
        match self.running {
            Some(running) if running == new => OnStart::Ignore,
            // A platform that counts no attempts repeats itself when it sends the same job again.
            Some(running) if running.job_id == new.job_id => match (running.attempt, new.attempt) {
                (Some(old), Some(newer)) if newer > old => OnStart::Supersede,
                _ => OnStart::Ignore,
            },
            Some(running) => {
                OnStart::Refuse(format!("this worker is busy with job {}", running.job_id))
            }
            None if !takes.takes_training() => {
                OnStart::Refuse("this worker takes no training jobs (WORKER_TYPE)".to_owned())
            }
            None => OnStart::Begin,
        }
    }

    /// What `stop_training` of `job` means.
    pub fn on_stop(&self, job: JobId) -> OnStop {
        if self.running.is_some_and(|running| running.job_id == job) {
            OnStop::Stop
        } else if self.ended.iter().any(|ended| ended.job_id == job) {
            OnStop::Ignore
        } else {
            OnStop::Answer
        }
    }

    /// What runs.
    pub fn running(&self) -> Option<JobAttempt> {
        self.running
    }

    /// The attempt runs from now on.
    pub fn begun(&mut self, job: JobAttempt) {
        self.running = Some(job);
    }

    /// The attempt has ended; it is forgotten as the running one only if it still is that.
    pub fn ended(&mut self, job: JobAttempt) {
        if self.running == Some(job) {
            self.running = None;
        }
        if job.attempt.is_some() {
            if self.ended.len() == REMEMBERED {
                self.ended.pop_front();
            }
            self.ended.push_back(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(job: i64, attempt: u32) -> JobAttempt {
        JobAttempt {
            job_id: JobId(job),
            attempt: Some(attempt),
        }
    }

    fn on_start(slot: &Slot, new: JobAttempt) -> OnStart {
        slot.on_start(new, WorkerType::Both)
    }

    #[test]
    fn a_repeated_start_of_what_runs_or_has_ended_starts_nothing() {
        let mut slot = Slot::default();
        assert_eq!(on_start(&slot, attempt(7, 1)), OnStart::Begin);
        slot.begun(attempt(7, 1));
        assert_eq!(on_start(&slot, attempt(7, 1)), OnStart::Ignore);
        slot.ended(attempt(7, 1));
        assert_eq!(on_start(&slot, attempt(7, 1)), OnStart::Ignore);
        assert_eq!(on_start(&slot, attempt(7, 2)), OnStart::Begin);
    }

    #[test]
    fn an_end_that_is_still_on_its_way_counts_after_a_restart() {
        let slot = Slot::new(vec![attempt(7, 1)]);
        assert_eq!(on_start(&slot, attempt(7, 1)), OnStart::Ignore);
        assert_eq!(slot.on_stop(JobId(7)), OnStop::Ignore);
    }

    #[test]
    fn a_newer_attempt_takes_the_place_of_the_older_one_and_an_older_one_does_not() {
        let mut slot = Slot::default();
        slot.begun(attempt(7, 2));
        assert_eq!(on_start(&slot, attempt(7, 3)), OnStart::Supersede);
        assert_eq!(on_start(&slot, attempt(7, 1)), OnStart::Ignore);
    }

    #[test]
    fn another_job_is_refused_while_one_runs() {
        let mut slot = Slot::default();
        slot.begun(attempt(7, 1));
        let OnStart::Refuse(reason) = on_start(&slot, attempt(8, 1)) else {
            panic!("started twice");
        };
        assert!(reason.contains("job 7"), "{reason}");
    }

    #[test]
    fn a_platform_without_attempts_may_send_the_same_job_again_after_its_end() {
        let job = JobAttempt {
            job_id: JobId(7),
            attempt: None,
        };
        let mut slot = Slot::default();
        slot.begun(job);
        assert_eq!(on_start(&slot, job), OnStart::Ignore);
        slot.ended(job);
        assert_eq!(on_start(&slot, job), OnStart::Begin);
    }

    #[test]
    fn a_stop_reaches_what_runs_and_is_answered_for_what_is_not_known() {
        let mut slot = Slot::default();
        assert_eq!(slot.on_stop(JobId(7)), OnStop::Answer);
        slot.begun(attempt(7, 1));
        assert_eq!(slot.on_stop(JobId(7)), OnStop::Stop);
        assert_eq!(slot.on_stop(JobId(8)), OnStop::Answer);
        slot.ended(attempt(7, 1));
        assert_eq!(slot.on_stop(JobId(7)), OnStop::Ignore);
    }

    #[test]
    fn a_worker_for_inference_takes_no_training() {
        let slot = Slot::default();
        let decision = slot.on_start(attempt(7, 1), WorkerType::Inference);
        assert!(matches!(decision, OnStart::Refuse(_)));
    }
}
