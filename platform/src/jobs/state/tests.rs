use super::*;
use crate::jobs::event::{Effect, Report};
use std::time::Duration;
use trainyard_shared::message::{
    ArtifactFile, CheckpointSavedData, JobCompletedData, JobFailedData, JobStartedData,
    JobStoppedData, TrainingProgressData,
};

mod checkpoints;
mod unclear_writes;
mod worker_loss;

const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);
const T0: Moment = Moment::from_millis(1_000_000);
const TIMING: JobTiming = JobTiming {
    start_timeout: Duration::from_secs(600),
    stop_grace: Duration::from_secs(120),
    missing_grace: Duration::from_secs(3),
};

/// A job whose events are applied in turn, as an actor would.
struct Run {
    job: JobState,
    now: Moment,
    effects: Vec<Effect>,
    transitions: Vec<Transition>,
}

impl Run {
    fn new(max_retries: u32) -> Self {
        Self {
            job: JobState::new(JobId(7), max_retries),
            now: T0,
            effects: Vec::new(),
            transitions: Vec::new(),
        }
    }

    fn running(max_retries: u32) -> Self {
        let mut run = Self::new(max_retries);
        run.event(Event::Assign(A));
        run.says(A, Report::Started(JobStartedData::default()));
        run
    }

    fn event(&mut self, event: Event) -> Answer {
        let before = self.job.clone();
        let outcome = self.job.apply(event, self.now, &TIMING);
        let rank = |effect: &Effect| match effect {
            Effect::Persist(_) => 0,
            Effect::Publish(_) => 1,
            Effect::Send(_) => 2,
        };
        assert!(
            outcome.effects.is_sorted_by_key(rank),
            "persist, publish, send"
        );
        let persists = outcome
            .effects
            .iter()
            .filter(|effect| rank(effect) == 0)
            .count();
        assert!(persists <= 1);
        if before.status() != outcome.next.status() {
            assert_eq!(persists, 1, "a change of status is persisted");
        }
        for effect in &outcome.effects {
            if let Effect::Persist(transition) = effect {
                assert_eq!(transition.from, before.status());
                assert_eq!(transition.to, outcome.next.status());
                self.transitions.push(transition.clone());
            }
        }
        self.effects = outcome.effects;
        self.job = outcome.next;
        outcome.answer
    }

    fn says(&mut self, worker: WorkerId, report: Report) -> Answer {
        self.event(Event::Reported {
            worker,
            attempt: None,
            report: Box::new(report),
        })
    }

    fn says_of(&mut self, worker: WorkerId, attempt: u32, report: Report) -> Answer {
        self.event(Event::Reported {
            worker,
            attempt: Some(attempt),
            report: Box::new(report),
        })
    }

    fn later(&mut self, seconds: u64) -> Answer {
        self.now = self.now + Duration::from_secs(seconds);
        self.event(Event::DeadlinePassed)
    }

    fn sent(&self) -> Vec<Command> {
        self.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Send(command) => Some(*command),
                _ => None,
            })
            .collect()
    }

    fn published(&self) -> Vec<&News> {
        self.effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Publish(news) => Some(news),
                _ => None,
            })
            .collect()
    }

    fn kinds(&self) -> Vec<&str> {
        self.transitions
            .iter()
            .map(|transition| transition.kind.as_str())
            .collect()
    }

    fn failure_kind(&self) -> Option<FailureKind> {
        self.job.failure.as_ref().map(|failure| failure.kind)
    }
}

fn step(step: u64) -> Report {
    Report::Progress(TrainingProgressData {
        step,
        loss: Some(0.5),
        ..Default::default()
    })
}

fn checkpoint(step: u64, verified: bool) -> Report {
    let files = if verified {
        vec![ArtifactFile {
            key: "k".into(),
            size_bytes: 1,
            sha256: "0".repeat(64),
        }]
    } else {
        Vec::new()
    };
    Report::CheckpointSaved(CheckpointSavedData {
        step,
        epoch: None,
        path: format!("checkpoints/job-7/step-{step}/"),
        metrics: BTreeMap::new(),
        files,
    })
}

