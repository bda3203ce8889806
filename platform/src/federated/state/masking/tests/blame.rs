//! Who is to blame that an attempt does not go on, and what follows from it.

use super::*;

fn broken(error: &str, because_of: Option<Number>) -> Said {
    Said::Broken {
        error: error.to_owned(),
        because_of,
    }
}

fn assert_says(round: &Round, part: &str) {
    let reason = round.reason();
    assert!(reason.contains(part), "{reason}");
}

fn failures_of(round: &Round, number: u8) -> Option<u32> {
    let failed = round.session.failures().of(id(number));
    failed.map(|it| it.count)
}

#[test]
fn a_worker_that_is_silent_in_attempt_after_attempt_has_to_leave() {
    let mut round = Round::trained(3, 3, 2, &[3]);
    for _ in 0..2 {
        round.answer_all();
        round.wait(100);
        round.asked.clear();
        come_back(&mut round);
    }
    round.answer_all();
    round.now = round.now + Duration::from_secs(100);
    let effects = round.happen(Event::TimePassed);
    assert!(effects.contains(&Effect::Stop(id(3))), "{effects:?}");
    assert!(!round.session.members().contains_key(&id(3)));
    assert_says(
        &round,
        "worker 3 failed too often: keys did not come in time",
    );
}

#[test]
fn a_worker_that_says_again_and_again_that_it_cannot_go_on_has_to_leave() {
    let mut round = Round::trained(3, 3, 2, &[]);
    for _ in 0..2 {
        round.say(id(2), broken("its disk is full", None));
        round.asked.clear();
        come_back(&mut round);
    }
    round.say(id(2), broken("its disk is full", None));
    assert!(!round.session.members().contains_key(&id(2)));
    assert_says(&round, "worker 2 failed too often");
}

#[test]
fn failures_are_forgotten_only_when_the_worker_s_change_is_in_a_sum() {
    let mut round = Round::trained(3, 3, 2, &[3]);
    round.answer_all();
    round.wait(100);
    round.asked.clear();
    round.dead.clear();
    come_back(&mut round);
    assert_eq!(
        failures_of(&round, 3),
        Some(1),
        "it holds a result, which is not in a sum yet"
    );
    round.go_on_to_the_sum();
    let effects = round.happen(Event::RoundClosing);
    assert!(
        effects.contains(&Effect::NoteFailures(id(3))),
        "{effects:?}"
    );
    assert_eq!(failures_of(&round, 3), None);
}

#[test]
fn one_that_misbehaves_is_out_of_the_attempt_and_fails() {
    let mut round = Round::trained(3, 2, 2, &[3]);
    round.answer_all();
    let error = "nonsense".to_owned();
    let worker = id(3);
    round.happen(Event::Misbehaved { worker, error });
    assert_eq!(round.stage(), Stage::Shares);
    assert_says(&round, "worker 3 failed: nonsense");
}

#[test]
fn whose_shares_most_of_the_others_cannot_use_fails() {
    let mut round = Round::trained(4, 2, 2, &[]);
    round.answer_all();
    round.answer_all();
    assert_eq!(round.stage(), Stage::Uploads);
    round.say(id(1), broken("the shares cannot be opened", Some(4)));
    assert!(
        !round.reason().contains("worker 4 failed"),
        "{}",
        round.reason()
    );
    round.say(id(2), broken("the shares cannot be opened", Some(4)));
    assert_says(&round, "worker 4 failed: the others cannot use its shares");
    assert_eq!(failures_of(&round, 1), None, "an accuser that is right");
}

#[test]
fn of_an_accuser_and_the_accused_neither_fails_while_nobody_else_has_a_say() {
    for count in [2, 4] {
        let mut round = Round::trained(count, 2, 2, &[]);
        round.answer_all();
        round.answer_all();
        round.say(id(1), broken("the shares cannot be opened", Some(2)));
        assert_eq!(
            [failures_of(&round, 1), failures_of(&round, 2)],
            [None, None]
        );
        assert_says(&round, "worker 1 cannot use the shares of worker 2");
    }
}

#[test]
fn accusations_of_several_attempts_add_up_against_the_dealer_of_bad_shares() {
    let mut round = Round::trained(4, 4, 2, &[]);
    for accuser in [1, 2] {
        assert_eq!(failures_of(&round, 4), None);
        round.answer_all();
        round.answer_all();
        round.say(id(accuser), broken("the shares cannot be opened", Some(4)));
        round.asked.clear();
        if accuser == 1 {
            come_back(&mut round);
        }
    }
    assert_eq!(failures_of(&round, 4), Some(1));
    assert_eq!(
        [failures_of(&round, 1), failures_of(&round, 2)],
        [None, None]
    );
}

#[test]
fn one_that_accuses_most_of_the_others_fails_itself() {
    let mut round = Round::trained(4, 4, 2, &[]);
    for accused in [2, 3] {
        assert_eq!(failures_of(&round, 1), None);
        round.answer_all();
        round.answer_all();
        round.say(id(1), broken("the shares cannot be opened", Some(accused)));
        round.asked.clear();
        if accused == 2 {
            come_back(&mut round);
        }
    }
    assert_eq!(failures_of(&round, 1), Some(1));
}

#[test]
fn one_that_misbehaves_and_leaves_has_failed_all_the_same() {
    let mut round = Round::trained(3, 2, 2, &[]);
    let worker = id(3);
    round.happen(Event::WorkerLost(worker));
    let error = "it revealed wrong shares".to_owned();
    let effects = round.happen(Event::Misbehaved { worker, error });
    assert!(
        effects.contains(&Effect::NoteFailures(worker)),
        "{effects:?}"
    );
    assert_eq!(failures_of(&round, 3), Some(1));
}

#[test]
fn whose_masked_result_the_platform_could_not_take_in_is_not_to_blame() {
    let mut round = Round::trained(3, 2, 2, &[2, 3]);
    round.dead.clear();
    round.answer_all();
    round.answer_all();
    assert_eq!(round.stage(), Stage::Uploads);
    round.dead = BTreeSet::from([id(2), id(3)]);
    round.answer_all();
    let attempt = round.attempt().id();
    let worker = id(2);
    round.happen(Event::PutOff { worker, attempt });
    round.wait(100);
    assert_eq!(failures_of(&round, 2), None);
    assert_eq!(failures_of(&round, 3), Some(1));
}
