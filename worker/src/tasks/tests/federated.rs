//! Federated sessions with a tiny model: rounds from their weights to the results in the outbox.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use trainyard_privacy::secure::{Announcing, Context, PublicKeys, Roster, SealedShares};
use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::{
    FederatedFailedData, FederatedUpdateData, FromWorker, MaskingKeys, ToWorker,
};
use trainyard_shared::training::TrainingConfig;
use trainyard_shared::{FailureKind, WorkerStatus};

use super::harness::{DEADLINE, Worker, start, worker_with_model, worker_with_model_and};
use crate::connection::fake_platform::FakePlatform;
use crate::connection::outbox::Entry;
use crate::engine::adapter::{self, ADAPTER_WEIGHTS, AdapterConfig};
use crate::engine::weights::ModelFiles;
use crate::tasks::transfers::test_server::{Reply, TestServer};
use crate::tasks::{Order, SumOrder, TaskCommand};

const SESSION: i64 = 9;

fn rows() -> String {
    (0..12)
        .map(|row| format!("{{\"text\":\"row {row} of the cargo\"}}\n"))
        .collect()
}

/// The weights with which the first round begins.
fn first_weights(worker: &Worker) -> Vec<u8> {
    let model = ModelFiles::open(&worker.state.path().join("models/yard/tiny")).unwrap();
    let config = TrainingConfig::parse(&json!({"lora_r": 4})).unwrap();
    let config = AdapterConfig::from_training(&config, "yard/tiny");
    let fresh = adapter::fresh(&config, &model.config, 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    adapter::save(folder.path(), &fresh, &config, &model.config).unwrap();
    fs::read(folder.path().join(ADAPTER_WEIGHTS)).unwrap()
}

/// A server of the data, and of the weights that lie in `folder` by their names.
async fn server_of(folder: &Path) -> TestServer {
    let folder = folder.to_owned();
    TestServer::start(
        move |_, request| match request.target.strip_prefix("/weights/") {
            Some(name) => match fs::read(folder.join(name)) {
                Ok(weights) => Reply::new(200, weights),
                Err(_) => Reply::new(404, ""),
            },
            None => Reply::new(200, rows()),
        },
    )
    .await
}

fn of_sum(order: SumOrder) -> TaskCommand {
    TaskCommand::Federated(FederatedSessionId(SESSION), Order::OfSum(order))
}

/// A session that is played: its weights by round, and what its worker is told.
struct Played {
    worker: Worker,
    server: TestServer,
    weights: tempfile::TempDir,
}

impl Played {
    async fn new() -> Self {
        Self::of(worker_with_model()).await
    }

    async fn of(worker: Worker) -> Self {
        let weights = tempfile::tempdir().unwrap();
        fs::write(weights.path().join("1"), first_weights(&worker)).unwrap();
        Self {
            server: server_of(weights.path()).await,
            worker,
            weights,
        }
    }

    fn weights_of(&self, round: u64) -> Value {
        let weights = fs::read(self.weights.path().join(round.to_string())).unwrap();
        json!({
            "download_url": self.server.url(&format!("/weights/{round}")),
            "sha256": hex::encode(Sha256::digest(&weights)), "size_bytes": weights.len(),
        })
    }

    fn upload(round: u64) -> Value {
        json!({"url": "http://127.0.0.1:9/u", "key": format!("federated/9/inbox/{round}/1.safetensors")})
    }

    async fn tell(&self, frame: Value) {
        let command = match ToWorker::decode(&frame.to_string()).unwrap() {
            ToWorker::StartFederatedTraining(start) => {
                TaskCommand::Federated(start.session_id, Order::Start(Box::new(start)))
            }
            ToWorker::LoadAggregatedWeights(load) => {
                TaskCommand::Federated(load.session_id, Order::Load(load))
            }
            ToWorker::ContinueRound(next) => {
                TaskCommand::Federated(next.session_id, Order::Continue(next))
            }
            ToWorker::AnnounceKeys(asked) => of_sum(SumOrder::AnnounceKeys(asked.data)),
            ToWorker::ShareSecrets(asked) => of_sum(SumOrder::ShareSecrets(asked.data)),
            ToWorker::MaskResult(asked) => of_sum(SumOrder::MaskResult(asked.data)),
            other => panic!("{other:?}"),
        };
        self.worker.give(command).await;
    }

    async fn start(&self, round: u64, local_steps: u64, change: impl FnOnce(&mut Value)) {
        let mut frame = json!({
            "type": "start_federated_training", "session_id": SESSION, "data": {
                "round": round, "total_rounds": 3, "shard": {"index": 1, "count": 2},
                "dataset": {"storage_path": "datasets/1/data.jsonl", "format": "jsonl", "id": 1,
                            "download_url": self.server.url("/data"),
                            "sha256": hex::encode(Sha256::digest(rows()))},
                "base_model": {"huggingface_id": "yard/tiny"},
                "config": {"lora_r": 4, "batch_size": 2, "packing": false, "max_length": 64,
                           "learning_rate": 0.01, "lr_scheduler_type": "constant",
                           "local_steps": local_steps},
                "global_weights": self.weights_of(round), "upload": Self::upload(round),
            }
        });
        change(&mut frame["data"]);
        self.tell(frame).await;
    }

    async fn go_on(&self, round: u64) {
        let mut data = self.weights_of(round);
        data["round"] = json!(round);
        self.tell(json!({"type": "load_aggregated_weights", "session_id": SESSION, "data": data}))
            .await;
        let data = json!({"round": round, "upload": Self::upload(round)});
        self.tell(json!({"type": "continue_round", "session_id": SESSION, "data": data}))
            .await;
    }

    async fn stop(&self) {
        let stop = TaskCommand::StopFederated(FederatedSessionId(SESSION));
        self.worker.give(stop).await;
        self.worker.idle().await;
    }

    /// Waits until an entry of the outbox is what is looked for.
    async fn entry<T>(&self, mut found: impl FnMut(&Entry) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = self.worker.entries().iter().find_map(&mut found) {
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, wait).await.expect("it is not reported")
    }

    /// The result of a round, and its file.
    async fn result(&self, round: u64) -> (FederatedUpdateData, Vec<u8>) {
        self.entry(|entry| match &entry.message {
            FromWorker::FederatedUpdate(update) if update.data.round == round => {
                Some((update.data.clone(), fs::read(&entry.files[0].path).unwrap()))
            }
            _ => None,
        })
        .await
    }

    async fn failure(&self) -> FederatedFailedData {
        self.entry(|entry| match &entry.message {
            FromWorker::FederatedFailed(failed) => Some(failed.data.clone()),
            _ => None,
        })
        .await
    }
}

#[actix_rt::test]
async fn rounds_follow_each_other_and_the_loss_falls() {
    let session = Played::new().await;
    session.start(1, 4, |_| {}).await;
    let (first, weights) = session.result(1).await;
    assert_eq!(
        (first.steps, first.num_examples),
        (4, 6),
        "half of the rows are its own"
    );
    assert_eq!(first.key, "federated/9/inbox/1/1.safetensors");
    assert_eq!(first.sha256, hex::encode(Sha256::digest(&weights)));
    assert_eq!(first.size_bytes, weights.len() as u64);
    let activity = session.worker.activity.get();
    assert_eq!(activity.status(), WorkerStatus::Federated);
    assert_eq!(activity.session, Some(FederatedSessionId(SESSION)));

    fs::write(session.weights.path().join("2"), weights).unwrap();
    session.go_on(2).await;
    let (second, _) = session.result(2).await;
    assert!(
        second.loss.unwrap() < first.loss.unwrap(),
        "{first:?} {second:?}"
    );
    // A repeat of what is done does nothing.
    session.start(2, 4, |_| {}).await;
    session.worker.does("waiting for the next round").await;
    session.stop().await;
    assert_eq!(session.worker.entries().len(), 2);
    assert!(
        !session
            .worker
            .state
            .path()
            .join("federated/session-9")
            .exists()
    );
}

#[actix_rt::test]
async fn a_newer_round_breaks_off_the_one_under_way_and_a_stop_ends_it_at_once() {
    let session = Played::new().await;
    session.start(1, 1_000_000, |_| {}).await;
    session.worker.does("round 1/3, step").await;
    fs::copy(
        session.weights.path().join("1"),
        session.weights.path().join("2"),
    )
    .unwrap();
    session.go_on(2).await;
    session.worker.does("round 2/3, step").await;
    session.stop().await;
    assert_eq!(session.worker.entries(), []);
}

#[actix_rt::test]
async fn what_cannot_be_trained_fails_the_round_and_is_tried_again_when_it_is_asked_again() {
    let session = Played::new().await;
    session
        .start(1, 1, |data| {
            data["global_weights"]["sha256"] = json!("0".repeat(64));
        })
        .await;
    let failed = session.failure().await;
    assert_eq!(failed.round, Some(1));
    assert_eq!(
        failed.failure_kind,
        Some(FailureKind::Download),
        "{failed:?}"
    );
    session.start(1, 1, |_| {}).await;
    session.result(1).await;
    session.stop().await;

    let session = Played::new().await;
    session
        .start(1, 1, |data| data["config"]["epochs"] = json!(3))
        .await;
    let failed = session.failure().await;
    assert_eq!(failed.failure_kind, Some(FailureKind::BadConfig));
    assert!(failed.error.contains("epochs"), "{failed:?}");
    session.stop().await;
}

#[actix_rt::test]
async fn a_job_and_a_session_do_not_run_beside_each_other() {
    let session = Played::new().await;
    session.start(1, 1_000_000, |_| {}).await;
    session.worker.does("round 1/3, step").await;
    session
        .worker
        .give(start((7, 1), &session.server.url("/data"), |_| {}))
        .await;
    let refused = session.worker.failure((7, 1));
    assert!(refused.error.contains("federated session 9"), "{refused:?}");
    session.stop().await;

    // An order for a session that it does not know is answered.
    session.go_on(1).await;
    let failed = session.failure().await;
    assert_eq!(failed.failure_kind, Some(FailureKind::WorkerRestarted));
}

#[actix_rt::test]
async fn with_secure_aggregation_a_result_stays_here_and_is_forgotten_with_its_round() {
    let session = Played::new().await;
    let masked = json!({"secure_aggregation": {"threshold": 2}});
    session
        .start(1, 1, |data| data["privacy"] = masked.clone())
        .await;
    session.worker.does("waiting for the next round").await;
    assert_eq!(session.worker.entries(), [], "nothing of it is sent");
    let folder = session.worker.state.path().join("federated/session-9");
    let result = fs::read(folder.join("result-1.safetensors")).unwrap();
    // Ordered again it is there already; the next round begins with other weights.
    session.start(1, 1, |data| data["privacy"] = masked).await;
    fs::write(session.weights.path().join("2"), result).unwrap();
    session.go_on(2).await;
    let next = folder.join("result-2.safetensors");
    let trained = async {
        while !next.exists() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, trained).await.expect("it goes on");
    assert!(!folder.join("result-1.safetensors").exists());
    session.stop().await;
    assert_eq!(session.worker.entries(), []);
}

#[actix_rt::test]
async fn a_result_that_cannot_be_read_when_it_is_to_be_masked_is_trained_anew() {
    let platform = FakePlatform::start().await;
    let address = platform.url().parse().unwrap();
    let worker = worker_with_model_and(|config| config.platform = address);
    let session = Played::of(worker).await;
    let (mut socket, _) = platform.registered().await;
    let folder = session.worker.state.path().join("federated/session-9");
    fs::create_dir_all(&folder).unwrap();
    // Of a worker that was killed while it wrote.
    let unfinished = folder.join(".abc.tmp");
    fs::write(&unfinished, "half").unwrap();
    let masked = json!({"secure_aggregation": {"threshold": 2}});
    let start = async || {
        let masked = masked.clone();
        session.start(1, 1, |data| data["privacy"] = masked).await;
        session.worker.does("waiting for the next round").await;
    };
    start().await;
    assert!(!unfinished.exists());
    let result = folder.join("result-1.safetensors");
    let trained = fs::read(&result).unwrap();
    fs::write(&result, "damaged").unwrap();

    let ask = async |kind: &str, more: Value| {
        let mut data = json!({"round": 1, "attempt": 7});
        data.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        session
            .tell(json!({"type": kind, "session_id": SESSION, "data": data}))
            .await;
    };
    ask("announce_keys", json!({})).await;
    let announced = socket.receive("keys_announced").await;
    let keys = serde_json::from_value(announced["data"].clone()).unwrap();
    let context = Context::of(FederatedSessionId(SESSION), 1, 7);
    let other = Announcing::new(context).unwrap();
    let members = [keys, MaskingKeys::from(&other.public_keys())];
    ask(
        "share_secrets",
        json!({"threshold": 2, "members": members.clone()}),
    )
    .await;
    let roster = Roster::new(2, members.iter().map(PublicKeys::from).collect()).unwrap();
    let (_, sealed) = other.share(roster).unwrap();
    let shares: Vec<_> = sealed.iter().map(SealedShares::to_wire).collect();
    let shares = json!([{"from": 2, "sealed": shares[0].sealed}]);
    let upload = Played::upload(1);
    ask("mask_result", json!({"shares": shares, "upload": upload})).await;
    let failure = session.failure().await;
    assert_eq!(failure.round, Some(1));
    assert!(failure.error.contains("result-1"), "{failure:?}");

    start().await;
    assert_eq!(fs::read(&result).unwrap(), trained);
}
