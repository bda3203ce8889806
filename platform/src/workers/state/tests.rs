use super::*;

const W: WorkerId = WorkerId(1);
const JOB: JobId = JobId(3);
const TIMING: FleetTiming = FleetTiming {
    heartbeat_timeout: Duration::from_secs(90),
    check_interval: Duration::from_secs(60),
    ping_grace: Duration::from_secs(10),
    settle: Duration::from_millis(500),
};

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1000)
}

fn says(by: ReportedBy, status: WorkerStatus, current_job: Option<JobId>) -> SelfReport {
    SelfReport {
        by,
        status: Some(status),
        current_job,
    }
}

/// A worker that has registered at second 0 and has been idle since.
fn idle() -> (Fleet, Generation) {
    let mut fleet = Fleet::new(TIMING, at(0));
    let (generation, _) = fleet.authenticated(W, at(0));
    fleet.registered(W, generation, at(0));
    let heartbeat = says(ReportedBy::Heartbeat, WorkerStatus::Idle, None);
    let effects = fleet.reported(W, generation, heartbeat, at(0));
    assert!(effects.contains(&Effect::Available(W)));
    assert_eq!(fleet.tick(at(1)), []);
    (fleet, generation)
}

/// The same with a job.
fn training() -> (Fleet, Generation) {
    let (mut fleet, generation) = idle();
    assert!(fleet.claim(W, JOB));
    (fleet, generation)
}

fn tells(effects: &[Effect]) -> Vec<WorkerNews> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::TellJob(_, _, news) => Some(*news),
            _ => None,
        })
        .collect()
}

fn status(fleet: &Fleet) -> WorkerStatus {
    fleet.view(W).unwrap().status
}

#[test]
fn g001_the_late_close_of_a_replaced_connection_changes_nothing() {
    let (mut fleet, first) = training();
    let (second, effects) = fleet.authenticated(W, at(5));
    let reason = CloseReason::Replaced;
    assert_eq!(
        effects[0],
        Effect::Close {
            worker: W,
            generation: first,
            reason
        }
    );
    fleet.registered(W, second, at(5));
    assert_eq!(fleet.disconnected(W, first, at(8)), []);
    assert_eq!(fleet.delivery(W, JOB), Delivery::On(second));
    assert_eq!(status(&fleet), WorkerStatus::Training);
}

#[test]
fn g001_what_a_replaced_connection_says_is_not_heard() {
    let (mut fleet, first) = idle();
    let (second, _) = fleet.authenticated(W, at(1));
    let heartbeat = says(ReportedBy::Heartbeat, WorkerStatus::Idle, Some(JOB));
    assert_eq!(fleet.reported(W, first, heartbeat, at(2)), []);
    assert_eq!(fleet.registered(W, first, at(2)), []);
    fleet.heard(W, first, at(50));
    assert_eq!(fleet.view(W).unwrap().last_heard, Some(at(1)));
    assert_eq!(fleet.generation(W), Some(second));
}

#[test]
fn g003_a_newcomer_takes_over_without_waiting_for_the_timeout() {
    let (mut fleet, _) = idle();
    let (second, effects) = fleet.authenticated(W, at(6));
    assert!(matches!(
        effects[0],
        Effect::Close {
            reason: CloseReason::Replaced,
            ..
        }
    ));
    fleet.registered(W, second, at(6));
    assert_eq!(fleet.generation(W), Some(second));
}

#[test]
fn g005_an_authenticated_worker_that_has_not_registered_is_given_nothing_and_shown_as_such() {
    let mut fleet = Fleet::new(TIMING, at(0));
    let (generation, effects) = fleet.authenticated(W, at(0));
    assert!(effects.contains(&Effect::Show(W)));
    assert!(!fleet.claim(W, JOB));
    assert_eq!(status(&fleet), WorkerStatus::Online);
    fleet.registered(W, generation, at(1));
    assert!(!fleet.claim(W, JOB), "its first heartbeat may name a job");
    let due = fleet.next_tick().unwrap();
    assert!(
        due.since(at(1)) <= Duration::from_secs(1),
        "one second at the latest"
    );
    assert_eq!(fleet.tick(due), [Effect::Available(W)]);
    assert!(fleet.claim(W, JOB));
    assert!(!fleet.claim(W, JobId(4)), "it is taken");
}

