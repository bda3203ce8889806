//! Jobs from their creation to their end, with a worker that the test plays, over real sockets.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;

use crate::testing::sockets::{SHORT, TestWorker};
use crate::testing::{Platform, Session};

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
async fn g008_a_completion_stands_whatever_comes_after() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    // Silent, pinged, and about to be given up.
    worker.socket.receive("ping").await;
    worker
        .say_acked("job_completed", job, json!({"final_loss": 0.1}))
        .await;
    admin.wait_for_worker(worker.id, "offline").await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["status"], "completed");
    assert!(!admin.event_kinds(job).await.contains(&"failed".to_owned()));
}

#[actix_web::test]
async fn a_lost_worker_is_one_offline_event_and_one_failure() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    let path = format!("checkpoints/job-{job}/step-4/");
    worker
        .say_acked("checkpoint_saved", job, json!({"step": 4, "path": path}))
        .await;
    drop(worker);
    let seen = dashboard
        .collect_until(|message| message["data"]["status"] == "offline")
        .await;
    let failures: Vec<_> = seen
        .iter()
        .filter(|message| message["type"] == "training_failed")
        .collect();
    assert_eq!(failures.len(), 1, "{seen:?}");
    assert_eq!(
        failures[0]["data"]["error"],
        "Worker disconnected during training"
    );
    assert_eq!(failures[0]["data"]["last_checkpoint_step"], 4);
    let shown = admin.wait_for_job(job, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_lost");
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
async fn g014_a_worker_that_returns_with_a_failed_job_is_told_to_stop_it() {
    let platform = Platform::start(SHORT).await;
    let admin = platform.admin().await;
    let (worker, job) = training(&admin, json!({})).await;
    admin.wait_for_job(job, "failed").await;
    let mut back = worker.again(&platform).await;
    back.register().await;
    let heartbeat = json!({"type": "heartbeat", "status": "training", "current_job_id": job});
    back.socket.send(heartbeat).await;
    assert_eq!(back.socket.receive("stop_training").await["job_id"], job);
    let path = format!("checkpoints/job-{job}/step-90/");
    back.say_acked("checkpoint_saved", job, json!({"step": 90, "path": path}))
        .await;
    back.say_acked("job_stopped", job, json!({"step": 90}))
        .await;
    let next = admin.job(json!({})).await;
    back.heartbeat("idle").await;
    assert_eq!(back.receive_job().await["job_id"], next);
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(shown["status"], "failed");
    assert_eq!(shown["checkpoints"][0]["step"], 90);
}

#[actix_web::test]
async fn g015_shown_steps_never_go_back_and_the_curve_holds_each_once() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    for (step, loss) in [(10, 1.0), (30, 0.8), (20, 0.9), (20, 0.9), (31, 0.79)] {
        worker
            .say(
                "training_progress",
                job,
                json!({"step": step, "loss": loss}),
            )
            .await;
    }
    let seen = dashboard
        .collect_until(|update| update["data"]["step"] == 31)
        .await;
    let steps: Vec<u64> = seen
        .iter()
        .filter_map(|update| update["data"]["step"].as_u64())
        .collect();
    assert!(steps.is_sorted(), "{steps:?}");
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    let points: Vec<(u64, f64)> = curve["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            (
                point["step"].as_u64().unwrap(),
                point["loss"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(points, [(10, 1.0), (20, 0.9), (30, 0.8), (31, 0.79)]);
    let (_, rest) = admin
        .get(&format!("/api/jobs/{job}/metrics?since_step=30"))
        .await;
    assert_eq!(rest["points"].as_array().unwrap().len(), 1);
}

#[actix_web::test]
async fn g016_a_resumed_job_goes_on_from_its_checkpoint_and_shows_the_new_attempt() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    for step in [1399, 1400, 1401, 1480] {
        worker
            .say("training_progress", job, json!({"step": step, "loss": 1.0}))
            .await;
    }
    let key = format!("checkpoints/job-{job}/step-1400/adapter_model.safetensors");
    let file = store(&platform, &worker, job, &key, "weights").await;
    let path = format!("checkpoints/job-{job}/step-1400/");
    worker
        .say_acked(
            "checkpoint_saved",
            job,
            json!({"step": 1400, "path": path, "files": [file]}),
        )
        .await;
    worker
        .say_acked("job_failed", job, json!({"error": "power", "step": 1480}))
        .await;
    let (_, failed) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(failed["error"], "power");
    let (_, resumed) = admin
        .post(&format!("/api/jobs/{job}/resume"), json!({}))
        .await;
    assert_eq!(resumed["attempt"], 2);

    let start = worker.receive_job().await;
    assert_eq!(start["attempt"], 2);
    let resume = &start["data"]["resume"];
    assert_eq!(resume["step"], 1400);
    assert_eq!(resume["files"][0]["key"], "adapter_model.safetensors");
    let url = resume["files"][0]["download_url"].as_str().unwrap();
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
        "weights"
    );
    worker.say_acked("job_started", job, json!({})).await;
    for step in [1401, 1402] {
        worker
            .say("training_progress", job, json!({"step": step, "loss": 0.5}))
            .await;
    }
    let shown = admin
        .wait(&format!("/api/jobs/{job}"), |shown| {
            shown["progress"]["step"] == 1402
        })
        .await;
    assert_eq!(shown["attempt"], 2);
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    let points: Vec<(u64, f64)> = curve["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            (
                point["step"].as_u64().unwrap(),
                point["loss"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(points, [(1399, 1.0), (1400, 1.0), (1401, 0.5), (1402, 0.5)]);
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
async fn g019_a_job_that_is_never_started_fails_and_is_not_shown_as_running() {
    let platform = Platform::start(&[
        ("JOB_START_TIMEOUT", "0.6"),
        ("WORKER_HEARTBEAT_TIMEOUT", "60"),
    ])
    .await;
    let admin = platform.admin().await;
    let mut worker = TestWorker::ready(&admin).await;
    let job = admin.job(json!({})).await;
    worker.receive_job().await;
    worker.heartbeat("idle").await;
    let shown = admin.wait_for_job(job, "failed").await;
    assert_eq!(shown["failure_kind"], "not_started");
    assert_eq!(worker.socket.receive("stop_training").await["job_id"], job);
    assert_eq!(
        admin.event_kinds(job).await,
        ["created", "assigned", "failed"]
    );
    // It is asked whether it is free, and says so.
    worker.socket.receive("ping").await;
    worker.pong(None).await;
    let next = admin.job(json!({})).await;
    assert_eq!(worker.receive_job().await["job_id"], next);
}

#[actix_web::test]
async fn g020_a_worker_that_restarted_without_its_job_fails_it_within_seconds() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (worker, job) = training(&admin, json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    dashboard.receive("job_update").await;
    let mut back = worker.again(&platform).await;
    drop(worker);
    back.register().await;
    back.socket.receive("ping").await;
    back.pong(None).await;
    let begun = tokio::time::Instant::now();
    let shown = admin.wait_for_job(job, "failed").await;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(shown["failure_kind"], "worker_restarted");
}

#[actix_web::test]
async fn a_worker_that_comes_back_with_its_job_goes_on_with_it() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (worker, job) = training(&admin, json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    dashboard.receive("job_update").await;
    let copy = worker.again(&platform).await;
    drop(worker);
    drop(copy.socket);
    let lost = dashboard
        .receive_where(|update| update["data"]["awaiting_worker"] == true)
        .await;
    assert_eq!(lost["data"]["status"], "running");
    let (mut socket, answer) =
        crate::testing::sockets::authenticate(&platform, &copy.uuid, &copy.key).await;
    assert_eq!(answer["type"], "authenticated");
    socket
        .send(json!({"type": "worker_register", "data": {"gpu_available": false}}))
        .await;
    socket.receive("ping").await;
    let pong = json!({"type": "pong", "status": "training", "busy": true, "current_job_id": job});
    socket.send(pong).await;
    dashboard
        .receive_where(|update| update["data"]["awaiting_worker"] == false)
        .await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(
        (shown["status"].as_str(), shown["attempt"].as_i64()),
        (Some("running"), Some(1))
    );
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
async fn g036_a_metric_that_is_not_finite_is_null_everywhere() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let mut dashboard = admin.dashboard().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job}))
        .await;
    worker
        .say("training_progress", job, json!({"step": 1, "loss": null}))
        .await;
    let update = dashboard
        .receive_where(|update| update["data"]["step"] == 1)
        .await;
    assert!(update["data"]["loss"].is_null());
    let (_, curve) = admin.get(&format!("/api/jobs/{job}/metrics")).await;
    assert!(curve["points"][0].as_object().unwrap()["loss"].is_null());
    let frame =
        format!(r#"{{"type":"training_progress","job_id":{job},"data":{{"step":2,"loss":NaN}}}}"#);
    worker.socket.send_text(&frame).await;
    assert_eq!(
        worker.socket.receive("error").await["code"],
        "invalid_message"
    );
    worker
        .say("training_progress", job, json!({"step": 3, "loss": 0.5}))
        .await;
    dashboard
        .receive_where(|update| update["data"]["step"] == 3)
        .await;
}

#[actix_web::test]
async fn jobs_wait_for_their_worker_after_a_restart_of_the_platform() {
    let platform = Platform::start(CALM).await;
    let (worker, job, queued) = {
        let admin = platform.admin().await;
        let (mut worker, job) = training(&admin, json!({})).await;
        worker
            .say("training_progress", job, json!({"step": 50, "loss": 0.5}))
            .await;
        admin
            .wait(&format!("/api/jobs/{job}"), |shown| {
                shown["progress"]["step"] == 50
            })
            .await;
        let queued = admin.job(json!({})).await;
        (worker, job, queued)
    };
    let folder = platform.stop().await;

    let platform = Platform::start_in(folder, CALM).await;
    let admin = platform.admin().await;
    let (_, shown) = admin.get(&format!("/api/jobs/{job}")).await;
    assert_eq!(
        (shown["status"].as_str(), shown["awaiting_worker"].as_bool()),
        (Some("running"), Some(true))
    );
    assert_eq!(shown["progress"]["step"], 50);
    let (_, waits) = admin.get(&format!("/api/jobs/{queued}")).await;
    assert_eq!(waits["status"], "queued");
    let mut back = worker.again(&platform).await;
    back.register().await;
    back.socket.receive("ping").await;
    back.pong(Some(job)).await;
    admin
        .wait(&format!("/api/jobs/{job}"), |shown| {
            shown["awaiting_worker"] == false
        })
        .await;
    back.say_acked("job_completed", job, json!({"final_loss": 0.1}))
        .await;
    assert_eq!(back.receive_job().await["job_id"], queued);
}

#[actix_web::test]
async fn g011_a_job_whose_worker_never_comes_back_after_a_restart_fails() {
    let platform = Platform::start(CALM).await;
    let job = {
        let admin = platform.admin().await;
        training(&admin, json!({})).await.1
    };
    let folder = platform.stop().await;
    let platform = Platform::start_in(folder, SHORT).await;
    let admin = platform.admin().await;
    let shown = admin.wait_for_job(job, "failed").await;
    assert_eq!(shown["failure_kind"], "worker_lost");
}

#[actix_web::test]
async fn stopping_resuming_and_deleting_follow_the_state() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let queued = admin.job(json!({})).await;
    let at = |job: i64, verb: &str| format!("/api/jobs/{job}{verb}");
    let (status, stopped) = admin.post(&at(queued, "/stop"), json!({})).await;
    assert_eq!(
        (status.as_u16(), stopped["status"].as_str()),
        (200, Some("stopped"))
    );
    let (status, refused) = admin.post(&at(queued, "/stop"), json!({})).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_ended"))
    );
    assert_eq!(admin.delete(&at(queued, "")).await.0, 204);
    assert_eq!(admin.get(&at(queued, "")).await.0, 404);

    let (mut worker, job) = training(&admin, json!({})).await;
    let (status, refused) = admin.delete(&at(job, "")).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_running"))
    );
    let (status, refused) = admin.post(&at(job, "/resume"), json!({})).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_running"))
    );
    for _ in 0..2 {
        let (status, stopping) = admin.post(&at(job, "/stop"), json!({})).await;
        assert_eq!(
            (status.as_u16(), stopping["status"].as_str()),
            (200, Some("stopping"))
        );
    }
    worker.socket.receive("stop_training").await;
    worker
        .say_acked("job_stopped", job, json!({"step": 3}))
        .await;
    admin.wait_for_job(job, "stopped").await;
    let (_, resumed) = admin.post(&at(job, "/resume"), json!({})).await;
    assert_eq!(resumed["attempt"], 2);
    worker.receive_job().await;
    worker.say_acked("job_completed", job, json!({})).await;
    let (status, refused) = admin.post(&at(job, "/resume"), json!({})).await;
    assert_eq!(
        (status.as_u16(), refused["error"]["code"].as_str()),
        (409, Some("job_ended"))
    );
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

