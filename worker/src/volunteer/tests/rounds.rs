//! The way through a session.

use super::*;

#[actix_rt::test]
async fn a_volunteer_trains_round_after_round_until_the_end() {
    let bench = Bench::new();
    let session = Session::of(&bench, 3, Box::new(|_| None));
    let server = serve(&session).await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    assert_eq!(events.last(), Some(&VolunteerEvent::Finished));
    assert_eq!(rounds_begun(&events), 3);
    let folders = fs::read_dir(bench.path("state/volunteer")).unwrap();
    let files = folders
        .flatten()
        .flat_map(|folder| fs::read_dir(folder.path()).unwrap());
    let files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files, ["lock"], "nothing of a session stays after its end");
    let requests = server.requests();
    for request in &requests {
        assert_eq!(request.headers["x-anahtar"], "open sesame");
        assert!(!request.target.contains("sesame"));
    }
    let to = |path: &str| {
        let targets = requests
            .iter()
            .filter(|request| request.target.starts_with(path));
        targets.collect::<Vec<_>>()
    };
    assert_eq!(to("/c/a/gorev")[0].target, "/c/a/gorev?isci=ali%20veli");
    assert_eq!(to("/c/a/veri").len(), 1, "a shard is fetched once");
    let results = to("/c/a/sonuc");
    let targets: Vec<_> = results
        .iter()
        .map(|request| request.target.as_str())
        .collect();
    assert_eq!(
        targets,
        [
            "/c/a/sonuc?isci=ali%20veli&tur=0",
            "/c/a/sonuc?isci=ali%20veli&tur=1",
            "/c/a/sonuc?isci=ali%20veli&tur=2",
        ]
    );
    let before = bench.weights();
    for result in results {
        assert_eq!(result.headers["x-sha256"], sha256(&result.body));
        assert_eq!(result.body.len(), before.len());
        assert_ne!(result.body, before);
    }
}

