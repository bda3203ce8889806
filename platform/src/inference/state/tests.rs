//! What becomes of a request, event by event.

use super::*;

const TIMING: InferenceTiming = InferenceTiming {
    queue_timeout: Duration::from_secs(60),
    silence_timeout: Duration::from_secs(600),
};
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn waiting() -> RequestState {
    RequestState::new(at(0), &TIMING)
}

fn running() -> RequestState {
    let mut state = waiting();
    let (_, effects) = state.apply(Event::Placed(A), at(1), &TIMING);
    assert_eq!(effects, [Effect::Start(A, 1)]);
    state
}

fn says(worker: WorkerId, attempt: u32, said: Said) -> Event {
    Event::Said {
        worker,
        attempt,
        said,
    }
}

fn tokens(text: &str) -> Said {
    Said::Tokens(vec![text.to_owned()])
}

fn failed(effects: &[Effect]) -> &Failure {
    match effects {
        [Effect::ShowFailed(failure), ..] => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_runs_to_its_end_and_the_end_comes_once() {
    let mut state = running();
    let (_, effects) = state.apply(says(A, 1, tokens("hi")), at(2), &TIMING);
    assert_eq!(effects, [Effect::Show(vec!["hi".to_owned()])]);
    let end = || Said::Completed(InferenceCompletedData::default());
    let (answer, effects) = state.apply(says(A, 1, end()), at(3), &TIMING);
    assert_eq!(answer, Answer::Taken);
    assert_eq!(effects.last(), Some(&Effect::Free(A)));
    assert_eq!(state.phase, Phase::Completed);
    for repeated in [end(), tokens("x")] {
        let (answer, effects) = state.apply(says(A, 1, repeated), at(4), &TIMING);
        assert_eq!((answer, effects), (Answer::Ignored, Vec::new()));
    }
    assert_eq!(state.next_deadline(), None);
}

#[test]
fn only_the_worker_that_has_the_request_is_heard() {
    for mut state in [waiting(), running()] {
        let before = state.clone();
        for said in [
            tokens("x"),
            Said::Completed(InferenceCompletedData::default()),
        ] {
            let (answer, effects) = state.apply(says(B, 1, said), at(2), &TIMING);
            assert_eq!((answer, effects), (Answer::WrongWorker, Vec::new()));
        }
        assert_eq!(state, before);
    }
}

#[test]
fn a_lost_worker_s_request_goes_to_another_when_nothing_was_shown_yet() {
    let mut state = running();
    let (_, effects) = state.apply(Event::WorkerGone(A), at(2), &TIMING);
    assert_eq!(effects, [Effect::Free(A), Effect::Enqueue]);
    let (_, effects) = state.apply(Event::Placed(B), at(3), &TIMING);
    assert_eq!(effects, [Effect::Start(B, 2)]);
    // What the first one still says is of an attempt that is over.
    let (answer, effects) = state.apply(says(A, 1, tokens("x")), at(4), &TIMING);
    assert_eq!((answer, effects), (Answer::Ignored, Vec::new()));
    let (answer, _) = state.apply(says(A, 2, tokens("x")), at(4), &TIMING);
    assert_eq!(answer, Answer::WrongWorker);
    let (answer, _) = state.apply(says(B, 2, tokens("y")), at(4), &TIMING);
    assert_eq!(answer, Answer::Taken);
}

#[test]
fn an_answer_that_has_begun_fails_with_its_worker() {
    let mut state = running();
    state.apply(says(A, 1, tokens("x")), at(2), &TIMING);
    let (_, effects) = state.apply(Event::WorkerGone(A), at(3), &TIMING);
    assert_eq!(failed(&effects).blame, Blame::Worker);
    assert_eq!(state.phase, Phase::Failed);
}

#[test]
fn a_request_that_loses_every_worker_fails_in_the_end() {
    let mut state = waiting();
    for attempt in 1..=MAX_ATTEMPTS {
        let (_, effects) = state.apply(Event::Placed(A), at(1), &TIMING);
        assert_eq!(effects, [Effect::Start(A, attempt)]);
        state.apply(Event::WorkerGone(A), at(2), &TIMING);
    }
    assert_eq!(state.phase, Phase::Failed);
}

#[test]
fn g093_a_request_cancelled_while_it_waits_is_never_started() {
    let mut state = waiting();
    let (_, effects) = state.apply(Event::CancelAsked, at(1), &TIMING);
    assert_eq!(effects, [Effect::ShowCancelled, Effect::LeaveQueue]);
    let (_, effects) = state.apply(Event::Placed(A), at(2), &TIMING);
    assert_eq!(effects, [Effect::Free(A)]);
    let (answer, effects) = state.apply(Event::CancelAsked, at(3), &TIMING);
    assert_eq!((answer, effects), (Answer::Ignored, Vec::new()));
}

#[test]
fn g092_a_cancelled_answer_stops_at_its_worker_and_nothing_more_is_shown() {
    let mut state = running();
    state.apply(says(A, 1, tokens("x")), at(2), &TIMING);
    let (_, effects) = state.apply(Event::CancelAsked, at(3), &TIMING);
    assert_eq!(
        effects,
        [Effect::ShowCancelled, Effect::Stop(A, 1), Effect::Free(A)]
    );
    let (answer, effects) = state.apply(says(A, 1, tokens("y")), at(4), &TIMING);
    assert_eq!((answer, effects), (Answer::Ignored, Vec::new()));
}

#[test]
fn waiting_has_a_limit_and_ends_at_once_where_nobody_will_ever_come() {
    let not_placed = |prospect| Event::NotPlaced {
        reason: "all are busy".to_owned(),
        prospect,
    };
    let mut state = waiting();
    for second in [1, 20] {
        state.apply(not_placed(Prospect::Later), at(second), &TIMING);
        assert_eq!(state.next_deadline(), Some(at(60)));
    }
    let (answer, _) = state.apply(Event::DeadlinePassed, at(59), &TIMING);
    assert_eq!(answer, Answer::Ignored);
    let (_, effects) = state.apply(Event::DeadlinePassed, at(60), &TIMING);
    let failure = failed(&effects);
    assert_eq!(failure.blame, Blame::NoWorker);
    assert!(failure.error.contains("all are busy"), "{}", failure.error);

    let mut state = waiting();
    let (_, effects) = state.apply(not_placed(Prospect::Never), at(1), &TIMING);
    assert_eq!(failed(&effects).blame, Blame::NoWorker);
}

#[test]
fn a_silent_worker_s_request_fails_and_is_stopped() {
    let mut state = running();
    state.apply(says(A, 1, tokens("x")), at(500), &TIMING);
    assert_eq!(state.next_deadline(), Some(at(1100)));
    let (_, effects) = state.apply(Event::DeadlinePassed, at(1100), &TIMING);
    assert_eq!(failed(&effects).blame, Blame::Silence);
    assert_eq!(effects[1..], [Effect::Stop(A, 1), Effect::Free(A)]);
}

#[test]
fn a_refusal_of_the_request_itself_is_the_request_s() {
    for (kind, blame) in [
        (Some(FailureKind::BadConfig), Blame::Request),
        (Some(FailureKind::OutOfMemory), Blame::Worker),
        (None, Blame::Worker),
    ] {
        let mut state = running();
        let said = Said::Failed {
            error: "no".to_owned(),
            kind,
        };
        let (_, effects) = state.apply(says(A, 1, said), at(2), &TIMING);
        assert_eq!(failed(&effects).blame, blame);
        assert_eq!(effects.last(), Some(&Effect::Free(A)));
    }
}

#[test]
fn an_endless_answer_ends() {
    let mut state = running();
    let piece = "x".repeat(1 << 20);
    for _ in 0..3 {
        let (_, effects) = state.apply(says(A, 1, tokens(&piece)), at(2), &TIMING);
        assert_eq!(effects, [Effect::Show(vec![piece.clone()])]);
    }
    let (_, effects) = state.apply(says(A, 1, tokens(&piece)), at(2), &TIMING);
    assert_eq!(failed(&effects).blame, Blame::Worker);
    assert_eq!(effects[1], Effect::Stop(A, 1));
}

#[test]
fn many_short_tokens_reach_the_limit_by_what_is_kept_of_each() {
    let mut state = running();
    let letters = || {
        Said::Tokens(vec![
            "x".to_owned();
            MAX_ANSWER_BYTES / (2 + BYTES_PER_TOKEN)
        ])
    };
    let (_, effects) = state.apply(says(A, 1, letters()), at(2), &TIMING);
    assert!(matches!(effects[..], [Effect::Show(_)]));
    let (_, effects) = state.apply(says(A, 1, letters()), at(2), &TIMING);
    assert_eq!(failed(&effects).blame, Blame::Worker);
}

#[test]
fn empty_tokens_are_not_kept_and_nothing_but_them_is_silence() {
    let mut state = running();
    let before = state.clone();
    let empty = || Said::Tokens(vec![String::new(); 200_000]);
    let (answer, effects) = state.apply(says(A, 1, empty()), at(300), &TIMING);
    assert_eq!((answer, effects), (Answer::Taken, Vec::new()));
    assert_eq!(state, before);
    let mixed = Said::Tokens(vec![String::new(), "a".to_owned(), String::new()]);
    let (_, effects) = state.apply(says(A, 1, mixed), at(300), &TIMING);
    assert_eq!(effects, [Effect::Show(vec!["a".to_owned()])]);
    assert_eq!(state.next_deadline(), Some(at(900)));
}

#[test]
fn a_platform_that_stops_ends_every_request_once() {
    let mut state = waiting();
    let (_, effects) = state.apply(Event::PlatformStops, at(1), &TIMING);
    assert_eq!(failed(&effects).blame, Blame::Stop);
    assert_eq!(effects[1..], [Effect::LeaveQueue]);
    let mut state = running();
    let (_, effects) = state.apply(Event::PlatformStops, at(2), &TIMING);
    assert_eq!(failed(&effects).error, "the platform is stopping");
    assert_eq!(effects[1..], [Effect::Stop(A, 1), Effect::Free(A)]);
    let (answer, effects) = state.apply(Event::PlatformStops, at(3), &TIMING);
    assert_eq!((answer, effects), (Answer::Ignored, Vec::new()));
}