#[test]
fn g006_a_silent_worker_is_pinged_and_then_given_up_once() {
    let (mut fleet, generation) = training();
    assert_eq!(fleet.check(at(60)), []);
    assert_eq!(fleet.check(at(120)), [Effect::Ping(W)]);
    assert_eq!(fleet.next_tick(), Some(at(130)));
    assert_eq!(fleet.tick(at(129)), []);
    let effects = fleet.tick(at(130));
    let reason = CloseReason::Silent;
    assert_eq!(
        effects[0],
        Effect::Close {
            worker: W,
            generation,
            reason
        }
    );
    assert_eq!(tells(&effects), [WorkerNews::Lost]);
    assert_eq!(
        effects
            .iter()
            .filter(|effect| **effect == Effect::Show(W))
            .count(),
        1
    );
    assert_eq!(status(&fleet), WorkerStatus::Offline);
    for second in [180, 240, 300] {
        assert_eq!(fleet.check(at(second)), [], "told once");
        assert_eq!(fleet.tick(at(second)), []);
    }
    assert_eq!(
        fleet.released(W, JOB, false, at(131)),
        [],
        "the job's own release adds nothing"
    );
}

#[test]
fn a_worker_that_answers_the_ping_stays() {
    let (mut fleet, generation) = training();
    fleet.check(at(60));
    assert_eq!(fleet.check(at(120)), [Effect::Ping(W)]);
    fleet.heard(W, generation, at(121));
    assert_eq!(fleet.tick(at(130)), []);
    assert_eq!(status(&fleet), WorkerStatus::Training);
    assert_eq!(fleet.tick(at(200)), []);
}

#[test]
fn a_worker_that_beats_is_never_pinged() {
    let (mut fleet, generation) = idle();
    for second in (30..1000).step_by(30) {
        fleet.heard(W, generation, at(second));
        if second % 60 == 0 {
            assert_eq!(fleet.check(at(second)), []);
        }
    }
}

#[test]
fn a_closed_socket_has_until_the_timeout_to_come_back() {
    let (mut fleet, generation) = training();
    let effects = fleet.disconnected(W, generation, at(1));
    assert_eq!(tells(&effects), [WorkerNews::Disconnected]);
    assert_eq!(status(&fleet), WorkerStatus::Training, "not offline");
    assert_eq!(fleet.delivery(W, JOB), Delivery::Away);
    assert_eq!(fleet.check(at(60)), []);
    let effects = fleet.check(at(119));
    assert_eq!(
        tells(&effects),
        [WorkerNews::Lost],
        "nobody is there to be pinged"
    );
    assert_eq!(status(&fleet), WorkerStatus::Offline);
    assert_eq!(fleet.delivery(W, JOB), Delivery::NotHolding);
}

#[test]
fn a_worker_that_comes_back_is_asked_for_its_job() {
    let (mut fleet, first) = training();
    fleet.disconnected(W, first, at(1));
    let (second, _) = fleet.authenticated(W, at(6));
    let effects = fleet.registered(W, second, at(6));
    assert_eq!(effects[0], Effect::Ping(W));
    assert_eq!(tells(&effects), [WorkerNews::Registered]);
    // A heartbeat without a job says nothing about it; the pong does.
    let heartbeat = says(ReportedBy::Heartbeat, WorkerStatus::Training, None);
    assert_eq!(tells(&fleet.reported(W, second, heartbeat, at(6))), []);
    let pong = says(ReportedBy::Pong, WorkerStatus::Training, Some(JOB));
    let effects = fleet.reported(W, second, pong, at(6));
    assert_eq!(
        tells(&effects),
        [WorkerNews::Holds {
            holds: true,
            first: true
        }]
    );
    let effects = fleet.reported(W, second, pong, at(7));
    assert_eq!(
        tells(&effects),
        [WorkerNews::Holds {
            holds: true,
            first: false
        }]
    );
}