#[actix_web::test]
async fn what_a_worker_logs_is_kept_with_the_job() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    worker
        .say(
            "worker_log",
            job,
            json!({"level": "warn", "line": "3 rows skipped"}),
        )
        .await;
    worker.everything_sent().await;
    let (_, logs) = admin.get(&format!("/api/jobs/{job}/logs")).await;
    assert_eq!(logs["items"][0]["line"], "3 rows skipped");
    assert_eq!(logs["items"][0]["level"], "warn");
}

#[actix_web::test]
async fn jobs_are_listed_by_status_and_seen_by_their_owner() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let member = platform.user("member@example.org", "member").await;
    let viewer = platform.user("viewer@example.org", "viewer").await;
    let own = member.job(json!({})).await;
    let others = admin.job(json!({})).await;
    let ids = |list: &Value| -> Vec<i64> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(ids(&member.get("/api/jobs").await.1), [own]);
    assert_eq!(ids(&viewer.get("/api/jobs").await.1), [others, own]);
    assert_eq!(
        ids(&admin.get("/api/jobs?status=queued&limit=1").await.1),
        [others]
    );
    assert_eq!(
        ids(&admin.get("/api/jobs?status=running").await.1),
        Vec::<i64>::new()
    );
    assert_eq!(admin.get("/api/jobs?status=nonsense").await.0, 400);
    assert_eq!(member.get(&format!("/api/jobs/{others}")).await.0, 404);
    assert_eq!(
        member
            .post(&format!("/api/jobs/{others}/stop"), json!({}))
            .await
            .0,
        404
    );
    assert_eq!(
        viewer
            .post(&format!("/api/jobs/{own}/stop"), json!({}))
            .await
            .0,
        403
    );
    let row = r#"{"text":"a"}"#;
    let (_, dataset) = admin.upload("name=d", row).await;
    let body = |id: &Value| json!({"dataset_id": id, "base_model": {"huggingface_id": "a/b"}});
    assert_eq!(member.post("/api/jobs", body(&dataset["id"])).await.0, 404);
    assert_eq!(viewer.post("/api/jobs", body(&dataset["id"])).await.0, 403);
}

