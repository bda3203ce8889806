//! What becomes of a session's workers, event by event.

use trainyard_shared::WorkerType;

use super::*;
use crate::workers::placement::Abilities;

const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);
const C: WorkerId = WorkerId(3);

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn settings(min_workers: usize, max_workers: usize) -> Settings {
    Settings {
        shards: max_workers as u64,
        min_workers,
        max_workers,
        round_timeout: Duration::from_secs(600),
        deadline_deviations: 4.0,
        allowed: None,
    }
}

/// A session of which nothing is known but that its first round is open.
fn fresh() -> Known {
    Known {
        stage: Stage::Open,
        round: 0,
        results: BTreeSet::new(),
        members: BTreeSet::new(),
        shards: BTreeMap::new(),
        failures: Failures::default(),
        times: Times::default(),
    }
}

fn session(min_workers: usize, max_workers: usize) -> Session {
    let settings = settings(min_workers, max_workers);
    let mut session = Session::new(settings, None, fresh(), at(0));
    session.apply(Event::TimePassed, at(0));
    session
}

fn orders(effects: &[Effect]) -> Vec<(WorkerId, Order)> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Order(worker, order) => Some((*worker, *order)),
            _ => None,
        })
        .collect()
}

fn expected(effects: &[Effect]) -> Option<usize> {
    effects.iter().find_map(|effect| match effect {
        Effect::Expect(number) => Some(*number),
        _ => None,
    })
}

fn deadline(effects: &[Effect]) -> Option<Option<Moment>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Deadline(at) => Some(*at),
        _ => None,
    })
}

fn opened(round: u64) -> Event {
    Event::RoundOpened {
        round,
        draining: BTreeSet::new(),
    }
}

fn taken(worker: WorkerId, round: u64) -> Event {
    Event::ResultTaken { worker, round }
}

fn failed(worker: WorkerId, round: u64) -> Event {
    Event::Failed {
        worker,
        round: Some(round),
        error: "no model".to_owned(),
    }
}

/// Two workers that train round 0 of a session for at most three.
fn two_of_three() -> Session {
    let mut session = session(2, 3);
    session.apply(Event::WorkersGiven(vec![A, B]), at(1));
    session
}

#[test]
fn a_round_begins_once_enough_workers_take_part_and_says_what_it_waits_for() {
    let mut session = session(2, 3);
    assert_eq!(session.wanted(), 3);
    let reason = session.waiting_because().unwrap();
    assert_eq!(reason, "no worker takes part, and the round needs 2");
    let effects = session.apply(Event::WorkersGiven(vec![A]), at(1));
    assert_eq!(effects, [Effect::Join(A, 0), Effect::Show]);
    assert_eq!(
        session.waiting_because().unwrap(),
        "1 worker takes part, and the round needs 2"
    );
    let effects = session.apply(Event::WorkersGiven(vec![B]), at(2));
    assert_eq!(orders(&effects), [(A, Order::Start), (B, Order::Start)]);
    assert_eq!(deadline(&effects), Some(Some(at(602))));
    assert_eq!(
        session.waiting_because().unwrap(),
        "0 of 2 results are there"
    );
}

#[test]
fn every_worker_keeps_its_part_of_the_data_and_a_new_one_gets_the_least_used() {
    let mut session = two_of_three();
    let shard = |session: &Session, worker| session.members()[&worker].shard;
    assert_eq!((shard(&session, A), shard(&session, B)), (0, 1));
    session.apply(Event::WorkerLost(A), at(2));
    let effects = session.apply(Event::WorkersGiven(vec![C]), at(3));
    assert!(effects.contains(&Effect::Join(C, 2)), "{effects:?}");
    let effects = session.apply(Event::WorkersGiven(vec![A]), at(4));
    assert!(effects.contains(&Effect::Join(A, 0)), "{effects:?}");
    assert_eq!(session.wanted(), 0);
}

#[test]
fn who_joins_later_begins_with_the_next_round_and_its_weights() {
    let mut session = two_of_three();
    let effects = session.apply(Event::WorkersGiven(vec![C]), at(2));
    assert_eq!(orders(&effects), []);
    assert_eq!(expected(&effects), None, "two are awaited as before");
    session.apply(taken(A, 0), at(3));
    session.apply(taken(B, 0), at(4));
    session.apply(Event::RoundClosing, at(4));
    let effects = session.apply(opened(1), at(5));
    assert_eq!(
        orders(&effects),
        [(A, Order::GoOn), (B, Order::GoOn), (C, Order::Start)]
    );
    assert_eq!(expected(&effects), Some(3));
}

