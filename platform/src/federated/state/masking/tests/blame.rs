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
    let count = |round: &Round| round.session.failures().of(id(3)).map(|it| it.count);
    assert_eq!(
        count(&round),
        Some(1),
        "it holds a result, which is not in a sum yet"
    );
    round.go_on_to_the_sum();
    let effects = round.happen(Event::RoundClosing);
    assert!(
        effects.contains(&Effect::NoteFailures(id(3))),
        "{effects:?}"
    );
    assert_eq!(count(&round), None);
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
fn whose_shares_most_of_the_others_cannot_use_fails_and_a_single_accuser_is_left_out() {
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
    let count = |number| round.session.failures().of(id(number)).map(|it| it.count);
    assert_eq!((count(2), count(3)), (None, Some(1)));
}