#[test]
fn g020_a_pong_without_a_job_says_that_there_is_none() {
    let (mut fleet, first) = training();
    fleet.disconnected(W, first, at(1));
    let (second, _) = fleet.authenticated(W, at(5));
    fleet.registered(W, second, at(5));
    let pong = says(ReportedBy::Pong, WorkerStatus::Idle, None);
    let effects = fleet.reported(W, second, pong, at(5));
    assert_eq!(
        tells(&effects),
        [WorkerNews::Holds {
            holds: false,
            first: true
        }]
    );
    assert!(!fleet.claim(W, JobId(9)), "the job decides first");
}

#[test]
fn g014_a_worker_with_a_job_that_is_not_its_own_any_more_is_told_to_stop_and_then_free() {
    let (mut fleet, first) = training();
    fleet.disconnected(W, first, at(1));
    fleet.check(at(60));
    fleet.check(at(119));
    let (second, _) = fleet.authenticated(W, at(200));
    fleet.registered(W, second, at(200));
    let pong = says(ReportedBy::Pong, WorkerStatus::Training, Some(JOB));
    let effects = fleet.reported(W, second, pong, at(200));
    assert_eq!(effects[0], Effect::StopForeign(W, JOB));
    assert_eq!(tells(&effects), []);
    assert!(!fleet.claim(W, JobId(4)), "it is busy");
    let heartbeat = says(ReportedBy::Heartbeat, WorkerStatus::Idle, None);
    let effects = fleet.reported(W, second, heartbeat, at(230));
    assert!(effects.contains(&Effect::Available(W)));
    assert!(fleet.claim(W, JobId(4)));
}

#[test]
fn g010_a_pause_of_the_platform_is_no_outage_of_its_workers() {
    let (mut fleet, generation) = training();
    fleet.check(at(60));
    // Stopped for two minutes; the messages of that time lie in the sockets' buffers.
    assert_eq!(fleet.check(at(190)), [], "that check is skipped");
    fleet.heard(W, generation, at(190));
    assert_eq!(fleet.check(at(250)), []);
}

#[test]
fn g010_a_ping_whose_time_ran_out_in_a_pause_is_waited_for_again() {
    let (mut fleet, generation) = training();
    fleet.check(at(60));
    fleet.check(at(120));
    assert_eq!(fleet.tick(at(300)), []);
    fleet.heard(W, generation, at(301));
    assert_eq!(fleet.tick(at(310)), []);
    assert_eq!(status(&fleet), WorkerStatus::Training);
}

#[test]
fn g011_after_a_restart_workers_with_a_job_are_waited_for_and_others_are_offline() {
    let mut fleet = Fleet::new(TIMING, at(0));
    fleet.add(W, Some(JOB), false, at(0));
    fleet.add(WorkerId(2), None, false, at(0));
    assert_eq!(
        fleet.view(WorkerId(2)).unwrap().status,
        WorkerStatus::Offline
    );
    assert_eq!(fleet.check(at(60)), []);
    let effects = fleet.check(at(119));
    assert_eq!(tells(&effects), [WorkerNews::Lost]);
    assert!(effects.contains(&Effect::Show(W)));
    assert!(!effects.contains(&Effect::Show(WorkerId(2))));
}

#[test]
fn a_draining_worker_ends_what_it_has_and_gets_nothing_new() {
    let (mut fleet, _) = training();
    fleet.set_draining(W, true, at(1));
    assert_eq!(status(&fleet), WorkerStatus::Draining);
    let effects = fleet.released(W, JOB, true, at(2));
    assert!(!effects.contains(&Effect::Available(W)));
    let effects = fleet.set_draining(W, false, at(3));
    assert!(effects.contains(&Effect::Available(W)));
}