#[test]
fn a_lost_worker_is_not_awaited_and_what_it_delivered_counts() {
    let mut session = session(1, 3);
    session.apply(Event::WorkersGiven(vec![A, B, C]), at(1));
    session.apply(taken(A, 0), at(2));
    let effects = session.apply(Event::WorkerLost(A), at(3));
    assert_eq!(expected(&effects), None, "its result is one of three");
    let effects = session.apply(Event::WorkerLost(B), at(4));
    assert_eq!(expected(&effects), Some(2));
    assert!(effects.contains(&Effect::Leave(B)) && effects.contains(&Effect::SeekWorkers));
}

#[test]
fn without_enough_workers_a_round_has_no_deadline_and_goes_on_when_they_come() {
    let mut session = two_of_three();
    let effects = session.apply(Event::WorkerLost(A), at(2));
    assert_eq!(deadline(&effects), Some(None));
    session.apply(Event::WorkerLost(B), at(3));
    assert_eq!(
        session.waiting_because().unwrap(),
        "no worker takes part, and the round needs 2"
    );
    assert_eq!(session.next_due(), None);
    // The first is not enough; with the second both join the open round.
    let effects = session.apply(Event::WorkersGiven(vec![C]), at(1000));
    assert_eq!(orders(&effects), []);
    let effects = session.apply(Event::WorkersGiven(vec![A]), at(1001));
    assert_eq!(orders(&effects), [(A, Order::Start), (C, Order::Start)]);
    assert_eq!(deadline(&effects), Some(Some(at(1601))));
}

#[test]
fn results_of_lost_workers_make_up_the_number_with_those_that_come() {
    let mut session = two_of_three();
    session.apply(taken(A, 0), at(2));
    session.apply(Event::WorkerLost(A), at(3));
    session.apply(Event::WorkerLost(B), at(3));
    assert_eq!(
        session.waiting_because().unwrap(),
        "no worker takes part, and the round needs 2; 1 result is there"
    );
    let effects = session.apply(Event::WorkersGiven(vec![A]), at(4));
    assert_eq!(orders(&effects), [], "it has delivered");
    let effects = session.apply(Event::WorkersGiven(vec![C]), at(5));
    assert_eq!(orders(&effects), [(C, Order::Start)]);
}

#[test]
fn a_worker_that_comes_back_is_asked_again_unless_it_has_delivered() {
    let mut session = two_of_three();
    session.apply(taken(B, 0), at(2));
    let effects = session.apply(Event::WorkerRegistered(A), at(3));
    assert_eq!(orders(&effects), [(A, Order::Start)]);
    let effects = session.apply(Event::WorkerRegistered(B), at(3));
    assert_eq!(orders(&effects), []);
    session.apply(taken(A, 0), at(4));
    session.apply(Event::RoundClosing, at(4));
    // What it knew may be gone.
    let effects = session.apply(opened(1), at(5));
    assert_eq!(orders(&effects), [(A, Order::GoOn), (B, Order::Start)]);
}

#[test]
fn a_worker_that_has_nothing_of_the_session_is_asked_again_after_a_while() {
    let mut session = two_of_three();
    let says = |holds| Event::WorkerHolds { worker: A, holds };
    for (seconds, holds, asked) in [(2, false, false), (9, true, false), (9, false, true)] {
        let effects = session.apply(says(holds), at(seconds));
        assert_eq!(!orders(&effects).is_empty(), asked, "{seconds} {holds}");
    }
}

#[test]
fn a_worker_that_fails_is_asked_again_and_has_to_leave_in_the_end() {
    let mut session = two_of_three();
    let mut now = 2;
    for failure in 1..MOST_FAILURES {
        session.apply(failed(A, 0), at(now));
        let reason = session.waiting_because().unwrap();
        assert!(reason.contains("worker 1 failed: no model"), "{reason}");
        let due = session.next_due().unwrap();
        assert_eq!(due, at(now + 10 * u64::from(failure)));
        now = due.as_millis() / 1000;
        let effects = session.apply(Event::TimePassed, due);
        assert_eq!(orders(&effects), [(A, Order::Start)]);
    }
    let effects = session.apply(failed(A, 0), at(now + 1));
    for effect in [
        Effect::NoteFailures(A),
        Effect::Leave(A),
        Effect::Stop(A),
        Effect::Release(A),
    ] {
        assert!(effects.contains(&effect), "{effects:?}");
    }
    assert!(!session.may_join(A));
    let reason = session.waiting_because().unwrap();
    assert!(
        reason.contains("worker 1 failed too often: no model"),
        "{reason}"
    );
    let effects = session.apply(Event::WorkersGiven(vec![A]), at(now + 2));
    assert_eq!(effects, [Effect::Show, Effect::Release(A)]);
}