fn completed() -> Report {
    Report::Completed(JobCompletedData {
        final_loss: Some(0.1),
        ..Default::default()
    })
}

fn failed(error: &str) -> Report {
    Report::Failed(JobFailedData {
        error: error.into(),
        step: None,
        last_checkpoint: None,
        failure_kind: None,
    })
}

fn stopped() -> Report {
    Report::Stopped(JobStoppedData::default())
}

#[test]
fn a_job_goes_from_the_queue_to_its_end() {
    let mut run = Run::new(0);
    assert_eq!(run.event(Event::Assign(A)), Answer::Taken);
    assert_eq!(run.sent(), [Command::Start(A)]);
    assert_eq!(
        run.says(A, Report::Started(JobStartedData::default())),
        Answer::Taken
    );
    run.says(A, step(1));
    assert_eq!(run.sent(), [Command::KeepPoint]);
    run.says(A, checkpoint(1, true));
    run.says(A, completed());
    assert_eq!(
        run.sent(),
        [Command::Release {
            worker: A,
            said_by_worker: true
        }]
    );
    assert_eq!(run.job.status(), JobStatus::Completed);
    assert_eq!(
        run.kinds(),
        ["assigned", "started", "checkpoint_saved", "completed"]
    );
    assert_eq!(run.job.next_deadline(), None);
}

#[test]
fn a_job_is_assigned_once() {
    let mut run = Run::new(0);
    run.event(Event::Assign(A));
    assert_eq!(run.event(Event::Assign(B)), Answer::Refused);
    assert_eq!(run.job.phase.worker(), Some(A));
}

#[test]
fn g013_a_repeated_completion_changes_nothing() {
    let mut run = Run::running(0);
    run.says(A, completed());
    assert!(matches!(run.says(A, completed()), Answer::Ignored(_)));
    assert!(run.effects.is_empty());
    run.now = run.now + Duration::from_secs(600);
    assert!(matches!(run.says_of(A, 1, completed()), Answer::Ignored(_)));
    assert_eq!(
        run.kinds()
            .iter()
            .filter(|kind| **kind == "completed")
            .count(),
        1
    );
}

#[test]
fn g016_progress_is_counted_anew_in_each_attempt() {
    let mut run = Run::running(0);
    run.says(A, checkpoint(1400, true));
    run.says(A, step(1480));
    run.event(Event::WorkerLost(A));
    assert_eq!(run.event(Event::ResumeAsked), Answer::Taken);
    assert_eq!(run.sent(), [Command::Enqueue]);
    assert_eq!((run.job.attempt, run.job.resume_from), (2, Some(1400)));
    run.event(Event::Assign(B));
    run.says(B, Report::Started(JobStartedData::default()));
    run.says(B, step(1401));
    run.says(B, step(1402));
    assert_eq!(run.job.progress.step(), 1402);
    // What the first worker still says of its attempt counts no more.
    assert!(matches!(run.says_of(A, 1, step(1481)), Answer::Ignored(_)));
    assert_eq!(run.job.progress.step(), 1402);
}

#[test]
fn an_end_that_names_no_attempt_does_not_end_one_that_has_not_begun() {
    let mut run = Run::running(0);
    run.event(Event::WorkerLost(A));
    run.event(Event::ResumeAsked);
    run.event(Event::Assign(A));
    assert!(matches!(run.says(A, completed()), Answer::Ignored(_)));
    assert_eq!(run.job.status(), JobStatus::Assigned);
    run.says(A, step(1));
    assert_eq!(run.says(A, completed()), Answer::Taken);
    assert_eq!(run.job.status(), JobStatus::Completed);
}

#[test]
fn an_error_text_is_kept_up_to_a_limit() {
    let mut run = Run::running(0);
    run.says(
        A,
        Report::Failed(JobFailedData {
            error: "é".repeat(MAX_ERROR_BYTES),
            step: None,
            last_checkpoint: None,
            failure_kind: None,
        }),
    );
    let kept = run.job.failure.expect("it has failed").error;
    assert_eq!(kept, "é".repeat(MAX_ERROR_BYTES / 2));
}

