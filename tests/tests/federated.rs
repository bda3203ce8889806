//! Federated training with the real binaries on a tiny model: rounds, kills of both sides, late joiners, a stop.

use std::path::Path;

use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::proxy::{Fault, Proxy};
use trainyard_tests::{Client, Platform, TinyModel, Worker, dataset, eventually};

/// A platform that knows the tiny model, an administrator, and an enrolment key for any number of workers.
struct Yard {
    platform: Platform,
    models: TinyModel,
    admin: Client,
    key: String,
    dataset: i64,
}

impl Yard {
    async fn new(heartbeat_timeout: &str) -> Self {
        let models = TinyModel::create();
        let folder = models.models_dir().display().to_string();
        let platform = Platform::start_with(&[
            ("MODELS_DIR", folder.as_str()),
            ("HF_HUB_OFFLINE", "true"),
            ("WORKER_HEARTBEAT_TIMEOUT", heartbeat_timeout),
            ("WORKER_CHECK_INTERVAL", "0.3"),
            ("WORKER_PING_GRACE", "1"),
        ])
        .await;
        let admin = platform.admin().await;
        let key = admin.enrollment_key(json!({})).await;
        let dataset = admin.dataset("chats", &dataset::chats(40)).await;
        Self {
            platform,
            models,
            admin,
            key,
            dataset,
        }
    }

    fn worker_at(&self, state: &Path) -> Worker {
        Worker::start_at(state, &self.platform, &self.models, &self.key)
    }

    fn worker(&self) -> Worker {
        Worker::start(&self.platform, &self.models, &self.key)
    }

    /// Waits until so many workers are idle.
    async fn idle(&self, count: usize) {
        eventually("workers to be idle", async || {
            let workers = self.admin.get("/api/workers?limit=10").await.ok();
            let items = workers["items"].as_array().expect("a list").clone();
            let idle = items.iter().filter(|worker| worker["status"] == "idle");
            (idle.count() == count).then_some(())
        })
        .await;
    }

    /// The weights that a session has made: the file as it is.
    async fn adapter(&self, id: i64) -> Vec<u8> {
        let path = format!("/api/federated/{id}/artifacts/adapter_model.safetensors");
        self.admin.download(&path).await
    }

    async fn session(&self, more: Value) -> i64 {
        let mut body = json!({
            "dataset_id": self.dataset, "shards": 2, "base_model": {"huggingface_id": TINY_MODEL_ID},
            "config": {
                "batch_size": 4, "learning_rate": 0.01, "max_length": 128, "lora_r": 8, "packing": false,
                "lr_scheduler_type": "constant"
            },
            "rounds": 3, "local_steps": 20, "min_workers": 2, "round_timeout_seconds": 60,
            "outer_momentum": 0,
        });
        let fields = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        let made = self.admin.post("/api/federated", body).await.ok();
        made["id"].as_i64().expect("a session has a number")
    }

    /// Waits until a session is as wanted.
    async fn shown(&self, id: i64, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/api/federated/{id}");
        eventually(what, async || {
            let shown = self.admin.get(&path).await.ok();
            assert!(shown["status"] != "failed", "{shown}");
            wanted(&shown).then_some(shown)
        })
        .await
    }

    /// Waits until workers train the round that is open.
    async fn trains(&self, id: i64, count: usize) -> Value {
        self.shown(id, "workers to train", |shown| {
            with_status(shown, "training") == count
        })
        .await
    }

    async fn finished(&self, id: i64) -> Value {
        self.shown(id, "the session's end", |shown| {
            shown["status"] == "finished"
        })
        .await
    }

    /// The losses of the rounds, from the first to the last.
    async fn losses(&self, id: i64) -> Vec<f64> {
        let rounds = self
            .admin
            .get(&format!("/api/federated/{id}/rounds"))
            .await
            .ok();
        let rounds = rounds["items"].as_array().expect("a list");
        rounds
            .iter()
            .rev()
            .map(|round| round["loss"].as_f64().expect("a loss"))
            .collect()
    }
}

