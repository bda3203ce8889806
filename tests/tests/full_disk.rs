//! Full disks: an orderly error on both sides, nothing half done, and all well again once there is room, without a
//! restart.

use std::time::Duration;

use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::small_disk::SmallDisk;
use trainyard_tests::{Client, Platform, ScriptedWorker, TinyModel, Worker, dataset, eventually};

const CALM: &[(&str, &str)] = &[("WORKER_HEARTBEAT_TIMEOUT", "60")];

/// A data set of about so many KiB.
fn large(kib: usize) -> String {
    let row = json!({"text": "x".repeat(1000)}).to_string();
    format!("{row}\n").repeat(kib)
}

async fn submit(admin: &Client, rows: usize, more: Value) -> i64 {
    let dataset_id = admin.dataset("chats", &dataset::chats(rows)).await;
    let mut config = json!({"epochs": 1, "batch_size": 4, "packing": false, "logging_steps": 1});
    for (name, value) in more.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    let job = json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": config
    });
    admin.job(job).await
}

/// What `/readyz` says while the platform is not ready.
async fn not_ready(client: &Client) -> Value {
    let answer = client.get("/readyz").await;
    assert_eq!(answer.status, 503, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn g041_uploads_end_orderly_on_a_full_disk_and_go_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(32) else {
        return;
    };
    let platform = Platform::start_at(disk.path(), CALM).await;
    let admin = platform.admin().await;
    let mut kept = Vec::new();
    let refused = loop {
        let answer = admin.upload("name=big", large(3 * 1024)).await;
        if answer.status != 201 {
            break answer;
        }
        kept.push(answer.ok()["id"].as_i64().unwrap());
        assert!(kept.len() < 12, "the disk never fills up");
    };
    assert!(!kept.is_empty());
    let refused = refused.refused(507);
    assert_eq!(refused["code"], "storage_full");
    let listed = admin.get("/api/datasets").await.ok();
    assert_eq!(listed["items"].as_array().unwrap().len(), kept.len());
    let ready = not_ready(&admin).await;
    assert!(
        ready["storage"].as_str().unwrap().contains("space"),
        "{ready}"
    );
    admin.get("/healthz").await.ok();

    admin.delete(&format!("/api/datasets/{}", kept[0])).await;
    admin.upload("name=again", large(2 * 1024)).await.ok();
    admin.get("/readyz").await.ok();
}

#[tokio::test]
async fn what_a_full_database_could_not_take_is_taken_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(32) else {
        return;
    };
    let platform = Platform::start_at(disk.path(), CALM).await;
    let admin = platform.admin().await;
    let mut worker = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin, 4, json!({})).await;
    worker.take_job().await;
    disk.fill(0);

    // Reads go on, and so do heartbeats; what must be written is refused in an orderly way.
    let completed = json!({
        "type": "job_completed", "job_id": job_id, "attempt": 1,
        "message_id": "6b5f2a0e-2a53-4f0e-8f8b-333333333333", "data": {"final_loss": 0.25}
    });
    for step in 1..=200 {
        let data = json!({"step": step, "loss": 0.5});
        worker.say("training_progress", job_id, data).await;
    }
    let error = eventually("the full disk to be noticed", async || {
        let answer = admin
            .post(
                "/api/enrollment-keys",
                json!({"name_prefix": "x".repeat(40)}),
            )
            .await;
        (answer.status == 507).then_some(answer)
    })
    .await;
    assert_eq!(error.refused(507)["code"], "storage_full");
    worker.heartbeat("training").await;
    worker.socket.send(completed.clone()).await;
    let (answer, _) = worker
        .socket
        .receive_until(|message| message["type"] == "error" || message["type"] == "ack")
        .await;
    assert_eq!(answer["code"], "try_again", "{answer}");
    let shown = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(shown["status"], "running");
    let ready = not_ready(&admin).await;
    assert!(
        ready["database"].as_str().unwrap().contains("full"),
        "{ready}"
    );

    disk.empty();
    worker.socket.send(completed).await;
    worker
        .socket
        .receive_until(|message| message["type"] == "ack")
        .await;
    job_with_status(&admin, job_id, "completed").await;
    let curve = admin.get(&format!("/api/jobs/{job_id}/metrics")).await.ok();
    assert_eq!(curve["points"].as_array().unwrap().len(), 200);
    admin.get("/readyz").await.ok();
}

#[tokio::test]
async fn g042_temporary_files_lie_beside_their_targets() {
    let Some(tiny) = SmallDisk::mount(1) else {
        return;
    };
    tiny.fill(0);
    let temporary = tiny.path().to_str().unwrap();
    let platform = Platform::start_with(&[("TMPDIR", temporary), CALM[0]]).await;
    let admin = platform.admin().await;
    admin.upload("name=big", large(10 * 1024)).await.ok();
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start_with(&platform, &models, &key, &[("TMPDIR", temporary)]);
    worker.ready(&admin).await;
    let job_id = submit(&admin, 8, json!({"save_steps": 1})).await;
    let job = job_with_status(&admin, job_id, "completed").await;
    assert!(!job["checkpoints"].as_array().unwrap().is_empty(), "{job}");
}

#[tokio::test]
async fn a_worker_whose_disk_is_full_fails_the_job_by_name_and_works_again_when_there_is_room() {
    let Some(disk) = SmallDisk::mount(24) else {
        return;
    };
    let platform = Platform::start_with(CALM).await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start_at(disk.path(), &platform, &models, &key);
    worker.ready(&admin).await;

    // Full from the start: not even the data set fits.
    disk.fill(0);
    let job_id = submit(&admin, 40, json!({})).await;
    let failed = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(failed["failure_kind"], "storage", "{failed}");
    assert!(
        failed["error"].as_str().unwrap().contains("full"),
        "{failed}"
    );
    disk.empty();

    // Full while it trains: a checkpoint does not fit.
    let job_id = submit(&admin, 400, json!({"save_steps": 20})).await;
    eventually("the first steps", async || {
        let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
        job["progress"]["step"].as_u64().filter(|step| *step >= 2)
    })
    .await;
    disk.fill(0);
    let failed = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(failed["failure_kind"], "storage", "{failed}");
    disk.empty();

    worker.ready(&admin).await;
    let job_id = submit(&admin, 8, json!({})).await;
    job_with_status(&admin, job_id, "completed").await;
    tokio::time::timeout(Duration::from_secs(60), worker.ready(&admin))
        .await
        .expect("the worker is ready for more");
}
