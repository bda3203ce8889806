//! Who is there and who is not, with real processes: half-open links, a platform that was stopped for a while,
//! workers that never come back, results that wait for the network, and workers that drain (given cases G006, G010,
//! G011, G012).

use std::time::Duration;

use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::{job_with_status, shown_as};
use trainyard_tests::{
    Client, Platform, ScriptedWorker, Socket, TinyModel, Wire, Worker, dataset, eventually,
};

async fn submit(admin: &Client, rows: usize) -> i64 {
    let dataset_id = admin.dataset("chats", &dataset::chats(rows)).await;
    admin
        .job(json!({
            "dataset_id": dataset_id, "base_model": {"huggingface_id": TINY_MODEL_ID},
            "config": {"epochs": 1, "batch_size": 4, "packing": false, "logging_steps": 1}
        }))
        .await
}

/// Beats like a worker that trains `job_id`, or is idle, until the connection is gone.
async fn beat(mut worker: ScriptedWorker, job_id: Option<i64>) {
    loop {
        let status = if job_id.is_some() { "training" } else { "idle" };
        let heartbeat = json!({"type": "heartbeat", "status": status, "current_job_id": job_id});
        if !worker.socket.try_send(heartbeat).await {
            return;
        }
        let answer = worker.socket.next_within(Duration::from_millis(100)).await;
        if let Some(trainyard_tests::socket::Received::Json(message)) = answer
            && message["type"] == "ping"
        {
            worker.pong(job_id).await;
        }
    }
}

async fn subscribed(platform: &Platform, admin: &Client, job_id: i64) -> Socket {
    let mut dashboard = platform.dashboard(admin).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;
    dashboard.receive_type("job_update").await;
    dashboard
}

async fn events(admin: &Client, job_id: i64) -> Vec<Value> {
    let events = admin.get(&format!("/api/jobs/{job_id}/events")).await.ok();
    events["items"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn g006_worker_behind_a_dead_link_is_lost_once_with_its_job_and_comes_back_by_itself() {
    let wire = Wire::lay().await;
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "3")]).await;
    wire.lead_to(platform.address());
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start_with(&platform, &models, &key, &[("PLATFORM_URL", &wire.url())]);
    let worker_id = worker.ready(&admin).await;
    let job_id = submit(&admin, 4_000).await;
    let mut dashboard = subscribed(&platform, &admin, job_id).await;
    dashboard
        .receive_until(|message| message["data"]["step"].as_u64() >= Some(1))
        .await;

    wire.freeze();
    let failed = dashboard.receive_type("training_failed").await;
    assert_eq!(
        failed["data"]["error"],
        "Worker disconnected during training"
    );
    shown_as(&admin, worker_id, "offline").await;

    // The reset shows the worker that the link is gone; it comes back, and is told to stop what it trains for nobody.
    wire.cut();
    wire.mend();
    worker.ready(&admin).await;
    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(job["status"], "failed", "ended is final: {job}");
    let failures = events(&admin, job_id).await;
    let failures = failures.iter().filter(|event| event["kind"] == "failed");
    assert_eq!(failures.count(), 1);
}

#[tokio::test]
async fn g010_platform_that_was_stopped_for_a_while_loses_no_worker_and_no_job() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "2")]).await;
    let admin = platform.admin().await;
    let mut trains = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin, 4).await;
    assert_eq!(trains.take_job().await, job_id);
    job_with_status(&admin, job_id, "running").await;
    let mut dashboard = subscribed(&platform, &admin, job_id).await;
    let trains_id = trains.identity.id;
    let mut beating = vec![tokio::spawn(beat(trains, Some(job_id)))];
    for _ in 0..10 {
        let idle = ScriptedWorker::enrol(&platform, &admin).await;
        beating.push(tokio::spawn(beat(idle, None)));
    }

    platform.process().pause();
    // Longer than the heartbeat timeout: this pause is what is being tested.
    tokio::time::sleep(Duration::from_secs(5)).await;
    platform.process().go_on();
    // Several checks later nothing has changed.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let workers = admin.get("/api/workers?limit=50").await.ok();
    for worker in workers["items"].as_array().expect("a list") {
        let status = if worker["id"] == trains_id {
            "training"
        } else {
            "idle"
        };
        assert_eq!(worker["status"], status, "{worker}");
    }
    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(job["status"], "running", "{job}");
    while let Some(received) = dashboard.next_within(Duration::from_millis(200)).await {
        let trainyard_tests::socket::Received::Json(message) = received else {
            panic!("the dashboard was closed");
        };
        assert_ne!(message["data"]["status"], "offline", "{message}");
        assert_ne!(message["type"], "training_failed", "{message}");
    }
    for heart in beating {
        heart.abort();
    }
}