#[test]
fn a_failure_of_an_earlier_round_changes_nothing() {
    let mut session = two_of_three();
    session.apply(Event::RoundClosing, at(2));
    session.apply(opened(1), at(3));
    let before = session.clone();
    assert_eq!(session.apply(failed(A, 0), at(4)), [Effect::Show]);
    assert_eq!(session, before);
}

#[test]
fn news_of_a_result_that_come_after_its_round_change_nothing() {
    let mut session = two_of_three();
    session.apply(Event::RoundClosing, at(2));
    session.apply(opened(1), at(3));
    let before = session.clone();
    assert_eq!(session.apply(taken(A, 0), at(4)), [Effect::Show]);
    assert_eq!(session, before);
}

#[test]
fn a_draining_worker_leaves_at_the_next_round() {
    let mut session = two_of_three();
    session.apply(taken(A, 0), at(2));
    session.apply(taken(B, 0), at(2));
    session.apply(Event::RoundClosing, at(2));
    let event = Event::RoundOpened {
        round: 1,
        draining: BTreeSet::from([A]),
    };
    let effects = session.apply(event, at(3));
    assert!(effects.contains(&Effect::Stop(A)) && effects.contains(&Effect::Release(A)));
    assert_eq!(orders(&effects), [], "one is not enough");
}

#[test]
fn when_it_ends_every_worker_is_told_and_free() {
    let mut session = two_of_three();
    let effects = session.apply(Event::Ended, at(2));
    for worker in [A, B] {
        for effect in [
            Effect::Leave(worker),
            Effect::Stop(worker),
            Effect::Release(worker),
        ] {
            assert!(effects.contains(&effect), "{effects:?}");
        }
    }
    assert_eq!((session.wanted(), session.waiting_because()), (0, None));
    let effects = session.apply(Event::WorkersGiven(vec![C]), at(3));
    assert_eq!(effects, [Effect::Show, Effect::Release(C)]);
}

#[test]
fn the_deadline_follows_the_times_that_rounds_took() {
    let mut session = session(1, 3);
    session.apply(Event::WorkersGiven(vec![A, B, C]), at(0));
    assert_eq!(session.deadline(), Some(at(600)));
    // Times 10, 12, 20: median 12, deviations 2, 0, 8, their median 2.
    for (worker, seconds) in [(A, 10), (B, 12), (C, 20)] {
        session.apply(taken(worker, 0), at(seconds));
    }
    let effects = session.apply(Event::RoundClosing, at(20));
    assert!(effects.contains(&Effect::NoteTimes), "{effects:?}");
    let effects = session.apply(opened(1), at(100));
    assert_eq!(deadline(&effects), Some(Some(at(120))));
    // One that was cut off took at least as long.
    session.apply(taken(A, 1), at(110));
    session.apply(taken(B, 1), at(110));
    session.apply(Event::RoundClosing, at(400));
    assert_eq!(session.times.all().last(), Some(Duration::from_secs(300)));
}

#[test]
fn once_the_time_is_over_those_that_wait_are_let_in() {
    let mut session = two_of_three();
    session.apply(Event::WorkersGiven(vec![C]), at(2));
    session.apply(taken(A, 0), at(3));
    assert_eq!(session.next_due(), Some(at(601)));
    let effects = session.apply(Event::TimePassed, at(601));
    assert_eq!(orders(&effects), [(C, Order::Start)]);
    assert_eq!(
        session.waiting_because().unwrap(),
        "the round's time is over; it closes with 2 results, and has 1"
    );
    assert_eq!(session.next_due(), Some(at(1201)), "B is given up then");
}

