//! A write of which nobody knows whether it was made: the state is read anew, and what is not in the database
//! must not be lost. All found by the simulation.

use super::*;

/// The state as it would be read back: nothing that is only known in memory.
fn as_stored(job: &JobState, shown_step: u64) -> JobState {
    let progress = TrainingProgressData {
        step: shown_step,
        ..TrainingProgressData::default()
    };
    JobState {
        awaiting_worker: false,
        progress: Progress::known(Some(progress)),
        ..job.clone()
    }
}

fn read_anew(run: &Run, stored: JobState) -> (JobState, Option<Event>) {
    let mut state = stored;
    let order = state.after_unclear_write(&run.job, run.now, &TIMING);
    (state, order)
}

#[test]
fn shown_progress_does_not_go_back_when_the_newest_step_was_not_written_yet() {
    let mut run = Run::running(0);
    let progress = TrainingProgressData {
        step: 10,
        ..TrainingProgressData::default()
    };
    run.says(A, Report::Progress(progress));
    let (state, order) = read_anew(&run, as_stored(&run.job, 3));
    assert_eq!(state.progress.step(), 10);
    assert_eq!(order, None);
}

#[test]
fn a_worker_that_does_not_have_the_job_is_not_forgotten() {
    let mut run = Run::running(0);
    run.event(Event::WorkerHolds {
        worker: A,
        holds: false,
        first: true,
    });
    let due = run.job.next_deadline();
    assert!(due.is_some());
    let stored = JobState {
        phase: Phase::Running {
            worker: A,
            missing_by: None,
        },
        ..as_stored(&run.job, 0)
    };
    let (state, _) = read_anew(&run, stored);
    assert_eq!(state.next_deadline(), due, "it would run for ever");
}

#[test]
fn orders_that_may_not_have_gone_out_are_given_again() {
    let mut run = Run::new(0);
    let assigned = run.job.apply(Event::Assign(A), run.now, &TIMING).next;
    let (state, order) = read_anew(&run, assigned);
    run.job = state;
    run.effects.clear();
    run.event(order.expect("the worker may not have been told"));
    assert_eq!(run.effects, [Effect::Send(Command::Start(A))]);

    let mut run = Run::running(0);
    let stopping = run.job.apply(Event::StopAsked, run.now, &TIMING).next;
    let (state, order) = read_anew(&run, stopping);
    run.job = state;
    run.effects.clear();
    run.event(order.expect("the worker may not have been told"));
    assert_eq!(run.effects, [Effect::Send(Command::Stop(A))]);
}

#[test]
fn deadlines_go_on_where_the_job_stands_where_it_stood_and_begin_where_it_does_not() {
    let mut run = Run::new(0);
    run.event(Event::Assign(A));
    let due = run.job.next_deadline();
    run.now = run.now + Duration::from_secs(100);
    let (state, _) = read_anew(&run, run.job.clone());
    assert_eq!(state.next_deadline(), due);

    let stopping = run.job.apply(Event::StopAsked, T0, &TIMING).next;
    let (state, _) = read_anew(&run, stopping);
    assert_eq!(state.next_deadline(), Some(run.now + TIMING.stop_grace));
}
