//! What becomes of a job whose worker is silent, gone, back, or never starts it.

use super::*;

#[test]
fn g008_a_completion_that_comes_before_the_verdict_stands() {
    let mut run = Run::running(0);
    run.says(A, completed());
    assert!(matches!(
        run.event(Event::WorkerLost(A)),
        Answer::Ignored(_)
    ));
    assert_eq!(run.job.status(), JobStatus::Completed);
    assert!(run.effects.is_empty());
}

#[test]
fn g008_a_completion_that_comes_after_the_verdict_is_too_late() {
    let mut run = Run::running(0);
    run.event(Event::WorkerLost(A));
    assert!(matches!(run.says(A, completed()), Answer::Ignored(_)));
    assert_eq!(run.job.status(), JobStatus::Failed);
}

#[test]
fn a_lost_worker_fails_its_job_and_says_which_checkpoint_is_left() {
    let mut run = Run::running(0);
    run.says(A, checkpoint(1000, false));
    run.says(A, checkpoint(1400, false));
    run.event(Event::WorkerLost(A));
    assert_eq!(run.failure_kind(), Some(FailureKind::WorkerLost));
    assert_eq!(
        run.published(),
        [
            &News::Update,
            &News::Failed {
                last_checkpoint_step: Some(1400)
            }
        ]
    );
    let error = run
        .job
        .failure
        .as_ref()
        .map(|failure| failure.error.as_str());
    assert_eq!(error, Some("Worker disconnected during training"));
}

#[test]
fn the_loss_of_another_worker_is_nothing_to_the_job() {
    let mut run = Run::running(0);
    assert!(matches!(
        run.event(Event::WorkerLost(B)),
        Answer::Ignored(_)
    ));
    assert!(matches!(
        run.event(Event::WorkerDisconnected(B)),
        Answer::Ignored(_)
    ));
    assert_eq!(run.job.status(), JobStatus::Running);
    assert!(!run.job.awaiting_worker);
}

#[test]
fn a_closed_socket_alone_fails_nothing_and_is_shown() {
    let mut run = Run::running(0);
    run.event(Event::WorkerDisconnected(A));
    assert!(run.job.awaiting_worker);
    assert_eq!(run.published(), [&News::Update]);
    run.event(Event::WorkerDisconnected(A));
    assert!(run.published().is_empty(), "told once");
    run.event(Event::WorkerRegistered(A));
    assert!(!run.job.awaiting_worker);
    assert_eq!(run.published(), [&News::Update]);
    assert_eq!(run.job.status(), JobStatus::Running);
}

/// Promise P2.
#[test]
fn g014_a_job_failed_by_timeout_stays_failed_and_lists_its_later_checkpoints() {
    let mut run = Run::running(0);
    run.event(Event::WorkerLost(A));
    assert_eq!(run.says(A, checkpoint(90, true)), Answer::Taken);
    assert_eq!(run.job.status(), JobStatus::Failed);
    assert_eq!(run.job.last_checkpoint_step(), Some(90));
    assert!(matches!(run.says(A, step(91)), Answer::Ignored(_)));
    assert!(run.effects.is_empty());
    assert!(matches!(run.says(A, stopped()), Answer::Ignored(_)));
    assert_eq!(run.job.status(), JobStatus::Failed);
}

#[test]
fn g019_a_job_that_is_never_started_fails_at_its_deadline() {
    let mut run = Run::new(0);
    run.event(Event::Assign(A));
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: false,
    });
    run.later(599);
    assert_eq!(
        run.job.status(),
        JobStatus::Assigned,
        "not shown as running meanwhile"
    );
    run.later(1);
    assert_eq!(run.job.status(), JobStatus::Failed);
    assert_eq!(run.failure_kind(), Some(FailureKind::NotStarted));
    assert_eq!(
        run.sent(),
        [
            Command::Stop(A),
            Command::Release {
                worker: A,
                said_by_worker: false
            }
        ]
    );
}

#[test]
fn g019_with_a_retry_left_it_is_queued_again() {
    let mut run = Run::new(1);
    run.event(Event::Assign(A));
    run.later(600);
    assert_eq!(run.job.status(), JobStatus::Queued);
    assert_eq!(run.job.attempt, 2);
    assert!(run.sent().contains(&Command::Enqueue));
    assert_eq!(run.published(), [&News::Update], "a retry is no end");
}

#[test]
fn g020_a_worker_that_came_back_without_the_job_fails_it_within_seconds() {
    let mut run = Run::running(0);
    run.event(Event::WorkerDisconnected(A));
    run.event(Event::WorkerRegistered(A));
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: true,
    });
    run.later(3);
    assert_eq!(run.job.status(), JobStatus::Failed);
    assert_eq!(run.failure_kind(), Some(FailureKind::WorkerRestarted));
}

#[test]
fn g020_a_checkpoint_kept_from_before_the_restart_does_not_keep_the_job_alive() {
    let mut run = Run::running(0);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: true,
    });
    run.says(A, checkpoint(5, true));
    run.later(3);
    assert_eq!(run.job.status(), JobStatus::Failed);
    let failure = run.job.failure.expect("it has failed");
    assert_eq!(failure.kind, FailureKind::WorkerRestarted);
}

#[test]
fn g020_what_the_worker_kept_while_it_was_away_is_heard_first() {
    for report in [completed(), step(9)] {
        let mut run = Run::running(0);
        run.event(Event::WorkerHolds {
            worker: A,
            holds: false,
            first: true,
        });
        let expected = if matches!(report, Report::Progress(_)) {
            JobStatus::Running
        } else {
            JobStatus::Completed
        };
        run.says(A, report);
        run.later(10);
        assert_eq!(run.job.status(), expected);
    }
}

#[test]
fn a_second_no_does_not_put_the_verdict_off() {
    let mut run = Run::running(0);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: true,
    });
    run.later(2);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: false,
    });
    run.later(1);
    assert_eq!(run.job.status(), JobStatus::Failed);
}

#[test]
fn an_assigned_job_is_sent_again_to_a_worker_that_came_back_without_it() {
    let mut run = Run::new(0);
    run.event(Event::Assign(A));
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: true,
    });
    assert_eq!(run.sent(), [Command::Start(A)]);
    assert_eq!(run.job.attempt, 1);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: true,
        first: true,
    });
    assert!(run.sent().is_empty(), "it has it");
}

#[test]
fn a_stop_is_sent_again_to_a_worker_that_came_back_with_the_job() {
    let mut run = Run::running(0);
    run.event(Event::StopAsked);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: true,
        first: true,
    });
    assert_eq!(run.sent(), [Command::Stop(A)]);
}

#[test]
fn a_stopping_job_that_its_worker_has_no_more_is_stopped_soon() {
    let mut run = Run::running(0);
    run.event(Event::StopAsked);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: true,
    });
    run.later(3);
    assert_eq!(run.job.status(), JobStatus::Stopped);
}

#[test]
fn g011_after_a_restart_jobs_wait_for_their_worker() {
    let mut run = Run::running(0);
    run.job.after_restart(T0, &TIMING);
    assert!(run.job.awaiting_worker);
    assert_eq!(run.job.next_deadline(), None);
    run.event(Event::WorkerRegistered(A));
    run.event(Event::WorkerHolds {
        worker: A,
        holds: true,
        first: true,
    });
    assert_eq!(run.job.status(), JobStatus::Running);
    assert!(!run.job.awaiting_worker);

    let mut run = Run::new(0);
    run.job.after_restart(T0, &TIMING);
    assert_eq!(run.job.status(), JobStatus::Queued);
    assert!(!run.job.awaiting_worker);
}