#[actix_rt::test]
async fn a_volunteer_that_wants_privacy_sends_little_but_noise_and_says_what_that_gives_away() {
    let bench = Bench::new();
    let session = Session::of(&bench, 1, Box::new(|_| None));
    let server = serve(&session).await;
    let config = VolunteerConfig {
        mechanism: Some(GaussianMechanism::new(1e-3, 2.0).unwrap()),
        ..bench.config(&server.url("/c/a"))
    };
    let (result, events) = volunteer(&config).await;
    result.unwrap();
    let told = |events: &[VolunteerEvent]| {
        let told = events.iter().filter_map(|event| match event {
            VolunteerEvent::Private {
                results, epsilon, ..
            } => Some((*results, epsilon.map(|epsilon| format!("{epsilon:.2}")))),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    let after_one = (1, Some("2.17".to_owned()));
    assert_eq!(told(&events), [(0, None), after_one.clone()]);
    let (result, events) = volunteer(&config).await;
    result.unwrap();
    assert_eq!(told(&events), [after_one], "it is kept over a restart");
    fs::write(bench.path("sent"), &session.lock().unwrap().weights).unwrap();
    let [sent, before] = ["sent", ADAPTER_WEIGHTS].map(|name| {
        let file = SafetensorsFile::open(&bench.path(name)).unwrap();
        let values = file.names().flat_map(|name| file.tensor(name).unwrap());
        values.map(f64::from).collect::<Vec<f64>>()
    });
    let squares = sent.iter().zip(&before).map(|(x, y)| (x - y).powi(2));
    let deviation = (squares.sum::<f64>() / sent.len() as f64).sqrt();
    assert!((deviation / 2e-3 - 1.0).abs() < 0.1, "{deviation}");
}

#[actix_rt::test]
async fn nothing_is_asked_for_while_it_is_paused() {
    let bench = Bench::new();
    let session = Session::of(&bench, 1, Box::new(|_| None));
    let server = serve(&session).await;
    let config = bench.config(&server.url("/c/a"));
    config.limits.pause.pause().unwrap();
    let (sender, mut receiver) = unbounded_channel();
    let stop = StopSignal::default();
    let switch = async {
        let paused = VolunteerEvent::Waiting {
            reason: WaitReason::Paused,
            delay: None,
        };
        while receiver.recv().await.expect("it waits") != paused {}
        let asked = server
            .requests()
            .iter()
            .any(|request| request.target.contains("gorev"));
        assert!(!asked);
        config.limits.pause.resume().unwrap();
    };
    let both = async { tokio::join!(run(&config, &stop, sender), switch) };
    let (result, ()) = tokio::time::timeout(DEADLINE, both).await.unwrap();
    result.unwrap();
    assert!(told(receiver).contains(&VolunteerEvent::GoesOn));
}

#[actix_rt::test]
async fn own_data_is_packed_where_the_coordinator_serves_none_and_the_weights_tell_the_adapter() {
    let bench = Bench::new();
    let session = Session::of(
        &bench,
        1,
        Box::new(|request| {
            request
                .target
                .contains("bilgi")
                .then(|| json_reply(json!({})))
        }),
    );
    let served = session.clone();
    let server = TestServer::start(move |_, request| {
        let mut session = served.lock().unwrap();
        let reply = session.answer(request);
        let is_task = request.target.contains("gorev") && session.round == 0 && !session.submitted;
        match is_task {
            false => reply,
            true => json_reply(json!({
                "tur": 0, "toplam_tur": 1, "parca": 1, "n_parca": 2, "ic_adim": 1, "bs": 1, "seq": 8, "lr": 0.01,
                "tohum": 0, "agirlik_sha256": sha256(&session.weights),
            })),
        }
    })
    .await;
    let mut config = bench.config(&server.url("/c/a"));
    let (result, _) = volunteer(&config).await;
    assert!(result.unwrap_err().to_string().contains("--model"));
    config.model = Some(bench.path("models").join(MODEL).display().to_string());
    let (result, _) = volunteer(&config).await;
    assert!(result.unwrap_err().to_string().contains("--veri"));
    config.data = Some(OwnData {
        file: DataFile {
            path: bench.path("text"),
            format: trainyard_shared::dataset::DatasetFormat::Text,
            sha256: None,
        },
        part: OwnPart::ByTask,
    });
    let (result, events) = volunteer(&config).await;
    result.unwrap();
    assert_eq!(rounds_begun(&events), 1);
}

#[actix_rt::test]
async fn another_session_behind_the_same_address_is_joined_anew() {
    let bench = Bench::new();
    let session = Session::of(&bench, 2, Box::new(|_| None));
    let inner = session.clone();
    let server = TestServer::start(move |_, request| {
        let mut session = inner.lock().unwrap();
        if request.target.contains("bilgi") && session.round == 1 {
            return json_reply(json!({
                "ad": "b", "model": {"huggingface_id": MODEL},
                "adaptor": {"r": 4, "alpha": 4, "hedefler": ["q_proj", "v_proj"]},
            }));
        }
        session.answer(request)
    })
    .await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    let joined = events.iter().filter_map(|event| match event {
        VolunteerEvent::Joined { session, .. } => session.clone(),
        _ => None,
    });
    assert_eq!(joined.collect::<Vec<_>>(), ["a", "b"]);
}

#[actix_rt::test]
async fn kept_moments_say_of_which_session_they_are() {
    let bench = Bench::new();
    let (state, seen) = (bench.path("state/volunteer"), Arc::new(Mutex::new(None)));
    let found = seen.clone();
    let look = move |request: &Request| {
        if request.target.contains("tur=1") {
            let folders = fs::read_dir(&state).unwrap().flatten();
            let kept = folders.map(|folder| folder.path().join("optimizer/round-1/session"));
            *found.lock().unwrap() = { kept }.find_map(|kept| fs::read_to_string(kept).ok());
        }
        None
    };
    let session = Session::of(&bench, 2, Box::new(look));
    let server = serve(&session).await;
    let config = VolunteerConfig {
        keep_optimizer: true,
        ..bench.config(&server.url("/c/a"))
    };
    volunteer(&config).await.0.unwrap();
    let kept: Option<String> = seen.lock().unwrap().take();
    let kept: Value = serde_json::from_str(&kept.unwrap()).unwrap();
    assert_eq!(
        (
            &kept["session"],
            &kept["model"],
            &kept["seed"],
            &kept["total_rounds"]
        ),
        (&json!("a"), &json!(MODEL), &json!(0), &json!(2))
    );
    assert_eq!(kept["coordinator"], config.coordinator.to_string());
    assert_eq!(kept["adapter"]["lora_alpha"], 8.0);
}

#[actix_rt::test]
async fn an_own_base_model_that_the_coordinator_does_not_name_is_warned_of() {
    let bench = Bench::new();
    let session = Session::of(&bench, 1, Box::new(|_| None));
    let server = serve(&session).await;
    let own = bench.path("models").join(MODEL).display().to_string();
    for (model, warned) in [(own.as_str(), true), (MODEL, false)] {
        let config = VolunteerConfig {
            model: Some(model.to_owned()),
            ..bench.config(&server.url("/c/a"))
        };
        let (result, events) = volunteer(&config).await;
        result.unwrap();
        let is_warning = |event: &VolunteerEvent| matches!(event, VolunteerEvent::Log { level: LogLevel::Warning, line } if line.contains("--model"));
        assert_eq!(events.iter().any(is_warning), warned, "{model}");
    }
}
