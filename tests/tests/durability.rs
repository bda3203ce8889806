//! What the platform has acknowledged it still knows after a crash, and what it has not it is told again.

use serde_json::json;
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::{Client, Platform, ScriptedWorker, TinyModel, Worker, dataset, eventually};
use uuid::Uuid;

async fn submit(admin: &Client, rows: usize) -> i64 {
    let dataset_id = admin.dataset("chats", &dataset::chats(rows)).await;
    let job = json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {"epochs": 1, "batch_size": 4, "packing": false, "logging_steps": 1}
    });
    admin.job(job).await
}

/// Promise P3.
#[tokio::test]
async fn acknowledged_message_is_known_after_a_crash_right_behind_it() {
    let mut platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin, 4).await;
    worker.take_job().await;
    let message_id = Uuid::new_v4().to_string();
    let completed = json!({
        "type": "job_completed", "job_id": job_id, "attempt": 1, "message_id": message_id,
        "data": {"final_loss": 0.25, "total_steps": 10, "training_time_seconds": 1,
                 "s3_prefix": format!("models/job-{job_id}/final/")}
    });
    worker.socket.send(completed.clone()).await;
    let ack = worker.socket.receive_type("ack").await;
    assert_eq!(ack["message_id"], message_id.as_str());

    platform.crash_and_restart().await;
    let admin = platform.admin().await;
    job_with_status(&admin, job_id, "completed").await;

    // A worker that did not get the ack says it again: acknowledged again, and nothing changes.
    let before = admin.get(&format!("/api/jobs/{job_id}/events")).await.ok();
    let mut again = ScriptedWorker::connect(&platform, &worker.identity).await;
    again.register(&admin).await;
    again.socket.send(completed).await;
    let ack = again.socket.receive_type("ack").await;
    assert_eq!(ack["message_id"], message_id.as_str());
    let after = admin.get(&format!("/api/jobs/{job_id}/events")).await.ok();
    assert_eq!(before, after);
}

#[tokio::test]
async fn training_goes_on_through_a_crash_of_the_platform_and_the_whole_curve_arrives() {
    let mut platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "30")]).await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start(&platform, &models, &key);
    worker.ready(&admin).await;
    let job_id = submit(&admin, 400).await;
    let mut dashboard = platform.dashboard(&admin).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;
    dashboard
        .receive_until(|message| {
            message["data"]["step"]
                .as_u64()
                .is_some_and(|step| step >= 3)
        })
        .await;

    platform.crash_and_restart().await;
    let admin = platform.admin().await;
    let job = job_with_status(&admin, job_id, "completed").await;
    assert_eq!(job["attempt"], 1, "the job was not interrupted: {job}");
    assert_eq!(job["progress"]["step"], 100);
    let path = format!("/api/jobs/{job_id}/artifacts/adapter_model.safetensors");
    assert!(!admin.download(&path).await.is_empty());
}

#[tokio::test]
async fn worker_that_crashes_while_training_fails_the_job_soon_and_resumes_it_from_its_checkpoint()
{
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "30")]).await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let mut worker = Worker::start(&platform, &models, &key);
    worker.ready(&admin).await;
    let dataset_id = admin.dataset("chats", &dataset::chats(2000)).await;
    let job = json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {"epochs": 1, "batch_size": 4, "packing": false, "save_steps": 5}
    });
    let job_id = admin.job(job).await;
    let mut dashboard = platform.dashboard(&admin).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;
    dashboard.receive_type("checkpoint_saved").await;
    worker.crash_and_restart().await;
    let failed = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(failed["failure_kind"], "worker_restarted", "{failed}");

    worker.ready(&admin).await;
    admin
        .post(&format!("/api/jobs/{job_id}/resume"), json!({}))
        .await
        .ok();
    let (update, _) = dashboard
        .receive_until(|message| {
            message["data"]["attempt"] == 2 && message["data"]["step"].is_u64()
        })
        .await;
    assert!(update["data"]["step"].as_u64().unwrap() > 5, "{update}");
    admin
        .post(&format!("/api/jobs/{job_id}/stop"), json!({}))
        .await
        .ok();
    job_with_status(&admin, job_id, "stopped").await;
}

/// Progress is not acknowledged: a crash may lose the last second of it, but what is shown is what is stored.
#[tokio::test]
async fn after_a_crash_the_shown_step_is_the_last_of_the_curve() {
    let mut platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin, 4).await;
    worker.take_job().await;
    for step in 1..=60 {
        let data = json!({"step": step, "loss": 0.5});
        worker.say("training_progress", job_id, data).await;
        if step == 30 {
            // Reading the curve writes what has come so far.
            let path = format!("/api/jobs/{job_id}/metrics");
            eventually("step 30 to be stored", async || {
                let curve = admin.get(&path).await.ok();
                (curve["points"].as_array()?.len() >= 30).then_some(())
            })
            .await;
        }
    }
    platform.crash_and_restart().await;

    let admin = platform.admin().await;
    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    let curve = admin.get(&format!("/api/jobs/{job_id}/metrics")).await.ok();
    let last = curve["points"].as_array().unwrap().last().unwrap();
    assert_eq!(job["progress"]["step"], last["step"]);
    assert!(last["step"].as_u64() >= Some(30), "{last}");
    let mut back = ScriptedWorker::connect(&platform, &worker.identity).await;
    back.send_register().await;
    back.pong(Some(job_id)).await;
    back.say(
        "training_progress",
        job_id,
        json!({"step": 61, "loss": 0.4}),
    )
    .await;
    eventually("the next step to be shown", async || {
        let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
        (job["progress"]["step"] == 61).then_some(())
    })
    .await;
}
