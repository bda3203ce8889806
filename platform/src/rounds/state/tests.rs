//! Rounds, event by event.

use super::*;

const SECOND: u64 = 1_000;

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * SECOND)
}

fn rules(enough: usize) -> Rules {
    Rules {
        total_rounds: 3,
        enough,
        at_least: 1,
        timeout: Some(Duration::from_secs(30)),
    }
}

fn fresh(enough: usize) -> Rounds {
    Rounds::new(
        rules(enough),
        Phase::Open,
        0,
        Results::new(),
        VecDeque::new(),
        at(0),
    )
}

/// Lets an event happen as the actor would.
fn happen(rounds: &mut Rounds, event: Event, now: Moment) -> Answer {
    let decision = rounds.decide(event, now);
    if let Some(change) = decision.change {
        rounds.make(change, now);
    }
    decision.answer
}

fn result(name: &str, round: u64, sha256: &str) -> Event {
    Event::ResultStored {
        participant: name.to_owned(),
        round,
        sha256: sha256.to_owned(),
    }
}

fn give(rounds: &mut Rounds, name: &str, round: u64) -> Answer {
    happen(rounds, result(name, round, &format!("of {name}")), at(1))
}

fn merge(rounds: &mut Rounds) -> Answer {
    let round = rounds.round();
    happen(rounds, Event::Merged { round }, at(31))
}

#[test]
fn the_outcome_of_another_round_changes_nothing() {
    let mut rounds = fresh(1);
    give(&mut rounds, "ali", 0);
    merge(&mut rounds);
    give(&mut rounds, "ali", 1);
    let late = Event::Merged { round: 0 };
    assert_eq!(happen(&mut rounds, late, at(32)), Answer::Again);
    assert_eq!((rounds.round(), rounds.phase()), (1, Phase::Merging));
}

#[test]
fn g096_a_result_counts_once_and_the_first_one_stays() {
    let mut rounds = fresh(2);
    assert_eq!(give(&mut rounds, "ali", 0), Answer::Taken);
    assert_eq!(give(&mut rounds, "ali", 0), Answer::Again);
    let other = happen(&mut rounds, result("ali", 0, "other"), at(2));
    assert_eq!(other, Answer::Refused(Standing::Given("of ali".to_owned())));
    assert_eq!(rounds.phase(), Phase::Open);
    assert_eq!(rounds.results()["ali"], "of ali");
    assert_eq!(give(&mut rounds, "veli", 0), Answer::Taken);
    assert_eq!(rounds.phase(), Phase::Merging);
}

#[test]
fn a_round_that_is_being_merged_takes_nothing() {
    let mut rounds = fresh(1);
    give(&mut rounds, "ali", 0);
    assert_eq!(
        give(&mut rounds, "veli", 0),
        Answer::Refused(Standing::Late)
    );
    assert_eq!(give(&mut rounds, "ali", 0), Answer::Again);
    assert_eq!(merge(&mut rounds), Answer::Taken);
    assert_eq!((rounds.round(), rounds.phase()), (1, Phase::Open));
    assert_eq!(
        give(&mut rounds, "veli", 0),
        Answer::Refused(Standing::Late)
    );
    assert_eq!(
        give(&mut rounds, "veli", 2),
        Answer::Refused(Standing::NotBegun)
    );
}

#[test]
fn two_closed_rounds_are_remembered_also_behind_the_end() {
    let mut rounds = fresh(1);
    for round in 0..3 {
        give(&mut rounds, "ali", round);
        merge(&mut rounds);
    }
    assert_eq!((rounds.round(), rounds.phase()), (3, Phase::Finished));
    assert_eq!(give(&mut rounds, "ali", 2), Answer::Again);
    assert_eq!(give(&mut rounds, "ali", 1), Answer::Again);
    assert_eq!(
        give(&mut rounds, "ali", 0),
        Answer::Refused(Standing::Ended)
    );
    assert_eq!(
        give(&mut rounds, "ali", 3),
        Answer::Refused(Standing::Ended)
    );
    assert_eq!(
        happen(&mut rounds, Event::StopAsked, at(9)),
        Answer::Refused(Standing::Ended)
    );
}

#[test]
fn g098_at_its_deadline_a_round_closes_with_the_results_that_are_there() {
    let mut rounds = fresh(3);
    give(&mut rounds, "ali", 0);
    give(&mut rounds, "veli", 0);
    assert_eq!(rounds.deadline(), Some(at(30)));
    happen(&mut rounds, Event::DeadlinePassed, at(29));
    assert_eq!(rounds.phase(), Phase::Open);
    happen(&mut rounds, Event::DeadlinePassed, at(30));
    assert_eq!(rounds.phase(), Phase::Merging);
    merge(&mut rounds);
    assert_eq!(
        give(&mut rounds, "ayse", 0),
        Answer::Refused(Standing::Late)
    );
    assert_eq!(rounds.deadline(), Some(at(61)));
}

