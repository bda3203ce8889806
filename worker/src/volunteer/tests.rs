//! A volunteer against a coordinator that is played: rounds, faults, restarts, and what it refuses.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use trainyard_shared::training::{TargetModules, TrainingConfig};

use super::*;
use crate::engine::adapter::{self, ADAPTER_WEIGHTS, AdapterConfig};
use crate::engine::data::{Packing, SHARD_FORMAT};
use crate::engine::weights::{ModelFiles, SafetensorsFile};
use crate::tasks::transfers::test_server::{Reply, Request, TestServer};
use crate::tasks::{StopReason, StopSignal};

const MODEL: &str = "test/tiny";
const DEADLINE: Duration = Duration::from_secs(30);

/// A folder with a model, a shard and the first weights.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bench = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let model = bench.path("models").join(MODEL);
        fs::create_dir_all(&model).unwrap();
        let golden = |name: &str| {
            let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
            root.join(name)
        };
        for (from, name) in [
            ("tied", "config.json"),
            ("tied", "generation_config.json"),
            ("tied", "model.safetensors"),
            ("tokenizer", "tokenizer.json"),
            ("tokenizer", "tokenizer_config.json"),
        ] {
            fs::copy(golden(from).join(name), model.join(name)).unwrap();
        }
        let files = ModelFiles::open(&model).unwrap();
        let config = TrainingConfig {
            lora_r: 4,
            lora_alpha: 8.0,
            target_modules: TargetModules::Names(vec!["q_proj".into(), "v_proj".into()]),
            ..TrainingConfig::default()
        };
        let config = AdapterConfig::from_training(&config, MODEL);
        let fresh = adapter::fresh(&config, &files.config, 1).unwrap();
        adapter::save(bench.folder.path(), &fresh, &config, &files.config).unwrap();
        fs::write(
            bench.path("text"),
            "some words to learn\n\nand some more of them\n".repeat(20),
        )
        .unwrap();
        let packing = Packing {
            dataset: &DataFile {
                path: bench.path("text"),
                format: trainyard_shared::dataset::DatasetFormat::Text,
                sha256: None,
            },
            max_bad_rows: 0,
            chat: &files.chat(chrono::Local::now()).unwrap(),
            vocab_size: files.config.vocab_size,
            mode: trainyard_shared::coordinator::Mode::Cpt,
            shards: 1,
        };
        packing.write(&bench.path("shards"), &|| false).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn weights(&self) -> Vec<u8> {
        fs::read(self.path(ADAPTER_WEIGHTS)).unwrap()
    }

    fn shard(&self) -> Vec<u8> {
        fs::read(self.path("shards/shard-00000.safetensors")).unwrap()
    }

    fn config(&self, url: &str) -> VolunteerConfig {
        VolunteerConfig {
            coordinator: url.parse().unwrap(),
            name: "ali veli".to_owned(),
            key: Some(Secret::from("open sesame")),
            data: None,
            model: None,
            lora_alpha: None,
            keep_optimizer: false,
            mechanism: None,
            limits: Limits {
                hours: None,
                cpu_share: CpuShare::ALL,
                only_when_idle: false,
                pause: PauseSwitch::of(&self.path("state")),
            },
            state_dir: self.path("state"),
            models: ModelSettings {
                hub_offline: true,
                ..ModelSettings::new(self.path("models"))
            },
            first_delay: Duration::from_millis(5),
            longest_delay: Duration::from_millis(200),
        }
    }
}

/// A session as the played coordinator has it. Its next weights are the last result.
struct Session {
    weights: Vec<u8>,
    shard: Vec<u8>,
    round: u64,
    rounds: u64,
    submitted: bool,
    /// Asked before everything else; an answer takes its place.
    fault: Fault,
}

/// What goes wrong.
type Fault = Box<dyn FnMut(&Request) -> Option<Reply> + Send>;

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

impl Session {
    fn of(bench: &Bench, rounds: u64, fault: Fault) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            weights: bench.weights(),
            shard: bench.shard(),
            round: 0,
            rounds,
            submitted: false,
            fault,
        }))
    }

    fn answer(&mut self, request: &Request) -> Reply {
        if let Some(reply) = (self.fault)(request) {
            return reply;
        }
        let (path, query) = request
            .target
            .split_once('?')
            .unwrap_or((&request.target, ""));
        let file = |bytes: &[u8]| Reply::new(200, bytes).header("X-Sha256", sha256(bytes));
        match path {
            "/c/a/bilgi" => json_reply(json!({
                "protokol": 1, "ad": "a", "model": {"huggingface_id": MODEL},
                "adaptor": {"bicim": "safetensors", "r": 4, "alpha": 8, "hedefler": ["q_proj", "v_proj"]},
                "veri": {"bicim": SHARD_FORMAT, "parca": 1},
            })),
            "/c/a/gorev" => self.task(),
            "/c/a/agirlik" => file(&self.weights).header("X-Tur", self.round),
            "/c/a/veri" => file(&self.shard),
            "/c/a/sonuc" => {
                let tur = format!("tur={}", self.round);
                if self.submitted || !query.split('&').any(|part| part == tur) {
                    return Reply::new(409, json!({"hata": "another round"}).to_string());
                }
                self.submitted = true;
                self.weights = request.body.clone();
                json_reply(json!({"tamam": true, "tur": self.round}))
            }
            _ => Reply::new(404, json!({"hata": "no such page"}).to_string()),
        }
    }

    fn task(&mut self) -> Reply {
        if self.submitted {
            // The next question finds the next round.
            self.submitted = false;
            self.round += 1;
            return json_reply(json!({"bekle": true, "tur": self.round - 1}));
        }
        if self.round == self.rounds {
            return json_reply(json!({"bitti": true}));
        }
        json_reply(json!({
            "tur": self.round, "toplam_tur": self.rounds, "parca": 0, "n_parca": 1, "ic_adim": 2, "bs": 2, "seq": 16,
            "lr": 0.01, "tohum": 0, "agirlik_sha256": sha256(&self.weights), "veri_sha256": sha256(&self.shard),
            "veri_belirtec": 2000,
        }))
    }
}