#[actix_web::test]
async fn every_problem_of_a_refused_job_is_named() {
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let body = json!({"name": "", "dataset_id": 1, "base_model": {"huggingface_id": "../x"},
        "priority": 9999, "max_retries": 101, "config": {"learning_rat": 1, "batch_size": 0}});
    let (status, refused) = admin.post("/api/jobs", body).await;
    assert_eq!(status, 400);
    assert_eq!(refused["error"]["code"], "invalid_request");
    let details = refused["error"]["details"].as_array().unwrap();
    let fields: Vec<&str> = details
        .iter()
        .map(|detail| detail["field"].as_str().unwrap())
        .collect();
    for field in [
        "name",
        "base_model.huggingface_id",
        "priority",
        "max_retries",
        "config.learning_rat",
        "config.batch_size",
    ] {
        assert!(fields.contains(&field), "{field} is not among {fields:?}");
    }
    let hint = details
        .iter()
        .find(|detail| detail["field"] == "config.learning_rat")
        .unwrap();
    assert!(hint["hint"].as_str().unwrap().contains("learning_rate"));
    for (path, status) in [
        ("9007199254740993", 404),
        ("9223372036854775808", 400),
        ("0", 400),
        ("x", 400),
    ] {
        assert_eq!(
            admin.get(&format!("/api/jobs/{path}")).await.0,
            status,
            "g037 {path}"
        );
    }
}
