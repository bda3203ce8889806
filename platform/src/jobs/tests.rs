//! Jobs from their creation to their end, with a worker that the test plays, over real sockets.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;

use crate::testing::sockets::{SHORT, TestWorker};
use crate::testing::{Platform, Session};

mod checkpoints;
mod loss;
mod progress;
mod rest;

const CALM: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

/// A worker that trains a job.
async fn training(admin: &Session<'_>, more: Value) -> (TestWorker, i64) {
    let mut worker = TestWorker::ready(admin).await;
    let job = admin.job(more).await;
    assert_eq!(worker.take_job().await, job);
    (worker, job)
}

/// Stores a file of a job as a worker does. What `checkpoint_saved` and `job_completed` say of it.
async fn store(
    platform: &Platform,
    worker: &TestWorker,
    job: i64,
    key: &str,
    content: &str,
) -> Value {
    let sha256 = hex::encode(Sha256::digest(content));
    let session = Session {
        platform,
        token: worker.key.clone(),
    };
    let body = json!({"job_id": job, "key": key, "size": content.len(), "sha256": sha256});
    let (status, target) = session.post("/api/worker/uploads", body).await;
    assert_eq!(status, 200, "{target}");
    let put = platform.client.put(target["url"].as_str().unwrap());
    let stored = put.body(content.to_owned()).send().await.unwrap();
    assert!(stored.status().is_success());
    json!({"key": key, "size_bytes": content.len(), "sha256": sha256})
}

#[actix_web::test]
async fn a_job_is_sent_as_the_source_says_and_shown_on_its_way() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let mut worker = TestWorker::ready(&admin).await;
    let config = json!({"epochs": 3, "batch_size": 4, "learning_rate": 0.0002, "lora_r": 16});
    let job = admin
        .job(json!({"name": "chat tune", "config": config}))
        .await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    dashboard.receive("job_update").await;

    let start = worker.receive_job().await;
    assert_eq!(start["job_id"], job);
    let data = &start["data"];
    assert_eq!(data["config"], config);
    assert_eq!(data["base_model"]["huggingface_id"], "yard/tiny");
    assert_eq!(data["output_path"], format!("models/job-{job}/"));
    assert_eq!(data["dataset"]["format"], "jsonl");
    let url = data["dataset"]["download_url"].as_str().unwrap();
    let file = platform
        .client
        .get(url)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(file.starts_with("{\"messages\""), "{file}");
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["status"], "assigned");

    worker
        .say_acked(
            "job_started",
            job,
            json!({"total_steps": 3, "device": "cpu"}),
        )
        .await;
    let progress = json!({"epoch": 1, "step": 2, "loss": 0.5, "eta_seconds": 60});
    worker.say("training_progress", job, progress).await;
    let update = dashboard
        .receive_where(|update| update["data"]["step"] == 2)
        .await;
    assert_eq!(update["data"]["status"], "running");
    assert_eq!(update["data"]["loss"], 0.5);
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["name"], "chat tune");
    assert_eq!(shown["progress"]["total_steps"], 3);
    assert_eq!(shown["eta_seconds"], 60.0);
    assert_eq!(shown["worker_id"], worker.id);

    let result = json!({"final_loss": 0.18, "total_steps": 3, "training_time_seconds": 7,
        "s3_prefix": format!("models/job-{job}/final/")});
    worker.say_acked("job_completed", job, result).await;
    let end = dashboard.receive("job_completed").await;
    assert_eq!(end["data"]["final_loss"], 0.18);
    let shown = admin.wait_for_job(job, "completed").await;
    assert!(shown["ended_at"].is_string() && shown["started_at"].is_string());
    assert_eq!(shown["artifacts"][0]["verified"], false);
    admin.wait_for_worker(worker.id, "idle").await;
}

#[actix_web::test]
async fn g013_the_same_completion_three_times_is_one_change() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    let message = json!({"type": "job_completed", "job_id": job,
        "message_id": "6b5f2a0e-2a53-4f0e-8f8b-111111111111", "data": {"final_loss": 0.1}});
    for _ in 0..2 {
        worker.socket.send(message.clone()).await;
        worker.socket.receive("ack").await;
    }
    let mut again = worker.again(&platform).await;
    again.register().await;
    again.socket.send(message).await;
    again.socket.receive("ack").await;
    let marker = admin.job(json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": marker}))
        .await;
    let seen = dashboard
        .collect_until(|update| update["type"] == "job_update" && update["job_id"] == marker)
        .await;
    assert_eq!(
        seen.iter()
            .filter(|message| message["type"] == "job_completed")
            .count(),
        1
    );
    let kinds = admin.event_kinds(job).await;
    assert_eq!(kinds, ["created", "assigned", "started", "completed"]);
}

