//! Sessions and reconnecting, with real sockets (given cases G001, G002, G003, G005).

use std::time::Duration;

use serde_json::json;
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::{job_with_status, shown_as};
use trainyard_tests::socket::Received;
use trainyard_tests::{
    Client, DEADLINE, Platform, ScriptedWorker, TinyModel, Worker, dataset, eventually,
};

async fn submit(admin: &Client) -> i64 {
    let dataset_id = admin.dataset("chats", &dataset::chats(4)).await;
    let job = json!({
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {"epochs": 1}
    });
    admin.job(job).await
}

#[tokio::test]
async fn g001_late_death_of_a_replaced_socket_changes_nothing_about_the_worker() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "20")]).await;
    let admin = platform.admin().await;
    let mut dashboard = platform.dashboard(&admin).await;
    let c1 = ScriptedWorker::enrol(&platform, &admin).await;
    let mut c2 = ScriptedWorker::connect(&platform, &c1.identity).await;
    c2.register(&admin).await;
    c1.socket.reset();

    let job_id = submit(&admin).await;
    let start = c2.receive_job().await;
    assert_eq!(start["job_id"], job_id);
    c2.say("job_started", job_id, json!({"total_steps": 1}))
        .await;
    c2.say(
        "job_completed",
        job_id,
        json!({
            "final_loss": 0.5, "total_steps": 1, "training_time_seconds": 1,
            "s3_prefix": format!("models/job-{job_id}/final/")
        }),
    )
    .await;
    job_with_status(&admin, job_id, "completed").await;
    let again = c2.socket.next_within(Duration::from_millis(300)).await;
    if let Some(Received::Json(message)) = again {
        assert_ne!(message["type"], "start_training", "sent twice");
    }

    let worker = admin
        .get(&format!("/api/workers/{}", c2.identity.id))
        .await
        .ok();
    assert_eq!(worker["online"], true);
    let (_, passed) = dashboard
        .receive_until(|message| {
            message["type"] == "job_update" || message["type"] == "job_completed"
        })
        .await;
    let offline = passed
        .iter()
        .find(|message| message["data"]["status"] == "offline");
    assert!(offline.is_none(), "{offline:?}");
}

/// Promise P1.
#[tokio::test]
async fn g002_two_processes_of_one_identity_leave_one_current_session_and_one_attempt() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let mut first = Worker::start(&platform, &models, &key);
    first.ready(&admin).await;

    let second = first.start_copy();
    first
        .process
        .line("that it was replaced", |line| {
            line.contains("4409").then_some(())
        })
        .await;
    second.ready(&admin).await;
    let workers = admin.get("/api/workers").await.ok();
    assert_eq!(workers["items"].as_array().unwrap().len(), 1, "{workers}");

    let job_id = submit(&admin).await;
    let job = job_with_status(&admin, job_id, "completed").await;
    assert_eq!(job["attempt"], 1);
    let events = admin.get(&format!("/api/jobs/{job_id}/events")).await.ok();
    let assignments = events["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|event| event["to"] == "assigned")
        .count();
    assert_eq!(assignments, 1, "{events}");
}

#[tokio::test]
async fn g003_newcomer_is_let_in_at_once_while_the_old_link_is_silently_dead() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "90")]).await;
    let admin = platform.admin().await;
    // Nobody reads or writes the first connection any more, and nothing closes it.
    let mut c1 = ScriptedWorker::enrol(&platform, &admin).await;

    let begun = tokio::time::Instant::now();
    let mut c2 = ScriptedWorker::connect(&platform, &c1.identity).await;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "let in after {:?}",
        begun.elapsed()
    );
    c2.register(&admin).await;
    assert_eq!(c1.socket.closed_within(DEADLINE).await, Some(4409));
}

#[tokio::test]
async fn g005_worker_registers_again_after_a_platform_restart_and_is_given_work() {
    let mut platform = Platform::start().await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start(&platform, &models, &key);
    worker.ready(&admin).await;

    platform.crash_and_restart().await;
    let admin = platform.admin().await;
    worker.ready(&admin).await;
    let job_id = submit(&admin).await;
    job_with_status(&admin, job_id, "completed").await;
}

#[tokio::test]
async fn g005_authenticated_worker_is_offered_nothing_until_it_registers() {
    let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "20")]).await;
    let admin = platform.admin().await;
    let enrolled = ScriptedWorker::enrol(&platform, &admin).await;
    let identity = enrolled.identity.clone();
    enrolled.socket.close().await;

    let mut unregistered = ScriptedWorker::connect(&platform, &identity).await;
    eventually("the worker to be shown as not ready", || async {
        let worker = admin
            .get(&format!("/api/workers/{}", identity.id))
            .await
            .ok();
        (worker["status"] != "idle").then_some(())
    })
    .await;
    let job_id = submit(&admin).await;
    let early = unregistered
        .socket
        .next_within(Duration::from_millis(500))
        .await;
    if let Some(Received::Json(message)) = &early {
        assert_ne!(
            message["type"], "start_training",
            "offered to an unregistered worker"
        );
    }
    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(job["status"], "queued");
    assert!(job["waiting_because"].is_string(), "{job}");

    let begun = tokio::time::Instant::now();
    unregistered.send_register().await;
    let start = unregistered.receive_job().await;
    assert_eq!(start["job_id"], job_id);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "offered after {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn silent_worker_is_reported_lost_with_its_job_and_a_beating_one_is_not() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let mut dashboard = platform.dashboard(&admin).await;
    let mut silent = ScriptedWorker::enrol(&platform, &admin).await;
    let job_id = submit(&admin).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;
    assert_eq!(silent.take_job().await, job_id);
    silent
        .say(
            "checkpoint_saved",
            job_id,
            json!({
                "step": 4, "epoch": 1, "path": format!("checkpoints/job-{job_id}/step-4/"),
                "metrics": {"loss": 0.5}
            }),
        )
        .await;
    let mut beating = ScriptedWorker::enrol(&platform, &admin).await;
    let beating_id = beating.identity.id;
    let heart = tokio::spawn(async move {
        loop {
            beating.heartbeat("idle").await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });

    let failed = dashboard.receive_type("training_failed").await;
    assert_eq!(failed["job_id"], job_id);
    assert_eq!(
        failed["data"]["error"],
        "Worker disconnected during training"
    );
    assert_eq!(failed["data"]["last_checkpoint_step"], 4);
    let job = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(job["failure_kind"], "worker_lost");
    shown_as(&admin, silent.identity.id, "offline").await;
    shown_as(&admin, beating_id, "idle").await;
    heart.abort();
}
