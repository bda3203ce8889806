//! What becomes of an evaluation, event by event.

use super::*;

const TIMING: EvaluationTiming = EvaluationTiming {
    silence_timeout: Duration::from_secs(600),
    missing_grace: Duration::from_secs(3),
};
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn running() -> Phase {
    Phase::Queued.apply(Event::Assigned(A), at(0), &TIMING).next
}

fn progress() -> Event {
    Event::Said(A, Said::Progress { done: 1, total: 4 })
}

fn holds(holds: bool) -> Event {
    Event::WorkerHolds { worker: A, holds }
}

fn failure(outcome: &Outcome) -> FailureKind {
    match &outcome.effects[0] {
        Effect::Persist(Some(End::Failure(failure))) => failure.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_evaluation_runs_to_its_figures_and_frees_its_worker() {
    let outcome = running().apply(progress(), at(1), &TIMING);
    assert_eq!(
        outcome.effects,
        [Effect::ShowProgress { done: 1, total: 4 }]
    );
    let figures = EvaluationMetrics {
        loss: Some(1.5),
        ..EvaluationMetrics::default()
    };
    let completed = || Event::Said(A, Said::Completed(figures.clone()));
    let outcome = outcome.next.apply(completed(), at(2), &TIMING);
    let end = End::Figures(figures.clone());
    assert_eq!(
        outcome.effects,
        [
            Effect::Persist(Some(end.clone())),
            Effect::ShowEnd(end),
            Effect::Release {
                worker: A,
                said_by_worker: true
            }
        ]
    );
    let again = outcome.next.apply(completed(), at(3), &TIMING);
    assert_eq!(again, outcome.next.ignored());
}

#[test]
fn figures_that_no_model_can_have_are_gaps() {
    let absurd = EvaluationMetrics {
        perplexity: Some(-5.0),
        loss: Some(-0.1),
        token_accuracy: Some(77.0),
        tokens: Some(9),
    };
    let event = Event::Said(A, Said::Completed(absurd));
    let outcome = running().apply(event, at(1), &TIMING);
    let kept = EvaluationMetrics {
        tokens: Some(9),
        ..EvaluationMetrics::default()
    };
    assert_eq!(
        outcome.effects[0],
        Effect::Persist(Some(End::Figures(kept)))
    );
    let beyond = Event::Said(A, Said::Progress { done: 10, total: 5 });
    let outcome = running().apply(beyond, at(1), &TIMING);
    assert_eq!(
        outcome.effects,
        [Effect::ShowProgress { done: 5, total: 5 }]
    );
}

#[test]
fn only_the_worker_that_has_it_is_heard() {
    for phase in [Phase::Queued, running()] {
        let event = Event::Said(B, Said::Completed(EvaluationMetrics::default()));
        let outcome = phase.apply(event, at(1), &TIMING);
        assert_eq!(outcome, phase.outcome(Answer::WrongWorker, Vec::new()));
    }
}

#[test]
fn a_lost_worker_s_evaluation_fails() {
    let outcome = running().apply(Event::WorkerLost(A), at(1), &TIMING);
    assert_eq!(failure(&outcome), FailureKind::WorkerLost);
    let other = running().apply(Event::WorkerLost(B), at(1), &TIMING);
    assert_eq!(other, running().ignored());
}

#[test]
fn one_that_the_worker_never_took_is_sent_again_and_one_that_it_had_fails() {
    let mut phase = running();
    for _ in 1..MAX_SENDS {
        phase = phase.apply(holds(false), at(1), &TIMING).next;
        assert_eq!(phase.next_deadline(), Some(at(4)));
        let outcome = phase.apply(Event::DeadlinePassed, at(4), &TIMING);
        assert_eq!(outcome.effects, [Effect::Start(A)]);
        phase = outcome.next;
    }
    phase = phase.apply(holds(false), at(1), &TIMING).next;
    let outcome = phase.apply(Event::DeadlinePassed, at(4), &TIMING);
    assert_eq!(failure(&outcome), FailureKind::NotStarted);

    let taken = running().apply(progress(), at(1), &TIMING).next;
    let missing = taken.apply(holds(false), at(2), &TIMING).next;
    let still_there = missing.apply(holds(true), at(3), &TIMING).next;
    assert_eq!(still_there.next_deadline(), Some(at(601)));
    let outcome = missing.apply(Event::DeadlinePassed, at(5), &TIMING);
    assert_eq!(failure(&outcome), FailureKind::WorkerRestarted);
}

#[test]
fn after_a_restart_of_the_platform_a_worker_without_it_fails_it() {
    let phase = Phase::after_restart(A, at(0), &TIMING);
    let missing = phase.apply(holds(false), at(1), &TIMING).next;
    let outcome = missing.apply(Event::DeadlinePassed, at(4), &TIMING);
    assert_eq!(failure(&outcome), FailureKind::WorkerRestarted);
}

#[test]
fn a_cancelled_one_is_stopped_and_its_worker_is_asked_before_it_gets_more() {
    let outcome = running().apply(Event::CancelAsked, at(1), &TIMING);
    assert_eq!(outcome.effects[2], Effect::Stop(A));
    assert_eq!(
        outcome.effects[3],
        Effect::Release {
            worker: A,
            said_by_worker: false
        }
    );
    let late = Event::Said(A, Said::Completed(EvaluationMetrics::default()));
    assert_eq!(
        outcome.next.apply(late, at(2), &TIMING),
        outcome.next.ignored()
    );
    let queued = Phase::Queued.apply(Event::CancelAsked, at(1), &TIMING);
    assert_eq!(queued.next, Phase::Cancelled(None));
    assert_eq!(
        queued.next.apply(Event::Assigned(A), at(2), &TIMING),
        queued.next.ignored()
    );
}

#[test]
fn a_worker_that_says_nothing_of_it_loses_it() {
    let outcome = running().apply(Event::DeadlinePassed, at(600), &TIMING);
    assert_eq!(failure(&outcome), FailureKind::NotStarted);
    assert_eq!(outcome.effects[2], Effect::Stop(A));
}