#[test]
fn g018_a_stop_at_the_moment_of_assignment_makes_one_pair_of_start_and_stop() {
    let mut run = Run::new(0);
    let mut sent = Vec::new();
    for event in [Event::Assign(A), Event::StopAsked, Event::StopAsked] {
        assert_eq!(run.event(event), Answer::Taken);
        sent.extend(run.sent());
    }
    assert_eq!(sent, [Command::Start(A), Command::Stop(A)]);
    assert_eq!(run.job.status(), JobStatus::Stopping);
    run.says(A, stopped());
    assert_eq!(run.job.status(), JobStatus::Stopped);
    assert_eq!(
        run.event(Event::Assign(A)),
        Answer::Refused,
        "it is never offered again"
    );
}

#[test]
fn g018_a_stop_before_the_assignment_leaves_nothing_to_assign() {
    let mut run = Run::new(0);
    run.event(Event::StopAsked);
    assert_eq!(run.sent(), []);
    assert_eq!(run.job.status(), JobStatus::Stopped);
    assert_eq!(run.event(Event::Assign(A)), Answer::Refused);
    assert!(run.effects.is_empty());
}

#[test]
fn g017_a_stopped_job_is_neither_completed_nor_failed() {
    for report in [stopped(), completed(), failed("stopped by user")] {
        let mut run = Run::running(3);
        run.event(Event::StopAsked);
        run.says(A, checkpoint(40, true));
        run.says(A, report);
        assert_eq!(run.job.status(), JobStatus::Stopped);
        assert_eq!(
            run.sent(),
            [Command::Release {
                worker: A,
                said_by_worker: true
            }]
        );
    }
}

#[test]
fn a_job_that_is_stopped_does_not_show_why_an_attempt_before_failed() {
    let mut run = Run::running(2);
    run.event(Event::WorkerLost(A));
    assert_eq!(run.failure_kind(), Some(FailureKind::WorkerLost));
    let mut queued = JobState::clone(&run.job);
    run.event(Event::Assign(A));
    run.event(Event::StopAsked);
    run.says(A, stopped());
    assert_eq!((run.job.phase, run.failure_kind()), (Phase::Stopped, None));
    queued = queued.apply(Event::StopAsked, T0, &TIMING).next;
    assert_eq!((queued.phase, queued.failure), (Phase::Stopped, None));
}

#[test]
fn a_worker_that_does_not_stop_in_time_is_taken_for_stopped() {
    let mut run = Run::running(0);
    run.event(Event::StopAsked);
    assert_eq!(run.job.next_deadline(), Some(T0 + TIMING.stop_grace));
    run.later(119);
    assert_eq!(run.job.status(), JobStatus::Stopping);
    run.later(1);
    assert_eq!(run.job.status(), JobStatus::Stopped);
    assert_eq!(
        run.sent(),
        [Command::Release {
            worker: A,
            said_by_worker: false
        }]
    );
}

#[test]
fn stopping_is_harmless_twice_and_refused_after_the_end() {
    let mut run = Run::running(0);
    run.event(Event::StopAsked);
    assert_eq!(run.event(Event::StopAsked), Answer::Taken);
    assert!(run.effects.is_empty());
    run.event(Event::WorkerLost(A));
    assert_eq!(run.job.status(), JobStatus::Stopped);
    assert_eq!(run.event(Event::StopAsked), Answer::Refused);
}

#[test]
fn g021_only_the_owner_may_change_a_job() {
    for report in [step(5), checkpoint(5, false), completed()] {
        // Still queued: nobody's.
        let mut run = Run::new(0);
        assert_eq!(run.says(A, report.clone()), Answer::WrongWorker);
        assert!(run.effects.is_empty());
        assert_eq!(run.job, JobState::new(JobId(7), 0));

        // With another worker.
        let mut run = Run::running(0);
        assert_eq!(run.says(B, report.clone()), Answer::WrongWorker);
        assert!(run.effects.is_empty());

        // Of an attempt of its own that counts no more.
        let mut run = Run::running(0);
        run.event(Event::WorkerLost(A));
        run.event(Event::ResumeAsked);
        run.event(Event::Assign(B));
        let before = run.job.clone();
        assert!(matches!(run.says(A, report.clone()), Answer::Ignored(_)));
        assert!(matches!(
            run.says_of(A, 1, report.clone()),
            Answer::Ignored(_)
        ));
        assert_eq!(run.says_of(A, 2, report.clone()), Answer::WrongWorker);
        assert_eq!(run.says_of(B, 1, report.clone()), Answer::WrongWorker);
        assert_eq!(run.says_of(B, 3, report), Answer::WrongWorker);
        assert_eq!(run.job, before);
    }
}