#[test]
fn a_worker_that_has_nothing_after_twice_the_time_gives_its_place_free_and_may_come_back() {
    let mut session = session(2, 2);
    session.apply(Event::WorkersGiven(vec![A, B]), at(1));
    session.apply(taken(A, 0), at(3));
    session.apply(Event::TimePassed, at(601));
    assert_eq!(session.wanted(), 0, "it may only be slow");
    let effects = session.apply(Event::TimePassed, at(1201));
    for effect in [
        Effect::NoteFailures(B),
        Effect::Leave(B),
        Effect::Stop(B),
        Effect::Release(B),
        Effect::SeekWorkers,
    ] {
        assert!(effects.contains(&effect), "{effects:?}");
    }
    assert_eq!(
        session.waiting_because().unwrap(),
        "1 worker takes part, and the round needs 2; 1 result is there"
    );
    assert_eq!(session.failures().of(B).unwrap().count, 1);
    // Another one, or itself, begins anew.
    let effects = session.apply(Event::WorkersGiven(vec![B]), at(1202));
    assert_eq!(orders(&effects), [(B, Order::Start)]);
    assert!(matches!(deadline(&effects), Some(Some(until)) if until > at(1202)));
    let effects = session.apply(taken(B, 0), at(1203));
    assert!(effects.contains(&Effect::NoteFailures(B)), "{effects:?}");
    assert_eq!(session.failures().of(B), None);
}

#[test]
fn with_enough_results_at_the_deadline_nobody_is_given_up() {
    let mut session = session(1, 2);
    session.apply(Event::WorkersGiven(vec![A, B]), at(1));
    session.apply(taken(A, 0), at(3));
    session.apply(Event::TimePassed, at(601));
    // The rounds close it at this moment.
    let effects = session.apply(Event::TimePassed, at(5000));
    assert!(!effects.contains(&Effect::Leave(B)), "{effects:?}");
}

#[test]
fn after_a_restart_workers_are_awaited_and_what_was_delivered_counts() {
    let known = Known {
        round: 4,
        members: BTreeSet::from([A, B]),
        shards: BTreeMap::from([(A, 0), (B, 1), (C, 2)]),
        results: BTreeSet::from([B]),
        ..fresh()
    };
    let mut session = Session::new(settings(2, 3), None, known, at(0));
    let effects = session.apply(Event::TimePassed, at(0));
    assert_eq!((expected(&effects), orders(&effects)), (Some(2), vec![]));
    let effects = session.apply(Event::WorkerRegistered(A), at(1));
    assert_eq!(orders(&effects), [(A, Order::Start)]);
    let effects = session.apply(Event::WorkersGiven(vec![C]), at(2));
    assert!(effects.contains(&Effect::Join(C, 2)), "{effects:?}");
}

#[test]
fn after_a_restart_times_still_make_the_deadline_and_failures_still_bar() {
    let times = |count| Failed {
        count,
        error: "no model".to_owned(),
    };
    let known = Known {
        failures: Failures::new(BTreeMap::from([
            (A, times(MOST_FAILURES)),
            (B, times(MOST_FAILURES - 1)),
        ])),
        times: Times::new([10, 12, 20].map(Duration::from_secs).to_vec()),
        ..fresh()
    };
    let mut session = Session::new(settings(1, 3), None, known, at(0));
    assert!(!session.may_join(A) && session.may_join(B));
    let effects = session.apply(Event::WorkersGiven(vec![B]), at(100));
    assert_eq!(deadline(&effects), Some(Some(at(120))));
    session.apply(failed(B, 0), at(101));
    assert!(!session.may_join(B));
}

#[test]
fn only_named_workers_may_join_where_some_are_named() {
    let settings = Settings {
        allowed: Some(BTreeSet::from([A])),
        ..settings(1, 1)
    };
    let session = Session::new(settings, None, fresh(), at(0));
    assert!(session.may_join(A) && !session.may_join(B));
}

fn free(workers: &[(WorkerId, f64)]) -> BTreeMap<WorkerId, Abilities> {
    let abilities = |score| Abilities {
        exports: false,
        worker_type: WorkerType::Both,
        gpu_memory_gb: None,
        score: Some(score),
    };
    workers
        .iter()
        .map(|(worker, score)| (*worker, abilities(*score)))
        .collect()
}

#[test]
fn a_session_without_workers_takes_enough_of_them_or_none_and_the_best_first() {
    let seeking = session(2, 2).seeking().unwrap();
    assert_eq!(seeking.choose(&free(&[(A, 1.0)])), []);
    let chosen = seeking.choose(&free(&[(A, 1.0), (B, 3.0), (C, 2.0)]));
    assert_eq!(chosen, [B, C]);
}

#[test]
fn a_session_with_workers_takes_what_there_is_those_first_that_it_knows() {
    let mut session = two_of_three();
    session.apply(Event::WorkerLost(A), at(2));
    let seeking = session.seeking().unwrap();
    assert_eq!(seeking.choose(&free(&[(A, 1.0), (C, 9.0)])), [A, C]);
    session.apply(Event::WorkersGiven(vec![A, C]), at(3));
    assert_eq!(session.seeking(), None);
}
