//! There is one sum of a round at most, whatever becomes of it.

use super::*;

/// The workers that have sent something in vain, where the round closes unchanged.
fn closes_unchanged(effects: &[Effect]) -> Option<&[WorkerId]> {
    effects.iter().find_map(|effect| match effect {
        Effect::CloseUnchanged(workers) => Some(workers.as_slice()),
        _ => None,
    })
}

#[test]
fn once_shares_were_asked_for_there_is_no_other_sum_of_the_round() {
    // Too few reveal anything.
    let mut round = Round::trained(3, 2, 2, &[]);
    round.answer_all();
    round.answer_all();
    let mut noted = false;
    for (worker, ask) in std::mem::take(&mut round.asked) {
        let said = round.answer(worker, ask);
        let attempt = round.attempt().id();
        let effects = round.happen(Event::Said {
            worker,
            attempt,
            said,
        });
        noted |= effects.first() == Some(&Effect::NoteRevealing);
    }
    assert_eq!(round.stage(), Stage::Reveals);
    assert!(noted, "it is written down before anybody is asked");
    round.asked.clear();
    round.now = round.now + Duration::from_secs(100);
    let effects = round.happen(Event::TimePassed);
    let all = [id(1), id(2), id(3)];
    assert_eq!(closes_unchanged(&effects), Some(&all[..]));
    let reason = round.reason();
    assert!(
        reason.contains("there is no other of the same round, which closes without a change"),
        "{reason}"
    );
    // It is said once, and no other attempt begins, whoever is there.
    for worker in all {
        round.say_trained(worker);
    }
    round.now = round.now + Duration::from_secs(500);
    let effects = round.happen(Event::TimePassed);
    assert_eq!(closes_unchanged(&effects), None);
    assert!(round.session.masking().unwrap().attempt().is_none());
    // With the next round it begins anew.
    round.happen(Event::RoundClosing);
    let draining = BTreeSet::new();
    round.happen(Event::RoundOpened { round: 1, draining });
    for worker in all {
        round.happen(Event::Trained {
            worker,
            round: 1,
            examples: 4,
        });
    }
    assert_eq!(round.stage(), Stage::Keys);
}

#[test]
fn a_round_whose_sum_is_lost_before_it_is_merged_closes_without_a_change() {
    let mut round = Round::trained(2, 2, 2, &[]);
    round.go_on_to_the_sum();
    round.happen(Event::RoundClosing);
    let effects = round.happen(Event::RoundReopened(vec![id(1), id(2)]));
    assert_eq!(closes_unchanged(&effects), Some(&[id(1), id(2)][..]));
    assert!(round.session.masking().unwrap().attempt().is_none());
}

#[test]
fn after_a_restart_while_the_sum_was_read_the_round_closes_without_a_change() {
    let mut round = Round::trained(2, 2, 2, &[]);
    round.go_on_to_the_sum();
    restart(&mut round, true);
    let effects = round.happen(Event::TimePassed);
    assert_eq!(closes_unchanged(&effects), Some(&[id(1), id(2)][..]));
    for number in [1, 2] {
        round.say_trained(id(number));
    }
    assert!(round.session.masking().unwrap().attempt().is_none());
}

#[test]
fn a_sum_that_cannot_be_read_waits_for_more_answers_and_one_that_is_none_is_the_last_of_its_round()
{
    let mut round = Round::trained(4, 3, 3, &[]);
    for _ in 0..3 {
        round.answer_all();
    }
    let asked = std::mem::take(&mut round.asked);
    for (worker, ask) in &asked[..3] {
        let said = round.answer(*worker, *ask);
        round.say(*worker, said);
    }
    let attempt = round.attempt().id();
    assert_eq!((round.stage(), round.sums), (Stage::Summing, 1));
    let why = || Unread::WrongShares {
        why: "a share is wrong".to_owned(),
        of: Some(2),
    };
    round.happen(Event::Unread {
        attempt,
        why: why(),
    });
    assert_eq!((round.stage(), round.sums), (Stage::Reveals, 1));
    let (worker, ask) = asked[3];
    let said = round.answer(worker, ask);
    round.say(worker, said);
    assert_eq!((round.stage(), round.sums), (Stage::Summing, 2));
    round.happen(Event::Unread {
        attempt,
        why: why(),
    });
    assert!(
        round.reason().contains("a share is wrong"),
        "{}",
        round.reason()
    );
    assert!(round.session.masking().unwrap().attempt().is_none());

    // All have answered: whoever's shares give no secret is to blame.
    let failed = round
        .session
        .failures()
        .of(id(2))
        .map(|it| it.error.as_str());
    assert_eq!(failed, Some("its shares give no secret"));

    let mut none = Round::trained(2, 2, 2, &[]);
    none.go_on_to_the_sum();
    let attempt = none.attempt().id();
    let why = Unread::NoSum("it is out of range".to_owned());
    let effects = none.happen(Event::Unread { attempt, why });
    assert!(closes_unchanged(&effects).is_some());
    assert!(
        none.reason().contains("it is out of range"),
        "{}",
        none.reason()
    );
}

#[test]
fn nobody_is_blamed_for_a_sum_that_any_one_wrong_answer_could_have_spoiled() {
    let mut round = Round::trained(2, 2, 2, &[]);
    round.go_on_to_the_sum();
    let attempt = round.attempt().id();
    let why = Unread::WrongShares {
        why: "a share is wrong".to_owned(),
        of: Some(1),
    };
    round.happen(Event::Unread { attempt, why });
    round.wait(100);
    assert!(round.session.masking().unwrap().attempt().is_none());
    assert_eq!(round.session.failures().of(id(1)), None);
}