#[test]
fn a_failed_job_is_queued_again_while_retries_are_left() {
    let mut run = Run::running(1);
    run.says(A, checkpoint(400, true));
    run.says(A, failed("CUDA out of memory. Tried to allocate 2.5 GB..."));
    assert_eq!(run.job.status(), JobStatus::Queued);
    assert_eq!((run.job.attempt, run.job.resume_from), (2, Some(400)));
    assert_eq!(run.failure_kind(), Some(FailureKind::OutOfMemory));
    run.event(Event::Assign(B));
    run.says(B, failed("CUDA out of memory"));
    assert_eq!(run.job.status(), JobStatus::Failed);
    assert_eq!(run.kinds().last(), Some(&"failed"));
}

#[test]
fn bad_data_is_not_tried_again() {
    let mut run = Run::running(5);
    run.says(
        A,
        Report::Failed(JobFailedData {
            error: "line 3: no messages".into(),
            step: None,
            last_checkpoint: None,
            failure_kind: Some(FailureKind::BadData),
        }),
    );
    assert_eq!(run.job.status(), JobStatus::Failed);
}

#[test]
fn the_checkpoint_that_a_failing_worker_names_is_passed_on() {
    let mut run = Run::running(0);
    run.says(
        A,
        Report::Failed(JobFailedData {
            error: "boom".into(),
            step: Some(450),
            last_checkpoint: Some("checkpoints/job-7/step-400/".into()),
            failure_kind: None,
        }),
    );
    assert!(run.published().contains(&&News::Failed {
        last_checkpoint_step: Some(400)
    }));
}

#[test]
fn a_repeated_checkpoint_is_recorded_once_and_again_when_its_files_are_there() {
    let mut run = Run::running(0);
    run.says(A, checkpoint(10, false));
    assert!(matches!(
        run.says(A, checkpoint(10, false)),
        Answer::Ignored(_)
    ));
    assert_eq!(run.job.resumable_checkpoint(), None);
    run.says(A, checkpoint(10, true));
    assert_eq!(run.job.resumable_checkpoint(), Some((1, 10)));
    assert!(matches!(
        run.says(A, checkpoint(10, true)),
        Answer::Ignored(_)
    ));
}

#[test]
fn a_worker_that_trains_without_having_said_so_has_started() {
    for report in [step(1), checkpoint(1, false)] {
        let mut run = Run::new(0);
        run.event(Event::Assign(A));
        run.says(A, report);
        assert_eq!(run.job.status(), JobStatus::Running);
    }
}

#[test]
fn a_late_step_is_kept_and_not_shown() {
    let mut run = Run::running(0);
    run.says(A, step(30));
    run.says(A, step(20));
    assert_eq!(run.sent(), [Command::KeepPoint]);
    assert!(run.published().is_empty());
    run.says(A, step(30));
    assert!(run.effects.is_empty(), "a repeat is dropped");
}

#[test]
fn completed_jobs_cannot_be_resumed_and_others_only_once() {
    let mut run = Run::running(0);
    assert_eq!(run.event(Event::ResumeAsked), Answer::Refused);
    run.event(Event::StopAsked);
    run.says(A, stopped());
    assert_eq!(run.event(Event::ResumeAsked), Answer::Taken);
    assert_eq!(run.event(Event::ResumeAsked), Answer::Refused);
    let mut run = Run::running(0);
    run.says(A, completed());
    assert_eq!(run.event(Event::ResumeAsked), Answer::Refused);
}