fn with_status(session: &Value, status: &str) -> usize {
    let workers = session["workers"].as_array().expect("a list");
    workers
        .iter()
        .filter(|worker| worker["status"] == status)
        .count()
}

#[tokio::test]
async fn two_workers_train_three_rounds_the_loss_falls_and_the_adapter_answers() {
    let yard = Yard::new("60").await;
    let _workers = [yard.worker(), yard.worker()];
    let id = yard.session(json!({})).await;
    let ended = yard.finished(id).await;
    let losses = yard.losses(id).await;
    assert_eq!(losses.len(), 3);
    assert!(losses[2] < losses[1] && losses[1] < losses[0], "{losses:?}");
    for worker in ended["workers"].as_array().expect("a list") {
        assert_eq!(worker["accepted"], 3, "{ended}");
    }
    let asked = json!({
        "model": ended["model"], "messages": [{"role": "user", "content": "load car 3"}],
        "temperature": 0, "max_tokens": 16
    });
    let accepted = yard.admin.post("/api/inference", asked).await.ok();
    let path = format!(
        "/api/inference/{}",
        accepted["inference_id"].as_str().expect("an id")
    );
    let answer = eventually("the answer", async || {
        let shown = yard.admin.get(&path).await.ok();
        assert!(shown["status"] != "failed", "{shown}");
        (shown["status"] == "completed").then_some(shown)
    })
    .await;
    assert_eq!(answer["text"], "aye aye", "{answer}");
}

#[tokio::test]
async fn a_session_goes_on_after_kills_of_the_platform_and_of_a_worker_in_the_middle_of_a_round() {
    let mut yard = Yard::new("60").await;
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let _first = yard.worker_at(&folder.path().join("first"));
    let mut second = yard.worker_at(&folder.path().join("second"));
    let id = yard.session(json!({"local_steps": 150})).await;
    yard.trains(id, 2).await;
    yard.platform.crash_and_restart().await;
    yard.admin = yard.platform.admin().await;
    yard.shown(id, "the second round under way", |shown| {
        shown["round"] == 2 && with_status(shown, "training") == 2
    })
    .await;
    second.crash_and_restart().await;
    let ended = yard.finished(id).await;
    for worker in ended["workers"].as_array().expect("a list") {
        assert_eq!(worker["accepted"], 3, "{ended}");
    }
}

#[tokio::test]
async fn with_all_workers_lost_a_session_waits_and_goes_on_with_those_that_come_and_a_stop_ends_it()
{
    let yard = Yard::new("3").await;
    let long = json!({"local_steps": 1_000_000, "rounds": 1_000});
    let id = yard.session(long).await;
    {
        let _workers = [yard.worker(), yard.worker()];
        yard.trains(id, 2).await;
        // Killed when they go out of scope.
    }
    let lost = yard
        .shown(id, "the loss of all workers", |shown| {
            with_status(shown, "gone") == 2
        })
        .await;
    let reason = "no worker takes part, and the round needs 2";
    assert_eq!(lost["waiting_because"], reason);
    let _others = [yard.worker(), yard.worker()];
    yard.trains(id, 2).await;
    let stop = format!("/api/federated/{id}/stop");
    let stopped = yard.admin.post(&stop, json!({})).await.ok();
    assert_eq!(stopped["status"], "stopped");
    yard.idle(2).await;
}

