//! What goes wrong and passes: nothing is lost, nothing is trained twice, nobody is pestered.

use super::*;

#[actix_rt::test]
async fn weights_and_shards_of_other_digests_are_never_trained_on() {
    for path in ["/c/a/agirlik", "/c/a/veri"] {
        for announced in [true, false] {
            let bench = Bench::new();
            let mut wrong = 2;
            let other = bench.weights()[1..].to_vec();
            let session = Session::of(
                &bench,
                1,
                Box::new(move |request| {
                    if wrong == 0 || !request.target.starts_with(path) {
                        return None;
                    }
                    wrong -= 1;
                    let reply = Reply::new(200, other.clone());
                    Some(if announced {
                        reply.header("X-Sha256", sha256(&other))
                    } else {
                        reply
                    })
                }),
            );
            let server = serve(&session).await;
            let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
            result.unwrap();
            assert_eq!(rounds_begun(&events), 1);
            let asked = server.requests().into_iter();
            let asked = asked
                .filter(|request| request.target.starts_with("/c/a/gorev"))
                .count();
            assert!(
                asked >= 3,
                "{path}: the task is asked for again, {asked} times in all"
            );
        }
    }
}

#[actix_rt::test]
async fn g099_weights_of_a_round_that_began_after_the_task_are_trained_on_only_with_a_task_of_that_round()
 {
    let bench = Bench::new();
    let session = Session::of(&bench, 2, Box::new(|_| None));
    let inner = session.clone();
    let server = TestServer::start(move |_, request| {
        let mut session = inner.lock().unwrap();
        if session.round == 0 && request.target.starts_with("/c/a/agirlik") {
            // Others close the round between the task and this.
            session.round = 1;
            *session.weights.last_mut().unwrap() ^= 1;
        }
        session.answer(request)
    })
    .await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    let begun: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            VolunteerEvent::RoundBegun { round, .. } => Some(*round),
            _ => None,
        })
        .collect();
    assert_eq!(begun, [1]);
    let requests = server.requests();
    let asked: Vec<&str> = requests
        .iter()
        .map(|request| request.target.split('?').next().unwrap_or_default())
        .filter(|path| ["/c/a/gorev", "/c/a/agirlik"].contains(path))
        .collect();
    assert_eq!(
        asked[..3],
        ["/c/a/gorev", "/c/a/agirlik", "/c/a/gorev"],
        "the task is asked for again"
    );
    let sent: Vec<&str> = requests
        .iter()
        .filter(|request| request.method == "POST")
        .map(|request| request.target.as_str())
        .collect();
    assert_eq!(sent, ["/c/a/sonuc?isci=ali%20veli&tur=1"]);
}

#[actix_rt::test]
async fn a_result_that_could_not_be_delivered_is_kept_over_a_restart_and_not_trained_again() {
    let bench = Bench::new();
    let stop = StopSignal::default();
    let (stopping, mut refusals) = (stop.clone(), 1);
    let session = Session::of(
        &bench,
        1,
        Box::new(move |request| {
            if refusals == 0 || request.method != "POST" {
                return None;
            }
            refusals -= 1;
            stopping.stop(StopReason::Requested);
            Some(Reply::new(503, json!({"hata": "restarting"}).to_string()))
        }),
    );
    let server = serve(&session).await;
    let config = bench.config(&server.url("/c/a"));
    let (sender, receiver) = unbounded_channel();
    let result = tokio::time::timeout(DEADLINE, run(&config, &stop, sender))
        .await
        .unwrap();
    assert!(
        matches!(result, Err(VolunteerError::Stopped { kept: true })),
        "{result:?}"
    );
    assert_eq!(rounds_begun(&told(receiver)), 1);
    let (result, events) = volunteer(&config).await;
    result.unwrap();
    assert_eq!(rounds_begun(&events), 0);
    assert!(events.contains(&VolunteerEvent::Delivered { round: 0 }));
    let posts = server
        .requests()
        .into_iter()
        .filter(|request| request.method == "POST");
    let bodies: Vec<_> = posts.map(|request| request.body).collect();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], bodies[1]);
}