#[test]
fn a_worker_that_says_it_is_draining_gets_nothing_when_its_job_is_released() {
    for said_by_worker in [true, false] {
        let (mut fleet, generation) = training();
        let leaving = says(ReportedBy::Heartbeat, WorkerStatus::Draining, Some(JOB));
        fleet.reported(W, generation, leaving, at(1));
        let effects = fleet.released(W, JOB, said_by_worker, at(2));
        assert!(!effects.contains(&Effect::Available(W)));
        assert!(!fleet.claim(W, JobId(4)));
        let view = fleet.view(W).unwrap();
        assert_eq!(
            (view.status, view.draining),
            (WorkerStatus::Draining, true),
            "no chats either"
        );
        let (second, _) = fleet.authenticated(W, at(10));
        fleet.registered(W, second, at(10));
        let idle = says(ReportedBy::Heartbeat, WorkerStatus::Idle, None);
        let effects = fleet.reported(W, second, idle, at(10));
        assert!(effects.contains(&Effect::Available(W)));
    }
}

#[test]
fn a_worker_that_did_not_say_itself_that_it_is_done_is_asked_before_it_gets_more() {
    let (mut fleet, generation) = training();
    let effects = fleet.released(W, JOB, false, at(2));
    assert_eq!(effects[0], Effect::Ping(W));
    assert!(!fleet.claim(W, JobId(4)));
    let pong = says(ReportedBy::Pong, WorkerStatus::Idle, None);
    let effects = fleet.reported(W, generation, pong, at(2));
    assert!(effects.contains(&Effect::Available(W)));
}

#[test]
fn g024_a_replaced_key_closes_the_connection_and_the_job_waits() {
    let (mut fleet, generation) = training();
    let effects = fleet.key_replaced(W, at(1));
    let reason = CloseReason::KeyReplaced;
    assert_eq!(
        effects[0],
        Effect::Close {
            worker: W,
            generation,
            reason
        }
    );
    assert_eq!(tells(&effects), [WorkerNews::Disconnected]);
    assert_eq!(fleet.key_replaced(W, at(2)), []);
}

#[test]
fn g024_a_deleted_worker_is_closed_and_its_job_lost() {
    let (mut fleet, generation) = training();
    let effects = fleet.removed(W);
    let reason = CloseReason::Deleted;
    assert_eq!(
        effects[0],
        Effect::Close {
            worker: W,
            generation,
            reason
        }
    );
    assert_eq!(tells(&effects), [WorkerNews::Lost]);
    assert_eq!(fleet.view(W), None);
    assert_eq!(fleet.delivery(W, JOB), Delivery::NotHolding);
}

#[test]
fn a_worker_that_says_it_is_idle_while_it_holds_a_job_is_asked_after_a_while() {
    let (mut fleet, generation) = training();
    let idle = says(ReportedBy::Heartbeat, WorkerStatus::Idle, None);
    for seconds in [1, 30, 59] {
        assert_eq!(fleet.reported(W, generation, idle, at(seconds)), []);
    }
    assert_eq!(fleet.check(at(60)), []);
    fleet.reported(W, generation, idle, at(119));
    assert_eq!(fleet.check(at(120)), [Effect::Ping(W)]);
    let nothing = says(ReportedBy::Pong, WorkerStatus::Idle, None);
    let effects = fleet.reported(W, generation, nothing, at(121));
    let (holds, first) = (false, false);
    assert_eq!(tells(&effects), [WorkerNews::Holds { holds, first }]);
    assert_eq!(fleet.check(at(180)), [], "it is not asked again so soon");
}

#[test]
fn a_worker_that_says_that_it_trains_is_not_asked_whether_it_does() {
    let (mut fleet, generation) = training();
    let idle = says(ReportedBy::Heartbeat, WorkerStatus::Idle, None);
    let training = says(ReportedBy::Heartbeat, WorkerStatus::Training, Some(JOB));
    fleet.reported(W, generation, idle, at(1));
    fleet.reported(W, generation, training, at(59));
    assert_eq!(fleet.check(at(60)), []);
    fleet.reported(W, generation, training, at(119));
    assert_eq!(fleet.check(at(120)), []);
}