#[test]
fn without_a_result_a_round_stays_open_and_closes_with_the_first_one() {
    let mut rounds = fresh(3);
    let decision = rounds.decide(Event::DeadlinePassed, at(30));
    assert_eq!(decision.change, Some(Change::Overdue));
    happen(&mut rounds, Event::DeadlinePassed, at(30));
    assert_eq!((rounds.phase(), rounds.deadline()), (Phase::Open, None));
    assert!(rounds.waits_because().unwrap().contains("time is over"));
    give(&mut rounds, "ali", 0);
    assert_eq!(rounds.phase(), Phase::Merging);
}

#[test]
fn results_that_cannot_be_merged_are_taken_out_and_the_round_goes_on() {
    let mut rounds = fresh(2);
    give(&mut rounds, "ali", 0);
    give(&mut rounds, "veli", 0);
    let unusable = Event::Unusable {
        round: 0,
        participants: vec!["ali".to_owned()],
    };
    happen(&mut rounds, unusable, at(5));
    assert_eq!((rounds.round(), rounds.phase()), (0, Phase::Open));
    assert_eq!(rounds.deadline(), Some(at(35)));
    assert_eq!(give(&mut rounds, "ali", 0), Answer::Taken);
    assert_eq!(rounds.phase(), Phase::Merging);
}

#[test]
fn a_stopped_session_takes_nothing_and_the_outcome_of_a_merge_is_nothing_to_it() {
    let mut rounds = fresh(1);
    give(&mut rounds, "ali", 0);
    assert_eq!(happen(&mut rounds, Event::StopAsked, at(2)), Answer::Taken);
    merge(&mut rounds);
    assert_eq!((rounds.round(), rounds.phase()), (0, Phase::Stopped));
    assert_eq!(
        give(&mut rounds, "veli", 0),
        Answer::Refused(Standing::Ended)
    );
}

#[test]
fn lowered_expectations_may_close_a_round() {
    let mut rounds = fresh(3);
    give(&mut rounds, "ali", 0);
    let expected = Event::Expected {
        enough: 1,
        at_least: 1,
    };
    happen(&mut rounds, expected, at(2));
    happen(&mut rounds, Event::DeadlineMoved(Some(at(90))), at(2));
    assert_eq!(rounds.deadline(), Some(at(90)));
    assert!(rounds.closes_now());
    assert_eq!(happen(&mut rounds, Event::Sufficient, at(2)), Answer::Taken);
    assert_eq!(rounds.phase(), Phase::Merging);
}

#[test]
fn after_a_restart_results_count_and_the_round_has_its_whole_time() {
    let given = Results::from([("ali".to_owned(), "of ali".to_owned())]);
    let mut rounds = Rounds::new(rules(2), Phase::Open, 2, given, VecDeque::new(), at(100));
    assert_eq!(rounds.deadline(), Some(at(130)));
    assert_eq!(give(&mut rounds, "ali", 2), Answer::Again);
    assert_eq!(give(&mut rounds, "veli", 2), Answer::Taken);
    assert_eq!(rounds.phase(), Phase::Merging);
}

#[test]
fn the_mean_of_results_that_nobody_saw_closes_its_round_and_no_other() {
    let mean = |round| Event::MeanStored {
        round,
        results: BTreeMap::from(
            [("ali", "masked"), ("veli", "other")]
                .map(|(name, sha256)| (name.to_owned(), sha256.to_owned())),
        ),
    };
    let mut rounds = fresh(9);
    let early = happen(&mut rounds, mean(1), at(1));
    assert_eq!(early, Answer::Refused(Standing::NotBegun));
    assert_eq!(happen(&mut rounds, mean(0), at(1)), Answer::Taken);
    assert_eq!(
        (rounds.phase(), rounds.results().len()),
        (Phase::Merging, 2)
    );
    let again = happen(&mut rounds, mean(0), at(2));
    assert_eq!(again, Answer::Refused(Standing::Late));
    merge(&mut rounds);
    let late = happen(&mut rounds, mean(0), at(40));
    assert_eq!(late, Answer::Refused(Standing::Late));
    assert_eq!(
        rounds.standing("ali", 0),
        Standing::Given("masked".to_owned())
    );
}