#[actix_rt::test]
async fn a_result_whose_answer_was_lost_is_repeated_as_it_is() {
    let bench = Bench::new();
    let lost = Arc::new(Mutex::new(true));
    let session = Session::of(&bench, 2, Box::new(|_| None));
    let (inner, losing) = (session.clone(), lost.clone());
    let server = TestServer::start(move |_, request| {
        let reply = inner.lock().unwrap().answer(request);
        let is_lost = request.method == "POST" && std::mem::take(&mut *losing.lock().unwrap());
        if is_lost { reply.cut_after(0) } else { reply }
    })
    .await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    assert_eq!(rounds_begun(&events), 2, "no round is trained twice");
    assert!(!*lost.lock().unwrap());
}

#[actix_rt::test]
async fn a_result_that_is_not_taken_is_sent_again_at_growing_delays() {
    let bench = Bench::new();
    let answers = [
        Reply::new(503, "{}"),
        Reply::new(200, "<html>welcome</html>"),
        Reply::new(200, json!({"tamam": true, "tur": 7}).to_string()),
        Reply::new(307, "").header("Location", "/c/a/bilgi"),
        Reply::new(302, "").header("Location", "/c/a/bilgi"),
    ];
    let mut left = answers.into_iter();
    let session = Session::of(
        &bench,
        1,
        Box::new(move |request| (request.method == "POST").then(|| left.next()).flatten()),
    );
    let server = serve(&session).await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    assert_eq!(rounds_begun(&events), 1, "it is trained once");
    let delays: Vec<Duration> = events
        .iter()
        .filter_map(|event| match event {
            VolunteerEvent::Waiting {
                reason: WaitReason::Fault(_),
                delay,
            } => *delay,
            _ => None,
        })
        .collect();
    assert_eq!(delays.len(), 5, "{delays:?}");
    assert!(delays[1] > delays[0] && delays[2] > delays[1], "{delays:?}");
    let posts = server.requests();
    let posts = posts.iter().filter(|request| request.method == "POST");
    assert_eq!(posts.count(), 6);
}

#[actix_rt::test]
async fn a_round_whose_result_is_refused_is_not_trained_again() {
    let bench = Bench::new();
    let asked = Arc::new(Mutex::new(0));
    let counted = asked.clone();
    let session = Session::of(&bench, 2, Box::new(|_| None));
    let inner = session.clone();
    let server = TestServer::start(move |_, request| {
        let mut session = inner.lock().unwrap();
        if request.method == "POST" && session.round == 0 {
            return Reply::new(
                400,
                json!({"hata": "q_proj: not \u{1b}[1mfinite"}).to_string(),
            );
        }
        if request.target.contains("gorev") && session.round == 0 {
            let mut asked = counted.lock().unwrap();
            *asked += 1;
            if *asked == 4 {
                // Others have closed the round.
                session.round = 1;
                let moved = session.weights.last_mut().unwrap();
                *moved ^= 1;
            }
        }
        session.answer(request)
    })
    .await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    assert_eq!(rounds_begun(&events), 2, "one for each round");
    let waits = |wanted: WaitReason| {
        let is_wanted = |event: &&VolunteerEvent| matches!(event, VolunteerEvent::Waiting { reason, .. } if *reason == wanted);
        events.iter().filter(is_wanted).count()
    };
    assert!(waits(WaitReason::RoundOver { round: 0 }) > 0);
    assert_eq!(waits(WaitReason::RoundOpen { round: 0 }), 0);
    let refused = events.iter().find_map(|event| match event {
        VolunteerEvent::NotTaken { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    let refused = refused.unwrap();
    assert!(
        refused.contains("q_proj") && !refused.contains('\u{1b}'),
        "{refused}"
    );
}
