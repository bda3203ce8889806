//! What becomes of a task, event by event.

use super::*;

type Event = super::Event<u32>;

const RULES: TaskRules = TaskRules {
    noun: "evaluation",
    silence_timeout: Duration::from_secs(600),
    missing_grace: Duration::from_secs(3),
};
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn running() -> Phase {
    Phase::Queued.apply(Event::Assigned(A), at(0), &RULES).next
}

fn progress(done: u64, total: u64) -> Event {
    Event::Said(A, Said::Progress(TaskProgressData { done, total }))
}

fn shown(done: u64, total: u64) -> Effect<u32> {
    Effect::ShowProgress(TaskProgressData { done, total })
}

fn holds(holds: bool) -> Event {
    Event::WorkerHolds { worker: A, holds }
}

fn failure(outcome: &Outcome<u32>) -> FailureKind {
    match &outcome.effects[0] {
        Effect::Persist(Some(End::Failure(failure))) => failure.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_task_runs_to_its_product_and_frees_its_worker() {
    let outcome = running().apply(progress(1, 4), at(1), &RULES);
    assert_eq!(outcome.effects, [shown(1, 4)]);
    let completed = || Event::Said(A, Said::Completed(7));
    let outcome = outcome.next.apply(completed(), at(2), &RULES);
    assert_eq!(
        outcome.effects,
        [
            Effect::Persist(Some(End::Product(7))),
            Effect::ShowEnd(End::Product(7)),
            Effect::Release {
                worker: A,
                said_by_worker: true
            }
        ]
    );
    let again = outcome.next.apply(completed(), at(3), &RULES);
    assert_eq!(again, outcome.next.ignored());
}

#[test]
fn more_than_all_is_all() {
    let outcome = running().apply(progress(10, 5), at(1), &RULES);
    assert_eq!(outcome.effects, [shown(5, 5)]);
}

#[test]
fn only_the_worker_that_has_it_is_heard() {
    for phase in [Phase::Queued, running()] {
        let event = Event::Said(B, Said::Completed(7));
        let outcome = phase.apply(event, at(1), &RULES);
        assert_eq!(outcome, phase.outcome(Answer::WrongWorker, Vec::new()));
    }
}

#[test]
fn a_lost_worker_s_task_fails() {
    let outcome = running().apply(Event::WorkerLost(A), at(1), &RULES);
    assert_eq!(failure(&outcome), FailureKind::WorkerLost);
    let other = running().apply(Event::WorkerLost(B), at(1), &RULES);
    assert_eq!(other, running().ignored());
}

#[test]
fn one_that_the_worker_never_took_is_sent_again_and_one_that_it_had_fails() {
    let mut phase = running();
    for _ in 1..MAX_SENDS {
        phase = phase.apply(holds(false), at(1), &RULES).next;
        assert_eq!(phase.next_deadline(), Some(at(4)));
        let outcome = phase.apply(Event::DeadlinePassed, at(4), &RULES);
        assert_eq!(outcome.effects, [Effect::Start(A)]);
        phase = outcome.next;
    }
    phase = phase.apply(holds(false), at(1), &RULES).next;
    let outcome = phase.apply(Event::DeadlinePassed, at(4), &RULES);
    assert_eq!(failure(&outcome), FailureKind::NotStarted);

    let taken = running().apply(progress(1, 4), at(1), &RULES).next;
    let missing = taken.apply(holds(false), at(2), &RULES).next;
    let still_there = missing.apply(holds(true), at(3), &RULES).next;
    assert_eq!(still_there.next_deadline(), Some(at(603)));
    let outcome = missing.apply(Event::DeadlinePassed, at(5), &RULES);
    assert_eq!(failure(&outcome), FailureKind::WorkerRestarted);
}

#[test]
fn after_a_restart_of_the_platform_a_worker_without_it_fails_it() {
    let phase = Phase::after_restart(A, at(0), &RULES);
    let missing = phase.apply(holds(false), at(1), &RULES).next;
    let outcome = missing.apply(Event::DeadlinePassed, at(4), &RULES);
    assert_eq!(failure(&outcome), FailureKind::WorkerRestarted);
}

#[test]
fn a_cancelled_one_is_stopped_and_its_worker_is_asked_before_it_gets_more() {
    let outcome = running().apply(Event::CancelAsked, at(1), &RULES);
    assert_eq!(outcome.effects[2], Effect::Stop(A));
    assert_eq!(
        outcome.effects[3],
        Effect::Release {
            worker: A,
            said_by_worker: false
        }
    );
    let late = Event::Said(A, Said::Completed(7));
    assert_eq!(
        outcome.next.apply(late, at(2), &RULES),
        outcome.next.ignored()
    );
    let queued = Phase::Queued.apply(Event::CancelAsked, at(1), &RULES);
    assert_eq!(queued.next, Phase::Cancelled(None));
    assert_eq!(
        queued.next.apply(Event::Assigned(A), at(2), &RULES),
        queued.next.ignored()
    );
}

#[test]
fn a_worker_that_says_nothing_of_it_loses_it() {
    let outcome = running().apply(Event::DeadlinePassed, at(600), &RULES);
    assert_eq!(failure(&outcome), FailureKind::NotStarted);
    assert_eq!(outcome.effects[2], Effect::Stop(A));
}

#[test]
fn a_worker_that_says_that_it_has_it_is_not_silent_about_it() {
    let outcome = running().apply(holds(true), at(599), &RULES);
    let outcome = outcome.next.apply(Event::DeadlinePassed, at(600), &RULES);
    assert_eq!(outcome, outcome.next.ignored());
    assert_eq!(outcome.next.next_deadline(), Some(at(1199)));
}