fn json_reply(value: Value) -> Reply {
    Reply::new(200, value.to_string())
}

async fn serve(session: &Arc<Mutex<Session>>) -> TestServer {
    let session = session.clone();
    TestServer::start(move |_, request| session.lock().unwrap().answer(request)).await
}

/// Runs a volunteer to its end, with all that it told.
async fn volunteer(config: &VolunteerConfig) -> (Result<(), VolunteerError>, Vec<VolunteerEvent>) {
    let (sender, receiver) = unbounded_channel();
    let stop = StopSignal::default();
    let running = tokio::time::timeout(DEADLINE, run(config, &stop, sender));
    let result = running.await.expect("it ends in time");
    (result, told(receiver))
}

fn told(mut events: UnboundedReceiver<VolunteerEvent>) -> Vec<VolunteerEvent> {
    std::iter::from_fn(|| events.try_recv().ok()).collect()
}

fn rounds_begun(events: &[VolunteerEvent]) -> usize {
    let is_begin = |event: &&VolunteerEvent| matches!(event, VolunteerEvent::RoundBegun { .. });
    events.iter().filter(is_begin).count()
}

#[actix_rt::test]
async fn a_volunteer_trains_round_after_round_until_the_end() {
    let bench = Bench::new();
    let session = Session::of(&bench, 3, Box::new(|_| None));
    let server = serve(&session).await;
    let (result, events) = volunteer(&bench.config(&server.url("/c/a"))).await;
    result.unwrap();
    assert_eq!(events.last(), Some(&VolunteerEvent::Finished));
    assert_eq!(rounds_begun(&events), 3);
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
    let is_told = |event: &VolunteerEvent| matches!(event, VolunteerEvent::Log { line, .. } if line.contains("epsilon is at most 2.17"));
    assert!(events.iter().any(is_told), "{events:?}");
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
async fn a_key_that_is_not_taken_ends_it_as_bad_arguments() {
    let bench = Bench::new();
    let session = Session::of(
        &bench,
        1,
        Box::new(|request| {
            let refused = Reply::new(401, json!({"hata": "wrong key"}).to_string());
            (!request.target.contains("bilgi")).then_some(refused)
        }),
    );
    let server = serve(&session).await;
    let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
    let error = result.unwrap_err();
    assert!(
        error.is_about_arguments() && error.to_string().contains("wrong key"),
        "{error}"
    );
    assert!(!error.to_string().contains("sesame"));
}

#[actix_rt::test]
async fn redirects_to_plain_http_or_with_the_key_to_another_server_are_refused() {
    let bench = Bench::new();
    let elsewhere = TestServer::start(|_, _| Reply::new(200, "{}")).await;
    for target in [
        elsewhere.url("/gorev"),
        "http://yard.example.org/gorev".to_owned(),
    ] {
        let told = target.clone();
        let session = Session::of(
            &bench,
            1,
            Box::new(move |request| {
                let away = Reply::new(307, "").header("Location", &told);
                request.target.contains("gorev").then_some(away)
            }),
        );
        let server = serve(&session).await;
        let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
        let error = result.unwrap_err();
        assert!(error.is_about_arguments(), "{target}: {error}");
    }
    assert_eq!(elsewhere.requests().len(), 0);
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
async fn a_task_that_is_out_of_range_is_refused_before_anything_is_fetched() {
    for (field, value) in [
        ("ic_adim", json!(0)),
        ("bs", json!(1_000_000_000)),
        ("lr", json!(0.0)),
        ("parca", json!(1)),
        ("toplam_tur", json!((1_u64 << 53) - 1)),
    ] {
        let bench = Bench::new();
        let session = Session::of(&bench, 1, Box::new(|_| None));
        let inner = session.clone();
        let server = TestServer::start(move |_, request| {
            let mut session = inner.lock().unwrap();
            if !request.target.contains("gorev") {
                return session.answer(request);
            }
            let mut task = json!({
                "tur": 0, "toplam_tur": 1, "parca": 0, "n_parca": 1, "ic_adim": 2, "bs": 2, "seq": 16, "lr": 0.01,
                "tohum": 0, "agirlik_sha256": sha256(&session.weights),
            });
            task[field] = value.clone();
            json_reply(task)
        })
        .await;
        let (result, _) = volunteer(&bench.config(&server.url("/c/a"))).await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains(field), "{error} does not name {field}");
        let is_file = |request: &Request| request.target.contains("agirlik");
        assert!(!server.requests().iter().any(is_file), "{field}");
    }
}
