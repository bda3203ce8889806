//! What is waited for, and what is not waited for in vain.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Runs a volunteer until it has told so many faults, then stops it.
async fn until_faults(
    config: &VolunteerConfig,
    wanted: usize,
) -> (Result<(), VolunteerError>, Vec<(String, Duration)>) {
    let (sender, mut receiver) = unbounded_channel();
    let stop = StopSignal::default();
    let mut faults = Vec::new();
    let watch = async {
        while let Some(event) = receiver.recv().await {
            if let VolunteerEvent::Waiting {
                reason: WaitReason::Fault(reason),
                delay,
            } = event
            {
                faults.push((reason, delay.unwrap()));
            }
            if faults.len() == wanted {
                stop.stop(StopReason::Requested);
            }
        }
    };
    let both = async { tokio::join!(run(config, &stop, sender), watch) };
    let (result, ()) = tokio::time::timeout(DEADLINE, both).await.unwrap();
    (result, faults)
}

#[actix_rt::test]
async fn a_disk_without_room_is_waited_for_at_growing_delays() {
    let bench = Bench::new();
    let session = Session::of(&bench, 1, Box::new(|_| None));
    let server = serve(&session).await;
    let mut config = bench.config(&server.url("/c/a"));
    config.limits.disk.keep_free_bytes = u64::MAX / 2;
    let (result, faults) = until_faults(&config, 3).await;
    assert!(
        matches!(result, Err(VolunteerError::Stopped { .. })),
        "{result:?}"
    );
    assert!(faults.iter().all(|(reason, _)| reason.contains("too full")));
    assert!(faults[2].1 > faults[0].1, "{faults:?}");
    let files = fs::read_dir(bench.path("state/volunteer")).unwrap();
    let session = files.flatten().find(|entry| entry.path().is_dir()).unwrap();
    let parts = fs::read_dir(session.path()).unwrap().flatten();
    let parts = parts.filter(|entry| entry.path().extension().is_some_and(|end| end == "part"));
    assert_eq!(parts.count(), 0);
}

#[actix_rt::test]
async fn weights_and_shards_that_are_longer_than_allowed_are_not_fetched() {
    for name in ["weights", "shard"] {
        let bench = Bench::new();
        let session = Session::of(&bench, 1, Box::new(|_| None));
        let server = serve(&session).await;
        let mut config = bench.config(&server.url("/c/a"));
        let disk = &mut config.limits.disk;
        match name {
            "weights" => disk.max_weights_bytes = 10,
            _ => disk.max_shard_bytes = 10,
        }
        let (_, faults) = until_faults(&config, 1).await;
        let told = &faults[0].0;
        assert!(
            told.contains(name) && told.contains("longer than 10 bytes"),
            "{told}"
        );
    }
}

#[actix_rt::test]
async fn a_hub_that_is_away_is_waited_for() {
    let bench = Bench::new();
    let session = Session::of(&bench, 1, Box::new(|_| None));
    let server = serve(&session).await;
    let model = bench.path("models").join(MODEL);
    let hub = TestServer::start(move |number, request| {
        if number < 10 {
            return Reply::new(503, "");
        }
        if request.target.contains("/revision/") {
            return json_reply(json!({"sha": "abc"}));
        }
        if request.target.ends_with("/tree/abc") {
            let entries = fs::read_dir(&model).unwrap().flatten();
            let files = entries.map(|entry| {
                let size = entry.metadata().unwrap().len();
                json!({"type": "file", "path": entry.file_name().to_str(), "size": size})
            });
            return json_reply(files.collect());
        }
        let name = request.target.rsplit('/').next().unwrap();
        Reply::new(200, fs::read(model.join(name)).unwrap())
    })
    .await;
    let mut config = bench.config(&server.url("/c/a"));
    config.models = ModelSettings {
        hub_endpoint: hub.url("").parse().unwrap(),
        ..ModelSettings::new(bench.path("fetched"))
    };
    let (result, events) = volunteer(&config).await;
    result.unwrap();
    let is_told = |event: &VolunteerEvent| matches!(event, VolunteerEvent::Waiting { reason: WaitReason::Fault(reason), .. } if reason.contains("503"));
    assert!(events.iter().any(is_told), "{events:?}");
    assert!(events.contains(&VolunteerEvent::Delivered { round: 0 }));
}

#[actix_rt::test]
async fn a_round_that_has_gone_on_without_the_volunteer_is_not_trained_to_its_end() {
    let bench = Bench::new();
    let session = Session::of(&bench, 2, Box::new(|_| None));
    let (inner, asked) = (session.clone(), AtomicUsize::new(0));
    let server = TestServer::start(move |_, request| {
        let mut session = inner.lock().unwrap();
        if !request.target.contains("gorev") || session.round > 0 {
            return session.answer(request);
        }
        if asked.fetch_add(1, Ordering::SeqCst) == 2 {
            session.round = 1;
            return session.answer(request);
        }
        // More steps than end within the test's deadline.
        json_reply(json!({
            "tur": 0, "toplam_tur": 2, "parca": 0, "n_parca": 1, "ic_adim": 1_000_000, "bs": 2, "seq": 16, "lr": 0.01,
            "tohum": 0, "agirlik_sha256": sha256(&session.weights), "veri_sha256": sha256(&session.shard),
        }))
    })
    .await;
    let config = VolunteerConfig {
        watch_every: Duration::from_millis(10),
        ..bench.config(&server.url("/c/a"))
    };
    let (result, events) = volunteer(&config).await;
    result.unwrap();
    assert!(events.contains(&VolunteerEvent::Overtaken { round: 0 }));
    assert!(events.contains(&VolunteerEvent::Delivered { round: 1 }));
}

#[actix_rt::test]
async fn an_owner_is_told_of_rounds_that_are_late_again_and_again() {
    let bench = Bench::new();
    let session = Session::of(&bench, 4, Box::new(|_| None));
    let inner = session.clone();
    let server = TestServer::start(move |_, request| {
        let mut session = inner.lock().unwrap();
        if request.method != "POST" {
            return session.answer(request);
        }
        // Others have closed the round.
        session.round += 1;
        *session.weights.last_mut().unwrap() ^= 1;
        Reply::new(409, json!({"hata": "another round"}).to_string())
    })
    .await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    let told = events.iter().filter_map(|event| match event {
        VolunteerEvent::TooSlow { rounds } => Some(*rounds),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [3]);
}
