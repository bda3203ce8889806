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
use crate::engine::trainer::LogLevel;
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
                disk: DiskLimits {
                    keep_free_bytes: 0,
                    ..DiskLimits::default()
                },
            },
            state_dir: self.path("state"),
            models: ModelSettings {
                hub_offline: true,
                ..ModelSettings::new(self.path("models"))
            },
            first_delay: Duration::from_millis(5),
            longest_delay: Duration::from_millis(200),
            watch_every: Duration::from_secs(3600),
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

mod faults;
mod refusals;
mod rounds;
mod waits;