/// The values of a file of F32 tensors.
fn values(file: &[u8]) -> Vec<f32> {
    let header = u64::from_le_bytes(file[..8].try_into().expect("8 bytes")) as usize;
    let (values, _) = file[8 + header..].as_chunks::<4>();
    values
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

/// The only file below a folder that may not be there yet.
fn only_file(folder: &Path) -> Option<Vec<u8>> {
    let entry = std::fs::read_dir(folder).ok()?.next()?.ok()?.path();
    match entry.is_dir() {
        true => only_file(&entry),
        false => std::fs::read(entry).ok(),
    }
}

#[tokio::test]
async fn masked_results_make_the_adapter_that_plain_ones_would_though_a_worker_is_killed_on_the_way()
 {
    let yard = Yard::new("60").await;
    // Whoever has the third part of the data is not heard any more once its masked result is stored.
    let mut workers = Vec::new();
    for _ in 0..3 {
        let has_third = |message: &Value| {
            let is_start = message["type"] == "start_federated_training";
            let is_masked = message["data"]["privacy"]["secure_aggregation"].is_object();
            is_start && is_masked && message["data"]["shard"]["index"] == 2
        };
        let fault = Fault::deaf_once(has_third, "federated_update");
        let proxy = Proxy::start(yard.platform.address(), fault).await;
        workers.push(Worker::start_towards(&proxy.url(), &yard.models, &yard.key));
        yard.idle(workers.len()).await;
    }
    // A session that needs all three has them; so they are there together for the next one.
    let all = yard
        .session(json!({"shards": 3, "rounds": 1, "min_workers": 3}))
        .await;
    yard.finished(all).await;
    yard.idle(3).await;
    let masked = json!({
        "shards": 3, "rounds": 1, "privacy": {"secure_aggregation": {}}
    });
    let id = yard.session(masked).await;
    let inbox = yard
        .platform
        .data_dir()
        .join(format!("storage/federated/{id}/inbox"));
    yard.shown(id, "two masked results", |shown| {
        let reason = shown["waiting_because"].as_str().unwrap_or_default();
        reason == "2 of 3 masked results are there"
    })
    .await;
    let third = eventually("the third masked result", async || only_file(&inbox)).await;
    // Workers have their numbers in the order in which they came.
    let shown = yard.shown(id, "the workers", |_| true).await;
    let of_session = shown["workers"].as_array().expect("a list");
    let silent = of_session.iter().position(|worker| worker["shard"] == 2);
    let silent = silent.expect("one has it");
    workers[silent].process.kill().await;
    // Its connection seems alive, and masked results have as long as the round: it is given up.
    let path = format!("/api/workers/{}", of_session[silent]["worker_id"]);
    yard.admin.delete(&path).await.ok();
    let ended = yard.finished(id).await;
    let accepted = |shard: u64| {
        let workers = ended["workers"].as_array().expect("a list");
        let one = workers.iter().find(|worker| worker["shard"] == shard);
        one.map(|worker| worker["accepted"].clone())
    };
    assert_eq!(accepted(0), Some(json!(1)), "{ended}");
    assert_eq!(accepted(2), Some(json!(0)), "{ended}");
    eventually("the inbox to be emptied", async || {
        only_file(&inbox).is_none().then_some(())
    })
    .await;

    let plain = json!({"shards": 3, "max_workers": 2, "rounds": 1});
    let plain = yard.session(plain).await;
    yard.finished(plain).await;
    let (by_sum, one_by_one) = (yard.adapter(id).await, yard.adapter(plain).await);
    let (by_sum, one_by_one) = (values(&by_sum), values(&one_by_one));
    let furthest = by_sum
        .iter()
        .zip(&one_by_one)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(furthest < 1e-6, "{furthest}");
    assert_eq!(third.len(), 8 * (by_sum.len() + 1));
    let ones: u32 = third.iter().map(|byte| byte.count_ones()).sum();
    let share = f64::from(ones) / (8 * third.len()) as f64;
    assert!(
        (share - 0.5).abs() < 0.01,
        "what was sent looks random: {share}"
    );
}

#[tokio::test]
async fn a_round_whose_masks_are_being_taken_off_when_the_platform_is_killed_closes_without_a_change()
 {
    let mut yard = Yard::new("60").await;
    let mut workers = Vec::new();
    for _ in 0..2 {
        let fault = Fault::deaf_where(|message| {
            message["type"] == "shares_revealed" && message["data"]["round"] == 1
        });
        let proxy = Proxy::start(yard.platform.address(), fault).await;
        workers.push(Worker::start_towards(&proxy.url(), &yard.models, &yard.key));
    }
    yard.idle(2).await;
    let id = yard
        .session(json!({"rounds": 2, "privacy": {"secure_aggregation": {}}}))
        .await;
    yard.shown(id, "shares to be asked for", |shown| {
        let reason = shown["waiting_because"].as_str().unwrap_or_default();
        reason.contains("take the masks off")
    })
    .await;
    yard.platform.crash_and_restart().await;
    yard.admin = yard.platform.admin().await;
    yard.finished(id).await;
    let path = format!("/api/federated/{id}/rounds");
    let rounds = yard.admin.get(&path).await.ok();
    let merged: Vec<&Value> = rounds["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|round| &round["merged"])
        .collect();
    assert_eq!(merged, [2, 0], "the newest first: {rounds}");
    let weights = values(&yard.adapter(id).await);
    assert!(weights.iter().any(|weight| *weight != 0.0));
}

#[tokio::test]
async fn masked_results_may_be_blurred_and_weighed_and_what_they_give_away_is_told() {
    let yard = Yard::new("60").await;
    let _workers = [yard.worker(), yard.worker()];
    yard.idle(2).await;
    let mechanism = json!({"clip_norm": 0.5, "noise_multiplier": 1.0});
    let id = yard
        .session(json!({
            "rounds": 2, "aggregation": "weighted_mean",
            "privacy": {"secure_aggregation": {}, "differential_privacy": mechanism},
        }))
        .await;
    let ended = yard.finished(id).await;
    let workers = ended["workers"].as_array().expect("a list");
    assert_eq!(workers.len(), 2, "{ended}");
    for worker in workers {
        assert_eq!(worker["accepted"], 2, "{ended}");
        // What the accountant gives for two rounds with that noise.
        let epsilon = worker["epsilon"].as_f64().expect("a number");
        assert!((epsilon - 7.08).abs() < 0.01, "{ended}");
    }
    let path = format!("/api/federated/{id}/rounds");
    let rounds = yard.admin.get(&path).await.ok();
    for round in rounds["items"].as_array().expect("a list") {
        assert!(
            round["closed_at"].is_null() || round["merged"] == 2,
            "{rounds}"
        );
        assert!(round["loss"].is_null(), "it is not told: {rounds}");
    }
}

#[tokio::test]
async fn a_frozen_worker_is_left_behind_and_goes_on_with_the_newest_weights_and_a_late_one_joins() {
    let yard = Yard::new("60").await;
    let first = yard.worker();
    let frozen_id = first.ready(&yard.admin).await;
    let _second = yard.worker();
    yard.idle(2).await;
    let id = yard
        .session(json!({
            "shards": 3, "min_workers": 1, "max_workers": 3, "rounds": 1_000, "local_steps": 150,
            "round_timeout_seconds": 4
        }))
        .await;
    yard.trains(id, 2).await;
    first.process.pause();
    let accepted = |shown: &Value, worker: i64| {
        let workers = shown["workers"].as_array().expect("a list").clone();
        let one = workers.into_iter().find(|it| it["worker_id"] == worker);
        one.map_or(0, |one| one["accepted"].as_u64().expect("a number"))
    };
    let closed = yard
        .shown(id, "a round without the frozen worker", |shown| {
            shown["round"].as_u64() >= Some(2)
        })
        .await;
    assert_eq!(accepted(&closed, frozen_id), 0, "{closed}");
    let _third = yard.worker();
    yard.shown(id, "a result of the late worker", |shown| {
        let workers = shown["workers"].as_array().expect("a list");
        workers.len() == 3 && workers.iter().filter(|it| it["accepted"] != 0).count() == 2
    })
    .await;
    first.process.go_on();
    yard.shown(id, "a result of the worker that was frozen", |shown| {
        accepted(shown, frozen_id) > 0
    })
    .await;
    let stop = format!("/api/federated/{id}/stop");
    yard.admin.post(&stop, json!({})).await.ok();
    yard.idle(3).await;
}