#[actix_web::test]
async fn g018_a_stop_around_the_assignment_leaves_the_worker_free() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    for round in 0..12_u64 {
        let job = admin.job(json!({})).await;
        // A different moment each time, around the one at which it is assigned.
        tokio::time::sleep(Duration::from_micros(round * 700)).await;
        let (status, _) = admin
            .post(&format!("/api/jobs/{job}/stop"), json!({}))
            .await;
        assert_eq!(status, 200);
        let mut sent = worker.everything_sent().await;
        if sent
            .iter()
            .any(|message| message["type"] == "start_training")
        {
            while !sent
                .iter()
                .any(|message| message["type"] == "stop_training")
            {
                sent.extend(worker.everything_sent().await);
            }
            worker.say_acked("job_stopped", job, json!({})).await;
        }
        admin.wait_for_job(job, "stopped").await;
        let starts = sent
            .iter()
            .filter(|message| message["type"] == "start_training")
            .count();
        let stops = sent
            .iter()
            .filter(|message| message["type"] == "stop_training")
            .count();
        assert!(starts <= 1 && starts == stops, "{sent:?}");
    }
    admin.wait_for_worker(worker.id, "idle").await;
}

#[actix_web::test]
async fn g021_only_its_owner_changes_a_job() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut owner, own) = training(&admin, json!({})).await;
    let mut other = TestWorker::ready(&admin).await;
    admin.wait_for_worker(other.id, "idle").await;
    // One that waits for nobody: it asks for a worker that is busy.
    let queued = admin.job(json!({"worker_id": owner.id})).await;
    let messages = [
        ("training_progress", json!({"step": 5, "loss": 0.1})),
        (
            "checkpoint_saved",
            json!({"step": 5, "path": "checkpoints/x/"}),
        ),
        ("job_completed", json!({"final_loss": 0.1})),
    ];
    for job in [own, queued, 999_999] {
        for (kind, data) in &messages {
            other.say(kind, job, data.clone()).await;
            let error = other.socket.receive("error").await;
            assert_eq!(error["code"], "wrong_worker", "{job} {kind}");
        }
    }
    let (_, shown) = admin.get(&format!("/api/jobs/{own}")).await;
    assert_eq!(shown["status"], "running");
    let (_, shown) = admin.get(&format!("/api/jobs/{queued}")).await;
    assert_eq!(shown["status"], "queued");

    // An attempt of its own that counts no more: acknowledged, and nothing else.
    owner
        .say_acked("job_failed", own, json!({"error": "x"}))
        .await;
    assert_eq!(owner.receive_job().await["job_id"], queued);
    admin
        .post(&format!("/api/jobs/{own}/resume"), json!({}))
        .await;
    assert_eq!(other.receive_job().await["attempt"], 2);
    for (kind, data) in &messages[1..] {
        let message_id = uuid::Uuid::new_v4();
        let message = json!({"type": kind, "job_id": own, "attempt": 1, "message_id": message_id,
            "data": data});
        owner.socket.send(message).await;
        owner.socket.receive("ack").await;
    }
    let (_, shown) = admin.get(&format!("/api/jobs/{own}")).await;
    assert_eq!(
        (shown["status"].as_str(), shown["attempt"].as_i64()),
        (Some("assigned"), Some(2))
    );
    assert_eq!(shown["checkpoints"], json!([]));
}

#[actix_web::test]
async fn files_count_only_when_they_are_stored() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    let key = format!("models/job-{job}/final/adapter_config.json");
    let file = json!({"key": key, "size_bytes": 2, "sha256": hex::encode(Sha256::digest("{}"))});
    let completed = json!({"type": "job_completed", "job_id": job,
        "message_id": "6b5f2a0e-2a53-4f0e-8f8b-222222222222", "data": {"final_loss": 0.1, "files": [file]}});
    worker.socket.send(completed.clone()).await;
    let error = worker.socket.receive("error").await;
    assert_eq!(error["code"], "artifact_missing");
    assert_eq!(error["message_id"], completed["message_id"]);
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["status"], "running");

    store(&platform, &worker, job, &key, "{}").await;
    worker.socket.send(completed).await;
    worker.socket.receive("ack").await;
    admin.wait_for_job(job, "completed").await;
    let (_, artifacts) = admin.get(&format!("/api/jobs/{job}/artifacts")).await;
    assert_eq!(artifacts["items"][0]["path"], "adapter_config.json");
    assert_eq!(artifacts["items"][0]["verified"], true);
    let path = format!("/api/jobs/{job}/artifacts/adapter_config.json");
    let redirect = admin
        .request(reqwest::Method::GET, &path)
        .send()
        .await
        .unwrap();
    assert_eq!(redirect.status(), 302);
    let url = redirect.headers()["location"].to_str().unwrap();
    assert_eq!(
        platform
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "{}"
    );
    for path in ["none", "../../job-1/x", "%2e%2e%2f..%2fx", "/etc/passwd"] {
        let (status, _) = admin
            .get(&format!("/api/jobs/{job}/artifacts/{path}"))
            .await;
        assert_eq!(status, 404, "{path}");
    }
}

#[actix_web::test]
async fn a_failed_job_with_a_retry_left_is_queued_and_assigned_again() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({"max_retries": 1})).await;
    worker
        .say_acked("job_failed", job, json!({"error": "CUDA out of memory"}))
        .await;
    assert_eq!(worker.receive_job().await["attempt"], 2);
    worker
        .say_acked("job_failed", job, json!({"error": "CUDA out of memory"}))
        .await;
    let shown = admin.wait_for_job(job, "failed").await;
    assert_eq!(shown["failure_kind"], "out_of_memory");
    let kinds = admin.event_kinds(job).await;
    assert_eq!(
        kinds,
        [
            "created", "assigned", "started", "retried", "assigned", "failed"
        ]
    );
}