#[tokio::test]
async fn g011_job_whose_worker_never_comes_back_after_a_crash_of_the_platform_fails_in_time() {
    let mut platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "2")]).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin, 4).await;
    assert_eq!(worker.take_job().await, job_id);
    job_with_status(&admin, job_id, "running").await;
    drop(worker);
    platform.crash_and_restart().await;
    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(job["status"], "running", "its worker may still come: {job}");
    let job = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(job["failure_kind"], "worker_lost", "{job}");
    let workers = admin.get("/api/workers").await.ok();
    assert_eq!(workers["items"][0]["status"], "offline", "{workers}");
}

#[tokio::test]
async fn g012_job_that_ends_while_the_network_is_down_is_completed_once_it_is_back() {
    let wire = Wire::lay().await;
    let public_url = wire.url();
    let settings = [
        ("WORKER_HEARTBEAT_TIMEOUT", "60"),
        ("PUBLIC_URL", public_url.as_str()),
    ];
    let platform = Platform::start_with(&settings).await;
    wire.lead_to(platform.address());
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let mut worker = Worker::start_with(&platform, &models, &key, &[("PLATFORM_URL", &wire.url())]);
    worker.ready(&admin).await;
    let job_id = submit(&admin, 200).await;
    let mut dashboard = subscribed(&platform, &admin, job_id).await;
    dashboard
        .receive_until(|message| message["data"]["step"].as_u64() >= Some(1))
        .await;

    wire.cut();
    worker
        .process
        .line("that the job has ended", |line| {
            line.contains("job has ended").then_some(())
        })
        .await;
    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(job["status"], "running", "{job}");
    assert_eq!(job["awaiting_worker"], true, "{job}");
    // What is to be said waits on disk: also a new process says it.
    worker.crash_and_restart().await;
    wire.mend();
    let job = job_with_status(&admin, job_id, "completed").await;
    assert_eq!(job["attempt"], 1, "{job}");
    assert_eq!(job["result"]["total_steps"], 50, "{job}");
    let path = format!("/api/jobs/{job_id}/artifacts/adapter_model.safetensors");
    assert!(!admin.download(&path).await.is_empty());
}

#[tokio::test]
async fn draining_worker_finishes_its_job_and_is_given_no_other_until_it_works_again() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let first = submit(&admin, 4).await;
    assert_eq!(worker.take_job().await, first);
    let path = format!("/api/workers/{}", worker.identity.id);
    admin.post(&format!("{path}/drain"), json!({})).await.ok();
    let second = submit(&admin, 4).await;
    worker
        .say("job_completed", first, json!({"total_steps": 10}))
        .await;
    job_with_status(&admin, first, "completed").await;
    worker.heartbeat("idle").await;
    let early = worker.socket.next_within(Duration::from_millis(500)).await;
    assert!(
        !format!("{early:?}").contains("start_training"),
        "{early:?}"
    );
    let waiting = admin.get(&format!("/api/jobs/{second}")).await.ok();
    assert_eq!(waiting["status"], "queued", "{waiting}");
    let why = waiting["waiting_because"].as_str().expect("a reason");
    assert!(why.contains("draining"), "{why}");

    admin.post(&format!("{path}/resume"), json!({})).await.ok();
    assert_eq!(worker.take_job().await, second);
}

#[tokio::test]
async fn rotated_key_closes_the_live_socket_within_five_seconds_and_the_job_goes_on_with_the_new_one()
 {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin, 4).await;
    assert_eq!(worker.take_job().await, job_id);
    job_with_status(&admin, job_id, "running").await;
    let path = format!("/api/workers/{}/rotate-key", worker.identity.id);
    let rotated = admin.post(&path, json!({})).await.ok();
    let code = worker.socket.closed_within(Duration::from_secs(5)).await;
    assert_eq!(code, Some(4401));
    let job = eventually("the job to wait for its worker", || async {
        let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
        (job["awaiting_worker"] == true).then_some(job)
    })
    .await;
    assert_eq!(job["status"], "running", "{job}");

    let mut identity = worker.identity.clone();
    identity.key = rotated["key"].as_str().expect("the new key").to_owned();
    let mut again = ScriptedWorker::connect(&platform, &identity).await;
    again.send_register().await;
    again.socket.receive_type("ping").await;
    again.pong(Some(job_id)).await;
    again
        .say("job_completed", job_id, json!({"total_steps": 10}))
        .await;
    let job = job_with_status(&admin, job_id, "completed").await;
    assert_eq!(job["attempt"], 1, "{job}");
}
