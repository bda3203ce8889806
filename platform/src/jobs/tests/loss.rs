//! What becomes of jobs when workers are silent, gone or back, and when the platform restarts.

use super::*;

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
async fn an_assigned_job_is_sent_again_after_a_restart_of_the_platform() {
    let platform = Platform::start(CALM).await;
    let (worker, job) = {
        let admin = platform.admin().await;
        let mut worker = TestWorker::ready(&admin).await;
        let job = admin.job(json!({})).await;
        worker.receive_job().await;
        (worker, job)
    };
    let folder = platform.stop().await;
    let platform = Platform::start_in(folder, CALM).await;
    let admin = platform.admin().await;
    let mut back = worker.again(&platform).await;
    back.register().await;
    back.socket.receive("ping").await;
    back.pong(None).await;
    let start = back.receive_job().await;
    assert_eq!(
        (start["job_id"].as_i64(), start["attempt"].as_i64()),
        (Some(job), Some(1))
    );
    back.say_acked("job_started", job, json!({})).await;
    admin.wait_for_job(job, "running").await;
}

#[actix_web::test]
async fn a_job_that_was_changed_behind_its_actor_s_back_is_read_anew() {
    use crate::database::schema::jobs;
    use diesel::prelude::*;
    let platform = Platform::start(CALM).await;
    let admin = platform.admin().await;
    let (mut worker, job) = training(&admin, json!({})).await;
    let database = &platform.server.state.database;
    database
        .write::<_, crate::database::DatabaseError, _>(move |connection| {
            diesel::update(jobs::table.find(job))
                .set(jobs::revision.eq(jobs::revision + 1))
                .execute(connection)?;
            Ok(())
        })
        .await
        .unwrap();
    let completed = json!({"type": "job_completed", "job_id": job, "data": {"final_loss": 0.1},
        "message_id": "6b5f2a0e-2a53-4f0e-8f8b-333333333333"});
    worker.socket.send(completed.clone()).await;
    assert_eq!(worker.socket.receive("error").await["code"], "try_again");
    worker.socket.send(completed).await;
    worker.socket.receive("ack").await;
    admin.wait_for_job(job, "completed").await;
    admin.wait_for_worker(worker.id, "idle").await;
}
